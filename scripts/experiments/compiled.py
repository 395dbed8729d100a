"""Fused kernels and graphs: attention alone over its shapes, and the step of a model."""
import matplotlib.pyplot as plt
import numpy as np
import plotting
from compare import beside
from plotting import BLUE, GREEN, ORANGE, PURPLE, SKY, VERMILION

from experiments.parts import has_steps, legend_beside, log_axis
from experiments.table import number, spread

T, D, KERNEL, DTYPE, SIZE, FORMAT = "bench.length", "bench.head_width", "attention.kernel", "dtype", "model.size", "precision.compute"
VARIANTS = {"plain": SKY, "fused": BLUE, "graph": ORANGE}
PARTS = ("forward", "forward_backward", "step")
PEERS = {dtype: beside.ATTENTION[dtype] for dtype in ("fp32", "tf32")}
MODES = tuple(beside.STEPS)
WIDTHS = dict(zip((16, 32, 64, 128), (BLUE, ORANGE, GREEN, PURPLE)))


def variant_of(row):
    return "graph" if row["train.graph"] == "true" else "fused" if row["train.fused"] == "true" else "plain"


def attention(results):
    """[(standard, fused)] of each shape and number format."""
    rows = results.where(job__kind="bench.attention")
    return [(row, results.one(rows, attention__kernel="auto", dtype=row[DTYPE], bench__head_width=row[D], bench__length=row[T]))
            for row in rows if row[KERNEL] == "standard"]


def model(results):
    """The rows of steps, each with the plain step of the same model and number format, or None: it needs a CUDA build."""
    rows = [row for row in results.where(job__kind="bench.step") if has_steps(row)]
    plain = {(row[SIZE], row[FORMAT]): row for row in rows if variant_of(row) == "plain"}
    return [(row, plain.get((row[SIZE], row[FORMAT]))) for row in rows]


def timed(results, row, part):
    """(mean, deviation) in ms of a part of the step; a graph's forward pass is the row of forward passes replayed alone."""
    if part == "forward" and variant_of(row) == "graph":
        alone = [other for other in results.where(job__kind="bench.step") if not has_steps(other) and
                 (other[SIZE], other[FORMAT]) == (row[SIZE], row[FORMAT])]
        row = alone[0] if alone else row
    return row[f"{part}_mean_ms"], row[f"{part}_std_ms"]


def tables(results):
    def both(name, pair):
        return [spread(row[f"{name}_ms"], row[f"{name}_std_ms"]) for row in pair] + [pair[0][f"{name}_ms"] / pair[1][f"{name}_ms"]]

    columns = beside.columns(results)
    theirs = [title for column in columns for title in (f"PyTorch, {column}, ms: forward", "and backward")]
    peers = lambda row: [beside.ms(results, row, column, name) for column in columns for name in ("forward", "both")]
    yield (["format", "D", "T", "forward: standard, ms", "fused, ms", "speed-up", "and backward: standard, ms", "fused, ms", "speed-up", "fused engine", *theirs,
            "standard"],
           [[pair[0][DTYPE], pair[0][D], pair[0][T], *both("forward", pair), *both("both", pair), pair[1]["engine"], *peers(pair[1]), pair[0].outcome]
            for pair in attention(results)])
    yield (["size", "compute", "step", "forward, ms", "forward + backward, ms", "step, ms", "speed-up of the step", "outcome"],
           [[row[SIZE], row[FORMAT], variant_of(row), *(spread(*timed(results, row, part)) for part in PARTS),
             plain["step_mean_ms"] / row["step_mean_ms"] if plain else np.nan, row.outcome] for row, plain in model(results)])
    yield from beside.step_tables(results)


def draw_attention(axes, results, name):
    for width, colour in WIDTHS.items():
        pairs = [pair for pair in attention(results) if (pair[0][DTYPE], pair[0][D]) == ("fp32", width)]
        for i, (kernel, dash) in enumerate((("standard", "--"), ("fused", "-"))):
            if rows := [pair[i] for pair in pairs if np.isfinite(pair[i][f"{name}_mean_ms"])]:
                plotting.line_with_spread(axes, [row[T] for row in rows], [row[f"{name}_mean_ms"] for row in rows], [row[f"{name}_std_ms"] for row in rows],
                                          linestyle=dash, color=colour, label=f"{kernel}, D {width}")
    axes.set_xlabel("tokens T")
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda value, _: plotting.length_text(int(value)))
    log_axis(axes.yaxis)


def draw_models(axes, results, rows):
    """Bars of the steps of one number format, of the plain step's time: every size, its parts, and of each the variants."""
    sizes, variants = list(dict.fromkeys(row[SIZE] for row in rows)), [name for name in VARIANTS if any(variant_of(row) == name for row in rows)]
    places = np.arange(len(sizes) * len(PARTS))
    found = {(row[SIZE], variant_of(row)): row for row in rows}
    base = {size: found.get((size, "plain"), found.get((size, variants[0]))) for size in sizes}
    for index, variant in enumerate(variants):
        quotients = np.array([np.divide(timed(results, found[size, variant], part), base[size][f"{part}_mean_ms"]) if (size, variant) in found
                              else (np.nan, np.nan) for size in sizes for part in PARTS]).T
        offset = 0.27 * (index - (len(variants) - 1) / 2)
        axes.barh(places + offset, np.nan_to_num(quotients[0]), height=0.25, color=VARIANTS[variant], label=variant, xerr=np.nan_to_num(quotients[1]),
                  **plotting.SPREAD)
    times = [base[size][f"{part}_mean_ms"] for size in sizes for part in PARTS]
    axes.set_yticks(places, [f"{size}: {part}, {number(ms)} ms".replace("_", " + ") for (size, part), ms in
                             zip(((size, part) for size in sizes for part in PARTS), times)], fontsize=8)
    axes.set_ylim(len(places) - 0.5, -0.5)
    axes.set_xlim(0, None)
    axes.set_xlabel("of the time on the left")
    axes.grid(axis="y", visible=False)
    for place, size in zip(places[::len(PARTS)], sizes):
        lost = [f"{variant_of(row)}: {row.outcome}" for row in rows if row[SIZE] == size and row.outcome != "ok"]
        axes.text(0.02, place, ", ".join(lost), transform=axes.get_yaxis_transform(), va="center", color=VERMILION, fontsize=8)


def draw(results):
    rows = [row for row, _ in model(results)]
    formats = list(dict.fromkeys(row[FORMAT] for row in rows))
    figure = plt.figure(figsize=(13, 8.4), constrained_layout=True)
    above, below = figure.subfigures(2, 1)  # each with columns of its own
    panels = above.subplots(1, 2)
    for axes, name, title in zip(panels, ("forward", "both"), ("Attention in fp32, forward, ms", "Attention in fp32, forward and backward, ms")):
        draw_attention(axes, results, name)
        axes.set_title(title)
    legend_beside(panels[-1])
    panels = below.subplots(1, len(formats), squeeze=False)[0] if formats else []
    for axes, compute in zip(panels, formats):
        draw_models(axes, results, [row for row in rows if row[FORMAT] == compute])
        axes.set_title("Model")
        plotting.aside(axes, compute)
    for axes in panels[-1:]:
        legend_beside(axes)
    return figure
