"""The weighted sum in one kernel, and as products that are stored and then summed: time and rate of both passes."""
import matplotlib.pyplot as plt
import numpy as np
import plotting
from plotting import BLUE, ORANGE, VERMILION

from experiments.parts import legend_above

WAYS = (("weighted_sum", "one kernel", BLUE), ("weighted_sum_unfused", "products stored, then summed", ORANGE))
PASSES = (("", "forward"), ("_backward", "backward"))


def figures(row):
    """{kernel: (ms, GB/s, of a copy's rate, its deviation)} of one row."""
    return {entry["kernel"]: (entry["median_ms"], entry["gbyte_per_s"], entry["of_copy"], entry["of_copy"] * entry["std_ms"] / entry["median_ms"])
            for entry in row.entries()} if row.has_run else {}


def tables(results):
    columns = ["dtype", "width", "pass", "one kernel, ms", "unfused, ms", "one kernel, GB/s", "unfused, GB/s", "copy, GB/s"]
    rows = []
    for row in results.rows:
        found = figures(row)
        for suffix, name in PASSES if found else ():
            (ours, our_rate, *_), (plain, rate, *_) = (found[way + suffix] for way, _, _ in WAYS)
            rows.append([row["bench.dtype"], row["bench.width"], name, ours, plain, our_rate, rate, found["copy"][1]])
    return [(columns, rows)]


def draw(results):
    figure, panels = plt.subplots(1, 2, figsize=(11, 4), sharey=True, constrained_layout=True)
    rows = [row for row in results.rows if row.has_run]
    names = [f"{row['bench.dtype']}, {row['bench.width']:.0f}" for row in rows]
    for axes, (suffix, name) in zip(panels, PASSES):
        for number, (way, label, colour) in enumerate(WAYS):
            rates, deviations = np.array([figures(row)[way + suffix][2:] for row in rows]).reshape(-1, 2).T
            axes.bar(np.arange(len(rows)) + 0.38 * (number - 0.5), rates, width=0.36, color=colour, label=label, yerr=deviations, **plotting.SPREAD)
        axes.axhline(1, color=VERMILION, linewidth=1, label="a copy")
        axes.set_title(f"Rate of the {name} pass, of a copy's")
        axes.set_xticks(np.arange(len(rows)), names)
        axes.set_xlabel("number format, width")
        axes.grid(axis="x", visible=False)
    legend_above(panels[0])
    return figure
