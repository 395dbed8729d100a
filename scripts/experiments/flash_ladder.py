"""FlashAttention 1 and 2 by step: forward time and memory against standard attention, over heads, width and length."""
import matplotlib.pyplot as plt
import numpy as np
import plotting
from plotting import BLUE, GREEN, ORANGE, PURPLE, SKY, VERMILION

from experiments.parts import log_axis

DTYPE, HEADS, D, T = "bench.dtype", "bench.heads", "bench.head_width", "bench.length"
TENSOR_CORES = "tensor cores"
TILE = 64  # queries of a team of flash2's ladder, unless the pads are too large for it (D above 64)

# Of the picture: (implementation, engine, label, colour, is one of the steps between).
LINES = (("flash1", "0 steps", "flash1, plain", ORANGE, False), ("flash1", "1 step", None, ORANGE, True), ("flash1", "2 steps", None, ORANGE, True),
         ("flash1", "3 steps", "steps between", ORANGE, True), ("flash1", "4 steps", "flash1, 4 steps", VERMILION, False),
         ("flash1", "5 steps", "flash1, tensor cores", PURPLE, False), ("flash2", "0 steps", "flash2, plain", SKY, False),
         ("flash2", "1 step", None, SKY, True), ("flash2", "2 steps", "steps between", SKY, True), ("flash2", "3 steps", "flash2, 3 steps", BLUE, False),
         ("flash2", "portable", "flash2, usual", GREEN, False), ("flash2", TENSOR_CORES, "flash2, tensor cores", "black", False))


class Figures(dict):
    """What the rows of one shape have of each kernel: {(implementation, engine): (ms, kept MiB, needed MiB, outcome)}.

    Without those that there are not for its number format: flash1's tensor cores in fp32.
    flash2's kernels on tensor cores (wgmma, mma) are one engine, whichever suits a head width.
    """

    def __init__(self, rows):
        super().__init__()
        for row in rows:
            if row.has_run and row.outcome != "no such kernel":
                engine = TENSOR_CORES if "mma" in row["engine"] else row["engine"]
                self[row["implementation"], engine] = (*(float(row[name]) for name in ("forward_ms", "memory_mib", "peak_mib")), row.outcome)

    def ms(self, implementation, engine):
        return self.get((implementation, engine), (np.nan,))[0]

    def speed_up(self, implementation, engine):
        return self.ms("standard", "-") / self.ms(implementation, engine)

    def kept(self, implementation):
        return next((values[1] for (name, _), values in self.items() if name == implementation), np.nan)

    def best(self, implementation):
        """Engine and time of the fastest version."""
        times = {engine: values[0] for (name, engine), values in self.items() if name == implementation and np.isfinite(values[0])}
        engine = min(times, key=times.get, default="-")
        return engine, times.get(engine, np.nan)


CASE = (DTYPE, HEADS, D, T)


def by_case(rows):
    """{(dtype, B*H, D, T): figures}, by dtype."""
    cases, dtypes = dict.fromkeys(tuple(row[key] for key in CASE) for row in rows), list(dict.fromkeys(row[DTYPE] for row in rows))
    return {case: Figures([row for row in rows if tuple(row[key] for key in CASE) == case])
            for case in sorted(cases, key=lambda case: dtypes.index(case[0]))}


