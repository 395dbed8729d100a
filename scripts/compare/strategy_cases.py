"""The cases `comm` and `8b` of strategies.py."""

from compare.rounds import Block, Turn
from compare.sides import ROOT, deck, median, numbers, words
from compare.strategy_setup import step_ms

OPERATIONS = ("all_reduce", "reduce_scatter", "all_gather", "broadcast")
ELSEWHERE = "elsewhere: FSDP2 5,620 ms, ours 4,663 ms"  # size 8b on two H200s


# --- (a) collective operations


def bus_factor(operation, ranks):
    """Of the bytes of the whole message per second, as nccl-tests define the bus bandwidth."""
    return {"all_reduce": 2 * (ranks - 1) / ranks, "broadcast": 1}.get(operation, (ranks - 1) / ranks)


def comm(setup, ranks):
    ways = (
        {"ring": ['parallel.transfers="ring"'], "copy engines": ['parallel.transfers="copy_engine"']}
        if setup.is_gpu
        else {"MPI": []}
    )
    torch = setup.group("comm", ranks)

    def ours(overrides):
        rows = setup.ours.run(
            deck("comm"),
            f"bench.mbyte={numbers(setup.mbytes)}",
            f"bench.operation={words(*OPERATIONS)}",
            "bench.warmup=5",
            f"bench.repeats={setup.repeats}",
            *overrides,
            ranks=ranks,
        )
        order = [(operation, mbyte) for operation in OPERATIONS for mbyte in setup.mbytes]
        return {key: row["bus_gbyte_per_s"] for key, row in zip(by_message(rows, setup.mbytes, order), rows)}

    def theirs():
        rows = torch.ask(120, do="comm", operations=OPERATIONS, mbytes=setup.mbytes, warmup=5, repeats=setup.repeats)[0]
        return {
            (row["operation"], row["mbyte"]): 1e-9 * row["bytes"] / row["seconds"] * bus_factor(row["operation"], ranks)
            for row in rows
        }

    def judge(turns, findings):
        peer = turns["PyTorch"]
        for operation in OPERATIONS:
            for mbyte in setup.mbytes:
                key = (operation, mbyte)
                found = {way: median([value[key] for value in turns[way].values]) for way in ways}
                best = max((way for way in ways if turns[way].values), key=found.get, default=next(iter(ways)))
                rest = ", ".join(f"{way} {found[way]:.0f}" for way in ways if way != best)
                findings.row(
                    "comm",
                    f"{operation} {mbyte} MB, {setup.place(ranks)}",
                    "GB/s",
                    found[best],
                    median([value[key] for value in peer.values]),
                    [m[key] / t[key] for m, t in zip(turns[best].values, peer.values)],
                    0.97,
                    1.0,
                    note="; ".join(filter(None, [best, rest, peer.reason])),
                )
                findings.panel(
                    "Bus bandwidth",
                    "GB/s",
                    f"{operation}\n{mbyte} MB x {ranks}",
                    {**found, "PyTorch": median([value[key] for value in peer.values])},
                )

    turns = [Turn(way, lambda overrides=overrides: ours(overrides), True) for way, overrides in ways.items()]
    return Block(f"comm on {setup.place(ranks)}", [*turns, Turn("PyTorch", theirs)], judge, [(torch, None)])


def by_message(rows, mbytes, order):
    """(operation, MB) of each row: its bytes are those of whole parts, a little below the ones that were asked for."""
    nearest = lambda row: min(mbytes, key=lambda mbyte: abs(1e6 * mbyte - row["bytes"]))
    keys = [(row["operation"], nearest(row)) for row in rows]
    assert sorted(keys) == sorted(order), f"bench.comm has rows {keys}, not {order}"
    return keys


# --- (e) the leaderboard's model


def eight_b(setup, ranks):
    """Steps of seconds, one side after the other, since both together might not fit in memory."""
    torch = setup.group("8b fsdp", ranks)
    request = setup.model("8b", 1, "fsdp", "blocks", V=151936, T=32768, state="bf16", recompute=True, attention="CUDNN")

    def theirs():
        found = setup.their_step(torch, reshards=True, seconds=300, warmup=1, repeats=3)
        torch.stop()
        return found

    ours = lambda: setup.ours.run(
        ROOT / "input/leaderboard/step_8b.toml",
        f"train.batch_size={ranks}",
        "bench.warmup=1",
        "bench.warmup_ms=0",
        "bench.repeats=3",
        ranks=ranks,
    )[0]

    def judge(turns, findings):
        mine, peer = turns["ours"].values, turns["FSDP2"]
        findings.row(
            "8b",
            f"8b, 32,768 tokens each, {setup.place(ranks)}",
            "ms",
            median(step_ms(mine)),
            peer.step_ms if peer.values else None,
            note="; ".join(filter(None, [ELSEWHERE, peer.reason])),
        )
        findings.row(
            "8b",
            f"8b, peak, {setup.place(ranks)}",
            "GiB",
            mine[0]["peak_mib"] / 1024 if mine else None,
            peer.values[0]["peak_mib"] / 1024 if peer.values else None,
            note="ours: of the GPU's memory; theirs: tensors",
        )

    return Block(
        f"8b on {setup.place(ranks)}",
        [Turn("FSDP2", theirs), Turn("ours", ours, True)],
        judge,
        [(torch, request)],
        rounds=1,
    )
