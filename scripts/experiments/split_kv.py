"""Decoding with the keys of a head cut into parts: time and rate over the number of parts and the length of the cache."""
import matplotlib.pyplot as plt
import numpy as np
import plotting
from plotting import BLUE, FAINT, GREEN, ORANGE, PURPLE, VERMILION

from experiments.parts import legend_beside, log_axis
from experiments.table import spread

B, T, PARTS = "bench.batch", "bench.length", "attention.decode_parts"
COLOURS = (BLUE, ORANGE, GREEN, PURPLE, VERMILION)


class Parts:
    """The rows of one cache by number of parts, and the one whose number the program chose."""

    def __init__(self, rows):
        ran = [row for row in rows if row.has_run]
        self.B, self.T, self.outcome = rows[0][B], rows[0][T], rows[0].outcome
        self.chosen = next((row for row in ran if row[PARTS] == 0), None)
        self.fixed = [row for row in ran if row[PARTS] > 0]
        self.whole = next((row for row in self.fixed if row["parts"] == 1), None)
        self.copy_rate = max((row["copy_gbyte_per_s"] for row in ran if np.isfinite(row["copy_gbyte_per_s"])), default=np.nan)

    def of_copy(self, row):
        """Its rate beside the fastest copy of any row of this cache: each measures one, and short ones vary."""
        return row["gbyte_per_s"] / self.copy_rate


def caches(results):
    return [Parts(results.where(bench__batch=count, bench__length=length))
            for count, length in dict.fromkeys((row[B], row[T]) for row in results.rows)]


def tables(results):
    rows, best_rows = [], []
    for found in caches(results):
        every = [(figures, "") for figures in found.fixed] + [(found.chosen, ", chosen")] * (found.chosen is not None)
        for figures, remark in every or [(dict.fromkeys(("parts", "median_ms", "std_ms", "gbyte_per_s"), np.nan), "")]:
            one = found.whole["median_ms"] if found.whole else np.nan
            text = "-" if np.isnan(figures["parts"]) else f"{figures['parts']:.0f}{remark}"
            rows.append([found.B, found.T, text, spread(figures["median_ms"], figures["std_ms"]), one / figures["median_ms"],
                         figures["gbyte_per_s"], found.of_copy(figures), found.outcome])
        timed = [figures for figures in found.fixed if np.isfinite(figures["median_ms"])]
        if timed and found.chosen and found.whole:
            best = min(timed, key=lambda figures: figures["median_ms"])
            best_rows.append([found.B, found.T, best["parts"], found.whole["median_ms"] / best["median_ms"], found.chosen["parts"],
                              found.whole["median_ms"] / found.chosen["median_ms"], found.of_copy(found.chosen)])
    yield ["B", "T, keys", "parts", "median, ms", "speed-up", "GB/s", "of a copy", "outcome"], rows
    yield ["B", "T, keys", "best parts", "speed-up", "chosen parts", "speed-up of the chosen", "of a copy"], best_rows


def page_tables(results):
    """Of each cache the share of a copy's rate by number of parts."""
    parts = sorted({row["parts"] for found in caches(results) for row in found.fixed})
    rows = [[found.B, found.T, *(next((found.of_copy(row) for row in found.fixed if row["parts"] == count), np.nan) for count in parts), found.chosen["parts"]]
            for found in caches(results) if found.chosen]
    return [(["B", "T, keys", *(f"{count:.0f} part{'s' if count > 1 else ''}, of a copy" for count in parts), "chosen"], rows)]


def draw(results):
    sequences = results.different(B)
    figure, panels = plt.subplots(2, len(sequences), figsize=(2 + 4.8 * len(sequences), 7.5), constrained_layout=True, squeeze=False,
                                  sharex=True, sharey="row")
    for (time, rate), count in zip(panels.T, sequences):
        for found, colour in zip([found for found in caches(results) if found.B == count], COLOURS):
            x = [figures["parts"] for figures in found.fixed]
            for axes, value in ((time, lambda figures: figures["median_ms"]), (rate, found.of_copy)):
                plotting.line_with_spread(axes, x, [value(figures) for figures in found.fixed],
                                          [value(figures) * figures["std_ms"] / figures["median_ms"] for figures in found.fixed], color=colour,
                                          label=f"{plotting.length_text(int(found.T))} keys")
                if found.chosen:
                    axes.plot(found.chosen["parts"], value(found.chosen), marker="*", markersize=12, color=colour, markeredgecolor="white", linestyle="", zorder=3)
        time.set_title("Time of one query per head, ms")
        rate.set_title("Rate of reading the cache, of a copy's")
        for axes in (time, rate):
            plotting.aside(axes, f"{count:.0f} sequence{'s' if count > 1 else ''}")
            axes.set_xscale("log", base=2)
            axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        log_axis(time.yaxis)
        rate.axhline(1, color=FAINT, linewidth=1, linestyle=":")
        rate.set_xlabel("parts of each head's keys")
    panels[1][0].set_ylim(0, None)
    handles, _ = panels[0][0].get_legend_handles_labels()
    legend_beside(panels[0][-1], handles=[*handles, plt.Line2D([], [], color=FAINT, marker="*", markersize=10, linestyle="", label="as chosen")])
    return figure
