"""The cases of scripts/compare_torch --only strategies: what each side runs, and the rows that come of it.

Our side is one launch of the program per turn; PyTorch's are groups of processes that keep their compiled models from
turn to turn. Ratios are PyTorch's time or memory over ours, and our bandwidth or share of linear over PyTorch's.
"""
import math
from dataclasses import dataclass
from pathlib import Path

from compare import steps
from compare.rounds import Block, Turn, fastest, reasons
from compare.sides import ROOT, deck, median, numbers, words
from compare.torch_ranks import TorchRanks, of_slowest

ORDERS = ("per_parameter", "flat", "overlap", "bucket")
OPERATIONS = ("all_reduce", "reduce_scatter", "all_gather", "broadcast")
SIZES = {**steps.SIZES, "8b": (4096, 11008, 34, 32), "deck": (128, 352, 4, 4)}  # C, F, L, H
ZERO_SIZE, SHARDED_SIZE = "xl", "2.7b"
ANCHORS = {"2.7b": "elsewhere: FSDP2 221 ms, 33.7 GiB, ours replicated 171 ms", "8b": "elsewhere: FSDP2 5,620 ms, ours 4,663 ms"}


@dataclass
class Setup:
    """What a call measures with."""

    ours: object
    folder: Path        # of PyTorch's logs
    is_gpu: bool        # else two host ranks, the quickstart's model for every size
    mbytes: list
    compiled: list      # how PyTorch's models are compiled: "blocks", "whole"
    warmup: int = 5     # steps before the measured ones
    repeats: int = 20

    def place(self, ranks):
        return f"{ranks} {'GPU' if self.is_gpu else 'rank'}{'' if ranks == 1 else 's'}"

    def group(self, name, ranks):
        return TorchRanks(f"{name} {ranks}", ranks, self.folder, self.is_gpu)

    def times(self):
        return {"warmup": self.warmup, "repeats": self.repeats}

    def our_step(self, size, sequences, ranks, *overrides):
        """The row of bench.step, `sequences` per rank."""
        name, chosen = ("step_gpu.toml", [f"bench.sizes={words(size)}", 'bench.variants=["graph"]']) if self.is_gpu else ("step.toml", [])
        return self.ours.run(deck(name), *chosen, f"train.batch_size={sequences * ranks}", f"bench.warmup={self.warmup}",
                             f"bench.repeats={self.repeats}", *overrides, *self.ours.step_overrides, ranks=ranks)[0]

    def our_strategies(self, size, sequences, ranks, strategies):
        """{strategy: row} of bench.strategies."""
        name, chosen = ("strategies_gpu.toml", [f"bench.sizes={words(size)}"]) if self.is_gpu else ("strategies.toml", [])
        rows = self.ours.run(deck(name), *chosen, f"train.batch_size={sequences * ranks}", f"bench.strategies={words(*strategies)}",
                             f"bench.warmup={self.warmup}", f"bench.repeats={self.repeats}", *self.ours.step_overrides, ranks=ranks)
        return {row["strategy"]: row for row in rows}

    def model(self, size, sequences, sharing, compiled, V=10000, T=512, **other):
        """The request that builds and compiles PyTorch's model."""
        C, F, L, H = SIZES[size]
        if not self.is_gpu:
            V, T = 257, 128
        return {"do": "model", "V": V, "T": T, "B": sequences, "C": C, "F": F, "L": L, "H": H, "sharing": sharing,
                "compiled": compiled, "state": "fp32", "recompute": False, "attention": None, **other}

    def their_step(self, torch, optimizer="adamw", reshards=True, seconds=120, **times):
        return of_slowest(torch.ask(seconds, do="step", optimizer=optimizer, reshards=reshards, **{**self.times(), **times}))


# --- (a) collective operations

def bus_factor(operation, ranks):
    """Of the bytes of the whole message per second, as nccl-tests define the bus bandwidth."""
    return {"all_reduce": 2 * (ranks - 1) / ranks, "broadcast": 1}.get(operation, (ranks - 1) / ranks)


