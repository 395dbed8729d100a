"""One picture for each section of scripts/compare_torch --gpu that has data, and a small one of attention for a page."""
import statistics

import plotting  # scripts/, where compare_torch is
from compare.steps import CLIPPING

COLOURS = {"wgmma": plotting.BLUE, "any": plotting.SKY, "mma": plotting.GREEN, "CUDNN": plotting.ORANGE,
           "FLASH": plotting.VERMILION, "MATH": plotting.GREY}
OURS, OURS_TOO, LIMIT = COLOURS["wgmma"], COLOURS["mma"], COLOURS["FLASH"]


def draw(report):
    """Draws what report.data holds into its folder."""
    try:
        import matplotlib
        matplotlib.use("Agg")
    except ImportError as missing:
        print(f"no plots: {missing}")
        return
    drawn = [f"{name}.png" for name, (section, _) in PICTURES.items() if report.data.get(section)]
    for picture in drawn:
        draw_one(picture.removesuffix(".png"), report, report.folder / picture)
    print(f"{report.folder}: {', '.join([report.file, *drawn])}")


def draw_one(name, report, path):
    import matplotlib.pyplot as plt

    section, picture = PICTURES[name]
    with plt.rc_context(plotting.STYLE):
        figure = picture(plt, report.data[section])
        words = [report.info_of(section)[key] for key in ("device", "created", "git_hash")]
        if picture is page:
            for axis in figure.axes:
                plotting.peak_line(axis, plotting.peak_of(words))
            words += [f"{most_rounds(report.data[section])} rounds", "head width 128, causal"]
        plotting.heading(figure, words)
        plotting.save(figure, path)
    plt.close(figure)


def bars(axis, groups, series, size=7):
    """Bars side by side: series is [(label, colour, [height or None per group])]. Returns the bars of each."""
    width = 0.8 / max(len(series), 1)
    drawn = []
    for i, (label, colour, heights) in enumerate(series):
        places = [g + width * (i - (len(series) - 1) / 2) for g in range(len(groups))]
        drawn.append(axis.bar(places, [height or 0 for height in heights], width, color=colour, label=label))
    axis.set_xticks(range(len(groups)))
    axis.set_xticklabels(groups, fontsize=size)
    return drawn


def case_label(row):
    return f"{row['D']}\n{row['T'] // 1024}k\n{'causal' if row['causal'] else 'full'}"


def tflops(row, side, of=statistics.median):
    """TFLOP/s of a row of the section attention, by the median of the rounds' times or another; None where that side was not measured."""
    flop = (1 if row["direction"] == "forward" else 2.5) * 4 * row["B"] * row["H"] * row["T"] ** 2 * row["D"] * (0.5 if row["causal"] else 1)
    return 1e-9 * flop / of(row["ms"][side]) if row["ms"].get(side) else None


def attention(plt, rows):
    labels = {"wgmma": "ours, wgmma", "any": "ours, wgmma, any order", "mma": "ours, mma"}
    figure, axes = plt.subplots(2, 1, figsize=(11, 8), constrained_layout=True)
    for axis, direction in zip(axes, ("forward", "backward")):
        chosen = [row for row in rows if row["direction"] == direction]
        sides = [side for side in COLOURS if direction == "backward" or side != "any"]  # forward has one order
        bars(axis, [case_label(row) for row in chosen],
             [(labels.get(side, f"PyTorch {side}"), COLOURS[side], [tflops(row, side) for row in chosen]) for side in sides])
        axis.set(title=f"Attention {direction}, bf16", ylabel="TFLOP/s")
        axis.margins(y=0.15)  # room for the legend
        axis.legend(ncol=len(sides), loc="upper center", fontsize=7, frameon=False)
    return figure


def most_rounds(rows):
    return max(len(times or ()) for row in rows for times in row["ms"].values())


