#!/usr/bin/env python3
"""The course's problems that are arithmetic: their equations, with numbers put in.

    scripts/equations.py              prints the tables
    scripts/equations.py --publish    writes them, and the picture, into input/experiments/equations

Rates are an H100's peaks and what stored runs measured: the bandwidth of an all-reduce (comm), the rate of a step (step). Where ddp,
sharding, scaling or checkpointing has a row, it stands beside its equation, and so does what --plan says; "no run" where none has.
tests/runs/test_equations.py holds each closed form to a search over what it is the best of.
Exit codes: 0 printed or written, 2 command line.
"""
import math
import sys
from dataclasses import dataclass

import plotting
from experiments import table
from experiments.homes import ROOT, homes
from launching import replace_text

PAGE = "equations"
MIB, GB = 2.0**20, 1e9
NO_RUN, NAN = "no run", float("nan")


def difference(found, equation):
    """[%] by which what was measured, or planned, exceeds what the equation gives."""
    percent = 100 * (found / equation - 1)
    return 0 if abs(percent) < 0.005 else percent


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


def about_both(layer, rates, in_turn=False):
    """most_both, and the same in turn, without the ones: many devices on either axis."""
    return (0.375 if in_turn else 1.5) * layer.B * layer.F / rates.alpha**2


def split_text(layer, rates):
    return f"{table.number(most_data_parallel(layer, rates))} : {table.number(most_tensor_parallel(layer, rates, False))}"


def layer_table(layer, every):
    rows = [("data_parallel_calcs a", "backward", "12 B Dm F / N flop", None),
            ("b", "to send in backward", "12 (N - 1)/N Dm F / W", None),
            ("c", "largest N", "1 + B W / C", lambda r: most_data_parallel(layer, r)),
            ("fsdp_calcs a", "forward; backward", "6 B Dm F / N; 12 B Dm F / N flop", None),
            ("b", "to send in forward; backward", "6; 12 (N - 1)/N Dm F / W", None),
            ("c", "largest N, either pass", "1 + B W / C", lambda r: most_data_parallel(layer, r)),
            ("tp_calcs a", "W1, W2 by columns, W3 by rows: dz", "dy W3ᵀ", None),
            ("a", "dx2; dx1", "dz ∘ f(x1); dz ∘ f'(x1) ∘ x2", None),
            ("a", "dW3; dW2; dW1", "zᵀ dy; xᵀ dx2; xᵀ dx1", None),
            ("a", "dx, an all-reduce", "sum of dx1 W1ᵀ + dx2 W2ᵀ", None),
            ("tp_calcs b", "forward; backward", "6 B Dm F / N; 12 B Dm F / N flop", None),
            ("c", "to send in either pass", "4 (N - 1)/N B Dm / W", None),
            ("d", "largest N, forward", "1 + 3 F W / (2 C)", lambda r: most_tensor_parallel(layer, r, False)),
            ("d", "largest N, backward", "1 + 3 F W / C", lambda r: most_tensor_parallel(layer, r, True)),
            ("fsdp_tp_calcs a", "forward, N = Nf Nt", "6 B Dm F / N flop", None),
            ("b", "to send in forward", "max(6 Dm F (Nf - 1), 4 B Dm (Nt - 1)) / (N W)", None),
            ("c", "largest N, best split", "(1 + B W / C) (1 + 3 F W / (2 C))", lambda r: most_both(layer, r)),
            ("c", "that split, Nf : Nt", "1 + B W / C : 1 + 3 F W / (2 C)", lambda r: split_text(layer, r)),
            ("c", "about", "1.5 B F (W / C)²", lambda r: about_both(layer, r)),
            ("d", "the same, axes in turn", "(a t + a + t)² / (4 a t), a = B W / C, t = 3 F W / (2 C)", lambda r: most_both_in_turn(layer, r)),
            ("d", "about", "0.375 B F (W / C)²", lambda r: about_both(layer, r, True))]
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
        rows.append([N, 1e3 * ring_s, measured_ms.get(N, NO_RUN), 1e3 * alternate_ring_s(N, size, wire), alternate_ring_s(N, size, wire) / ring_s])
    return ["devices", "ring: 2 (N - 1)/N S / W, ms", "measured, ms", "whole tensors: (N - 1) S / W, ms", "ratio: N / 2"], rows


# --- measured rows beside data_parallel_calcs, fsdp_calcs and the accounting of shards

def sent_table(rows, wire):
    """All gradients in one all-reduce (`rows` of ddp) beside data_parallel_calcs b, of s bytes."""
    lines = []
    for row in rows:
        s, equation_ms = row["message_bytes"], 2e3 * ring(row.ranks, row["message_bytes"], wire)
        lines.append([row.ranks, row["model.size"], s / GB, equation_ms, row["communication_ms"], difference(row["communication_ms"], equation_ms)])
    return ["devices", "size", "s, GB", "2 (N - 1)/N s / W, ms", "ddp, all at once, ms", "difference, %"], lines


