"""The first step, and mean and deviation of ten, after 0, 1, 2 and 5 steps of warm-up."""
import matplotlib.pyplot as plt
import numpy as np
from plotting import BLUE, ORANGE, SKY

from experiments.parts import log_bars
from experiments.table import spread

PARTS = {"forward": ("forward pass", SKY), "forward_backward": ("forward + backward", BLUE), "step": ("step", ORANGE)}


def tables(results):
    columns = ["warm-up steps", "first step, ms", "forward, ms", "forward + backward, ms", "step, ms", "median step, ms", "outcome"]
    rows = [[row["bench.warmup"], row["step_first_ms"], *(spread(row[f"{part}_mean_ms"], row[f"{part}_std_ms"]) for part in PARTS),
             row["step_ms"], row.outcome] for row in results.rows]
    return [(columns, rows)]


def draw(results):
    figure, mean = plt.subplots(figsize=(7, 4), constrained_layout=True)
    names = [f"{row['bench.warmup']:.0f}" for row in results.rows]
    places = np.arange(len(names))
    for number, (part, (label, colour)) in enumerate(PARTS.items()):
        mean.bar(places + 0.27 * (number - 1), [row[f"{part}_mean_ms"] for row in results.rows], width=0.25, color=colour, label=label)
    mean.plot(places + 0.27, [row["step_first_ms"] for row in results.rows], "D", color="#404040", markersize=5, label="first measured step")
    mean.set_title("Mean of 10, ms")
    log_bars(mean.yaxis, [row[name] for row in results.rows for name in ("step_first_ms", *(f"{part}_mean_ms" for part in PARTS))])
    mean.legend()
    mean.set_xticks(places, names)
    mean.set_xlabel("steps of warm-up")
    mean.grid(axis="x", visible=False)
    return figure
