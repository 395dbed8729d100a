"""Strong and weak scaling out of one grid of ranks and batches."""
import matplotlib.pyplot as plt
import numpy as np
import plotting
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator
from plotting import BLUE, FAINT, ORANGE

from experiments.table import spread

BATCH = "train.batch_size"


def lines(results):
    """The rows of strong scaling, of the largest batch that fits on the fewest ranks, and of weak scaling, from the smallest batch on."""
    batches, first = results.different(BATCH), results.ranks[0]
    on = lambda R, batch: [row for row in results.rows if row.ranks == R and row[BATCH] == batch]
    largest = max((batch for batch in batches if any(row.has_run for row in on(first, batch))), default=max(batches))
    return {"strong": [row for R in results.ranks for row in on(R, largest)],
            "weak": [row for R in results.ranks for row in on(R, min(batches) * R / first)]}


def scaled(rows):
    """Each row with its speed-up and efficiency: against the first that ran, whose efficiency counts as 1; NaN where none ran."""
    base = next((row for row in rows if row.has_run), None)
    for row in rows:
        efficiency = base["step_mean_ms"] / row["step_mean_ms"] * row[BATCH] / base[BATCH] * base.ranks / row.ranks if base else np.nan
        yield row, efficiency * row.ranks, efficiency


def tables(results):
    columns = ["scaling", "ranks", "sequences", "step, ms", "exposed, ms", "tokens/s", "speed-up", "efficiency, %", "outcome"]
    return [(columns, [[way, row.ranks, row[BATCH], spread(row["step_mean_ms"], row["step_std_ms"]), row["exposed_ms"], row["tokens_per_s"],
                        speedup, 100 * efficiency, row.outcome] for way, rows in lines(results).items() for row, speedup, efficiency in scaled(rows)])]


def draw(results):
    figure, (speed, efficiency) = plt.subplots(1, 2, figsize=(11, 4), constrained_layout=True)
    for (way, rows), colour in zip(lines(results).items(), (BLUE, ORANGE)):
        points = [(row.ranks, up, 100 * share, row["step_std_ms"] / row["step_mean_ms"]) for row, up, share in scaled(rows) if row.has_run]
        size = f"{rows[0][BATCH]:.0f} sequences" + (" each" if way == "weak" else "")
        style = dict(color=colour, markersize=5, label=f"{way}, {size}")
        for axes, place in ((speed, 1), (efficiency, 2)):
            plotting.line_with_spread(axes, [p[0] for p in points], [p[place] for p in points], [p[place] * p[3] for p in points], **style)
    speed.plot(results.ranks, results.ranks, color=FAINT, linestyle=":", label="ideal")
    efficiency.axhline(100, color=FAINT, linestyle=":")
    speed.set_title("Speed-up")
    speed.set_yscale("log", base=2)
    efficiency.set_title("Efficiency, %")
    efficiency.set_ylim(0, None)
    for axes in (speed, efficiency):
        axes.set_xscale("log", base=2)
        axes.set_xlabel("ranks")
    for axis in (speed.xaxis, efficiency.xaxis, speed.yaxis):
        axis.set_major_locator(FixedLocator(results.ranks))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_locator(NullLocator())
    speed.legend()
    return figure
