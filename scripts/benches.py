"""Tables and pictures of what bench jobs measure, by kind of job; of the columns of their rows (results.columns_of)."""
import matplotlib.pyplot as plt
import numpy as np
import plotting
import results
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator
from plotting import BLUE, CATEGORIES, FAINT, GREEN, INK, ORANGE, PALE, PHASES, PURPLE, SKY, VERMILION, aside, byte_unit, rate_unit, short_count, time_unit

from experiments.table import spread

OUT_OF_MEMORY = "out of memory"
BAR_INCHES = 0.34  # height of a row of bars

# Of attention; an engine has one hue, and dashes where it adds in any order.
ENGINES = {"standard": VERMILION, "flash2, portable": ORANGE, "flash2, mma": GREEN, "flash2, wgmma": BLUE,
           "flash2, mma, any order": PURPLE, "flash2, wgmma, any order": SKY}


def length_axis(axes, lengths, label):
    axes.set_xscale("log", base=2)
    axes.set_xticks(lengths, [plotting.length_text(int(T)) for T in lengths])
    axes.set_xlim(lengths[0] / 1.25, lengths[-1] * 1.25)
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel(label)


def lost_key(lost):
    return [plt.Line2D([], [], color=FAINT, linestyle="", marker="x", label=OUT_OF_MEMORY)] if lost.any() else []


# --- attention

def series_of(rows):
    """The series of each row: implementation and engine; order and number format where the file has several."""
    several = {name: len(set(rows[name])) > 1 for name in ("ordered", "dtype")}
    names = []
    for implementation, engine, ordered, dtype in zip(*(rows[name] for name in ("implementation", "engine", "ordered", "dtype"))):
        is_any_order = several["ordered"] and ordered == "no"
        words = [implementation, engine if engine != "-" else "", "any order" if is_any_order else "",
                 dtype if several["dtype"] else ""]
        names.append(", ".join(word for word in words if word))
    return np.array(names)


def draw_lengths(axes, rows, series, colours, values, dashed):
    """One line per series and mask over T; `values`, their deviations and where a row did not fit, `absent`, belong to the rows."""
    values, stds, absent = values
    for name in reversed(dict.fromkeys(series)):  # the first on top, where several lie on each other
        for causal in ("yes", "no"):
            chosen = (series == name) & (rows["causal"] == causal)
            order = np.flatnonzero(chosen)[np.argsort(rows["T"][chosen])]
            dash = "--" if dashed and causal == "no" else "-"
            drawn = order[np.isfinite(values[order]) & ~absent[order]]
            plotting.line_with_spread(axes, rows["T"][drawn], values[drawn], stds[drawn], color=colours[name], linestyle=dash)
            lost = order[absent[order] & np.isfinite(values[order])]
            axes.plot(rows["T"][lost], values[lost], marker="x", markersize=6, linestyle="", color=colours[name])


