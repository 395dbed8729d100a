"""The first step, and mean and deviation of ten, after 0, 1, 2 and 5 steps of warm-up."""
import matplotlib.pyplot as plt
import numpy as np
import plotting
from plotting import BLUE, ORANGE, SKY

from experiments.parts import legend_beside, log_axis
from experiments.table import spread

PARTS = {"forward": ("forward pass", SKY), "forward_backward": ("forward + backward", BLUE), "step": ("step", ORANGE)}


def step_of(row):
    return "graph" if row["train.graph"] == "true" else "launches"


def tables(results):
    columns = ["step", "warm-up steps", "first step, ms", "forward, ms", "forward + backward, ms", "step, ms", "median step, ms", "outcome"]
    rows = [[step_of(row), row["bench.warmup"], row["step_first_ms"], *(spread(row[f"{part}_mean_ms"], row[f"{part}_std_ms"]) for part in PARTS),
             row["step_ms"], row.outcome] for row in results.rows]
    return [(columns, rows)]


def draw(results):
    groups = {}
    for row in results.rows:
        groups.setdefault(step_of(row), []).append(row)
    figure, panels = plt.subplots(1, len(groups), figsize=(3 + 4.5 * len(groups), 4), constrained_layout=True, sharey=True, squeeze=False)
    for mean, (step, rows) in zip(panels[0], groups.items()):
        names = [f"{row['bench.warmup']:.0f}" for row in rows]
        places = np.arange(len(names))
        for number, (part, (label, colour)) in enumerate(PARTS.items()):
            plotting.line_with_spread(mean, places + 0.12 * (number - 1), [row[f"{part}_mean_ms"] for row in rows],
                                      [row[f"{part}_std_ms"] for row in rows], color=colour, linestyle="", markersize=5, label=label)
        mean.plot(places + 0.24, [row["step_first_ms"] for row in rows], "D", color="#404040", markersize=5, label="first measured step")
        mean.set_title(f"{step.capitalize()}: mean and deviation, ms")
        log_axis(mean.yaxis)
        mean.set_xlim(-0.5, len(names) - 0.5)
        mean.set_xticks(places, names)
        mean.set_xlabel("steps of warm-up")
        mean.grid(axis="x", visible=False)
    legend_beside(panels[0][-1])
    return figure
