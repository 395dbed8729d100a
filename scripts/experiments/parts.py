"""Parts that several pictures share."""
import numpy as np
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter


def size_of(row):
    """Of a model: its name, or where it has none what the row's name begins with."""
    return row.name.split("_")[0] if row["model.size"] in ("", "custom") else row["model.size"]


def has_steps(row):
    """Whether a row of bench.step timed steps, not forward passes alone."""
    return row.get("bench.phase") != "forward"


def log_axis(axis):
    """A logarithmic axis whose numbers are written out: 0.1, 1, 20; as it is where nothing is drawn, which has no logarithm."""
    limits = axis.axes.dataLim
    if not np.isfinite(limits.intervaly if axis.axis_name == "y" else limits.intervalx).all():
        return
    axis.axes.set_yscale("log") if axis.axis_name == "y" else axis.axes.set_xscale("log")
    write_out(axis)


def write_out(axis, decades=2.3):
    """Numbers of a logarithmic axis: 1, 2 and 5 of each decade up to so many decades, else 1."""
    low, high = axis.get_view_interval()
    axis.set_major_locator(LogLocator(10, subs=(1, 2, 5) if high < 10**decades * max(low, 1e-30) else (1,)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: np.format_float_positional(float(f"{value:.6g}"), trim="-")))
    axis.set_minor_formatter(NullFormatter())


def legend_above(axes, columns=3):
    """A legend inside of the axes, above bars, for which it makes room; lines behind it are hidden."""
    axes.set_ylim(0, 1.2 * axes.get_ylim()[1])
    axes.legend(loc="upper center", ncol=columns, columnspacing=1.2, handlelength=1.2, frameon=True, framealpha=1, edgecolor="none",
                borderpad=0.2)


def legend_beside(axes, **more):
    """A legend to the right of the axes, if they have anything to name."""
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="upper left", bbox_to_anchor=(1, 1), **more)
