#!/usr/bin/env python3
"""The course's problems that are arithmetic: their equations, with numbers put in.

    scripts/equations.py              prints the tables
    scripts/equations.py --publish    writes them into input/experiments/equations/README.md

Rates are an H100's peaks and what stored runs measured: the bandwidth of an all-reduce (comm), the rate of a step (step). Measured rows
stand beside where there are some. tests/runs/test_equations.py holds each closed form to a search over what it is the best of.
Exit codes: 0 printed or written, 2 command line.
"""
import math
import sys
from dataclasses import dataclass

import plotting
from experiments import table
from experiments.homes import ROOT, homes

PAGE = "equations"
MIB, GB = 2.0**20, 1e9


@dataclass(frozen=True)
class Rates:
    name: str
    flop: float  # [FLOP/s] C, of one device
    wire: float  # [bytes/s] W, that each device sends

    @property
    def alpha(self):
        """FLOP that a device computes while it sends a byte."""
        return self.flop / self.wire


# --- several devices share one SwiGLU layer: x [B, Dm], W1, W2 [Dm, F], W3 [F, Dm], 2 bytes per number (2026)

@dataclass(frozen=True)
class Layer:
    B: int   # rows: tokens of the batch
    Dm: int
    F: int

    def forward_flop(self, N):
        """Three products, of one device of N."""
        return 6 * self.B * self.Dm * self.F / N

    def backward_flop(self, N):
        return 2 * self.forward_flop(N)

    @property
    def weight_bytes(self):
        return 2 * 3 * self.Dm * self.F


def ring(N, size, wire):
    """Seconds of an all-gather or a reduce-scatter of `size` bytes; an all-reduce is both."""
    return (N - 1) / N * size / wire


def data_parallel_s(layer, N, wire):
    """Of backward: an all-reduce of the gradients."""
    return 2 * ring(N, layer.weight_bytes, wire)


def fsdp_s(layer, N, wire, is_backward):
    """Forward gathers the weights; backward gathers them again and scatters the gradients."""
    return (2 if is_backward else 1) * ring(N, layer.weight_bytes, wire)


def tensor_parallel_s(layer, N, wire):
    """Either pass: an all-reduce of B x Dm numbers."""
    return 2 * ring(N, 2 * layer.B * layer.Dm, wire)


def most_data_parallel(layer, rates):
    """The largest N whose transfers hide behind the products; of FSDP, in either pass, too."""
    return 1 + layer.B / rates.alpha


def most_tensor_parallel(layer, rates, is_backward):
    return 1 + 3 * layer.F / rates.alpha / (1 if is_backward else 2)


def most_both(layer, rates):
    """N_f x N_t at the best split, if both axes send at once."""
    return most_data_parallel(layer, rates) * most_tensor_parallel(layer, rates, False)


def most_both_in_turn(layer, rates):
    """The same if one axis waits for the other: (N_f - 1) / a + (N_t - 1) / t = 1, largest where N_f / a = N_t / t."""
    a, t = layer.B / rates.alpha, 3 * layer.F / rates.alpha / 2
    return (a * t + a + t) ** 2 / (4 * a * t)


def layer_table(layer, every):
    rows = [("data_parallel_calcs a", "backward", "12 B Dm F / N flop", None),
            ("b", "to send in backward", "12 (N - 1)/N Dm F / W", None),
            ("c", "largest N", "1 + B W / C", lambda r: most_data_parallel(layer, r)),
            ("fsdp_calcs a", "forward; backward", "6 B Dm F / N; 12 B Dm F / N flop", None),
            ("b", "to send in forward; backward", "6; 12 (N - 1)/N Dm F / W", None),
            ("c", "largest N, either pass", "1 + B W / C", lambda r: most_data_parallel(layer, r)),
            ("tp_calcs b", "forward; backward", "6 B Dm F / N; 12 B Dm F / N flop", None),
            ("c", "to send in either pass", "4 (N - 1)/N B Dm / W", None),
            ("d", "largest N, forward", "1 + 3 F W / (2 C)", lambda r: most_tensor_parallel(layer, r, False)),
            ("d", "largest N, backward", "1 + 3 F W / C", lambda r: most_tensor_parallel(layer, r, True)),
            ("fsdp_tp_calcs a", "forward, N = Nf Nt", "6 B Dm F / N flop", None),
            ("b", "to send in forward", "max(6 Dm F (Nf - 1), 4 B Dm (Nt - 1)) / (N W)", None),
            ("c", "largest N, best split", "(1 + B W / C) (1 + 3 F W / (2 C))", lambda r: most_both(layer, r)),
            ("d", "the same, axes in turn", "(a t + a + t)² / (4 a t), a = B W / C, t = 3 F W / (2 C)", lambda r: most_both_in_turn(layer, r))]
    columns = ["problem", "of one device", "equation", *(rates.name for rates in every)]
    return columns, [[problem, what, equation, *(function(rates) if function else "" for rates in every)] for problem, what, equation, function in rows]


