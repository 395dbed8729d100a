"""Times of forward, forward and backward, and the step, by size and number format."""
import math

import matplotlib.pyplot as plt
import numpy as np
import plotting
from plotting import BLUE, GREEN, ORANGE, SKY, VERMILION

from experiments.parts import has_steps, log_axis, size_of
from experiments.table import spread

PARTS = ("forward", "forward_backward", "step")
SHARES = {"forward": SKY, "backward": BLUE, "optimizer": GREEN}


def tables(results):
    columns = ["size", "compute", "parameters, M", "forward, ms", "backward, ms", "optimizer, ms", "forward + backward, ms", "step, ms", "tokens/s",
               "MFU, %", "outcome"]
    rows = []
    for row in results.rows:
        parts = parts_of(row)
        forward, both, step = (spread(row[f"{part}_mean_ms"], row[f"{part}_std_ms"]) for part in PARTS)
        backward = spread(parts["backward"], math.hypot(row["forward_std_ms"], row["forward_backward_std_ms"]))  # a difference of passes that ran apart
        optimizer = spread(parts["optimizer"], row.get("optimizer_std_ms", math.nan))
        rows.append([size_of(row), row["precision.compute"], 1e-6 * row["parameters"], forward, backward, optimizer, both, step,
                     row["tokens_per_s"], 100 * row["mfu"], row.outcome if has_steps(row) else f"{row.outcome}, forward alone"])
    return [(columns, rows)]


def parts_of(row):
    """Forward, backward and optimizer of a step in ms, which add up to it: differences of what was measured."""
    ends = [row[f"{part}_mean_ms"] for part in PARTS]
    return dict(zip(SHARES, (ends[0], ends[1] - ends[0], ends[2] - ends[1])))


def draw(results):
    figure = plt.figure(figsize=(12, 4.4), constrained_layout=True)
    time, share = figure.subplots(1, 2, width_ratios=(1, 1.25))
    for compute, colour in zip(results.different("precision.compute"), (VERMILION, BLUE, ORANGE)):
        rows = [row for row in results.where(precision__compute=compute) if row.outcome == "ok" and has_steps(row)]
        if rows:
            plotting.line_with_spread(time, [1e-6 * row["parameters"] for row in rows], [row["step_mean_ms"] for row in rows],
                                      [row["step_std_ms"] for row in rows], color=colour, label=compute)
    time.set_title("A step, ms")
    time.set_xlabel("parameters, M")
    log_axis(time.xaxis)
    log_axis(time.yaxis)
    if time.get_legend_handles_labels()[0]:
        time.legend(loc="upper left")

    # Each bar is a whole step, so that parts of small and large models can be compared.
    rows = [row for row in results.rows if has_steps(row)]
    left = np.zeros(len(rows))
    for part, colour in SHARES.items():
        width = np.nan_to_num([100 * parts_of(row)[part] / row["step_mean_ms"] for row in rows])
        share.barh(np.arange(len(rows)), width, left=left, height=0.7, color=colour, linewidth=0, label=part)
        left += width
    for place, row in enumerate(rows):
        if row.outcome == "ok":
            share.text(101, place, f"{spread(row['step_mean_ms'], row['step_std_ms'])} ms", ha="left", va="center", fontsize=8)
        else:
            share.text(1, place, row.outcome, ha="left", va="center", color=VERMILION, fontsize=8)
    share.set_yticks(np.arange(len(rows)), [f"{size_of(row)}, {row['precision.compute']}" for row in rows])
    share.set_ylim(len(rows) - 0.5, -1.6)  # the first on top, under the legend
    share.set_xlim(0, 128)  # with room for the times
    share.set_xticks(range(0, 101, 20))
    share.set_title("Parts of a step, %")
    share.grid(axis="y", visible=False)
    share.legend(loc="upper left", ncol=3)
    return figure
