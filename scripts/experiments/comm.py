"""All-reduce over message sizes and ranks."""
import matplotlib.pyplot as plt
import numpy as np
import plotting
from plotting import BLUE, GREEN, ORANGE, PURPLE, VERMILION

from experiments.parts import log_axis
from experiments.table import spread


def size_text(nbytes, _=None):
    return f"{nbytes / 1e9:.4g} GB" if nbytes >= 1e9 else f"{nbytes / 1e6:.4g} MB"


def tables(results):
    columns = ["ranks", "message", "time, ms", "algorithm, GB/s", "bus, GB/s", "outcome"]
    return [(columns, [[row.ranks, size_text(1e6 * row["bench.mbyte"]), spread(row["mean_ms"], row["std_ms"]),
                        row["algorithm_gbyte_per_s"], row["bus_gbyte_per_s"], row.outcome] for row in results.rows])]


def draw(results):
    figure, (time, bus) = plt.subplots(1, 2, figsize=(11, 4), constrained_layout=True)
    for R, colour in zip(results.ranks, (BLUE, ORANGE, GREEN, PURPLE, VERMILION)):
        if not (rows := [row for row in results.rows if row.ranks == R and row.outcome == "ok"]):
            continue
        nbytes = np.array([1e6 * row["bench.mbyte"] for row in rows])
        style = dict(color=colour, label=f"{R} ranks")
        plotting.line_with_spread(time, nbytes, [row["mean_ms"] for row in rows], [row["std_ms"] for row in rows], **style)
        plotting.line_with_spread(bus, nbytes, [row["bus_gbyte_per_s"] for row in rows],
                                  [row["bus_gbyte_per_s"] * row["std_ms"] / row["mean_ms"] for row in rows], **style)
    time.set_title("Time of an all-reduce, ms")
    bus.set_title("Bus bandwidth, GB/s")
    if not time.lines:
        return figure
    log_axis(time.yaxis)
    bus.set_ylim(0, None)
    for axes in (time, bus):
        axes.set_xscale("log")
        axes.set_xlabel("message")
        axes.xaxis.set_major_formatter(size_text)
    time.legend()
    return figure