def comm(setup, ranks):
    ways = {"ring": ['parallel.all_reduce="ring"'], "copy engines": ['parallel.all_reduce="copy_engine"']} if setup.is_gpu else {"MPI": []}
    torch = setup.group("comm", ranks)

    def ours(overrides):
        rows = setup.ours.run(deck("comm.toml"), f"bench.mbytes={numbers(setup.mbytes)}", f"bench.operations={words(*OPERATIONS)}",
                              "bench.warmup=5", f"bench.repeats={setup.repeats}", *overrides, ranks=ranks)
        order = [(operation, mbyte) for operation in OPERATIONS for mbyte in setup.mbytes]
        return {key: row["bus_gbyte_per_s"] for key, row in zip(by_message(rows, setup.mbytes, order), rows)}

    def theirs():
        rows = torch.ask(120, do="comm", operations=OPERATIONS, mbytes=setup.mbytes, warmup=5, repeats=setup.repeats)[0]
        return {(row["operation"], row["mbyte"]): 1e-9 * row["bytes"] / row["seconds"] * bus_factor(row["operation"], ranks)
                for row in rows}

    def judge(turns, findings):
        peer = turns["PyTorch"]
        for operation in OPERATIONS:
            for mbyte in setup.mbytes:
                key = (operation, mbyte)
                found = {way: median([value[key] for value in turns[way].values]) for way in ways}
                best = max((way for way in ways if turns[way].values), key=found.get, default=next(iter(ways)))
                rest = ", ".join(f"{way} {found[way]:.0f}" for way in ways if way != best)
                findings.row("comm", f"{operation} {mbyte} MB, {setup.place(ranks)}", "GB/s", found[best],
                             median([value[key] for value in peer.values]),
                             [m[key] / t[key] for m, t in zip(turns[best].values, peer.values)], 0.97, 1.0,
                             note="; ".join(filter(None, [best, rest, peer.reason])))
                findings.panel("Bus bandwidth", "GB/s", f"{operation}\n{mbyte} MB x {ranks}",
                               {**found, "PyTorch": median([value[key] for value in peer.values])})

    turns = [Turn(way, lambda overrides=overrides: ours(overrides), True) for way, overrides in ways.items()]
    return Block(f"comm on {setup.place(ranks)}", [*turns, Turn("PyTorch", theirs)], judge, [(torch, None)])


def by_message(rows, mbytes, order):
    """(operation, MB) of each row: its bytes are those of whole parts, a little below the ones that were asked for."""
    nearest = lambda row: min(mbytes, key=lambda mbyte: abs(1e6 * mbyte - row["bytes"]))
    keys = [(row["operation"], nearest(row)) for row in rows]
    assert sorted(keys) == sorted(order), f"bench.comm has rows {keys}, not {order}"
    return keys


# --- (b), (c) orders of summing, and ZeRO-1

def steps_on_ranks(setup, size, ranks, has_orders, has_zero):
    """Steps of 4 sequences per rank on one and on several: the four orders beside DDP, ZeRO-1 beside its peers."""
    sequences = 4
    strategies = ORDERS if has_orders else ("bucket",)
    turns = [Turn("ours alone", lambda: setup.our_step(size, sequences, 1), True)] if has_orders else []
    turns.append(Turn("ours", lambda: setup.our_strategies(size, sequences, ranks, [*strategies, *(["optimizer"] if has_zero else [])]), True))
    models = []

    def peer(name, sharing, compiled, number, **step):
        torch = next((torch for torch, request in models if request["sharing"] == sharing and request["compiled"] == compiled), None)
        if torch is None:
            torch = setup.group(f"{size} {sharing} {compiled}", number)
            models.append((torch, setup.model(size, sequences, sharing, compiled)))
        turns.append(Turn(f"{name}, {compiled}", lambda: setup.their_step(torch, **step), rivals=name))

    for compiled in setup.compiled:
        if has_orders:
            peer("PyTorch alone", "alone", compiled, 1)
        peer("DDP", "ddp", compiled, ranks)
        if has_zero:
            peer("SHARD_GRAD_OP", "fsdp", compiled, ranks, reshards=False)
    for compiled in setup.compiled if has_zero else []:
        peer("ZeroRedundancyOptimizer", "ddp", compiled, ranks, optimizer="zero")

    def judge(turns, findings):
        rows = {strategy: [value[strategy] for value in turns["ours"].values] for strategy in [*strategies, "optimizer"] if
                strategy != "optimizer" or has_zero}
        for strategy, found in rows.items():
            if bad := [row["outcome"] for row in found if row["outcome"] != "ok"]:
                findings.fault(f"{size}, {strategy} on {setup.place(ranks)}", bad[0])
        named = lambda what, number=ranks: f"{size}, {what}, {setup.place(number)}"
        if has_orders:
            judge_orders(named, turns, rows, findings)
        if has_zero:
            judge_zero(named, turns, rows, findings)

    what = " and ".join(["orders"] * has_orders + ["ZeRO-1"] * has_zero)
    return Block(f"{what} of {size} on {setup.place(ranks)}", turns, judge, models)