# By parallel.shard: what of 16 P bytes a device keeps with bf16 weights (weights, gradients in fp32, the rest), and the buffers that cross per
# parameter, of each of which a device sends (N - 1) / N; of an all-reduce's twice that.
SHARDS = {"none": ("16 P", lambda N: 16, 4), "optimizer": ("(6 + 10 / N) P", lambda N: 6 + 10 / N, 6),
          "gradients": ("(2 + 14 / N) P", lambda N: 2 + 14 / N, 6), "parameters": ("16 P / N", lambda N: 16 / N, 8)}


def shard_table(rows):
    """optimizer_state_sharding_accounting and fsdp_accounting a: `rows` of sharding beside what the stage should keep and send."""
    from experiments.sharding import STAGES

    lines = []
    for row in rows:
        text, keeps, buffers = SHARDS[row["parallel.shard"]]
        sent = (2 if row["parallel.shard"] == "none" else 1) * (row.ranks - 1) / row.ranks * row["message_bytes"]
        P = row["parameters"]
        kept, peak = keeps(row.ranks) * P / MIB, row["planned_bytes"] / MIB
        lines.append([row["model.size"], STAGES[row["parallel.shard"]], text, kept, row["initial_mib"], difference(row["initial_mib"], kept), peak,
                      row["before_update_mib"], difference(row["before_update_mib"], peak), f"{buffers} P", buffers * P / 1e6, row["message_bytes"] / 1e6,
                      difference(row["message_bytes"], buffers * P), sent / 1e6])
    return ["size", "shards", "kept", "MiB", "after initialisation, MiB", "difference, %", "peak by --plan, MiB", "measured, MiB", "difference, %",
            "buffers, bytes", "MB", "of sharding, MB", "difference, %", "a device sends, MB"], lines


def scaled_ms(t, u, share):
    """A step on several devices if every transfer hides: t ms on one device, of which the update's u stay on each, the rest by share of sequences."""
    return (t - u) * share + u


def scaling_table(lines, wire, flop):
    """`lines` of scaling: {way: [row]}, each with one device first; gradients cross in fp32."""
    rows = []
    for way, (one, *others) in lines.items():
        for row in others:
            equation_ms = scaled_ms(one["step_mean_ms"], one["optimizer_ms"], row["train.batch_size"] / row.ranks / one["train.batch_size"])
            rows.append([way, row.ranks, row["tokens"], 1 + row["tokens"] * wire / (2 * flop), 2e3 * ring(row.ranks, 4 * row["parameters"], wire),
                         row["exposed_ms"], equation_ms, row["step_mean_ms"], difference(row["step_mean_ms"], equation_ms)])
    return ["scaling", "devices", "tokens B", "largest N: 1 + B W / (2 C)", "to send: 2 (N - 1)/N 4 P / W, ms", "exposed, ms",
            "step: (t - u) b / (N b1) + u, ms", "measured, ms", "difference, %"], rows


# --- after backward, with buckets (2025)

def after_backward_s(s, w, o, n):
    """Of s bytes in n buckets: all but the last transfer hide; each call costs o seconds."""
    return s / (w * n) + n * o


def best_buckets(s, w, o):
    return math.sqrt(s / (w * o))


def bucket_table(s, w, o, measured):
    """`measured`: {MB per bucket: (transfers, exposed ms)} of a run; `s` its bytes."""
    best = best_buckets(s, w, o)
    rows = [["n = sqrt(s / (w o))", 1e-6 * s / best, best, 1e3 * after_backward_s(s, w, o, best), "", "", "", ""]]
    for mbyte, (transfers, exposed_ms) in measured.items():
        n = max(1.0, s / (1e6 * mbyte))
        equation_ms = 1e3 * after_backward_s(s, w, o, transfers)
        rows.append([f"s / {mbyte:.0f} MB", 1e-6 * s / n, n, 1e3 * after_backward_s(s, w, o, n), transfers, equation_ms, exposed_ms,
                     difference(exposed_ms, equation_ms)])
    return ["buckets", "MB each", "n", "s / (w n) + n o, ms", "transfers of ddp", "with n of these, ms", "exposed, ms", "difference, %"], rows


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


def saved(N, r, k, n):
    """Less than without checkpoints."""
    return N * k - one_level(N, r, k, n)


