"""Tiles of queries and keys of the portable attention kernels: time, and the pads that a team asks for."""
import matplotlib.pyplot as plt
import numpy as np
import plotting
from plotting import INK

from experiments.table import number, spread

KERNELS = {"tiled": "tiled", "flash1": "flash1, 4 steps", "flash2_ladder": "flash2, 3 steps", "flash2": "flash2"}
QUERIES, KEYS, D = "attention.query_tile", "attention.key_tile", "bench.head_width"


def kernel_of(row):
    return max((name for name in KERNELS if row.name.startswith(name + "_")), key=len)


def of(results, kernel, width):
    return [row for row in results.rows if (kernel_of(row), row[D]) == (kernel, width)]


def fastest(rows):
    """The fastest of these rows; none if none has a time."""
    return min((row for row in rows if np.isfinite(row["forward_mean_ms"])), key=lambda row: row["forward_mean_ms"], default=None)


def pads_of(row):
    return "workspace" if kernel_of(row) == "tiled" else number(row["pad_kib"])


def spread_of(row):
    """A line with the deviation, of the mean; "" of one repeat."""
    percent = 100 * row["forward_std_ms"] / row["forward_mean_ms"]
    return "" if not row["forward_repeats"] > 1 else "\n± <0.1 %" if percent < 0.1 else f"\n± {number(percent, 1)} %"


def outcome_of(row):
    if row.outcome == "pads too large":
        return f"refused: pads of {number(row['pad_kib'])} KiB, this device has {number(row['pad_limit_kib'])}"
    return row.outcome


def tables(results):
    columns = ["kernel", "D", "query tile", "key tile", "pads, KiB", "forward, ms", "time / best", "outcome"]
    rows, best_rows = [], []
    for kernel in KERNELS:
        for width in results.different(D):
            mine = of(results, kernel, width)
            best = fastest(mine)
            rows += [[KERNELS[kernel], row[D], row[QUERIES], row[KEYS], pads_of(row), spread(row["forward_mean_ms"], row["forward_std_ms"]),
                      row["forward_mean_ms"] / best["forward_mean_ms"] if best else np.nan, outcome_of(row)] for row in mine]
            if best:
                refused = sum(row.outcome == "pads too large" for row in mine)
                best_rows.append([KERNELS[kernel], width, f"{best[QUERIES]:.0f} x {best[KEYS]:.0f}", pads_of(best), best["forward_mean_ms"], refused])
    yield columns, rows
    yield ["kernel", "D", "best, queries x keys", "pads, KiB", "forward, ms", "refused"], best_rows


def page_tables(results):
    """The best tiles of each kernel; the picture has all."""
    return list(tables(results))[1:]


def draw(results):
    widths = results.different(D)
    figure, panels = plt.subplots(len(widths), len(KERNELS), figsize=(13.5, 1.2 + 2.9 * len(widths)), constrained_layout=True, squeeze=False)
    tiles = sorted({row[QUERIES] for row in results.rows} | {row[KEYS] for row in results.rows})
    for line, width in zip(panels, widths):
        for axes, kernel in zip(line, KERNELS):
            rows = of(results, kernel, width)
            best = fastest(rows)
            ratio = np.full((len(tiles), len(tiles)), np.nan)
            for row in rows:
                i, j = tiles.index(row[QUERIES]), tiles.index(row[KEYS])
                ratio[i, j] = row["forward_mean_ms"] / best["forward_mean_ms"] if best else np.nan
                if np.isfinite(ratio[i, j]):
                    words = f"{number(row['forward_mean_ms'])} ms" + spread_of(row)
                else:
                    words = "pads too\nlarge" if row.outcome == "pads too large" else row.outcome
                if row["pad_kib"] > 0:
                    words += f"\n{number(row['pad_kib'])} KiB"
                axes.text(j, i, words, ha="center", va="center", fontsize=7.5, color="white" if ratio[i, j] > 2.2 else INK,
                          fontweight="bold" if row is best else "normal")
            image = axes.imshow(ratio, cmap="YlOrBr", vmin=1, vmax=3, aspect="auto")
            axes.set_title(KERNELS[kernel])
            plotting.aside(axes, f"D {width:.0f}")
            axes.set_xticks(range(len(tiles)), [f"{tile:.0f}" for tile in tiles])
            axes.set_yticks(range(len(tiles)), [f"{tile:.0f}" for tile in tiles])
            axes.grid(False)
            axes.set_xlabel("keys of a tile")
        line[0].set_ylabel("queries of a tile")
    figure.colorbar(image, ax=panels, label="time, of the kernel's best", extend="max")
    return figure