def tables(results):
    """Times, speed-ups and the exchange of the loops; a line for each case, a column for each version."""
    case_names, every = ["dtype", "B*H", "D", "T"], by_case(results.rows)
    versions = [version for version in dict.fromkeys((name, engine) for name, engine, *_ in LINES)
                if any(version in figures for figures in every.values())]
    names = [f"{name}, {'usual' if engine == 'portable' else engine}" for name, engine in versions]

    def time(figures, version):
        if version not in figures:
            return np.nan
        ms, _, _, outcome = figures[version]
        return ms if outcome == "ok" else outcome

    yield ([*case_names, "forward, ms: standard", *names],
           [[*case, *(time(figures, version) for version in (("standard", "-"), *versions))] for case, figures in every.items()])
    yield ([*case_names, "kept, MiB: standard", "flash1, flash2", "saved, %", *(f"speed-up: {name}" if i == 0 else name for i, name in enumerate(names))],
           [[*case, figures.kept("standard"), figures.kept("flash2"), 100 * (1 - figures.kept("flash2") / figures.kept("standard")),
             *(figures.speed_up(*version) for version in versions)] for case, figures in every.items()])
    exchange = []
    for case, figures in every.items():
        _, heads, _, length = case
        (first, first_ms), (second, second_ms) = figures.best("flash1"), figures.best("flash2")
        exchange.append([*case, heads, heads * -(-length // TILE), figures.ms("flash1", "0 steps") / figures.ms("flash2", "0 steps"),
                         figures.ms("flash1", "3 steps") / figures.ms("flash2", "3 steps"), first, second, first_ms / second_ms])
    yield ([*case_names, "flash1 teams", "flash2 teams", "flash2 over flash1: plain", "3 steps", "best flash1", "best flash2", "best over best"], exchange)


def draw_case(axes, rows):
    """Speed-up over T of every version, for one dtype, B*H and D; (handle, label) of what it drew."""
    every = [(case[-1], figures) for case, figures in sorted(by_case(rows).items())]
    lengths = np.array([length for length, _ in every])

    def line(name, engine, **style):
        speed = np.array([figures.speed_up(name, engine) for _, figures in every])
        if np.isfinite(speed).any():
            axes.plot(lengths, speed, **style)

    for name, engine, label, colour, is_between in LINES:
        style = dict(linewidth=0.8, alpha=0.6) if is_between else dict(linewidth=1.6, marker="o", markersize=3)
        line(name, engine, color=colour, label=label if not is_between else None, **style)
    axes.axhline(1, color=plotting.FAINT, linewidth=0.8, linestyle=":")


def draw(results):
    cases = [(dtype, heads) for dtype in results.different(DTYPE) for heads in results.different(HEADS)]
    widths = results.different(D)
    height = 1.0 + 2.1 * (len(cases) + 1)
    figure = plt.figure(figsize=(2 + 3.1 * max(len(widths), 3), height + 0.7), constrained_layout=True)
    upper, lower = figure.subfigures(2, 1, height_ratios=(height, 0.7))
    panels = upper.subplots(len(cases) + 1, len(widths), squeeze=False, sharex=True, sharey="row")
    for line, (dtype, heads) in zip(panels, cases):
        for axes, width in zip(line, widths):
            draw_case(axes, [row for row in results.rows if (row[DTYPE], row[HEADS], row[D]) == (dtype, heads, width)])
            axes.set_title(f"B*H {heads:.0f}, D {width:.0f}")
            plotting.aside(axes, dtype)
            log_axis(axes.yaxis)
        line[0].set_ylabel("speed-up\nover standard")
    dtype, heads = cases[-1]
    for axes, width in zip(panels[-1], widths):
        every = sorted(by_case([row for row in results.rows if (row[DTYPE], row[HEADS], row[D]) == (dtype, heads, width)]).items())
        for name, colour in (("standard", VERMILION), ("flash2", BLUE)):
            axes.plot([case[-1] for case, _ in every], [figures.kept(name) for _, figures in every], color=colour, marker="o", markersize=3,
                      label={"standard": "standard", "flash2": "flash1 and flash2"}[name])
        axes.set_title("Kept for backward, MiB")
        plotting.aside(axes, f"B*H {heads:.0f}, D {width:.0f}, {dtype}", size=7.5)
        log_axis(axes.yaxis)
        axes.set_xlabel("tokens T")
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(lambda value, _: plotting.length_text(int(value)))
    panels[-1][0].legend()
    keys = {label: handle for line in panels[:-1] for axes in line for handle, label in zip(*axes.get_legend_handles_labels())}
    thin = plt.Line2D([], [], color=plotting.FAINT, linewidth=0.8, alpha=0.6, label="steps between, of the same colour")
    lower.legend(handles=[*keys.values(), thin], loc="center", ncol=6)
    return figure