def saved_table(N, r, k, rows):
    """`rows` of checkpointing, {n: (planned, taken) [MiB]} with 0 for none, beside the equation with what a block of that model keeps."""
    planned, taken = rows.get(0, (NAN, NAN))
    return ["blocks per checkpoint n", "saved: N k - N r / n - n k, MiB", "by --plan, MiB", "difference, %", "measured, MiB", "difference, %"], [
        [n, saved(N, r, k, n), planned - less, difference(planned - less, saved(N, r, k, n)), taken - measured, difference(taken - measured, saved(N, r, k, n))]
        for n, (less, measured) in rows.items() if n]


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


def best_y(rates, My):
    """Devices of TP with which the whole batch is least, axes in turn."""
    return F * My / (2 * rates.alpha)


def xxl_table():
    X, Y, Mx, My = 16, 4, 2, 1
    turn, once = tokens_in_turn(TPU, X, Y, Mx, My), tokens_at_once(TPU, X, Mx)
    best = best_y(TPU, My)
    n = 4 * 512
    tokens = lambda part, what, equation, each: [part, what, equation, each, each * X * Y]
    rows = [["a", "parameters P", "2 x 126 C F", f"{XXL:,}", ""],
            ["a", "weights, gradients, moments in fp32, GB", "16 P", 16 * XXL / GB, ""],
            ["a", "H100s of 80 GB", "", devices(16 * XXL, 80 * GB), ""],
            ["a", "kept per token, bf16, MB", "126 x 2 (C + F)", KEPT / 1e6, ""],
            ["a", "H100s with 4 x 512 tokens", "", devices(16 * XXL + KEPT * n, 80 * GB), ""],
            ["b", "bytes per device", "(16 P + A/2) / N + A/2", "", ""],
            *[["b", f"least N below 95 GB, {count} tokens", "", least_devices(count, 95 * GB), ""] for count in (0, 2048, 4096)],
            ["b", "no N is enough from tokens", "A/2 = 95 GB", math.ceil(2 * 95 * GB / KEPT), ""],
            ["c", "FLOP per byte α", "C / W", TPU.alpha, ""],
            tokens("c", f"tokens, X : Y = {X} : {Y}, axes in turn", "α X/Mx / (1 - α Y / (F My)) / (X Y)", turn / (X * Y)),
            tokens("c", f"tokens, X : Y = {X} : {Y}, axes at once", "α X/Mx / (X Y)", once / (X * Y)),
            tokens("c", f"tokens, best X : Y = {X * Y / best:.1f} : {best:.1f}, in turn", "4 α² / (F Mx My)", per_device_at_best(TPU, Mx, My, False)),
            tokens("d", "at once, best X : Y", "α² / (F Mx My)", per_device_at_best(TPU, Mx, My, True)),
            tokens("d", "8 bits on the wire, in turn, best X : Y", "α / 2", per_device_at_best(Rates("", TPU.flop, 2 * TPU.wire), Mx, My, False)),
            ["d", "p pipeline stages, m micro-batches: sent per boundary; idle", "2 n C bytes; (p - 1) / (m + p - 1)", "", ""]]
    return ["part", "of communication_accounting", "equation", "value, or of each device", f"whole batch of {X * Y} devices"], rows


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


def block_of(size, T, compute):
    """(blocks, checkpoint, kept by a block) of a model of memory_2p7b [MiB]; None if it did not fit."""
    from experiments.memory_2p7b import BLOCK, Timeline, steps_of
    from results import Results

    row = next(row for row in steps_of(Results(homes()[size]).rows) if (row["model.context_length"], row["precision.compute"]) == (T, compute))
    if not row.has_run:
        return None
    timeline = Timeline(row)
    blocks = {label.split(".")[1] for label, _ in timeline.forward_activations() if label.startswith("block.")}
    return len(blocks), timeline.residual() / MIB, sum(nbytes for _, nbytes in timeline.kept_by(BLOCK)) / MIB


def measured_tables(rates):
    """Stored rows beside their equations, at rates that other rows measured."""
    from experiments import scaling
    from results import Results

    run = lambda name: Results(homes()[name])
    course = [row for row in run("checkpointing").rows if (row["model.size"], row["model.context_length"]) == ("2.7b", 2048)]
    block = block_of("memory_2p7b", 2048, "fp32")
    N, r, k = block or (NAN, NAN, NAN)
    taken = {int(row["train.checkpoint_activations"]): (row["planned_mib"], row["peak_mib"]) for row in course} if block else {}
    flat = [row for row in run("ddp").rows if row.has_run and row["parallel.gradient_sync"] == "flat"]
    sharding = run("sharding")
    return {"sent": ("data_parallel_calcs b beside ddp, at the measured W", *sent_table(flat, rates.wire)),
            "shards": (f"optimizer_state_sharding_accounting and fsdp_accounting a beside sharding, N = {sharding.ranks[0]}",
                       *shard_table([row for row in sharding.rows if row.has_run and row.ranks == sharding.ranks[0]])),
            "scaling": ("data_parallel_calcs c beside scaling, at the measured rates: t, u of one device with b1 sequences",
                        *scaling_table(scaling.lines(run("scaling")), rates.wire, rates.flop)),
            "saved": (f"gradient_checkpointing b beside checkpointing: 2.7b, 4 x 2048, fp32, N = {N}, with the k = {k:.0f} and r = {r:.0f} MiB of memory_2p7b",
                      *saved_table(N, r, k, taken))}


