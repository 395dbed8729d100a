"""Bytes that attention moves, by formula and as counted on the device, and where each kernel stands under the roofline."""
from dataclasses import dataclass, fields

import matplotlib.pyplot as plt
import numpy as np
import plotting
from plotting import BLUE, FAINT, GREEN, ORANGE, VERMILION

from experiments import launch, ncu
from experiments.parts import log_axis

DTYPE, T = "bench.dtype", "bench.length"


@dataclass
class Roof:
    """Peaks of a GPU, by the program's table: fp32 without tensor cores, bf16 on dense tensor cores, memory."""

    name: str
    fp32_tflops: float
    bf16_tflops: float
    memory_tbyte_per_s: float

    def flop_per_s(self, unit):
        """Of UNITS; TF32 runs at half of bf16's rate, and fp32 takes three of its products."""
        return 1e12 * {"fp32": self.fp32_tflops, "three TF32 products": self.bf16_tflops / 6, "bf16, tensor cores": self.bf16_tflops}[unit]

    def ridge(self, unit):
        """Flop per byte at which memory and arithmetic take equally long."""
        return self.flop_per_s(unit) / (1e12 * self.memory_tbyte_per_s)


UNITS = {"fp32": ("fp32", "three TF32 products"), "bf16": ("fp32", "bf16, tensor cores")}  # what computes, by number format

# Regular expressions of kernels' names, without namespaces, of which ncu leaves some out; the first that matches counts.
GROUPS = {"standard": r"HeadProduct|SoftmaxRows|gemm|cutlass|nvjet", "flash1": r"Flash1Forward", "flash2, portable": r"Flash2Forward|RegisterForward",
          "flash2, tensor cores": r"ForwardTeam|TileKernel|AmpereF"}
COLOURS = dict(zip(GROUPS, (VERMILION, ORANGE, GREEN, BLUE)))


def facts(results):
    """What the program knows of GPUs; stored with a published run."""
    gpus = launch.Program(results.preset).figures["gpus"]
    return {"gpus": [{key: gpu[key] for key in ("name", *(field.name for field in fields(Roof)))} for gpu in gpus]}


def roof_of(results):
    """The roof of the GPU that ran this; that of an H200, and False, if it is none of those that the program knows."""
    gpus = (results.facts or facts(results))["gpus"]
    by_name = {gpu["name"]: gpu for gpu in gpus}
    here = next((name for model in results.gpus() if (name := plotting.known_gpu(model, by_name))), None)
    gpu = by_name[here or "H200"]
    return Roof(**{field.name: gpu[field.name] for field in fields(Roof)}), here is not None


def group_of(implementation, engine):
    if implementation != "flash2":
        return implementation
    return "flash2, portable" if engine == "portable" else "flash2, tensor cores"


@dataclass
class Kernel:
    """One kernel in one row: its shape, its time and its bytes."""

    row: object
    group: str
    heads: float  # B*H
    D: float
    ms: float
    std: float  # of ms
    outcome: str
    counted: float = np.nan  # [B] by ncu

    @property
    def T(self):
        return self.row[T]

    @property
    def width(self):
        return 2 if self.row[DTYPE] == "bf16" else 4

    @property
    def unit(self):
        """What its products run on; those of the library, in bf16, on tensor cores, too."""
        is_tensor = self.group == "flash2, tensor cores" or (self.group == "standard" and self.row[DTYPE] == "bf16")
        return UNITS[self.row[DTYPE]][is_tensor]

    @property
    def flop(self):
        return 4 * self.heads * self.T**2 * self.D

    @property
    def once(self):
        """Bytes if every tensor of a launch crosses memory once: q, k, v, out, lse; standard also S twice and P twice."""
        scores = 4 * self.T**2 * self.width if self.group == "standard" else 0
        return self.heads * (4 * self.T * self.D * self.width + 4 * self.T + scores)

    @property
    def intensity(self):
        """Flop per byte: of what was counted, else of the least."""
        return self.flop / (self.counted if np.isfinite(self.counted) else self.once)


def kernels_of(results, counted):
    shapes = list(dict.fromkeys((row[DTYPE], row[T]) for row in results.rows))
    for row in sorted(filter(lambda row: row.has_run, results.rows), key=lambda row: shapes.index((row[DTYPE], row[T]))):
        group = group_of(row["implementation"], row["engine"])
        if row.outcome != "no such kernel":
            yield Kernel(row, group, row["B"] * row["H"], row["D"], row["forward_ms"], row["forward_std_ms"], row.outcome,
                         counted.get(row.name, {}).get(group, np.nan))


def side_of(kernel, roof):
    ridge = roof.ridge(kernel.unit)
    return f"{'memory' if kernel.intensity < ridge else 'arithmetic'} (ridge {ridge:.0f})"


