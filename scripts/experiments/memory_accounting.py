"""The memory of attention, tensor by tensor: what formulas predict, what the program lays out, and what a GPU lost to it."""
import math

import matplotlib.pyplot as plt
import numpy as np
import plotting
from plotting import BLUE, GREEN, GREY, ORANGE, SKY, VERMILION

from experiments.parts import legend_beside

T, D, KERNEL = "bench.length", "bench.head_width", "implementation"
MIB, FP32 = 2**20, 4
HEADS = ("q", "k", "v", "out", "d_out", "d_q", "d_k", "d_v")
SCORES = ("probabilities", "d_scores")
GROUPS = {"q, k, v, out": (HEADS[:4], SKY), "their gradients": (HEADS[4:], BLUE), "log-sum-exp": (("lse",), GREEN),
          "probabilities": (("probabilities",), VERMILION), "gradient of scores": (("d_scores",), ORANGE),
          "pads, workspace": (("workspace", "tile_counter", "pads"), GREY)}


def formulas(row):
    """{tensor: (formula, MiB)}; scores and probabilities are one tensor, which softmax overwrites."""
    rows = row["B"] * row["H"] * row[T]
    keeps_scores = row[KERNEL] == "standard"
    return {**{name: ("4 B H T D", FP32 * rows * row[D] / MIB) for name in HEADS}, "lse": ("4 B H T", FP32 * rows / MIB),
            **{name: ("4 B H T²" if keeps_scores else "none: recomputed", FP32 * rows * row[T] * keeps_scores / MIB) for name in SCORES}}


def smallest_lost(results):
    """The shortest row of the standard kernel that is out of memory; the longest if all fit; None if there is none."""
    rows = sorted(results.where(implementation="standard"), key=lambda row: row[T])
    return next((row for row in rows if row.outcome != "ok"), rows[-1] if rows else None)


def size(mib):
    return f"{mib:.4f}" if mib < 100 else f"{mib:.1f}"


def tables(results):
    if row := smallest_lost(results):
        yield by_tensor(row, results.one(implementation="flash2", bench__length=row[T], bench__head_width=row[D]))
    columns = ["kernel", "T", "predicted, MiB", "laid out, MiB", "lost by the GPU, MiB", "kept for backward, MiB", "T² terms, %", "growth", "outcome"]
    lines, before = [], {}
    for row in results.rows:
        terms = formulas(row)
        whole = sum(mib for _, mib in terms.values())
        lines.append([row[KERNEL], row[T], whole, row["peak_mib"], row["taken_mib"], row["memory_mib"], 100 * sum(terms[name][1] for name in SCORES) / whole,
                      exponent(before.get(row[KERNEL]), row), row.outcome])
        before[row[KERNEL]] = row
    yield columns, lines


def by_tensor(row, other):
    """The table of one length: `row` of the standard kernel, `other` of flash2."""
    predicted, without = formulas(row), formulas(other)
    lines = [[name, formula, size(mib), size(row[f"{name}_mib"]), size(without[name][1]), size(other[f"{name}_mib"])]
             for name, (formula, mib) in predicted.items()]
    lines += [[name, "-", "-", size(row[f"{name}_mib"]), "-", size(other[f"{name}_mib"])] for name in ("workspace", "tile_counter", "pads")]
    lines.append(["sum", "", size(sum(mib for _, mib in predicted.values())), size(row["peak_mib"]),
                  size(sum(mib for _, mib in without.values())), size(other["peak_mib"])])
    return ([f"T {row[T]:.0f}, {row.outcome}", "bytes", "standard: predicted, MiB", "laid out, MiB", f"flash2 ({other.outcome}): predicted, MiB", "laid out, MiB"],
            lines)


def exponent(before, row):
    """The power of T with which the memory grew since the row before: "T^1.9"."""
    return "-" if before is None else f"T^{math.log(row['peak_mib'] / before['peak_mib']) / math.log(row[T] / before[T]):.2f}"


def draw(results):
    figure, panels = plt.subplots(1, 3, figsize=(14, 4.4), constrained_layout=True, width_ratios=(1.2, 1, 1))
    growth, *bars = panels
    lost = smallest_lost(results)
    for kernel, colour in (("standard", VERMILION), ("flash2", BLUE)):
        rows = results.where(implementation=kernel)
        growth.plot([row[T] for row in rows], [sum(mib for _, mib in formulas(row).values()) for row in rows], color=colour, linewidth=1.2, linestyle="--",
                    label=f"{kernel}, predicted")
        for outcome, marker in (("ok", "o"), ("out of memory", "x")):
            if points := [(row[T], row["peak_mib"]) for row in rows if row.outcome == outcome]:
                growth.plot(*zip(*points), color=colour, marker=marker, markersize=5, linestyle="",
                            label=f"{kernel}, laid out" if outcome == "ok" else "out of memory")
    growth.set_xscale("log", base=2)
    growth.set_yscale("log")
    growth.xaxis.set_major_formatter(lambda value, _: plotting.length_text(int(value)))
    growth.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    growth.set_title("Memory of forward and backward, MiB")
    growth.set_xlabel("tokens T")
    growth.legend()
    for axes, kernel in zip(bars, ("standard", "flash2")):
        rows = results.where(implementation=kernel)
        shown = [row for row in rows if lost is None or row[T] <= lost[T]]
        bottom = np.zeros(len(shown))
        for name, (tensors, colour) in GROUPS.items():
            heights = np.array([sum(row[f"{tensor}_mib"] for tensor in tensors) for row in shown])
            axes.bar(range(len(shown)), 100 * heights / [row["peak_mib"] for row in shown], bottom=bottom, color=colour, width=0.7, label=name)
            bottom += 100 * heights / [row["peak_mib"] for row in shown]
        axes.set_xticks(range(len(shown)), [plotting.length_text(int(row[T])) for row in shown])
        axes.set_title(f"{kernel}: parts, %")
        axes.set_xlabel("tokens T")
        axes.set_ylim(0, 100)
        axes.grid(axis="x", visible=False)
    legend_beside(bars[1])
    return figure
