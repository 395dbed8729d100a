"""Attention over length, head width, number format and kernel: times, and memory kept before the backward pass."""
import matplotlib.pyplot as plt
import numpy as np
import plotting
from compare import beside
from plotting import BLUE, GREEN, ORANGE, PURPLE, VERMILION

from experiments.parts import log_axis

WIDTHS = dict(zip((16, 32, 64, 128), (BLUE, ORANGE, GREEN, PURPLE)))
T, D, KERNEL, DTYPE = "bench.length", "bench.head_width", "implementation", "dtype"
PEERS = beside.ATTENTION


def variation(results, name):
    return [row for row in results.rows if row.name.startswith(name + "_")]


def compared(results):
    """The rows of several kernels."""
    return variation(results, "kernels") + variation(results, "tf32")


def name_of(row):
    """Of a row's kernel; of the fastest fused one with the engine that it chose."""
    return f"fused ({row['engine']})" if row["attention.kernel"] == "auto" else row[KERNEL]


def tables(results):
    passes = ("forward", "backward")
    stored = beside.columns(results, "stored scores", "compiled")
    yield (["format", "D", "T", "forward, ms", "backward, ms", *(title for column in stored for title in (f"PyTorch, {column}, ms: forward", f"PyTorch, {column}: backward")), "kept before backward, MiB", "needed, MiB", "outcome"],
           [[row[DTYPE], row[D], row[T], row["forward_ms"], row["backward_ms"], *(beside.ms(results, row, column, name) for column in stored for name in passes),
             row["memory_mib"], row["peak_mib"], row.outcome] for row in variation(results, "course")])
    rows, kernels, every = [], compared(results), beside.columns(results)
    for row in kernels:
        base = results.one(kernels, implementation="standard", dtype=row[DTYPE], bench__head_width=row[D], bench__length=row[T])
        rows.append([name_of(row), row[DTYPE], row[D], row[T], row["forward_ms"], row["backward_ms"], row["both_ms"],
                     base["both_ms"] / row["both_ms"], *(beside.ms(results, row, column, "both") for column in every), row["memory_mib"],
                     row["peak_mib"], row.outcome])
    yield (["kernel", "format", "D", "T", "forward, ms", "backward, ms", "both, ms", "speed-up",
            *(f"PyTorch, {column}, ms: both" for column in every), "kept, MiB", "needed, MiB", "outcome"], rows)


def page_tables(results):
    """The course's grid whole; of the kernels the narrowest head, and lengths four times as long as the one before."""
    course, (names, kernels) = tables(results)
    narrow = min(row[2] for row in kernels)
    return [course, (names, [row for row in kernels if row[2] == narrow and row[3] in (256, 1024, 4096)])]


def line(axes, rows, quantity, **style):
    rows = sorted(rows, key=lambda row: row[T])
    x, y = np.array([row[T] for row in rows]), np.array([row[quantity] for row in rows])
    lost = np.array([row.outcome != "ok" for row in rows])
    spread = np.array([row.get(quantity.replace("_mean_", "_std_"), 0) if "_mean_" in quantity else 0 for row in rows])
    plotting.line_with_spread(axes, x[~lost], y[~lost], spread[~lost], **style)
    if lost.any() and quantity == "memory_mib":
        axes.plot(x[lost], y[lost], marker="x", linestyle="", color=style["color"])


def draw(results):
    figure, panels = plt.subplots(2, 3, figsize=(13, 7.5), constrained_layout=True)
    course, kernels = [row for row in variation(results, "course") if row[DTYPE] == "fp32"], compared(results)
    for axes, (quantity, title) in zip(panels[0], (("forward_mean_ms", "Standard in fp32, forward, ms"), ("backward_mean_ms", "Standard in fp32, backward, ms"),
                                                   ("memory_mib", "Kept before backward, MiB"))):
        for width, colour in WIDTHS.items():
            if rows := [row for row in course if row[D] == width]:
                line(axes, rows, quantity, color=colour, label=f"D {width}")
        axes.set_title(title)
        plotting.aside(axes, "x: out of memory" if quantity == "memory_mib" and any(row.outcome != "ok" for row in course) else "")
    for axes, (quantity, title) in zip(panels[1], (("forward_mean_ms", "Kernels, forward, ms"), ("backward_mean_ms", "Kernels, backward, ms"),
                                                   ("memory_mib", "Kernels, kept, MiB"))):
        width = kernels[0][D] if kernels else np.nan
        for kernel, name, colour in (("standard", "standard", VERMILION), ("tiled", "tiled", ORANGE), ("auto", "fused", BLUE)):
            for dtype, dash in (("fp32", "-"), ("tf32", (0, (1, 3))), ("bf16", "--")):
                if rows := [row for row in kernels if (row[D], row["attention.kernel"], row[DTYPE]) == (width, kernel, dtype)]:
                    line(axes, rows, quantity, color=colour, linestyle=dash, label=f"{name}, {dtype}")
        axes.set_title(title)
        plotting.aside(axes, f"D {width:.0f}, causal" if kernels and quantity == "forward_mean_ms" else "tiled is as fused" if quantity == "memory_mib" else "")
    for line_of in panels:
        for axes in line_of:
            axes.set_xscale("log", base=2)
            axes.xaxis.set_major_formatter(lambda value, _: plotting.length_text(int(value)))
            log_axis(axes.yaxis)
            axes.set_xlabel("tokens T")
        if line_of[0].lines:
            line_of[0].legend()
    return figure
