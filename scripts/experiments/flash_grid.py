"""Latency of attention over the course's 80 shapes: stored scores, the fused kernel, and PyTorch's."""
import matplotlib.pyplot as plt
import numpy as np
import plotting
from compare import beside
from plotting import BLUE, GREEN, ORANGE, SKY, VERMILION

from experiments.parts import legend_beside, log_axis
from experiments.table import spread

T, D, KERNEL, DTYPE = "bench.length", "bench.head_width", "attention.kernel", "dtype"
PEERS = beside.ATTENTION
PASSES = ("forward", "backward", "both")
BEST_OF_2025_MS = 5.364  # on the public page of the leaderboard, verified on an H100, by rules that admit Triton alone


def pairs(results):
    """[(standard, flash)] of each shape."""
    fused = {(row[DTYPE], row[D], row[T]): row for row in results.where(attention__kernel="auto")}
    return [(row, fused[row[DTYPE], row[D], row[T]]) for row in results.where(attention__kernel="standard") if (row[DTYPE], row[D], row[T]) in fused]


def tables(results):
    theirs = beside.columns(results)
    columns = ["format", "D", "T", *(f"{side}{name}, ms" for side in ("standard: ", "flash: ") for name in PASSES), "speed-up"]
    if theirs:
        columns += [*(f"PyTorch, {name}: both, ms" for name in theirs), "PyTorch, fused / flash"]
    rows = []
    for standard, flash in pairs(results):
        line = [standard[DTYPE], standard[D], standard[T], *(row[f"{name}_ms"] for row in (standard, flash) for name in PASSES),
                standard["both_ms"] / flash["both_ms"]]
        if theirs:
            line += [*(beside.ms(results, flash, column, "both") for column in theirs), beside.ms(results, flash, "fused", "both") / flash["both_ms"]]
        rows.append([*line, standard.outcome if standard.outcome != "ok" else flash.outcome])
    yield [*columns, "outcome"], rows
    yield crossovers(results, "fused" in theirs)
    if ranked := results.where(attention__kernel="wgmma"):
        yield leaderboard(results, ranked)


def from_length(shapes):
    """The least T from which on the second time is shorter than the first at every T that has both; of [(T, first, second)]."""
    known = sorted(shape for shape in shapes if np.isfinite(shape[1:]).all())
    slower = [place for place, (_, first, second) in enumerate(known) if second >= first]
    faster = known[slower[-1] + 1 if slower else 0:]
    return f"{faster[0][0]:.0f}" if faster else "nowhere"


def crossovers(results, with_peer):
    """Where flash begins to be the faster one, forward and backward."""
    columns, rows = ["format", "D", "flash is faster than standard from T on", *(["than PyTorch's fused"] if with_peer else [])], []
    for key in dict.fromkeys((row[DTYPE], row[D]) for row, _ in pairs(results)):
        mine = [pair for pair in pairs(results) if (pair[0][DTYPE], pair[0][D]) == key]
        firsts = [[standard["both_ms"] for standard, _ in mine]]
        if with_peer:
            firsts.append([beside.ms(results, flash, "fused", "both") for _, flash in mine])
        rows.append([*key, *(from_length([(flash[T], first, flash["both_ms"]) for first, (_, flash) in zip(each, mine)]) for each in firsts)])
    return columns, rows


def leaderboard(results, ranked):
    """The shape of 2025's leaderboard, ours and PyTorch's timed for ten seconds without rest."""
    peers = beside.columns(results, "compiled", "fused")
    columns = ["leaderboard of 2025: sums", "both, ms", "repeats", "best of 2025 / ours", *(f"PyTorch, {name}: both, ms" for name in peers), "outcome"]
    return columns, [["fixed order" if row["attention.deterministic"] == "true" else "any order", spread(row["both_ms"], row["both_std_ms"]), row["both_repeats"],
                      BEST_OF_2025_MS / row["both_ms"], *(spread(*beside.measured(results, row, name, "both")) for name in peers), row.outcome] for row in ranked]


def draw(results):
    shapes = pairs(results)
    formats, widths = ([key for key in dict.fromkeys(row[name] for row, _ in shapes)] for name in (DTYPE, D))
    figure, panels = plt.subplots(len(formats), len(widths), figsize=(3.4 * max(2, len(widths)), 3.2 * max(1, len(formats))), squeeze=False, sharex=True,
                                  constrained_layout=True)
    for line, dtype in zip(panels, formats):
        for axes, width in zip(line, widths):
            chosen = [pair for pair in shapes if (pair[0][DTYPE], pair[0][D]) == (dtype, width)]
            x = np.array([row[T] for row, _ in chosen])
            ours = lambda side: [(pair[side]["both_ms"], pair[side]["both_std_ms"]) for pair in chosen]
            sides = [("stored scores", VERMILION, ours(0)), ("flash", BLUE, ours(1))]
            sides += [(f"PyTorch, {name}", colour, [beside.measured(results, row, name, "both") for _, row in chosen])
                      for name, colour in (("stored scores", ORANGE), ("compiled", SKY), ("fused", GREEN)) if name in beside.columns(results)]
            for name, colour, times in sides:
                plotting.line_with_spread(axes, x, *zip(*times), markersize=3, color=colour, label=name)
            axes.set_title(f"{dtype}, D {width:.0f}")
            axes.set_xscale("log", base=2)
            axes.xaxis.set_major_formatter(lambda value, _: plotting.length_text(int(value)))
            log_axis(axes.yaxis)
        line[0].set_ylabel("forward and backward, ms")
        legend_beside(line[-1])
    for axes in panels[-1]:
        axes.set_xlabel("tokens T")
    return figure
