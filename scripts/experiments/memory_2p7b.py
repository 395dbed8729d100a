"""Where a step's memory goes: peaks, the largest tensors at the peak, and timelines at the longest context."""
import re

import matplotlib.pyplot as plt
import numpy as np
import plotting
from plotting import CATEGORIES, byte_unit

from experiments.parts import legend_beside

T, FORMAT, PHASE = "model.context_length", "precision.compute", "bench.phase"
MIB = 2.0**20
KEEPS = ("memory/events",)  # of each row's own file, in a published run


class Timeline:
    """Live bytes of one step, by category, and the tensors that live at any event."""

    def __init__(self, row):
        with row.file() as file:
            self.events = plotting.columns(file["memory/events"])
        signed = np.where(self.events["begin"] > 0, 1, -1) * self.events["bytes"]
        self.live = {name: np.cumsum(np.where(self.events["category"] == name, signed, 0)) for name in CATEGORIES}
        self.phase = self.events["phase"]
        self.total = sum(self.live.values())

    def peak(self, phases, without=()):
        """Largest sum of live bytes in these phases, categories in `without` left out."""
        live = self.total - sum((self.live[name] for name in without), np.zeros_like(self.total))
        return live[np.isin(self.phase, phases)].max()

    def largest(self, count):
        """[(label, bytes)] of the largest tensors that live when the sum is largest."""
        alive = {}
        for label, nbytes, begins in list(zip(*(self.events[name] for name in ("label", "bytes", "begin"))))[:int(self.total.argmax()) + 1]:
            if begins:
                alive[label] = nbytes
            else:
                alive.pop(label, None)
        return sorted(alive.items(), key=lambda item: -item[1])[:count]

    def residual(self):
        """Bytes of the residual stream, [B,T,C]: what the embedding gives."""
        return self.events["bytes"][list(self.events["label"]).index("embedding.out")]


def kinds(tensors):
    """[(label, bytes, how many)] of [(label, bytes)]: tensors that only their block's number tells apart are of one kind."""
    found = {}
    for label, nbytes in tensors:
        kind = re.sub(r"block\.\d+", "block.*", label), nbytes
        found[kind] = found.get(kind, 0) + 1
    return [(*kind, count) for kind, count in found.items()]


def steps_of(rows):
    return [row for row in rows if row[PHASE] == "step"]


def tables(results):
    forward = {(row[T], row[FORMAT]): row for row in results.rows if row[PHASE] == "forward"}
    ran = [(row, Timeline(row)) for row in steps_of(results.rows) if row.has_run]
    rows = []
    for row in steps_of(results.rows):
        alone = forward[row[T], row[FORMAT]]
        line = next((line for other, line in ran if other is row), None)
        rows.append([row[T], row[FORMAT], alone["planned_mib"], alone["peak_mib"], alone["forward_mean_ms"],
                     *([line.peak(["setup", "forward", "backward"], ("optimizer",)) / MIB, line.total.max() / MIB,
                        line.phase[line.total.argmax()], line.residual() / MIB] if line else [float("nan")] * 2 + ["-", float("nan")]),
                     row.outcome if alone.outcome == "ok" else f"forward: {alone.outcome}"])
    yield ["T", "compute", "forward alone, MiB", "of the GPU, MiB", "forward alone, ms", "forward + backward, MiB", "step, MiB", "fullest in",
           "residual stream, MiB", "outcome"], rows
    yield ["T", "compute", "largest tensors at the peak", "MiB each", "so many"], [
        [row[T], row[FORMAT], label, nbytes / MIB, count] for row, line in ran if row[T] == max(results.different(T))
        for label, nbytes, count in kinds(line.largest(200))[:6]]


def draw(results):
    longest = max(results.different(T))
    rows = [row for row in steps_of(results.where(model__context_length=longest)) if row.has_run]
    figure, panels = plt.subplots(1, max(len(rows), 1), figsize=(6.5 * max(len(rows), 1), 4.4), constrained_layout=True, squeeze=False, sharey=True)
    lines = [Timeline(row) for row in rows]
    factor, unit = byte_unit(max((line.total.max() for line in lines), default=1))
    for axes, row, line in zip(panels[0], rows, lines):
        shown = {name: live / factor for name, live in line.live.items() if live.any()}
        axes.stackplot(np.arange(len(line.total)), *shown.values(), labels=list(shown), colors=[CATEGORIES[name] for name in shown], step="post")
        for phase in ("forward", "backward", "optimizer"):
            first = list(line.phase).index(phase)
            axes.axvline(first, color="#404040", linewidth=0.8, linestyle=":")
            axes.text(first, 0.99, phase, transform=axes.get_xaxis_transform(), fontsize=8, va="top", ha="right", rotation=90)
        axes.set_title(f"{row[FORMAT]}, T {longest:.0f}")
        axes.set_xlabel("tensors that begin or end, in order")
        axes.set_xlim(0.8 * list(line.phase).index("forward"), 1.04 * len(line.total))
    panels[0][0].set_ylim(0, 1.2 * max((line.total.max() for line in lines), default=1) / factor)  # with room for the phases' names
    panels[0][0].set_ylabel(unit)
    if rows:
        legend_beside(panels[0][-1])
    return figure