def page(plt, rows):
    """Attention's speed beside its peers for a front page: width 128, causal, on few bars."""
    figure = plt.figure(figsize=(7.2, 3.3), dpi=120, constrained_layout=True)
    upper, lower = figure.subfigures(2, 1, height_ratios=(3, 0.3))
    axes = upper.subplots(1, 2, sharey=True)
    for axis, direction in zip(axes, ("forward", "backward")):
        chosen = [row for row in rows if row["direction"] == direction and row["D"] == 128 and row["causal"]]
        ours = "wgmma" if any(row["ms"].get("wgmma") for row in chosen) else "mma"
        sides = ((ours, "Tessera", OURS), ("CUDNN", "PyTorch, cuDNN", COLOURS["CUDNN"]),
                 ("FLASH", "PyTorch, FlashAttention", COLOURS["FLASH"]), ("MATH", "PyTorch, MATH", COLOURS["MATH"]))
        drawn = bars(axis, [plotting.length_text(row["T"]) for row in chosen],
                     [(label, colour, [tflops(row, side) for row in chosen]) for side, label, colour in sides], size=9)
        for (side, *_), container in zip(sides, drawn):  # from the slowest round to the fastest
            for bar, row in zip(container, chosen):
                if row["ms"].get(side):
                    axis.vlines(bar.get_x() + bar.get_width() / 2, tflops(row, side, max), tflops(row, side, min), color=plotting.INK, linewidth=1)
        axis.set_title(f"Attention {direction}")
        axis.set_xlabel("tokens")
        axis.grid(axis="x", visible=False)
    axes[0].set_ylabel("TFLOP/s, bf16")
    lower.legend(*axes[0].get_legend_handles_labels(), loc="center", ncol=len(sides), fontsize=8)
    return figure


def error(plt, rows):
    figure, axis = plt.subplots(figsize=(11, 4), constrained_layout=True)
    cases = list(dict.fromkeys((row["D"], row["T"], row["causal"]) for row in rows))
    groups = [f"{D}\n{T}\n{'causal' if causal else 'full'}" for D, T, causal in cases]

    def worst(case, engine):
        ratios = [row[engine] / row["FLASH"] for row in rows if (row["D"], row["T"], row["causal"]) == case and engine in row]
        return max(ratios, default=None)

    bars(axis, groups, [(f"ours, {engine}", COLOURS[engine], [worst(case, engine) for case in cases]) for engine in ("wgmma", "mma")])
    axis.axhline(1.2, color=LIMIT, linewidth=1)
    axis.set(title="Error against float64, worst of out, d_q, d_k, d_v, bf16", ylabel="of PyTorch FLASH's own", ylim=(0, 1.5))
    axis.legend(frameon=False, fontsize=8)
    return figure


def kernels(plt, rows):
    figure, axis = plt.subplots(figsize=(9, 4), constrained_layout=True)
    chosen = [row for row in rows if row["dtype"] == "bf16"]
    axis.bar([row["kernel"] for row in chosen], [row["of_copy"] for row in chosen], color=OURS)
    axis.axhline(0.85, color=LIMIT, linewidth=1)
    axis.set(title="Memory-bound kernels, bf16", ylabel="fraction of the copy rate")
    plt.setp(axis.get_xticklabels(), rotation=40, ha="right", rotation_mode="anchor")
    return figure


def gpt2(plt, rows):
    figure, axes = plt.subplots(1, len(rows), figsize=(4 * len(rows), 4), constrained_layout=True, squeeze=False)
    for axis, row in zip(axes[0], rows):
        axis.bar(["ours", "llm.c, another day"], [row["tokens_per_s"], row["llm_c_tokens_per_s"]], color=[OURS, COLOURS["CUDNN"]])
        axis.set(title=row["deck"], ylabel="tokens/s")
    return figure


def steps(plt, data):
    best = lambda rounds, key: statistics.median(r[key] for r in rounds) if rounds else None
    sides = (("ours, graph", OURS, "ours", "graph", "step_ms"), ("ours, plain", COLOURS["any"], "ours", "plain", "step_ms"),
             ("torch.compile, reduce-overhead", COLOURS["CUDNN"], "torch", "reduce-overhead", "step"),
             ("torch.compile", COLOURS["FLASH"], "torch", "default", "step"), ("PyTorch eager", COLOURS["MATH"], "torch", "eager", "step"))
    figure, axes = plt.subplots(2, 1, figsize=(9, 6.4), constrained_layout=True)
    for axis, suffix in zip(axes, CLIPPING):
        timed = [side for side in sides if any(d[side[2]].get(side[3] + suffix) for d in data.values())]
        ms = [[best(d[side].get(kind + suffix), key) for d in data.values()] for _, _, side, kind, key in timed]
        slowest = [max(filter(None, column), default=1) for column in zip(*ms)] or [1] * len(data)
        drawn = bars(axis, list(data), [(label, colour, [x and x / most for x, most in zip(row, slowest)])
                                        for (label, colour, *_), row in zip(timed, ms)])
        for row, container in zip(ms, drawn):
            axis.bar_label(container, [f"{x:.1f}" if x else "" for x in row], fontsize=6)
        axis.set(title=f"One optimizer step{suffix or ', clipped'}; 4 x 512 tokens, bf16; ms on the bars", ylabel="time, of the slowest",
                 ylim=(0, 1.3))
        if timed:
            axis.legend(ncol=len(timed), loc="upper center", fontsize=7)
    return figure


