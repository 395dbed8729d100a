"""Kernels of one step by phase: sums beside the clock, shares of products, the largest others, softmax beside its products."""
import matplotlib.pyplot as plt
import numpy as np
import plotting
from plotting import BLUE, GREY, ORANGE, SKY, VERMILION

from experiments.parts import legend_beside

SIZE, T, KERNEL = "model.size", "model.context_length", "attention.kernel"
KEEPS = ("events",)  # of each row's own file, in a published run
PREFIX = "tessera::"
PHASES = ("forward", "backward", "optimizer")
KINDS = {"products": BLUE, "attention": SKY, "AdamW": ORANGE, "others": GREY}
NAN = float("nan")


class Step:
    """The kernels of the profiled step, in the order of their launches: labels without "tessera::", seconds, phases."""

    def __init__(self, row):
        with row.file() as file:
            events = plotting.columns(file["events"])
        labels = [str(label) for label in events["label"]]
        is_kernel = np.array([label.startswith(PREFIX) for label in labels])
        profiled = events["step"] == (events["step"][is_kernel].max() if is_kernel.any() else -1)
        start, end = events["start"], events["end"]
        spans = {name: next(((start[i], end[i]) for i in np.flatnonzero(profiled) if labels[i] == name), (np.inf, -np.inf)) for name in PHASES}
        chosen = np.flatnonzero(profiled & is_kernel)
        self.labels = [labels[i].removeprefix(PREFIX) for i in chosen]
        self.seconds = (end - start)[chosen]
        self.phases = [next((name for name, (first, last) in spans.items() if first <= start[i] < last), "") for i in chosen]

    def of(self, *phases):
        """{label: (calls, seconds)} in these phases, the longest first; without phases in the whole step."""
        found = {}
        for label, seconds, phase in zip(self.labels, self.seconds, self.phases):
            if not phases or phase in phases:
                calls, total = found.get(label, (0, 0.0))
                found[label] = calls + 1, total + seconds
        return dict(sorted(found.items(), key=lambda item: -item[1][1]))


def kind_of(label):
    if "gemm::" in label or label.startswith("attention::standard::") and "softmax" not in label:
        return "products"
    return "attention" if label.startswith("attention::") else "AdamW" if label.startswith("adamw") else "others"


def seconds_by_kind(kernels):
    return {kind: sum(seconds for label, (_, seconds) in kernels.items() if kind_of(label) == kind) for kind in KINDS}


def percent(kernels, kind):
    total = sum(seconds for _, seconds in kernels.values())
    return 100 * seconds_by_kind(kernels)[kind] / total if total else NAN


def largest(kernels):
    return next(((label, calls) for label, (calls, _) in kernels.items()), ("-", NAN))


def inside(forward):
    """Seconds of the softmax and of the two products of standard attention; NaN where there is none."""
    if "attention::standard::softmax" not in forward:
        return NAN, NAN
    return forward["attention::standard::softmax"][1], sum(seconds for label, (_, seconds) in forward.items() if label.startswith("attention::standard::") and kind_of(label) == "products")


def by_size(results):
    """The rows, those of one size together."""
    sizes = list(dict.fromkeys(row[SIZE] for row in results.rows))
    return sorted(results.rows, key=lambda row: (sizes.index(row[SIZE]), row[T]))


def tables(results):
    ran = [(row, Step(row)) for row in results.rows if row.has_run]
    steps = {id(row): step for row, step in ran}
    sums, shares = [], []
    for row in by_size(results):
        key = [row[SIZE], row[T], "stored scores" if row[KERNEL] == "standard" else "fused"]
        if id(row) not in steps:
            sums.append([*key, *[NAN] * 3, "-", NAN, "-", row.outcome])
            continue
        step = steps[id(row)]
        forward, both, whole = step.of("forward"), step.of("forward", "backward"), step.of()
        softmax, products = inside(forward)
        label, calls = largest(forward)
        sums.append([*key, 1e3 * row["steps/forward:median"], 1e3 * sum(seconds for _, seconds in forward.values()),
                     sum(calls for calls, _ in forward.values()), label, calls, largest(both)[0], row.outcome])
        shares.append([*key, percent(forward, "products"), percent(forward, "attention"), percent(forward, "others"), percent(whole, "products"),
                       percent(whole, "attention"), percent(whole, "AdamW"), percent(whole, "others"), 1e3 * softmax, products / softmax if softmax else NAN])
    yield ["size", "T", "attention", "forward by the clock, ms", "sum of its kernels, ms", "launches", "longest in forward", "calls",
           "longest with backward", "outcome"], sums
    yield ["size", "T", "attention", "forward: products, %", "attention", "others", "step: products, %", "attention", "AdamW", "others",
           "softmax, ms", "its products / softmax"], shares
    if ran:
        row, step = max(ran, key=lambda pair: (pair[0][KERNEL] == "standard", pair[0].get("model.size") != "small", pair[0][T]))
        forward = step.of("forward")
        total = sum(seconds for _, seconds in forward.values())
        yield [f"in forward of {row[SIZE]}, T {row[T]:.0f}", "calls", "ms", "% of forward"], [
            [label, calls, 1e3 * seconds, 100 * seconds / total] for label, (calls, seconds) in list(forward.items())[:10]]


def draw(results):
    rows = by_size(results)
    figure, panels = plt.subplots(1, 2, figsize=(13, 1.2 + 0.28 * max(4, len(rows))), constrained_layout=True, sharey=True)
    steps = [Step(row) if row.has_run else None for row in rows]
    for axes, title, phases in ((panels[0], "Kernels of forward, %", ("forward",)), (panels[1], "Kernels of a step, %", ())):
        left = np.zeros(len(rows))
        for kind, colour in KINDS.items():
            width = np.nan_to_num([percent(step.of(*phases) if step else {}, kind) for step in steps])
            axes.barh(np.arange(len(rows)), width, left=left, height=0.7, color=colour, linewidth=0, label=kind)
            left += width
        axes.set_title(title)
        axes.set_xlim(0, 100)
        axes.grid(axis="y", visible=False)
    panels[0].set_yticks(np.arange(len(rows)), [f"{row[SIZE]}, T {row[T]:.0f}, {'stored scores' if row[KERNEL] == 'standard' else 'fused'}" for row in rows])
    panels[0].set_ylim(len(rows) - 0.5, -0.5)
    legend_beside(panels[1])
    for place, row in enumerate(rows):
        if not row.has_run:
            panels[0].text(1, place, row.outcome, va="center", color=VERMILION, fontsize=8)
    return figure
