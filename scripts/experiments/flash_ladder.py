"""FlashAttention 1 and 2 by step: forward time and memory against standard attention, over heads, width and length."""
import matplotlib.pyplot as plt
import numpy as np
import plotting
from plotting import BLUE, GREEN, ORANGE, PURPLE, VERMILION

from experiments.parts import log_axis

DTYPE, HEADS, D, T = "bench.dtype", "bench.heads", "bench.head_width", "bench.length"
TENSOR_CORES = "tensor cores"
TILE = 64  # queries of a team of flash2's ladder, unless the pads are too large for it (D above 64)

# What each step adds, and the engines that have it: flash1's, flash2's.
STEPS = {"plain": ("0 steps", "0 steps"), "aligned rows": ("1 step", "1 step"), "wide copies": ("2 steps", "2 steps"),
         "wide loads in q kᵀ": ("3 steps", "3 steps"), "rows by the team": ("4 steps", None), "4 x 4 in registers": (None, "4 steps"),
         "larger blocks": (None, "5 steps"), "the usual one": (None, "portable"), "tensor cores": ("5 steps", TENSOR_CORES)}
# The versions, in the order of the columns: (implementation, engine).
VERSIONS = [(name, engine) for name, engines in zip(("flash1", "flash2"), zip(*STEPS.values())) for engine in engines if engine]


class Figures(dict):
    """What the rows of one shape have of each kernel: {(implementation, engine): (ms, its deviation, kept MiB, outcome)}.

    Without those that there are not for its number format: flash1's tensor cores in fp32.
    flash2's kernels on tensor cores (wgmma, mma) are one engine, whichever suits a head width.
    """

    def __init__(self, rows):
        super().__init__()
        for row in rows:
            if row.has_run and row.outcome != "no such kernel":
                engine = TENSOR_CORES if "mma" in row["engine"] else row["engine"]
                self[row["implementation"], engine] = (*(float(row[name]) for name in ("forward_ms", "forward_std_ms", "memory_mib")), row.outcome)

    def ms(self, implementation, engine):
        return self.get((implementation, engine), (np.nan,))[0]

    def std(self, implementation, engine):
        return self.get((implementation, engine), (np.nan, np.nan))[1]

    def speed_up(self, implementation, engine):
        return self.ms("standard", "-") / self.ms(implementation, engine)

    def kept(self, implementation):
        return next((values[2] for (name, _), values in self.items() if name == implementation), np.nan)

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
    versions = [version for version in VERSIONS if any(version in figures for figures in every.values())]
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


def page_tables(results):
    """Times at the most tokens, ms: a line for each version, a column for each other case."""
    every = by_case(results.rows)
    cases = [case for case in every if case[3] == max(case[3] for case in every)]
    adds = {(name, engine): step for step, engines in STEPS.items() for name, engine in zip(("flash1", "flash2"), engines)}
    yield (["kernel", "what the step adds", *(f"{dtype}, B*H {heads:.0f}, D {width:.0f}" for dtype, heads, width, _ in cases)],
           [[name, adds.get((name, engine), ""), *(every[case].ms(name, engine) for case in cases)] for name, engine in [("standard", "-"), *VERSIONS]])


def draw_steps(axes, every):
    """Time by step of the ladder, with the most heads and tokens of each number format; flash1's with the narrowest heads."""
    narrow, wide = min(case[2] for case in every), max(case[2] for case in every)
    lines = {("flash1", narrow): ORANGE, ("flash2", wide): PURPLE, ("flash2", narrow): BLUE}
    for dtype, dash in zip(dict.fromkeys(case[0] for case in every), ("-", "--")):
        for (name, width), colour in lines.items():
            shape = max(case for case in every if case[0] == dtype and case[2] == width)
            times, stds = (np.array([of(name, engines[name == "flash2"]) for engines in STEPS.values()]) for of in (every[shape].ms, every[shape].std))
            places = np.flatnonzero(np.isfinite(times))
            plotting.line_with_spread(axes, places, times[places], stds[places], color=colour, linestyle=dash, label=f"{name}, D {width:.0f}, {dtype}")
        ms, std = (of("standard", "-") for of in (every[shape].ms, every[shape].std))
        if np.isfinite(ms):
            axes.axhline(ms, color=plotting.INK, linestyle=dash, linewidth=1, label=f"standard, D {shape[2]:.0f}, {dtype}")
            axes.axhspan(max(ms - std, 0.5 * ms), ms + std, color=plotting.INK, alpha=0.15, linewidth=0)
    axes.set_title("Forward by step, ms")
    plotting.aside(axes, f"B*H {shape[1]:.0f}, T {plotting.length_text(int(shape[3]))}", size=8)
    axes.set_xticks(range(len(STEPS)), STEPS, rotation=35, ha="right")
    axes.set_xlim(-0.3, len(STEPS) - 0.7)
    log_axis(axes.yaxis)


def draw_exchange(axes, every):
    """By how much flash2 leads flash1, both with three steps, of the narrowest heads of the first number format."""
    dtype, width = next(iter(every))[0], min(case[2] for case in every)
    for heads, colour in zip(sorted({case[1] for case in every}), (BLUE, GREEN, PURPLE, ORANGE)):
        mine = sorted((case[3], figures) for case, figures in every.items() if case[:3] == (dtype, heads, width))
        leads = np.array([figures.ms("flash1", "3 steps") / figures.ms("flash2", "3 steps") for _, figures in mine])
        parts = [np.hypot(*(figures.std(name, "3 steps") / figures.ms(name, "3 steps") for name in ("flash1", "flash2"))) for _, figures in mine]
        plotting.line_with_spread(axes, [length for length, _ in mine], leads, leads * parts, color=colour, label=f"B*H {heads:.0f}")
    axes.axhline(1, color=plotting.FAINT, linewidth=0.8, linestyle=":")
    axes.set_title("flash1's time over flash2's")
    plotting.aside(axes, f"3 steps, D {width:.0f}, {dtype}", size=8)
    log_axis(axes.yaxis)


def draw_memory(axes, every):
    """What is kept for backward, of the largest number of heads and width of the first number format."""
    dtype = next(iter(every))[0]
    heads, width = max(case[1:3] for case in every)
    mine = sorted((case[3], figures) for case, figures in every.items() if case[:3] == (dtype, heads, width))
    for name, colour, label in (("standard", VERMILION, "standard"), ("flash2", BLUE, "flash1 and flash2")):
        axes.plot([length for length, _ in mine], [figures.kept(name) for _, figures in mine], color=colour, marker="o", markersize=4, label=label)
    axes.set_title("Kept for backward, MiB")
    plotting.aside(axes, f"B*H {heads:.0f}, D {width:.0f}, {dtype}", size=8)
    log_axis(axes.yaxis)


def draw(results):
    every = by_case(results.rows)
    figure, panels = plt.subplots(1, 3, figsize=(14, 4.6), constrained_layout=True, width_ratios=(1.25, 1, 1))
    for axes, picture in zip(panels, (draw_steps, draw_exchange, draw_memory)):
        picture(axes, every)
        axes.legend(frameon=True, framealpha=1, edgecolor="none")  # hides the lines of standard behind it
    for axes in panels[1:]:
        axes.set_xlabel("tokens T")
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(lambda value, _: plotting.length_text(int(value)))
    return figure
