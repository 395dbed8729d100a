"""The same number added again and again, in several formats: sums and their errors."""
import matplotlib.pyplot as plt
import numpy as np
from plotting import BLUE, GREEN, ORANGE, PURPLE, VERMILION

from experiments.parts import log_axis

TERMS = 1000  # those of the exercise
COLOURS = {"fp32 += fp32": BLUE, "fp16 += fp16": VERMILION, "fp32 += fp16": ORANGE, "bf16 += bf16": PURPLE, "fp32 += bf16": GREEN}


def sums(results):
    """{"fp32 += fp16": arrays of terms, value of one addend, sum, exact sum, error}, in the order of the job."""
    found = {}
    for row in results.rows:
        if row.has_run:
            for entry in row.entries():
                numbers = [entry[name] for name in ("terms", "value", "sum", "exact", "error")]
                found.setdefault(f"{entry['accumulator']} += {entry['addend']}", []).append(numbers)
    return {name: np.array(lines).T for name, lines in found.items()}


def tables(results):
    rows = []
    for name, (terms, value, total, exact, error) in sums(results).items():
        for i in np.flatnonzero(terms == TERMS):
            rows.append([name, f"{value[i]:.8f}", f"{total[i]:.6f}", f"{exact[i]:.0f}", f"{100 * error[i]:+.4f}"])
    return [(["sum += addend", "addend", f"sum of {TERMS}", "exact", "error, %"], rows)]


def draw(results):
    figure, (value, error) = plt.subplots(1, 2, figsize=(11, 4), constrained_layout=True)
    found = sums(results)
    for name, colour in COLOURS.items():
        terms, _, total, _, relative = found[name]
        style = dict(color=colour, marker="o", markersize=3, linewidth=1.5, label=name)
        value.plot(terms, total, **style)
        error.plot(terms, 100 * np.abs(relative), **style)
    terms, _, _, exact, _ = found["fp32 += fp32"]
    value.plot(terms, exact, color="#404040", linestyle=":", linewidth=1.2, label="exact", zorder=5)
    value.set_title("Sum")
    error.set_title("Distance from the exact sum, %")
    for axes in (value, error):
        axes.set_xlabel("numbers added")
        log_axis(axes.xaxis)
        log_axis(axes.yaxis)
    value.legend()
    return figure