def step_ms(rows):
    return [row["step_ms"] for row in rows]


def judge_orders(named, turns, rows, findings):
    alone, one, ddp = step_ms(turns["ours alone"].values), fastest(turns, "PyTorch alone"), fastest(turns, "DDP")
    linear = {order: [100 * a / m for a, m in zip(alone, step_ms(rows[order]))] for order in ORDERS}
    theirs = [100 * a["step"] / m["step"] for a, m in zip(one.values, ddp.values)] if one and ddp else []
    missing = reasons(turns, "PyTorch alone", "DDP")
    best = max((order for order in ORDERS if linear[order]), key=lambda order: median(linear[order]), default="bucket")
    for order in ORDERS:
        goals = {"asked": 95, "aim": 98, "judged": "ours"} if order == best else {}
        note = f"{median(alone):.1f} -> {median(step_ms(rows[order])):.1f} ms"
        if theirs and order == best:
            note += f"; {ddp.name} {one.step_ms:.1f} -> {ddp.step_ms:.1f} ms"
        findings.row("orders", named(order), "% linear", median(linear[order]), median(theirs),
                     [m / t for m, t in zip(linear[order], theirs)], note="; ".join(filter(None, [note, missing])), **goals)
    findings.row("orders", named(f"{best}, time"), "ms", median(step_ms(rows[best])), ddp and ddp.step_ms,
                 [t["step"] / m for t, m in zip(ddp.values, step_ms(rows[best]))] if ddp else None, note=ddp.name if ddp else missing)
    findings.row("orders", named("time", 1), "ms", median(alone), one and one.step_ms,
                 [t["step"] / m for t, m in zip(one.values, alone)] if one else None, note=one.name if one else missing)
    findings.panel("Of linear", "%", named("step"), {**{order: median(linear[order]) for order in ORDERS},
                                                                      "PyTorch DDP": median(theirs)})


def judge_zero(named, turns, rows, findings):
    mine, bucket = step_ms(rows["optimizer"]), step_ms(rows["bucket"])
    peers = ("ZeroRedundancyOptimizer", "SHARD_GRAD_OP")
    peer, zero, fsdp, ddp = (fastest(turns, *names) for names in (peers, peers[:1], peers[1:], ["DDP"]))
    missing = reasons(turns, *peers)
    others = "; ".join(f"{turn.name} {turn.step_ms:.1f} ms" for turn in turns.values() if turn.name.startswith(peers) and turn.values)
    findings.row("zero1", named("ZeRO-1"), "ms", median(mine), peer and peer.step_ms,
                 [t["step"] / m for t, m in zip(peer.values, mine)] if peer else None, note="; ".join(filter(None, [others, missing])))
    findings.row("zero1", named("ZeRO-1 / bucket"), "of time", median([z / b for z, b in zip(mine, bucket)]),
                 peer.step_ms / ddp.step_ms if peer and ddp else None,
                 note=f"{peer.name} / {ddp.name}" if peer and ddp else missing)
    optimizer = lambda strategy: median([row["initial_optimizer_bytes"] / 2**20 for row in rows[strategy]])
    memory = lambda turn, key: None if turn is None or turn.values[-1][key] is None else turn.values[-1][key]
    findings.row("zero1", named("optimizer memory"), "MiB", optimizer("optimizer"), memory(peer, "optimizer_mib"),
                 note=f"ours with everything on each rank {optimizer('bucket'):,.0f}, with the low halves of the master weights; theirs are the moments")
    findings.panel("ZeRO-1", "ms", named("step"),
                   {"bucket": median(bucket), "ZeRO-1": median(mine), "PyTorch DDP": ddp and ddp.step_ms,
                    "PyTorch ZeRO": zero and zero.step_ms, "PyTorch FSDP2": fsdp and fsdp.step_ms})


# --- (d) parameters sharded

OURS_SHARDED = {"ours, resharded": ['parallel.shard="parameters"'],
                "ours, kept": ['parallel.shard="parameters"', "parallel.reshard_after_forward=false"]}