def share_of_roof(kernel, roof):
    attainable = min(roof.flop_per_s(kernel.unit), 1e12 * roof.memory_tbyte_per_s * kernel.intensity)
    return kernel.flop / (1e-3 * kernel.ms) / attainable


def tables(results):
    counted, why = ncu.measured(results, GROUPS)
    roof, is_here = roof_of(results)
    columns = ["dtype", "T", "kernel", "each tensor once, MB", "measured, MB", "flop/byte", f"bound on an {roof.name}", "forward, ms",
               "TFLOP/s", "of the roof", "outcome"]
    rows = []
    for kernel in kernels_of(results, counted):
        measured = kernel.counted / 1e6 if np.isfinite(kernel.counted) else why or "not launched"
        rows.append([kernel.row[DTYPE], kernel.T, kernel.group, kernel.once / 1e6, measured, kernel.intensity, side_of(kernel, roof),
                     kernel.ms, 1e-9 * kernel.flop / kernel.ms, share_of_roof(kernel, roof) if is_here else np.nan, kernel.outcome])
    return [(columns, rows)]


def draw_roof(axes, kernels, roof, is_here, dtype):
    x = np.geomspace(1, 1e4, 200)
    for unit, dash in zip(UNITS[dtype], ("--", "-")):
        axes.plot(x, 1e-12 * np.minimum(roof.flop_per_s(unit), 1e12 * roof.memory_tbyte_per_s * x), color=FAINT, linestyle=dash, linewidth=1.2)
        axes.annotate(unit, (x[-1], roof.flop_per_s(unit) / 1e12), xytext=(0, 3), textcoords="offset points", ha="right", va="bottom", fontsize=8,
                      color=FAINT)
    for group, colour in COLOURS.items():
        mine = [kernel for kernel in kernels if kernel.group == group]
        limit = [1e-12 * min(roof.flop_per_s(kernel.unit), 1e12 * roof.memory_tbyte_per_s * kernel.intensity) for kernel in mine]
        axes.plot([kernel.intensity for kernel in mine], limit, color=colour, marker="o", markersize=5, markerfacecolor="white", linestyle="")
        if is_here:
            rates = [1e-9 * kernel.flop / kernel.ms for kernel in mine]
            plotting.line_with_spread(axes, [kernel.intensity for kernel in mine], rates, [rate * kernel.std / kernel.ms for rate, kernel in zip(rates, mine)],
                                      color=colour, linewidth=1)
    axes.set_ylim(0.5, 2000)
    log_axis(axes.yaxis)
    log_axis(axes.xaxis)
    axes.set_xlabel("flop per byte, of " + ("the bytes counted" if any(np.isfinite(kernel.counted) for kernel in kernels) else "each tensor once"))
    axes.set_title(f"Roof of an {roof.name}, TFLOP/s")


def draw(results):
    counted, _ = ncu.measured(results, GROUPS)
    roof, is_here = roof_of(results)
    every = list(kernels_of(results, counted))
    dtypes = results.different(DTYPE)
    height = 3.6 * len(dtypes)
    figure = plt.figure(figsize=(12, height + 0.7), constrained_layout=True)
    upper, lower = figure.subfigures(2, 1, height_ratios=(height, 0.7))
    for (moved, under), dtype in zip(upper.subplots(len(dtypes), 2, squeeze=False), dtypes):
        kernels = [kernel for kernel in every if kernel.row[DTYPE] == dtype]
        for group, colour in COLOURS.items():
            mine = sorted([kernel for kernel in kernels if kernel.group == group], key=lambda kernel: kernel.T)
            for name, style in (("once", dict(linewidth=1.6)), ("counted", dict(linestyle="", marker="D", markersize=5))):
                moved.plot([kernel.T for kernel in mine], [getattr(kernel, name) / 1e6 for kernel in mine], color=colour, **style)
        moved.set_title("Bytes moved, MB")
        plotting.aside(moved, dtype)
        moved.set_xscale("log", base=2)
        moved.xaxis.set_major_formatter(lambda value, _: plotting.length_text(int(value)))
        log_axis(moved.yaxis)
        moved.set_xlabel("tokens T")
        draw_roof(under, kernels, roof, is_here, dtype)
        plotting.aside(under, dtype)
    here = {kernel.group for kernel in every}
    keys = [plt.Line2D([], [], color=colour, linewidth=2, label=group) for group, colour in COLOURS.items() if group in here]
    keys += [plt.Line2D([], [], color=FAINT, label=label, **style) for label, style in (
        ("each tensor once; flash1 and flash2 alike", dict()), ("measured", dict(linestyle="", marker="D", markersize=5)),
        ("the most at these flop per byte", dict(linestyle="", marker="o", markerfacecolor="white")))]
    lower.legend(handles=keys, loc="center", ncol=4)
    return figure
