"""Panels of plot_run that look at each rank: throughput, where its time goes, what happened when in a recorded step."""
import warnings

import numpy as np
import plotting
from matplotlib.ticker import MaxNLocator
from plotting import PALE, PHASES, aside, colours_of, nothing, short_count, time_unit

MOST_EVENTS = 6000  # bars that a picture has room for
COLOURS = {"forward": PHASES["forward"], "backward": PHASES["backward"], "reduce": plotting.ORANGE, "optimizer": PHASES["optimizer"],
           "communication": plotting.VERMILION}  # of events


def by_step(values, most=200):
    """(middles, medians) of [step, ...] in bins of steps, so that long runs stay readable."""
    bins = np.array_split(np.arange(len(values)), min(len(values), most))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a bin of profiled steps alone
        return [int(np.median(b)) for b in bins], np.array([np.nanmedian(values[b], axis=0) for b in bins])


def draw_throughput(axes, steps, ranks, spread, count):
    """`ranks`: columns of /steps/by_rank; `spread`: of /steps/over_ranks, of `count` ranks. One of them is {}."""
    axes.set_title("Throughput by rank")
    rate = steps.get("tokens_per_second", np.array([]))
    step_time = steps.get("step_time", np.array([]))
    if not np.isfinite(rate).any() or not (ranks or spread):
        return nothing(axes, "no step of several ranks was timed yet" if ranks or spread else "not recorded\n(a file of an older version)")
    tokens = rate * step_time  # of the step, over all ranks
    if ranks:
        computed, names = ranks["compute_time"], [f"rank {rank}" for rank in ranks["rank"]]
        shares = np.isfinite(computed).sum(axis=1, keepdims=True)
    else:
        computed, names = spread["compute_time"], ["fastest", "mean", "slowest"]
        shares = count
    with np.errstate(divide="ignore", invalid="ignore"):
        middles, medians = by_step(tokens[:, None] / shares / computed)
    colours = colours_of(names, {})
    for i, name in enumerate(names):
        axes.plot(steps["step"][middles], medians[:, i], color=colours[name], linewidth=1.3, marker="." if len(middles) < 40 else "", label=name)
    axes.set_ylim(0, 1.3 * np.nanpercentile(medians, 98))  # the legend has the top; one odd step does not flatten the rest
    axes.set_xlabel("step")
    axes.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    axes.yaxis.set_major_formatter(short_count)
    axes.set_ylabel("tokens/s")
    aside(axes, "an even share of the step's tokens / time computed", size=8)
    axes.legend(loc="upper left", ncol=6, columnspacing=1.2, handlelength=1.4, frameon=True, edgecolor="none", framealpha=0.9)


def draw_rank_times(axes, ranks, spread):
    axes.set_title("Where each rank's time goes")
    if not (ranks or spread):
        return nothing(axes, "not recorded\n(a file of an older version)")
    table = ranks or spread
    names = [f"rank {rank}" for rank in ranks["rank"]] if ranks else [str(name) for name in spread["statistic"]]
    parts = []
    for column, label, colour in (("compute_time", "computing", PHASES["forward"]), ("exposed_comm", "waiting for communication", PHASES["exposed"]),
                                  ("step_time", "rest of the step", PALE)):
        values = table[column]
        if not np.isfinite(values).any():
            return nothing(axes, "no step was timed yet")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # a rank of an earlier start alone
            parts.append((label, colour, np.nan_to_num(np.nanmedian(values, axis=0))))
    parts[2] = (*parts[2][:2], np.clip(parts[2][2] - parts[0][2] - parts[1][2], 0, None))
    factor, unit = time_unit(max(sum(values for _, _, values in parts)))
    rows, left = np.arange(len(names)), np.zeros(len(names))
    for label, colour, values in parts:
        axes.barh(rows, values / factor, left=left, color=colour, height=0.7, linewidth=0, label=label)
        left += values / factor
    axes.set_yticks(rows)
    axes.set_yticklabels(names, fontsize=8.5)
    axes.invert_yaxis()
    axes.set_ylim(len(names) - 0.4, -1.4)  # the legend has the top row
    axes.set_xlabel(f"{unit} per step, median")
    axes.grid(axis="y", visible=False)
    axes.legend(loc="upper left", ncol=3, handlelength=1.0, handleheight=1.0)


def draw_events(axes, events, comm):
    """Phases and calls of the last recorded step of the last start, one lane for each rank and stream."""
    axes.set_title("Events of a step")
    if not len(events.get("start", [])):
        return nothing(axes, "not recorded\n(trace.profile_steps = [5, 6] records these steps)")
    rows = events["attempt"] == events["attempt"].max()
    step = events["step"][rows].max()
    rows &= events["step"] == step
    calls = (comm["attempt"] == events["attempt"].max()) & (comm["step"] == step) if len(comm.get("start", [])) else np.zeros(0, bool)
    is_kernel = lambda label: "::" in label
    bars = [(rank, int("/" in label), label.split("/")[0], start, end) for rank, label, start, end in
            zip(*(events[name][rows] for name in ("rank", "label", "start", "end"))) if not is_kernel(label)]
    bars += [(rank, 2, "communication", start, end) for rank, start, end in
             zip(*(comm[name][calls] if name in comm else np.zeros(calls.sum(), int) for name in ("rank", "start", "end")))]
    if not bars:
        return nothing(axes, f"no phase was recorded in step {step}")
    cut = sorted(bars, key=lambda bar: bar[3] - bar[4])[:MOST_EVENTS]
    begin, last = min(bar[3] for bar in cut), max(bar[4] for bar in cut)
    factor, unit = time_unit(last - begin)
    lanes = {lane: i for i, lane in enumerate(sorted({bar[:2] for bar in cut}))}
    colours = colours_of(list(dict.fromkeys(bar[2] for bar in cut)), COLOURS)
    named = set()
    for rank, kind, name, start, end in cut:
        axes.barh(lanes[rank, kind], (end - start) / factor, left=(start - begin) / factor, height=0.8, color=colours[name],
                  edgecolor="white", linewidth=0.3, label="" if name in named else name)
        named.add(name)
    words = {0: "phases", 1: "units", 2: "communication"}
    axes.set_yticks(list(lanes.values()))
    axes.set_yticklabels([f"rank {rank} {words[kind]}" for rank, kind in lanes], fontsize=8)
    axes.set_ylim(len(lanes) - 0.4, -0.6 - 0.28 * (len(lanes) + 1))  # the legend has the top
    axes.set_xlabel(f"{unit} since the step's first event")
    axes.grid(axis="y", visible=False)
    aside(axes, f"step {step}" + (f", {len(cut)} of {len(bars)}" if len(cut) < len(bars) else ""))
    axes.legend(loc="upper left", ncol=3, handlelength=1.0, handleheight=1.0)
