"""Parts that several pictures share."""
import numpy as np
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter


def log_axis(axis):
    """A logarithmic axis whose numbers are written out: 0.1, 1, 20; as it is where nothing is drawn, which has no logarithm."""
    limits = axis.axes.dataLim
    if not np.isfinite(limits.intervaly if axis.axis_name == "y" else limits.intervalx).all():
        return
    axis.axes.set_yscale("log") if axis.axis_name == "y" else axis.axes.set_xscale("log")
    low, high = axis.get_view_interval()
    axis.set_major_locator(LogLocator(10, subs=(1, 2, 5) if high < 200 * max(low, 1e-30) else (1,)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def legend_above(axes, columns=3):
    """A legend inside of the axes, above bars, for which it makes room."""
    axes.set_ylim(0, 1.2 * axes.get_ylim()[1])
    axes.legend(loc="upper center", ncol=columns, columnspacing=1.2, handlelength=1.2)