def parameters(setup, ranks):
    size, sequences = (SHARDED_SIZE, 8) if setup.is_gpu else ("deck", 4)
    turns = [Turn(name, lambda overrides=overrides: setup.our_step(size, sequences, ranks, *overrides), True)
             for name, overrides in {"ours, replicated": [], **OURS_SHARDED}.items()]
    models = []
    for compiled in setup.compiled:
        torch = setup.group(f"{size} fsdp parameters {compiled}", ranks)
        models.append((torch, setup.model(size, sequences, "fsdp", compiled)))
        turns += [Turn(f"FSDP2, {word}, {compiled}", lambda torch=torch, reshards=reshards: setup.their_step(torch, reshards=reshards),
                       rivals="FSDP2") for word, reshards in (("resharded", True), ("kept", False))]
    tokens = ranks * sequences * (512 if setup.is_gpu else 128)
    return Block(f"parameters of {size} on {setup.place(ranks)}", turns,
                 lambda turns, findings: judge_parameters(f"{size}, {{}}, {setup.place(ranks)}", tokens, turns, findings,
                                                          ANCHORS.get(size, "")), models)


def judge_parameters(of, tokens, turns, findings, anchor):
    peer, missing = fastest(turns, "FSDP2"), reasons(turns, "FSDP2")
    time = lambda name: median(step_ms(turns[name].values))
    measured = [name for name in OURS_SHARDED if turns[name].values]
    best = min(measured, key=time, default="ours, resharded")
    against = lambda name, turn: [t["step"] / m for t, m in zip(turn.values, step_ms(turns[name].values))] if turn else []
    note = f"{best}; {peer.name if peer else 'no peer'}"
    findings.row("parameters", of.format("sharded"), "ms", time(best), peer and peer.step_ms, against(best, peer), 1.25, 1.4,
                 note="; ".join(filter(None, [note, anchor, missing])))
    findings.row("parameters", of.format("sharded"), "tokens/s", 1e3 * tokens / time(best), peer and 1e3 * tokens / peer.step_ms,
                 against(best, peer), note=note)
    gib = lambda values: max((value["peak_mib"] or math.nan for value in values), default=math.nan) / 1024
    memory = lambda name, turn: f"{name} {gib(turn.values):.1f} GiB"
    findings.row("parameters", of.format("sharded, peak"), "GiB", gib(turns[best].values), peer and gib(peer.values),
                 note="ours: of the GPU's memory; theirs: tensors")
    for word in ("resharded", "kept"):
        turn = fastest(turns, f"FSDP2, {word}")
        findings.row("parameters", of.format(word), "ms", time(f"ours, {word}"), turn and turn.step_ms, against(f"ours, {word}", turn),
                     note=memory("ours", turns[f"ours, {word}"]) + (f"; {memory(turn.name, turn)}" if turn else ""))
    findings.row("parameters", of.format("replicated"), "ms", time("ours, replicated"), peer and peer.step_ms,
                 against("ours, replicated", peer), note=memory("ours with everything on each rank,", turns["ours, replicated"]))
    findings.panel("Parameters sharded", "ms", of.format("step"),
                   {**{name.removeprefix("ours, "): time(name) for name in ("ours, replicated", *OURS_SHARDED)},
                    "PyTorch FSDP2": peer and peer.step_ms})


# --- (e) the leaderboard's model

def eight_b(setup, ranks):
    """Steps of seconds, one side after the other, since both together might not fit in memory."""
    torch = setup.group("8b fsdp", ranks)
    request = setup.model("8b", 1, "fsdp", "blocks", V=151936, T=32768, state="bf16", recompute=True, attention="CUDNN")

    def theirs():
        found = setup.their_step(torch, reshards=True, seconds=300, warmup=1, repeats=3)
        torch.stop()
        return found

    ours = lambda: setup.ours.run(ROOT / "input/leaderboard/step_8b.toml", f"train.batch_size={ranks}", "bench.warmup=1", "bench.repeats=3",
                                  ranks=ranks)[0]

    def judge(turns, findings):
        mine, peer = turns["ours"].values, turns["FSDP2"]
        findings.row("8b", f"8b, 32,768 tokens each, {setup.place(ranks)}", "ms", median(step_ms(mine)),
                     peer.step_ms if peer.values else None, note="; ".join(filter(None, [ANCHORS["8b"], peer.reason])))
        findings.row("8b", f"8b, peak, {setup.place(ranks)}", "GiB", mine[0]["peak_mib"] / 1024 if mine else None,
                     peer.values[0]["peak_mib"] / 1024 if peer.values else None, note="ours: of the GPU's memory; theirs: tensors")

    return Block(f"8b on {setup.place(ranks)}", [Turn("FSDP2", theirs), Turn("ours", ours, True)], judge, [(torch, request)],
                 rounds=1, is_prepared_late=True)
