"""The wait for a checkpoint, and steps before it and while it is written."""
import tomllib

import matplotlib.pyplot as plt
import numpy as np
import plotting
from plotting import BLUE, ORANGE, VERMILION

from experiments.homes import ROOT
from experiments.table import spread

CHECK = "ranks/check:max"
KEEPS = ("steps", "info")  # of each row's own file, in a published run
DECK = ROOT / "input/experiments/background/deck.toml"
ALONE = True  # of --all: the disk and the host's memory are one machine's
COLOURS = {"off": ORANGE, "on": BLUE}
NAMES = {"off": "while training waits", "on": "in the background"}


class Steps:
    """Of a run with one checkpoint between two steps."""

    def __init__(self, row):
        with row.file() as file:
            steps = plotting.columns(file["steps"])
            deck = file["info"].attrs["deck"] if "info" in file else DECK.read_text()  # older runs kept no /info
        self.ms = 1e3 * steps["step_time"]
        self.last = tomllib.loads(deck)["checkpoint"]["every"] - 1  # step before the checkpoint, from 0
        self.wait_s = steps["wall_time"][self.last + 1] - steps["wall_time"][self.last] - steps["step_time"][self.last + 1]
        window = len(self.ms) - self.last - 1
        self.before, self.after = self.ms[self.last + 1 - window:self.last + 1], self.ms[self.last + 1:]


def tables(results):
    check = [CHECK] if any(CHECK in row for row in results.rows) else []  # older runs did not record it
    columns = ["checkpoint is written", "wait, s", "step before, ms", "step after, ms", "medians: after / before",
               *("check of the device at the start, s" for _ in check), "outcome"]
    rows = []
    for row in results.rows:
        steps = Steps(row) if row.has_run else None
        figures = [steps.wait_s, *(spread(each.mean(), each.std()) for each in (steps.before, steps.after)), np.median(steps.after) / np.median(steps.before)] \
            if steps else [float("nan")] * 4
        rows.append([NAMES[row["checkpoint.background"]], *figures, *(row.get(name, float("nan")) for name in check), row.outcome])
    return [(columns, rows)]


def draw(results):
    figure, (wait, times) = plt.subplots(1, 2, figsize=(11, 4), constrained_layout=True, width_ratios=(1, 2))
    ran = [(row["checkpoint.background"], Steps(row)) for row in results.rows if row.has_run]
    wait.bar([NAMES[key].replace(" ", "\n") for key, _ in ran], [steps.wait_s for _, steps in ran], color=[COLOURS[key] for key, _ in ran], width=0.6)
    for place, (_, steps) in enumerate(ran):
        wait.text(place, steps.wait_s, f"{steps.wait_s:.2f}", ha="center", va="bottom")
    wait.set_title("Wait for the checkpoint, s")
    wait.set_ylim(0, None)
    wait.grid(axis="x", visible=False)
    for key, steps in ran:
        times.plot(np.arange(len(steps.ms)) - steps.last, steps.ms, ".", color=COLOURS[key], label=NAMES[key])
    if ran:
        times.axvline(0.5, color=VERMILION, linewidth=0.8, linestyle=":")
        times.set_ylim(0, 1.3 * max(np.median(steps.ms) for _, steps in ran))
        times.legend(loc="lower left")
    times.set_title("Steps, ms")
    times.set_xlabel("step, counted from the checkpoint")
    return figure
