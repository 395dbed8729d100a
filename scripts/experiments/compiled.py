"""Fused kernels and graphs: attention alone over its shapes, and the step of a model."""
import matplotlib.pyplot as plt
import numpy as np
import plotting
from plotting import BLUE, GREEN, ORANGE, PURPLE, SKY, VERMILION

from experiments.parts import log_axis
from experiments.table import spread

T, D, KERNEL, VARIANT, SIZE, FORMAT = ("bench.lengths", "bench.head_widths", "bench.implementations", "bench.variants", "model.size",
                                       "precision.compute")
VARIANTS = {"plain": SKY, "fused": BLUE, "graph": ORANGE}
PARTS = ("forward", "forward_backward", "step")
WIDTHS = dict(zip((16, 32, 64, 128), (BLUE, ORANGE, GREEN, PURPLE)))


def attention(results):
    """[(standard, flash2)] of each shape."""
    rows = results.where(job__kind="bench.attention")
    other = {(row[D], row[T]): row for row in rows if row[KERNEL] == "flash2"}
    return [(row, other[row[D], row[T]]) for row in rows if row[KERNEL] == "standard"]


def model(results):
    """The rows of steps, each with the plain step of the same model and number format, or None: it needs a CUDA build."""
    rows = results.where(job__kind="bench.step")
    plain = {(row[SIZE], row[FORMAT]): row for row in rows if row[VARIANT] == "plain"}
    return [(row, plain.get((row[SIZE], row[FORMAT]))) for row in rows]


def tables(results):
    def both(name, pair):
        return [spread(row[f"{name}_mean_ms"], row[f"{name}_std_ms"]) for row in pair] + [pair[0][f"{name}_mean_ms"] / pair[1][f"{name}_mean_ms"]]

    yield (["D", "T", "forward: standard, ms", "flash2, ms", "speed-up", "and backward: standard, ms", "flash2, ms", "speed-up", "standard"],
           [[pair[0][D], pair[0][T], *both("forward", pair), *both("both", pair), pair[0].outcome] for pair in attention(results)])
    yield (["size", "compute", "step", "forward, ms", "forward + backward, ms", "step, ms", "speed-up of the step", "outcome"],
           [[row[SIZE], row[FORMAT], row[VARIANT], *(spread(row[f"{part}_mean_ms"], row[f"{part}_std_ms"]) for part in PARTS),
             plain["step_mean_ms"] / row["step_mean_ms"] if plain else np.nan, row.outcome] for row, plain in model(results)])


def draw(results):
    rows = [row for row, _ in model(results)]
    models = list(dict.fromkeys((row[SIZE], row[FORMAT]) for row in rows))
    figure, (forward, backward, steps) = plt.subplots(1, 3, figsize=(16, 4.4), constrained_layout=True)
    for axes, name, title in ((forward, "forward", "Attention, forward, ms"), (backward, "both", "Attention, forward and backward, ms")):
        for width, colour in WIDTHS.items():
            pairs = [pair for pair in attention(results) if pair[0][D] == width]
            for number, (kernel, dash) in enumerate((("standard", "--"), ("flash2", "-"))):
                if pairs:
                    axes.plot([pair[number][T] for pair in pairs], [pair[number][f"{name}_mean_ms"] for pair in pairs], linestyle=dash,
                              color=colour, marker="o", markersize=3.5, linewidth=1.5, label=f"{kernel}, D {width}")
        axes.set_title(title)
        axes.set_xlabel("tokens T")
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(lambda value, _: plotting.length_text(int(value)))
        log_axis(axes.yaxis)
    forward.legend()
    places = np.arange(len(models) * len(PARTS))
    variants = [name for name in VARIANTS if any(row[VARIANT] == name for row in rows)]
    for number, variant in enumerate(variants):
        found = {(row[SIZE], row[FORMAT]): row for row in rows if row[VARIANT] == variant}
        times = [found[model][f"{part}_mean_ms"] if model in found else np.nan for model in models for part in PARTS]
        offset = 0.27 * (number - (len(variants) - 1) / 2)
        steps.barh(places + offset, np.nan_to_num(times), height=0.25, color=VARIANTS[variant], label=variant)
    steps.set_title("Model, ms")
    steps.set_yticks(places, [f"{size}, {compute}: {part}".replace("_", " + ") for size, compute in models for part in PARTS], fontsize=8)
    steps.set_ylim(len(places) - 0.5, -0.5)
    steps.grid(axis="y", visible=False)
    if len(models) > 1:
        log_axis(steps.xaxis)
    for place, (size, compute) in zip(places[::len(PARTS)], models):
        lost = [f"{row[VARIANT]}: {row.outcome}" for row in rows if (row[SIZE], row[FORMAT]) == (size, compute) and row.outcome != "ok"]
        steps.text(0.02, place, ", ".join(lost), transform=steps.get_yaxis_transform(), va="center", color=VERMILION, fontsize=8)
    steps.legend(loc="upper left", bbox_to_anchor=(1, 1))
    return figure
