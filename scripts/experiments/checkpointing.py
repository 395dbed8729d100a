"""Memory and time of a step over the blocks that share a checkpoint."""
import matplotlib.pyplot as plt
import numpy as np
import plotting
from plotting import BLUE, FAINT, INK, ORANGE, VERMILION, byte_unit

from experiments.parts import legend_above
from experiments.table import spread
from results import Absent

KEY = "train.checkpoint_activations"


def groups(results):
    """{model and format: rows}: each with its own row without checkpoints."""
    found = {}
    for row in results.rows:
        found.setdefault((row.get("model.size") or "large", row.get("precision.compute") or "bf16"), []).append(row)
    return found


def planned_mib(row):
    """As the plan says, also of a row that does not fit."""
    return row["planned_mib"] if np.isfinite(row["planned_mib"]) else row.needed_mib


def tables(results):
    for (size, compute), rows in groups(results).items():
        base = next((row for row in rows if row[KEY] == 0), Absent())
        columns = ["blocks per checkpoint", "planned, MiB", "taken, MiB", "memory / none", "step, ms", "time / none", "outcome"]
        if size == "2.7b":
            columns[0] += f", {size} of 4 x 2048 in {compute}"
        yield columns, [["none" if row[KEY] == 0 else f"{row[KEY]:.0f}", planned_mib(row), row["peak_mib"], planned_mib(row) / planned_mib(base),
                         spread(row["step_mean_ms"], row["step_std_ms"]), row["step_mean_ms"] / base["step_mean_ms"], row.outcome] for row in rows]


def draw(results):
    """A line of panels for each model: memory and time."""
    every = groups(results)
    figure, panels = plt.subplots(len(every), 2, figsize=(11, 4 * len(every)), constrained_layout=True, squeeze=False)
    for (memory, time), ((size, compute), rows) in zip(panels, every.items()):
        places, names = np.arange(len(rows)), ["none" if row[KEY] == 0 else f"{row[KEY]:.0f}" for row in rows]
        draw_memory(memory, rows, with_rule=rows is next(iter(every.values())))
        time.bar(places, np.nan_to_num([row["step_mean_ms"] for row in rows]), color=ORANGE, width=0.65,
                 yerr=np.nan_to_num([row["step_std_ms"] for row in rows]), **plotting.SPREAD)
        for place, row in zip(places, rows):
            if row.outcome != "ok":
                time.annotate(row.outcome, (place, 0), xytext=(0, 4), textcoords="offset points", rotation=90, ha="center", va="bottom", color=VERMILION, fontsize=8)
        time.set_title("Time of a step, ms")
        plotting.aside(time, f"{size}, {compute}")
        for axes in (memory, time):
            axes.set_xticks(places, names)
            axes.set_xlabel("blocks per checkpoint")
            axes.grid(axis="x", visible=False)
    return figure


def draw_memory(axes, rows, with_rule):
    """What is planned, and beside it what was taken; the rule of the square root, where the last row has all blocks in one checkpoint."""
    places = np.arange(len(rows))
    planned = np.array([planned_mib(row) for row in rows])
    factor, unit = byte_unit(2**20 * np.nanmax(planned))
    axes.bar(places, np.nan_to_num(2**20 * planned / factor), color=BLUE, width=0.65, label="planned")
    peak = 2**20 * np.array([row["peak_mib"] for row in rows]) / factor
    if np.isfinite(peak).any():
        axes.plot(places, peak, "_", color=INK, markersize=16, markeredgewidth=2, label="taken by the process")
    blocks = max(row[KEY] for row in rows)
    grouped = [(row[KEY], place) for row, place in zip(rows, places) if row[KEY] > 0]
    if with_rule and grouped:
        axes.axvline(np.interp(np.sqrt(blocks), *zip(*grouped)), ymax=0.85, color=FAINT, linestyle=":", linewidth=1.2, label=f"√{blocks:.0f} blocks")
    axes.set_title(f"Memory, {unit}")
    legend_above(axes)