# --- all-reduce in which every device passes on the whole tensor (2026)

def alternate_ring_s(N, size, wire):
    return (N - 1) * size / wire


def ring_table(wire, measured_ms):
    size = 1e9
    rows = []
    for N in (2, 4, 6, 8):
        ring_s = 2 * ring(N, size, wire)
        rows.append([N, 1e3 * ring_s, measured_ms.get(N, math.nan), 1e3 * alternate_ring_s(N, size, wire), alternate_ring_s(N, size, wire) / ring_s])
    return ["devices", "ring: 2 (N - 1)/N S / W, ms", "measured, ms", "whole tensors: (N - 1) S / W, ms", "ratio: N / 2"], rows


# --- after backward, with buckets (2025)

def after_backward_s(s, w, o, n):
    """Of s bytes in n buckets: all but the last transfer hide; each call costs o seconds."""
    return s / (w * n) + n * o


def best_buckets(s, w, o):
    return math.sqrt(s / (w * o))


def bucket_table(s, w, o, measured):
    """`measured`: {MB per bucket: (transfers, exposed ms)} of a run; `s` its bytes."""
    best = best_buckets(s, w, o)
    rows = [["n = sqrt(s / (w o))", 1e-6 * s / best, best, 1e3 * after_backward_s(s, w, o, best), "", ""]]
    for mbyte, (transfers, exposed_ms) in measured.items():
        n = max(1.0, s / (1e6 * mbyte))
        rows.append([f"s / {mbyte:.0f} MB", 1e-6 * s / n, n, 1e3 * after_backward_s(s, w, o, n), transfers, exposed_ms])
    return ["buckets", "MB each", "n", "s / (w n) + n o, ms", "transfers of ddp", "exposed, ms"], rows


# --- checkpoints (2026): N blocks, r bytes per checkpoint, k kept by a block while its gradients are computed

def one_level(N, r, k, n):
    """Peak with a checkpoint per n blocks."""
    return math.ceil(N / n) * r + n * k


def best_unit(N, r, k):
    return math.sqrt(N * r / k)


def halves(N, r, k):
    return k + r * math.log2(N)


def levels(N, r, k, m):
    return m * r * N ** (1 / m) + k


def checkpoint_table(N, r, k):
    """With the handout's k and r of a block of 4 x 2048 in fp32 [MiB]."""
    rows = [["no checkpoint", "N k", "none", N * k]]
    rows += [[f"one level, n = {n}", "N r / n + n k", "a forward pass", one_level(N, r, k, n)] for n in (1, 2, 3, N)]
    rows += [["two levels", "2 r N^(1/2) + k", "two", levels(N, r, k, 2)],
             ["halves, recursively", "k + r log2 N", "log2 N, that is O(N log N) blocks", halves(N, r, k)],
             ["a chain: f_j = block_j(checkpoint(f_(j - 1)))", "k + r", "about N² / 2 blocks", k + r]]
    return [f"strategy, N = {N}", "peak", "forward again", "MiB"], rows


# --- XXL: 126 blocks of two Linears C - F - C (2025)

C, F, BLOCKS = 16384, 53248, 126
XXL = 2 * BLOCKS * C * F
KEPT = BLOCKS * 2 * (C + F)  # bytes per token: the inputs of both Linears, in bf16
TPU = Rates("TPU v5p", 4.6e14, 2 * 9e10)


def devices(needed, each):
    return math.ceil(needed / each)


def sharded(n, N):
    """Bytes per device of N: state, gradients and half of the activations sharded, the other half not."""
    return (16 * XXL + KEPT * n / 2) / N + KEPT * n / 2


def least_devices(n, limit):
    """The least N with sharded(n, N) < limit; None if no N is enough."""
    room = limit - KEPT * n / 2
    return math.floor((16 * XXL + KEPT * n / 2) / room) + 1 if room > 0 else None


def tokens_in_turn(rates, X, Y, Mx, My):
    """Least tokens of the whole batch that are bound by arithmetic, forward, FSDP over X and TP over Y, transfers one after the other."""
    return rates.alpha * X / Mx / (1 - rates.alpha * Y / (F * My))


def tokens_at_once(rates, X, Mx):
    return rates.alpha * X / Mx


def per_device_at_best(rates, Mx, My, is_at_once):
    return (1 if is_at_once else 4) * rates.alpha**2 / (F * Mx * My)