def attention(rows):
    widths, lengths = sorted(set(rows["D"])), sorted(set(rows["T"]))
    series = series_of(rows)
    colours = plotting.colours_of(list(dict.fromkeys(series)), ENGINES)
    lost = rows["outcome"] == OUT_OF_MEMORY
    passes = [name for name in ("forward", "backward") if np.isfinite(rows[f"{name}_gflop_per_s"]).any()] or ["both"]
    several_masks = len(set(rows["causal"])) > 1

    panels = []  # (title of the y axis, values, their deviations, which rows show as lost)
    for name in passes:
        rates = 1e9 * rows[f"{name}_gflop_per_s"]
        factor, unit = rate_unit(np.nanmax(rates, initial=0))
        what = "forward + backward" if name == "both" else name
        panels.append((f"{what}\n{unit}", np.where(lost, 0.0, rates / factor), rates / factor * rows[f"{name}_std_ms"] / rows[f"{name}_ms"], lost))
    factor, unit = byte_unit(2**20 * rows["memory_mib"].max())
    has_kernel = rows["outcome"] != "no such kernel"
    panels.append((f"kept for the backward pass\n{unit}", np.where(has_kernel, 2**20 * rows["memory_mib"] / factor, np.nan), np.zeros(len(lost)), lost))

    figure = plt.figure(figsize=(2.2 + 3.0 * max(len(widths), 2), 1.7 + 2.4 * len(panels)), constrained_layout=True)
    upper, lower = figure.subfigures(2, 1, height_ratios=(2.4 * len(panels) + 0.9, 0.8))
    grid = upper.subplots(len(panels), len(widths), squeeze=False, sharex=True, sharey="row")
    for number, (line, (what, values, stds, absent)) in enumerate(zip(grid, panels)):
        is_memory = number == len(panels) - 1
        for axes, D in zip(line, widths):
            here = rows["D"] == D
            part = {name: column[here] for name, column in rows.items()}
            draw_lengths(axes, part, series[here], colours, (values[here], stds[here], absent[here]), several_masks and not is_memory)
            length_axis(axes, lengths, "tokens T" if is_memory else "")
            if is_memory:
                axes.set_yscale("log")
                axes.yaxis.set_major_locator(LogLocator(10, numticks=6))
                axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            if number == 0:
                axes.set_title(f"head width {D:.0f}")
        line[0].set_ylabel(what)
        if not is_memory:
            line[0].set_ylim(0, None)
    keys = [plt.Line2D([], [], color=colour, marker="o", markersize=3.5, label=name) for name, colour in colours.items()]
    if several_masks:
        keys += [plt.Line2D([], [], color=FAINT, linestyle=style, label=label)
                 for style, label in (("-", "causal"), ("--", "full"))]
    keys += lost_key(lost)
    lower.legend(handles=keys, loc="center", ncol=min(len(keys), 5))
    return figure


# --- decoding and generation

SERIES = (BLUE, ORANGE, GREEN, PURPLE, SKY, VERMILION)


def time_axis(axes, times):
    if not np.isfinite(times).any():
        return  # a logarithmic axis needs a number
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(10, subs=(1, 2, 5), numticks=10))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_locator(NullLocator())


def line_over(axes, x, values, stds, absent, **style):
    """A line over x in its order, and a cross at the foot of the panel where a row did not fit."""
    order = np.argsort(x)
    drawn = order[np.isfinite(values[order])]
    plotting.line_with_spread(axes, x[drawn], values[drawn], stds[drawn], **style)
    axes.plot(x[absent], np.full(absent.sum(), 0.03), color=style["color"], linestyle="", marker="x", transform=axes.get_xaxis_transform())


