"""The benchmark attention_gpu: rates of every engine by head width, length and mask, beside the GPU's peak."""
import matplotlib.pyplot as plt
import numpy as np
import plotting
from plotting import BLUE, FAINT, GREEN, ORANGE, PURPLE, SKY, VERMILION

D, T, CAUSAL, KERNEL, ORDERED = "bench.head_width", "bench.length", "bench.causal", "attention.kernel", "attention.deterministic"
ENGINES = {"standard": ("scores stored", VERMILION), "portable": ("portable flash2", ORANGE), "mma": ("mma.sync", GREEN),
           "mma, any order": ("mma.sync, any order", PURPLE), "wgmma": ("wgmma", BLUE), "wgmma, any order": ("wgmma, any order", SKY)}
PASSES = {"forward": ("standard", "portable", "mma", "wgmma"), "backward": tuple(ENGINES)}  # a forward pass has one order


def engine_of(row):
    """Which of ENGINES the row asked for; None if there is no such kernel for its width."""
    if row.outcome == "no such kernel":
        return None
    kernel = {"flash2": "portable"}.get(row[KERNEL], row[KERNEL])
    return kernel + (", any order" if kernel in ("mma", "wgmma") and row[ORDERED] == "false" else "")


def cases(results):
    """{(D, causal, T): {engine: row}}, in the order of widths, masks, lengths."""
    shapes = sorted({(row[D], row[CAUSAL], row[T]) for row in results.rows}, key=lambda shape: (shape[0], shape[1] == "false", shape[2]))
    rows = lambda shape: [row for row in results.rows if (row[D], row[CAUSAL], row[T]) == shape]
    return {shape: {engine_of(row): row for row in rows(shape) if engine_of(row)} for shape in shapes}


def rate(row, name):
    return 1e-3 * row[f"{name}_gflop_per_s"] if row is not None and row.outcome == "ok" else np.nan


def tables(results):
    found = cases(results)
    for name, engines in PASSES.items():
        here = [engine for engine in engines if any(engine in rows for rows in found.values())]
        yield ([f"{name}, TFLOP/s: D", "mask", "T", *(ENGINES[engine][0] for engine in here)],
               [[width, "causal" if causal == "true" else "full", length,
                 *(cell(rows.get(engine), name) for engine in here)] for (width, causal, length), rows in found.items()])


def cell(row, name):
    return row.outcome if row is not None and row.outcome != "ok" else rate(row, name)


def draw(results):
    found, peak = cases(results), plotting.peak_of(results.gpus())
    widths, lengths = results.different(D), sorted(results.different(T))
    figure = plt.figure(figsize=(3.2 + 3.6 * len(widths), 7.2), constrained_layout=True)
    upper, lower = figure.subfigures(2, 1, height_ratios=(6.5, 0.7))
    panels = upper.subplots(2, len(widths), squeeze=False, sharex=True, sharey=True)
    for line, (name, engines) in zip(panels, PASSES.items()):
        for axes, width in zip(line, widths):
            for engine in engines:
                for causal, dash in (("true", "-"), ("false", "--")):
                    rows = [found.get((width, causal, length), {}).get(engine) for length in lengths]
                    rates = np.array([rate(row, name) for row in rows])
                    part = np.array([row[f"{name}_std_ms"] / row[f"{name}_ms"] if row is not None else np.nan for row in rows])
                    if np.isfinite(rates).any():
                        plotting.line_with_spread(axes, lengths, rates, rates * part, color=ENGINES[engine][1], linestyle=dash)
            plotting.peak_line(axes, peak)
            axes.set_title(f"{name.capitalize()}, head width {width:.0f}")
            axes.set_xscale("log", base=2)
            axes.set_xticks(lengths, [plotting.length_text(int(length)) for length in lengths])
            axes.minorticks_off()
        line[0].set_ylabel(f"TFLOP/s, {results.rows[0]['dtype']}")
    panels[0][0].set_ylim(0, None)
    for axes in panels[-1]:
        axes.set_xlabel("tokens T")
    here = {engine for rows in found.values() for engine in rows}
    keys = [plt.Line2D([], [], color=colour, marker="o", markersize=3.5, label=label) for engine, (label, colour) in ENGINES.items() if engine in here]
    keys += [plt.Line2D([], [], color=FAINT, linestyle=dash, label=label) for dash, label in (("-", "causal"), ("--", "full"))]
    lower.legend(handles=keys, loc="center", ncol=4)
    return figure