def xxl_table():
    X, Y, Mx, My = 16, 4, 2, 1
    turn, once = tokens_in_turn(TPU, X, Y, Mx, My), tokens_at_once(TPU, X, Mx)
    n = 4 * 512
    rows = [["a", "parameters P", "2 x 126 C F", f"{XXL:,}"],
            ["a", "weights, gradients, moments in fp32, GB", "16 P", 16 * XXL / GB],
            ["a", "H100s of 80 GB", "", devices(16 * XXL, 80 * GB)],
            ["a", "kept per token, bf16, MB", "126 x 2 (C + F)", KEPT / 1e6],
            ["a", "H100s with 4 x 512 tokens", "", devices(16 * XXL + KEPT * n, 80 * GB)],
            ["b", "bytes per device", "(16 P + A/2) / N + A/2", ""],
            *[["b", f"least N below 95 GB, {tokens} tokens", "", least_devices(tokens, 95 * GB)] for tokens in (0, 2048, 4096)],
            ["b", "no N is enough from tokens", "A/2 = 95 GB", math.ceil(2 * 95 * GB / KEPT)],
            ["c", "FLOP per byte α", "C / W", TPU.alpha],
            ["c", "tokens per device of 64, axes in turn", "α X/Mx / (1 - α Y / (F My)) / (X Y)", turn / (X * Y)],
            ["c", "tokens per device of 64, axes at once", "α X/Mx / (X Y)", once / (X * Y)],
            ["c", "the same with the best X : Y, in turn", "4 α² / (F Mx My)", per_device_at_best(TPU, Mx, My, False)],
            ["d", "at once, best X : Y", "α² / (F Mx My)", per_device_at_best(TPU, Mx, My, True)],
            ["d", "8 bits on the wire, in turn, best X : Y", "α / 2", per_device_at_best(Rates("", TPU.flop, 2 * TPU.wire), Mx, My, False)]]
    return ["part", "of communication_accounting", "equation", "value"], rows


# --- the page

def stored_rates():
    """([Rates], {N: ms of an all-reduce of 1 GB}, seconds of overhead): peaks of an H100, and what comm and step measured."""
    from results import Results

    comm, step = (Results(homes()[name]) for name in ("comm", "step"))
    largest = max(row["bench.mbyte"] for row in comm.rows)
    big = {row.ranks: row for row in comm.rows if row["bench.mbyte"] == largest and row.outcome == "ok"}
    small = min((row for row in comm.rows if row.outcome == "ok"), key=lambda row: row["bench.mbyte"])
    wire = 1e9 * max(row["bus_gbyte_per_s"] for row in big.values())
    flop = 1e9 * max(row["gflop_per_s"] for row in step.rows if row["precision.compute"] == "bf16" and math.isfinite(row["gflop_per_s"]))
    overhead = 1e-3 * small["mean_ms"] - 1e6 * small["bench.mbyte"] / wire
    return [Rates("H100: 989 TFLOP/s, 450 GB/s", 989e12, 450e9),
            Rates(f"measured: {1e-12 * flop:.0f} TFLOP/s, {1e-9 * wire:.0f} GB/s", flop, wire)], {N: row["mean_ms"] for N, row in big.items()}, overhead


def tables():
    """[(title, columns, rows)]"""
    from results import Results

    every, measured_ms, overhead = stored_rates()
    ddp = Results(homes()["ddp"])
    buckets = {row["parallel.bucket_mbyte"]: (row["transfers"], row["exposed_ms"]) for row in ddp.rows
               if row.name.startswith("bucket") and row.ranks == ddp.rows[0].ranks}
    wire = every[1].wire
    return [("One layer, B = 65,536, Dm = 4096, F = 10,240", *layer_table(Layer(65536, 4096, 10240), every)),
            ("An all-reduce of S = 1 GB at the measured W", *ring_table(wire, measured_ms)),
            (f"ddp_bucketed_benchmarking b: s = 8.0 GB of xl, w = {1e-9 * wire:.0f} GB/s, o = {1e6 * overhead:.0f} us, as comm measured them",
             *bucket_table(ddp.rows[0]["message_bytes"], wire, overhead, buckets)),
            ("gradient_checkpointing a, with the handout's k = 3,651 and r = 80 MiB", *checkpoint_table(32, 80, 3651)),
            ("communication_accounting", *xxl_table())]


def page_part():
    return "\n".join(f"**{title}**\n\n{table.text(columns, rows, True)}" for title, columns, rows in tables())


def page_of(root):
    return root / "input/experiments" / PAGE / "README.md"


def fault(text):
    """What is wrong with the page's text beside what the stored results give, or ""."""
    import published

    parts = [mark[2] for mark in published.MARKS.finditer(text) if mark[1] == PAGE]
    if len(parts) != 1:
        return f"README.md has no generated part of the name {PAGE}, or several"
    return published.difference(parts[0], page_part(), "scripts/equations.py", "scripts/equations.py --publish")


def main():
    if sys.argv[1:] not in ([], ["--publish"]):
        print(__doc__)
        return 0 if sys.argv[1:] in (["-h"], ["--help"]) else 2
    plotting.require_modules("equations")
    import published

    if not sys.argv[1:]:
        for title, columns, rows in tables():
            print(f"{title}\n{table.text(columns, rows)}")
        return 0
    page = page_of(ROOT)
    page.write_text(published.with_part(page.read_text(), PAGE, page_part()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
