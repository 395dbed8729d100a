"""Times of forward, forward and backward, and the step, by size and number format."""
import matplotlib.pyplot as plt
import numpy as np
from plotting import BLUE, ORANGE, SKY, VERMILION

from experiments.parts import log_bars
from experiments.table import spread

PARTS = {"forward": SKY, "forward_backward": BLUE, "step": ORANGE}


def tables(results):
    columns = ["size", "compute", "parameters, M", "forward, ms", "forward + backward, ms", "step, ms", "tokens/s", "MFU, %", "outcome"]
    rows = [[row["model.size"], row["precision.compute"], 1e-6 * row["parameters"],
             *(spread(row[f"{part}_mean_ms"], row[f"{part}_std_ms"]) for part in PARTS), row["tokens_per_s"], 100 * row["mfu"], row.outcome]
            for row in results.rows]
    return [(columns, rows)]


def draw(results):
    sizes, formats = results.different("model.size"), results.different("precision.compute")
    figure, panels = plt.subplots(1, len(formats), figsize=(5.5 * len(formats), 4.2), sharey=True, constrained_layout=True, squeeze=False)
    for axes, compute in zip(panels[0], formats):
        axes.set_title(compute)
        rows = {row["model.size"]: row for row in results.where(precision__compute=compute)}
        for number, (part, colour) in enumerate(PARTS.items()):
            places = np.arange(len(sizes)) + 0.27 * (number - 1)
            means = [rows[size][f"{part}_mean_ms"] for size in sizes]
            axes.bar(places, np.nan_to_num(means), width=0.25, color=colour, label=part.replace("_", " + "),
                     yerr=np.nan_to_num([rows[size][f"{part}_std_ms"] for size in sizes]), ecolor="#404040", capsize=2)
        for place, size in enumerate(sizes):
            if rows[size].outcome != "ok":
                axes.text(place, 0.02, rows[size].outcome, transform=axes.get_xaxis_transform(), rotation=90, ha="center", va="bottom",
                          color=VERMILION, fontsize=8)
        axes.set_xticks(np.arange(len(sizes)), sizes)
        axes.grid(axis="x", visible=False)
        log_bars(axes.yaxis, [row[f"{part}_mean_ms"] for row in results.rows for part in PARTS])
    panels[0][0].set_ylabel("ms")
    panels[0][0].legend()
    return figure