def decode(rows):
    cases = list(dict.fromkeys(zip(rows["dtype"], rows["D"])))
    lengths, parts = sorted(set(rows["T"])), sorted(set(rows["parts"]))
    colours = dict(zip(parts, [*SERIES, *plotting.SPARE * (1 + len(parts) // len(plotting.SPARE))]))
    lost = rows["outcome"] == OUT_OF_MEMORY
    factor, unit = time_unit(1e-3 * np.nanmax(np.append(rows["median_ms"], 0)))
    figure = plt.figure(figsize=(2.2 + 3.2 * max(len(cases), 2), 6.7), constrained_layout=True)
    upper, lower = figure.subfigures(2, 1, height_ratios=(6.1, 0.6))
    grid = upper.subplots(2, len(cases), squeeze=False, sharex=True, sharey="row")
    for (time, rate), (dtype, D) in zip(grid.T, cases):
        for count in parts:
            chosen = (rows["dtype"] == dtype) & (rows["D"] == D) & (rows["parts"] == count)
            for axes, values in ((time, 1e-3 * rows["median_ms"] / factor), (rate, rows["of_copy"])):
                stds = values * rows["std_ms"] / rows["median_ms"]
                line_over(axes, rows["T"][chosen], values[chosen], stds[chosen], lost[chosen], color=colours[count])
        time.set_title(f"{dtype}, head width {D:.0f}")
        rate.axhline(1, color=VERMILION, linewidth=1)
        length_axis(rate, lengths, "cached keys T")
    time_axis(grid[0][0], rows["median_ms"])
    grid[0][0].set_ylabel(f"one query per head\n{unit}")
    grid[1][0].set_ylabel("rate of reading keys and values\nof a copy's")
    grid[1][0].set_ylim(0, None)
    aside(grid[0][-1], f"{rows['B'][0]:.0f} x {rows['H'][0]:.0f} heads", size=8)
    keys = [plt.Line2D([], [], color=colours[count], marker="o", markersize=3.5, label="1 part" if count == 1 else f"{count:.0f} parts")
            for count in parts]
    keys += [plt.Line2D([], [], color=VERMILION, linewidth=1, label="a copy"), *lost_key(lost)]
    lower.legend(handles=keys, loc="center", ncol=min(len(keys), 7))
    return figure


def generation(rows):
    lengths = sorted(set(rows["prompt"]))
    names = np.array([", ".join(word for word in (size, f"{B:.0f} prompts" if len(set(rows["B"])) > 1 else "") if word)
                      for size, B in zip(rows["size"], rows["B"])])
    colours = dict(zip(dict.fromkeys(names), [*SERIES, *plotting.SPARE]))
    lost = rows["outcome"] == OUT_OF_MEMORY
    figure = plt.figure(figsize=(11, 4.9), constrained_layout=True)
    upper, lower = figure.subfigures(2, 1, height_ratios=(4.4, 0.5))
    time, rate = upper.subplots(1, 2)
    factor, unit = time_unit(1e-3 * np.nanmax(np.append(rows["token_ms"], 0)))
    for name, colour in colours.items():
        chosen = names == name
        prompt = rows["prompt"][chosen]
        for axes, values in ((time, 1e-3 * rows["token_ms"] / factor), (rate, rows["tokens_per_s"])):
            stds = values * rows["token_std_ms"] / rows["token_ms"]
            line_over(axes, prompt, values[chosen], stds[chosen], lost[chosen], color=colour)
        order = np.argsort(prompt)
        bound = 1e-3 * rows["bound_ms"][chosen][order] / factor
        time.plot(prompt[order], bound, color=colour, linestyle=":", linewidth=1.2)
        whole = bound * (1 + rows["cache_mib"][chosen][order] / rows["weights_mib"][chosen][order])
        time.plot(prompt[order], whole, color=colour, linestyle="--", linewidth=1.2)
    time.set_title(f"Time of a token, {unit}")
    time_axis(time, rows["token_ms"])
    rate.set_title("Tokens per second")
    rate.set_ylim(0, None)
    aside(rate, f"{rows['compute'][0]}, {rows['B'][0]:.0f} prompt{'s' if rows['B'][0] > 1 else ''}")
    for axes in (time, rate):
        length_axis(axes, lengths, "tokens of the prompt")
    keys = [plt.Line2D([], [], color=colour, marker="o", markersize=3.5, label=name) for name, colour in colours.items()]
    keys += [plt.Line2D([], [], color=FAINT, linestyle=style, linewidth=1.2, label=label)
             for style, label in ((":", "reading the weights at a copy's rate"), ("--", "weights and cache"))]
    lower.legend(handles=[*keys, *lost_key(lost)], loc="center", ncol=5)
    return figure


# --- bars: one row each, from the top

def bar_figure(names, panels, width, high=1.0):
    """A figure with panels side by side, as high as one bar per name needs, with room below for legends."""
    height = 1.5 + BAR_INCHES * len(names) * high
    figure = plt.figure(figsize=(width, height + 0.5), constrained_layout=True)
    upper, lower = figure.subfigures(2, 1, height_ratios=(height, 0.5))
    every = upper.subplots(1, panels, sharey=True, squeeze=False)[0]
    every[0].set_yticks(np.arange(len(names)), names)
    every[0].set_ylim(len(names) - 0.4, -0.6)  # the first on top
    for axes in every:
        axes.grid(axis="y", visible=False)
        axes.tick_params(axis="y", length=0)
    return figure, lower, every


def write_at(axes, x, y, text, size=8.5):
    """Small text to the right of a point."""
    axes.annotate(text, (x, y), xytext=(6, 0), textcoords="offset points", va="center", fontsize=size, color="#505050",
                  bbox=dict(facecolor="white", edgecolor="none", pad=0.6, alpha=0.8))


def write_beside(axes, ends, texts):
    """Text after the end of each bar, with room for it."""
    ends = np.nan_to_num(ends)
    for row, (end, text) in enumerate(zip(ends, texts)):
        if text:
            write_at(axes, end, row, text)
    axes.set_xlim(0, 1.7 * max(ends.max(), 1e-12))


# --- whole steps

def names_of(rows, *columns):
    """Of each row its texts in these columns; its own name where it has none."""
    return [", ".join(texts) if all(texts) else row for row, *texts in zip(rows["row"], *(rows[column] for column in columns))]


def steps(rows):
    count = len(rows["size"])
    names = names_of(rows, "size", "variant")
    figure, lower, (time, rate, memory) = bar_figure(names, 3, width=14)
    step = rows["step_ms"]

    # A bar is the step against the slowest of its size, so that variants can be compared and small sizes can be seen.
    time.set_title("Time of a step")
    slowest = np.array([np.nanmax(np.append(step[rows["size"] == size], -np.inf)) for size in rows["size"]])
    length = step / np.where(slowest > 0, slowest, np.nan)
    forward, backward, exposed, optimizer = (np.nan_to_num(rows[f"{name}_ms"] / step)
                                             for name in ("forward_phase", "backward_phase", "exposed", "optimizer"))
    rest = np.clip(1 - forward - backward - exposed - optimizer, 0, None)
    left = np.zeros(count)
    for what, share, colour in (("forward", forward, PHASES["forward"]), ("backward", backward, PHASES["backward"]),
                                ("waiting for communication", exposed, PHASES["exposed"]),
                                ("optimizer", optimizer, PHASES["optimizer"]), ("rest", rest, PALE)):
        width = np.nan_to_num(share * length)
        if share.max() < 0.005:
            continue
        time.barh(np.arange(count), width, left=left, height=0.62, color=colour, linewidth=0, label=what)
        left += width
    factors = [time_unit(1e-3 * ms) for ms in np.nan_to_num(step)]
    write_beside(time, left, [outcome if outcome != "ok" else f"{spread(1e-3 * ms / factor, 1e-3 * std / factor)} {unit}"
                              for outcome, ms, std, (factor, unit) in zip(rows["outcome"], step, rows["step_std_ms"], factors)])
    time.set_xlabel("of the slowest of its size")

    rate.set_title("Flop rate")
    factor, unit = rate_unit(1e9 * np.nanmax(rows["gflop_per_s"], initial=0))
    rates = 1e9 * rows["gflop_per_s"] / factor
    rate.barh(np.arange(count), np.nan_to_num(rates), height=0.62, color=BLUE)
    write_beside(rate, rates, ["" if np.isnan(value) else f"{short_count(tokens)} tokens/s" + ("" if np.isnan(mfu) else f", MFU {100 * mfu:.0f} %")
                               for value, tokens, mfu in zip(rates, rows["tokens_per_s"], rows["mfu"])])
    rate.set_xlabel(unit + " of the model's arithmetic")

    memory.set_title("Memory of a rank")
    planned, peak = (2**20 * rows[name] for name in ("planned_mib", "peak_mib"))
    factor, unit = byte_unit(np.nanmax(np.append(planned, peak)))
    memory.barh(np.arange(count), planned / factor, height=0.62, color=PURPLE, label="planned")
    if np.isfinite(peak).any():
        memory.plot(peak / factor, np.arange(count), "|", color=INK, markersize=13, markeredgewidth=2, label="measured")
    write_beside(memory, np.fmax(planned, peak) / factor, ["" if np.isnan(value) else f"{plotting.significant(value / factor)} {unit}" for value in planned])
    memory.set_xlabel(unit)
    for axes, where in ((time, "center left"), (memory, "center right")):
        lower.legend(*axes.get_legend_handles_labels(), loc=where, ncol=5, handlelength=1.0, handleheight=1.0)
    return figure


# --- kernels

def kernels(rows):
    names, dtypes = list(dict.fromkeys(rows["kernel"])), list(dict.fromkeys(rows["dtype"]))
    figure, lower, (axes,) = bar_figure(names, 1, width=9, high=max(1, 0.6 * len(dtypes)))
    axes.set_title("Kernels against a copy of the same size")
    height = 0.76 / len(dtypes)
    for number, (dtype, colour) in enumerate(zip(dtypes, (BLUE, SKY, GREEN))):
        chosen = np.flatnonzero(rows["dtype"] == dtype)
        places = np.array([names.index(name) for name in rows["kernel"][chosen]]) + height * (number - (len(dtypes) - 1) / 2)
        stds = rows["of_copy"] * rows["std_ms"] / rows["median_ms"]
        axes.barh(places, rows["of_copy"][chosen], height=0.9 * height, color=colour, label=dtype, xerr=np.nan_to_num(stds[chosen]), **plotting.SPREAD)
        for place, i in zip(places, chosen):
            factor, unit = time_unit(1e-3 * rows["median_ms"][i])
            write_at(axes, rows["of_copy"][i] + np.nan_to_num(stds[i]), place,
                     f"{rows['gbyte_per_s'][i]:.4g} GB/s, {1e-3 * rows['median_ms'][i] / factor:.3g} {unit}")
    axes.axvline(1, color=VERMILION, linewidth=1)
    axes.set_xlim(0, 1.35 * max(1, rows["of_copy"].max()))
    axes.set_xlabel("rate of memory traffic, of the copy's")
    aside(axes, ", ".join(sorted({f"{n:.0f} x {c:.0f}" for n, c in zip(rows["rows"], rows["width"])})))
    if len(dtypes) > 1:
        lower.legend(*axes.get_legend_handles_labels(), loc="center", ncol=len(dtypes))
    return figure


# --- collective operations

OPERATIONS = {"all_reduce": BLUE, "reduce_scatter": ORANGE, "all_gather": GREEN, "broadcast": PURPLE}
MARKS = {"fp32": ("-", "o"), "bf16": ("--", "s"), "fp16": (":", "^")}


def message_text(nbytes, _=None):
    """1 MB, 1 GB: sizes of messages count thousands, not 1024s."""
    for factor, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if nbytes >= factor:
            return f"{nbytes / factor:.4g} {unit}"
    return f"{nbytes:.0f} B"


def comm(rows):
    figure = plt.figure(figsize=(8.5, 5.4), constrained_layout=True)
    upper, lower = figure.subfigures(2, 1, height_ratios=(4.9, 0.5))
    axes = upper.subplots()
    dtypes = list(dict.fromkeys(rows["dtype"]))
    sizes = sorted(set(rows["bytes"]))
    lost = rows["outcome"] == OUT_OF_MEMORY
    for operation in dict.fromkeys(rows["operation"]):
        for dtype in dtypes:
            chosen = (rows["operation"] == operation) & (rows["dtype"] == dtype)
            order = np.flatnonzero(chosen)[np.argsort(rows["bytes"][chosen])]
            line, mark = MARKS[dtype]
            colour = OPERATIONS[operation]
            drawn = order[~lost[order]]
            stds = rows["bus_gbyte_per_s"] * rows["std_ms"] / rows["mean_ms"]
            plotting.line_with_spread(axes, rows["bytes"][drawn], rows["bus_gbyte_per_s"][drawn], stds[drawn], color=colour, linestyle=line, marker=mark)
            absent = rows["bytes"][order[lost[order]]]
            axes.plot(absent, np.full(len(absent), 0.02), color=colour, linestyle="", marker="x", transform=axes.get_xaxis_transform())
    axes.set_title("Collective operations")
    aside(axes, f"{rows['ranks'][0]:.0f} ranks, {', '.join(dict.fromkeys(rows['collectives']))}")
    axes.set_xscale("log")
    ticks = [size for i, size in enumerate(sizes) if i == 0 or size / sizes[i - 1] > 1.3]  # not those that parts made uneven
    axes.set_xticks(ticks, [message_text(size) for size in ticks])
    axes.xaxis.set_minor_locator(NullLocator())
    rates = rows["bus_gbyte_per_s"][np.isfinite(rows["bus_gbyte_per_s"])]
    if len(rates) > 0 and rates.max() > 30 * rates.min():
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    else:
        axes.set_ylim(0, None)
    axes.set_xlabel("message")
    axes.set_ylabel("bus bandwidth, GB/s (as in nccl-tests)")
    keys = [plt.Line2D([], [], color=OPERATIONS[name], linewidth=2, label=name) for name in dict.fromkeys(rows["operation"])]
    if len(dtypes) > 1:
        keys += [plt.Line2D([], [], color=FAINT, linestyle=MARKS[name][0], marker=MARKS[name][1], markersize=4, label=name)
                 for name in dtypes]
    keys += lost_key(lost)
    lower.legend(handles=keys, loc="center", ncol=min(len(keys), 8))
    return figure


# --- ways to share a step

MOMENTS = {"initial": "after initialisation", "before_update": "forward and backward", "in_update": "update"}


def scale(axes, length, label):
    """The axis of bars; none where all of them are absent."""
    if length > 0:
        axes.set_xlim(0, length)
        axes.set_xlabel(label)
    else:
        axes.set_xlim(0, 1)
        axes.set_xticks([])


def strategies(rows):
    count = len(rows["strategy"])
    names = names_of(rows, *(["size"] if len(set(rows["size"]) - {""}) > 1 else []), "strategy")
    figure, lower, (time, memory) = bar_figure(names, 2, width=13, high=1.8)
    places = np.arange(count)

    time.set_title("Time of a step")
    step, exposed, total = (1e-3 * np.nan_to_num(rows[f"{name}_ms"]) for name in ("step_mean", "exposed", "communication"))
    factor, unit = time_unit(step.max(initial=0))
    waiting = np.minimum(exposed, step)
    time.barh(places, (step - waiting) / factor, height=0.55, color=BLUE, label="computing")
    time.barh(places, waiting / factor, left=(step - waiting) / factor, height=0.55, color=PHASES["exposed"],
              label="only waiting for communication")
    std = 1e-3 * np.nan_to_num(rows["step_std_ms"]) / factor
    time.errorbar(step / factor, places, xerr=std, fmt="none", ecolor=INK, elinewidth=1, capsize=2)
    texts = []
    for row, outcome in enumerate(rows["outcome"]):
        transfers = f"{rows['transfers'][row]:.0f} transfer" + ("" if rows["transfers"][row] == 1 else "s")
        texts.append(f"{step[row] / factor:.3g} {unit}, {exposed[row] / factor:.2g} exposed, {transfers}" if outcome == "ok"
                     else outcome if len(outcome) < 70 else outcome[:67] + "...")
    write_beside(time, step / factor + std, texts)
    scale(time, 1.8 * (step / factor + std).max(initial=0), f"{unit}, mean of the measured steps")

    memory.set_title("Live memory of rank 0")
    height = 0.8 / len(MOMENTS)
    factor, unit = byte_unit(2**20 * max(np.nanmax(np.append(rows[f"{moment}_mib"], 0)) for moment in MOMENTS))
    largest = 0.0
    for number, (moment, text) in enumerate(MOMENTS.items()):
        left = np.zeros(count)
        where = places + height * (number - (len(MOMENTS) - 1) / 2)
        for category, colour in CATEGORIES.items():
            width = np.nan_to_num(rows[f"{moment}_{category}_bytes"]) / factor
            if any(rows[f"{each}_{category}_bytes"][row] > 0 for each in MOMENTS for row in places):
                memory.barh(where, width, left=left, height=0.88 * height, color=colour, linewidth=0,
                            label=category if number == 0 else None)
            left += width
        for row in places[left > 0]:
            write_at(memory, left[row], where[row], f"{text}, {left[row]:.3g}", size=7)
        largest = max(largest, left.max(initial=0))
    scale(memory, 1.45 * largest, unit)
    for axes, place in ((time, "center left"), (memory, "center right")):
        lower.legend(*axes.get_legend_handles_labels(), loc=place, ncol=6, handlelength=1.0, handleheight=1.0)
    return figure


# --- which of them

# By a column that such tables have and no later one; with the section whose keys its columns tell, and the columns that are printed behind
# the other keys of a sweep.
DRAWINGS = {
    "implementation": (attention, "attention.", ("implementation", "engine", "ordered", "forward_ms", "backward_ms", "both_ms", "memory_mib", "peak_mib", "relative/forward_ms",
                                   "relative/both_ms", "relative/memory_mib")),
    "strategy": (strategies, "parallel.", ("strategy", "step_mean_ms", "step_std_ms", "communication_ms", "exposed_ms", "initial_mib", "before_update_mib", "in_update_mib")),
    "prompt": (generation, "", ("parts", "prompt_ms", "token_ms", "token_std_ms", "tokens_per_s", "of_bound", "of_copy", "planned_mib")),
    "parts": (decode, "", ("parts", "median_ms", "std_ms", "gbyte_per_s", "of_copy")),
    "size": (steps, "train.", ("variant", "forward_ms", "forward_backward_ms", "optimizer_ms", "step_ms", "step_std_ms", "tokens_per_s", "mfu", "planned_mib", "peak_mib",
                     "relative/step_ms")),
    "kernel": (kernels, "", ("kernel", "median_ms", "std_ms", "gbyte_per_s", "of_copy")),
    "operation": (comm, "", ("mean_ms", "min_ms", "std_ms", "algorithm_gbyte_per_s", "bus_gbyte_per_s")),
}


def kind_of(found, rows):
    """The column of DRAWINGS that tells what job these rows are of; OSError if none has a result."""
    column = next((column for column in DRAWINGS if len(rows.get(column, ()))), None)
    if column is None:
        raise OSError(next((f"no row has a result: {row.outcome}" for row in found if not row.has_run), "its table is empty"))
    return column


def table(found):
    """(columns, rows): the keys that rows set, but for those of a section that columns tell; then the job's columns, as far as any row
    has them."""
    rows = results.columns_of(found)
    _, told, columns = DRAWINGS[kind_of(found, rows)]
    has_number = lambda name: name in rows and (rows[name].dtype == object or np.isfinite(rows[name]).any())
    is_key = lambda name: "." in name and not name.startswith("relative/") and not (told and name.startswith(told))
    shown = [*filter(is_key, rows), *filter(has_number, columns)]
    if len(set(rows["outcome"])) > 1 or rows["outcome"][0] != "ok":
        shown.append("outcome")
    title = lambda name: f"{name.removeprefix('relative/')} {'saved' if name.endswith('_mib') else 'speed-up'}" if name.startswith("relative/") else name
    return [title(name) for name in shown], [list(line) for line in zip(*(rows[name] for name in shown))]


def draw(found):
    rows = results.columns_of(found)
    column = kind_of(found, rows)
    if column not in ("size", "strategy"):  # bars, whose text says what became of a row
        ran = rows[column] != "" if rows[column].dtype == object else np.isfinite(rows[column])
        rows = {name: values[ran] for name, values in rows.items()}
    return DRAWINGS[column][0](rows)