def tables():
    """[(title, columns, rows)]"""
    from results import Results

    every, measured_ms, overhead = stored_rates()
    ddp = Results(homes()["ddp"])
    buckets = {row["parallel.bucket_mbyte"]: (row["transfers"], row["exposed_ms"]) for row in ddp.rows
               if row.name.startswith("bucket") and row.ranks == ddp.rows[0].ranks}
    wire, s = every[1].wire, ddp.rows[0]["message_bytes"]
    beside = measured_tables(every[1])
    return [("One layer, B = 65,536, Dm = 4096, F = 10,240", *layer_table(Layer(65536, 4096, 10240), every)),
            beside["sent"], beside["shards"], beside["scaling"],
            ("An all-reduce of S = 1 GB; W is that of the row measured", *ring_table(wire, measured_ms)),
            (f"ddp_bucketed_benchmarking b: s = {s / GB:.1f} GB of xl, w = {1e-9 * wire:.0f} GB/s, o = {1e6 * overhead:.0f} us, as comm measured them",
             *bucket_table(s, wire, overhead, buckets)),
            ("gradient_checkpointing a, with the handout's k = 3,651 and r = 80 MiB", *checkpoint_table(32, 80, 3651)),
            beside["saved"],
            ("communication_accounting", *xxl_table())]


def page_part():
    return "\n".join(f"**{title}**\n\n{table.text(columns, rows, True)}" for title, columns, rows in tables())


def differences():
    """{what: [% by which measured rows exceed their equation]}, of measured_tables."""
    tables = {name: rows for name, (_, _, rows) in measured_tables(stored_rates()[0][1]).items()}
    of = lambda name, place, N=None: [row[place] for row in tables[name] if N is None or N in (row[0], row[1])]
    return {"all-reduce of gradients, 2 GPUs": of("sent", 5, 2), "all-reduce of gradients, 4 GPUs": of("sent", 5, 4),
            "state on a device": of("shards", 5), "peak, beside --plan": of("shards", 8), "buffers that cross": of("shards", 12),
            "saved by checkpoints": of("saved", 5), "a step on 2 GPUs": of("scaling", 8, 2), "a step on 4 GPUs": of("scaling", 8, 4)}


def draw(groups, title, centre, path, is_log=False):
    """A line of dots for each group, beside what they would be without a difference."""
    import matplotlib.pyplot as plt
    from experiments.parts import log_axis

    with plt.rc_context(plotting.STYLE):
        figure, axes = plt.subplots(figsize=(9, 0.8 + 0.36 * len(groups)), constrained_layout=True)
        for place, values in enumerate(groups.values()):
            axes.plot(values, [place] * len(values), "o", color=plotting.BLUE, alpha=0.7, markersize=6)
        axes.axvline(centre, color=plotting.FAINT, linestyle=":")
        axes.set_yticks(range(len(groups)), groups)
        axes.set_ylim(len(groups) - 0.5, -0.5)
        axes.set_title(title)
        if is_log:
            axes.set_xscale("log")
            log_axis(axes.xaxis)
        plotting.save(figure, path)


def page_of(root):
    return root / "input/experiments" / PAGE / "README.md"


def fault(text):
    """What is wrong with the page's text beside what the stored results give, or ""."""
    import published

    parts = [mark[2] for mark in published.MARKS.finditer(text) if mark[1] == PAGE]
    if len(parts) != 1:
        return f"README.md has no generated part of the name {PAGE}, or several"
    return published.difference(parts[0], page_part(), "scripts/equations.py", "scripts/equations.py --publish")


def publish():
    import published

    page = page_of(ROOT)
    replace_text(page, published.with_part(page.read_text(), PAGE, page_part()))
    draw(differences(), "Measured above its equation, %", 0, page.with_name(f"{PAGE}.png"))


def main():
    if sys.argv[1:] not in ([], ["--publish"]):
        print(__doc__)
        return 0 if sys.argv[1:] in (["-h"], ["--help"]) else 2
    plotting.require_modules("equations")
    if sys.argv[1:]:
        publish()
    else:
        for title, columns, rows in tables():
            print(f"{title}\n{table.text(columns, rows)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
