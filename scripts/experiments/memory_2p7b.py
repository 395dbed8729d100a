"""Where a step's memory goes: peaks, the largest tensors at the peak, and timelines at the longest context."""
import re

import matplotlib.pyplot as plt
import numpy as np
import plotting
from plotting import CATEGORIES, byte_unit

from experiments.parts import legend_beside

T, FORMAT, PHASE = "model.context_length", "precision.compute", "bench.phase"
MIB = 2.0**20
BLOCK = 1  # whose activations are listed; all are alike
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

    def forward_activations(self):
        """[(label, bytes)] of what begins in forward, the largest first; with the logits, which a step makes as backward begins."""
        in_forward = (self.phase == "forward") | (self.events["label"] == "head.logits")
        chosen = (self.events["begin"] > 0) & in_forward & (self.events["category"] == "activations")
        return sorted(zip(self.events["label"][chosen], self.events["bytes"][chosen]), key=lambda item: -item[1])

    def kept_by(self, block):
        """[(label, bytes)] that forward leaves alive of this block for backward, the largest first."""
        ends = {label for label, begin, phase in zip(self.events["label"], self.events["begin"], self.phase) if not begin and phase == "forward"}
        return [(label, nbytes) for label, nbytes in self.forward_activations() if label.startswith(f"block.{block:02}.") and label not in ends]

    def gradients_of(self, block):
        """Bytes of a block's gradients, which are laid out before the step."""
        return sum(nbytes for label, nbytes, begin in zip(self.events["label"], self.events["bytes"], self.events["begin"])
                   if begin and label.startswith(f"grads.block.{block:02}."))

    def falls_in_backward(self, block):
        """Bytes by which live memory falls between the backward passes of the block above and of this one, both at their ends."""
        last = [max((i for i, label in enumerate(self.events["label"]) if label.startswith(f"block.{number:02}.")), default=0) for number in (block + 1, block)]
        return self.total[last[0]] - self.total[last[1]]

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


def longest(results):
    """Of each number format the step of the longest context that ran."""
    ran = [row for row in steps_of(results.rows) if row.has_run]
    return [max((row for row in ran if row[FORMAT] == name), key=lambda row: row[T]) for name in dict.fromkeys(row[FORMAT] for row in ran)]


def steps_of(rows):
    return [row for row in rows if row[PHASE] == "step"]


def largest_text(tensors, count=5):
    total = sum(nbytes for _, nbytes in tensors)
    return ", ".join(f"{label.split('.')[-1]} {100 * nbytes / total:.0f}" for label, nbytes in tensors[:count])


def tables(results):
    forward = {(row[T], row[FORMAT]): row for row in results.rows if row[PHASE] == "forward"}
    ran = [(row, Timeline(row)) for row in steps_of(results.rows) if row.has_run]
    rows = []
    for row in steps_of(results.rows):
        alone = forward[row[T], row[FORMAT]]
        line = next((line for other, line in ran if other is row), None)
        rows.append([row[T], row[FORMAT], alone["planned_mib"], alone["peak_mib"], alone["forward_mean_ms"],
                     *([line.peak(["setup", "forward", "backward"], ("optimizer",)) / MIB, line.total.max() / MIB,
                        line.phase[line.total.argmax()], line.residual() / MIB] if line else [float("nan"), row.needed_mib, "-", float("nan")]),
                     row.outcome if alone.outcome == "ok" else f"forward: {alone.outcome}"])
    yield ["T", "compute", "forward alone, MiB", "of the GPU, MiB", "forward alone, ms", "forward + backward, MiB", "step, MiB", "fullest in",
           "residual stream, MiB", "outcome"], rows
    yield ["T", "compute", "largest tensors at the peak", "MiB each", "so many"], [
        [row[T], row[FORMAT], label, nbytes / MIB, count] for row, line in ran if row in longest(results)
        for label, nbytes, count in kinds(line.largest(200))[:6]]
    shown = [(row, line) for row, line in ran if row[FORMAT] == "fp32"]
    yield ["T", "compute", "largest of a forward pass, logits included", "MiB each", "so many"], [
        [row[T], row[FORMAT], label, nbytes / MIB, count] for row, line in (shown[:1] + shown[-1:] if len(shown) > 1 else shown)
        for label, nbytes, count in kinds(line.forward_activations())[:5]]
    yield ["T", "compute", "a block keeps for backward, MiB", "five largest, % of it", "falls in its backward, MiB", "its gradients, MiB"], [
        [row[T], row[FORMAT], sum(nbytes for _, nbytes in line.kept_by(BLOCK)) / MIB, largest_text(line.kept_by(BLOCK)),
         line.falls_in_backward(BLOCK) / MIB, line.gradients_of(BLOCK) / MIB] for row, line in ran]


def draw_phases(axes, line, phases):
    for phase in phases:
        first = list(line.phase).index(phase)
        axes.axvline(first, color="#404040", linewidth=0.8, linestyle=":")
        axes.text(first, 0.99, phase, transform=axes.get_xaxis_transform(), fontsize=8, va="top", ha="right", rotation=90)
    axes.set_xlabel("tensors that begin or end, in order")


def draw(results):
    """Of each format the step of the longest context that ran, and forward by itself, as far as it needs no gradients and no optimizer."""
    rows = longest(results)
    lines = [Timeline(row) for row in rows]
    figure, panels = plt.subplots(1, max(len(rows) + 1, 2), figsize=(5.2 * max(len(rows) + 1, 2), 4.4), constrained_layout=True, squeeze=False)
    factor, unit = byte_unit(max((line.total.max() for line in lines), default=1))
    top = 1.2 * max((line.total.max() for line in lines), default=1) / factor  # with room for the phases' names
    for axes, row, line in zip(panels[0], rows, lines):
        shown = {name: live / factor for name, live in line.live.items() if live.any()}
        axes.stackplot(np.arange(len(line.total)), *shown.values(), labels=list(shown), colors=[CATEGORIES[name] for name in shown], step="post")
        draw_phases(axes, line, ("forward", "backward", "optimizer"))
        axes.set_title(f"A step, {row[FORMAT]}, T {row[T]:.0f}")
        axes.set_xlim(0.8 * list(line.phase).index("forward"), 1.04 * len(line.total))
        axes.set_ylim(0, top)
    panels[0][0].set_ylabel(unit)
    for axes, row, line in zip(panels[0][len(rows):], rows, lines):
        last = np.flatnonzero(line.phase == "forward")[-1] + 1
        shown = {name: line.live[name][:last] / factor for name in ("parameters", "activations", "workspace", "data") if line.live[name].any()}
        axes.stackplot(np.arange(last), *shown.values(), colors=[CATEGORIES[name] for name in shown], step="post")
        draw_phases(axes, line, ("forward",))
        axes.set_title(f"Its forward, {row[FORMAT]}, T {row[T]:.0f}")
        plotting.aside(axes, "without gradients, optimizer", size=8)
        axes.set_xlim(0.96 * list(line.phase).index("forward"), last)
        axes.set_ylim(0, None)
    if rows:
        legend_beside(panels[0][0])
    return figure