def scaling(plt, tokens):
    figure, axis = plt.subplots(figsize=(5, 4), constrained_layout=True)
    tokens = {int(ranks): value for ranks, value in tokens.items()}  # JSON has made texts of them
    ranks = sorted(tokens)
    axis.plot(ranks, [tokens[r] for r in ranks], "o-", color=OURS, label="measured")
    axis.plot(ranks, [tokens[ranks[0]] * r / ranks[0] for r in ranks], ":", color="black", label="linear")
    axis.set(title="Size large, 4 x 512 tokens per GPU, bf16", xlabel="GPUs", ylabel="tokens/s", xticks=ranks, ylim=(0, None))
    axis.legend(frameon=False, fontsize=8)
    return figure


def parts(plt, data):
    figure, axis = plt.subplots(figsize=(7, 4), constrained_layout=True)
    below = [0.0] * len(data)
    for part, colour in (("products", OURS), ("attention", OURS_TOO), ("bytes", COLOURS["any"])):
        heights = [size[part] / size["step_ms"] for size in data.values()]
        axis.bar(list(data), heights, 0.5, bottom=below, color=colour, label={"bytes": "bytes at the rate of a copy"}.get(part, part))
        below = [b + h for b, h in zip(below, heights)]
    axis.axhline(1 / 1.15, color=LIMIT, linewidth=1)
    axis.set(title="What a step must do, alone", ylabel="of the step as one graph", ylim=(0, 1.15))
    axis.legend(frameon=False, fontsize=8, ncol=3, loc="upper center")
    return figure


STRATEGY_COLOURS = {"ring": plotting.BLUE, "copy engines": plotting.SKY, "MPI": plotting.BLUE, "per_parameter": plotting.GREY,
                    "flat": plotting.GREEN, "overlap": plotting.SKY, "bucket": plotting.BLUE, "replicated": plotting.BLUE,
                    "ZeRO-1": plotting.GREEN, "resharded": plotting.GREEN, "kept": plotting.SKY, "PyTorch": plotting.ORANGE,
                    "PyTorch DDP": plotting.ORANGE, "PyTorch ZeRO": plotting.VERMILION, "PyTorch FSDP2": plotting.PURPLE}


def strategies(plt, data):
    """A panel for each of the cases' findings, with a bar for each side and way."""
    panels = {title: panel for title, panel in data["panels"].items() if any(panel["groups"].values())}
    figure, axes = plt.subplots(max(len(panels), 1), 1, figsize=(9, 3.1 * max(len(panels), 1)), constrained_layout=True, squeeze=False)
    for axis, (title, panel) in zip(axes[:, 0], panels.items()):
        groups = {name: values for name, values in panel["groups"].items() if values}
        series = list(dict.fromkeys(name for values in groups.values() for name in values))
        drawn = bars(axis, list(groups), [(name, STRATEGY_COLOURS[name], [values.get(name) for values in groups.values()])
                                          for name in series])
        for name, container in zip(series, drawn):
            axis.bar_label(container, [f"{values[name]:.3g}" if name in values else "" for values in groups.values()], fontsize=6)
        if len(groups) > 8:  # too many to stand side by side
            plt.setp(axis.get_xticklabels(), rotation=40, ha="right", rotation_mode="anchor")
        axis.set(title=title, ylabel=panel["unit"])
        axis.margins(y=0.25)  # room for the legend
        axis.legend(ncol=len(series), loc="upper center", fontsize=7)
    if not panels:
        plotting.nothing(axes[0, 0], "nothing was measured")
    return figure


# {name of the picture: (section that it draws, how)}
PICTURES = {"attention": ("attention", attention), "attention_page": ("attention", page),
            **{draw.__name__: (draw.__name__, draw) for draw in (error, kernels, gpt2, steps, scaling, parts, strategies)}}
