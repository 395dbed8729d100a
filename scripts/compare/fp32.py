"""Attention and steps in fp32, on arithmetic units and in TF32 on tensor cores: the sections `fp32.*` of gpu.py.

PyTorch's side of attention is one of torch_worker's backends: STORED stores the scores, compiled by torch.compile, and
EFFICIENT is its fused kernel, whose fp32 is three TF32 products on tensor cores. Steps are clipped graphs on both sides,
torch.compile's with "reduce-overhead". TF32: precision.compute = "tf32", and allow_tf32.
"""
from compare.sides import Failed, Ours, deck, lowest, median, numbers, ratio_text, words
from compare.steps import Size, compiled_side_by_side, course_model, ratios
from experiments import table

PASSES = ("forward", "backward")
# {attention.kernel: (PyTorch's backend, [(heads, tokens B x T, lengths, widths)], number formats)}, all causal
ATTENTION = {
    "mma": ("EFFICIENT", [(16, 16384, (1024, 4096), (32, 64, 128)), (1, 65536, (8192,), (32,))], ("fp32", "tf32")),
    "flash2": ("EFFICIENT", [(16, 16384, (4096,), (32, 64, 80, 128, 256)), (16, 16384, (1024,), (64,)), (1, 65536, (8192,), (32,))], ("fp32", "bf16")),
    "standard": ("STORED", [(16, 16384, (1024, 4096), (64,))], ("fp32", "tf32", "bf16")),
}
# {(kernel, format): {pass: PyTorch's time over ours, at least and as aimed at}}
RATIOS = {("mma", "fp32"): {"forward": (1.0, 1.4), "backward": (1.0, 1.4)}, ("mma", "tf32"): {"forward": (2.0, 3.5), "backward": (2.0, 3.0)},
          **{("standard", dtype): dict.fromkeys(PASSES, (0.9, 1.1)) for dtype in ATTENTION["standard"][2]}}
# Of the portable kernel in fp32 with 16 heads, T = 4096: {(pass, D): milliseconds, at most and as aimed at}
PORTABLE = {("forward", 64): (4.4, 3.3), ("forward", 128): (9.0, 6.3), ("backward", 64): (16.0, 10.6), ("backward", 128): (34.0, 20.0)}
STEPS = {"fp32": (1.0, 1.2), "tf32": (1.1, 1.3)}
STEP_SIZES = ("small", "large")
MODE = "reduce-overhead"
SECTIONS = ("fp32.steps", *(f"fp32.{kernel}" for kernel in ATTENTION))  # the most expensive to measure again first


def ratio_promise(kernel, dtype, direction):
    return f"{kernel} {dtype}, {direction}, x {ATTENTION[kernel][0]}"


def portable_promise(direction, D):
    return f"flash2 fp32, {direction}, T=4096 D={D} [ms]"


def rate_promise(direction):
    return f"flash2 fp32, {direction}, FLOP/s at D=32, 80, 256 / D=64"


def bf16_promise(direction):
    return f"flash2 bf16, {direction}, time / fp32's"


def step_promise(size, dtype):
    return f"step of {size} in {dtype}, x {MODE}"


def sizes_of(arguments):
    return [size for size in STEP_SIZES if size in arguments.sizes.split(",")]


def promise_steps(report, arguments):
    for size in sizes_of(arguments):
        for dtype, (least, aim) in STEPS.items():
            report.promise(step_promise(size, dtype), least, aim)


def promise_attention(kernel, report):
    for (name, dtype), passes in RATIOS.items():
        for direction, (least, aim) in passes.items() if name == kernel else ():
            report.promise(ratio_promise(kernel, dtype, direction), least, aim)
    if kernel == "flash2":
        for (direction, D), (most, aim) in PORTABLE.items():
            report.promise(portable_promise(direction, D), -most, -aim)
        for direction in PASSES:
            report.promise(rate_promise(direction), 0.6, 0.6)
            report.promise(bf16_promise(direction), -1.0, -1.0)


PROMISES = {"fp32.steps": promise_steps,
            **{f"fp32.{kernel}": lambda report, _, kernel=kernel: promise_attention(kernel, report) for kernel in ATTENTION}}


def our_row(kernel, dtype, H, tokens):
    """A named variation of the deck."""
    number_format = 'dtype="fp32"}, precision={compute="tf32"}' if dtype == "tf32" else f'dtype="{dtype}"}}'
    return f'{{attention={{kernel="{kernel}"}}, bench={{heads={H}, tokens={tokens}, channels=0, {number_format}}}'


def our_attention(ours, kernel, timing):
    """{(number format, H, T, D): row}, of one process."""
    _, shapes, formats = ATTENTION[kernel]
    rows = {f"{dtype}_{H}": our_row(kernel, dtype, H, tokens) for dtype in formats for H, tokens, _, _ in shapes}
    only = [f"{dtype}_{H}_true_{T}_{D}" for dtype in formats for H, _, lengths, widths in shapes for T in lengths for D in widths]
    every = lambda place: numbers(sorted({value for shape in shapes for value in shape[place]}))
    found = ours.run(deck("attention_gpu"), f"experiment.rows={{{', '.join(f'{name}={row}' for name, row in rows.items())}}}",
                     "experiment.baseline=", f"experiment.only={words(*only)}", "bench.causal=true", f"bench.length={every(2)}",
                     f"bench.head_width={every(3)}", *(f"bench.{key}={value}" for key, value in timing.items()))
    return {(row["dtype"], int(row["H"]), int(row["T"]), int(row["D"])): row for row in found}


def attention(kernel, ours, torch, report, rounds, timing):
    backend, shapes, formats = ATTENTION[kernel]
    cases = [{"B": tokens // T, "H": H, "T": T, "D": D, "causal": True, "dtype": dtype}
             for dtype in formats for H, tokens, lengths, widths in shapes for T in lengths for D in widths]
    mine, theirs = [], []
    for number in range(rounds):
        turns = [lambda: mine.append(our_attention(ours, kernel, timing)),
                 lambda: theirs.append(torch.ask(do="attention", cases=cases, backends=[backend], passes=PASSES, timing=timing))]
        for turn in turns if number % 2 == 0 else reversed(turns):
            turn()
        print(f"  {kernel}: round {number + 1} of {rounds}", flush=True)
        rows = [attention_row(case, direction, mine, [run[index][backend] for run in theirs])
                for index, case in enumerate(cases) for direction in PASSES]
        report.keep(f"fp32.{kernel}", rows)
    for reason in {answer[backend]["failed"] for answer in theirs[0] if "failed" in answer[backend]}:
        print(f"  {backend}: {reason}", flush=True)
    print("\n" + table.text(*attention_table(rows)), flush=True)
    judge_attention(kernel, rows, report)


def attention_row(case, direction, mine, answers):
    place = tuple(case[key] for key in ("dtype", "H", "T", "D"))
    return {**case, "direction": direction, "ms": [run[place][f"{direction}_ms"] for run in mine],
            "torch_ms": [] if any("failed" in answer for answer in answers) else [answer[direction] for answer in answers]}


def judge_attention(kernel, rows, report):
    """The worst case of each promise, by the median of its rounds."""
    of = lambda dtype, direction: {(row["H"], row["T"], row["D"]): row for row in rows if (row["dtype"], row["direction"]) == (dtype, direction)}
    for (name, dtype), passes in RATIOS.items():
        for direction in passes if name == kernel else ():
            report.found(ratio_promise(kernel, dtype, direction), lowest(median(found_ratios(row)) for row in of(dtype, direction).values()))
    if kernel == "flash2":
        for direction in PASSES:
            fp32, bf16 = ({place: median(row["ms"]) for place, row in of(dtype, direction).items()} for dtype in ("fp32", "bf16"))
            ms = {D: fp32[16, 4096, D] for H, T, D in fp32 if (H, T) == (16, 4096)}
            for D in (64, 128):
                report.found(portable_promise(direction, D), -ms[D])
            report.found(rate_promise(direction), lowest((ms[64] / 64) / (ms[D] / D) for D in (32, 80, 256)))
            report.found(bf16_promise(direction), lowest(-bf16[place] / fp32[place] for place in fp32))


def found_ratios(row):
    return [theirs / mine for theirs, mine in zip(row["torch_ms"], row["ms"])]


def attention_table(rows):
    """Names of columns, and lines: medians of the rounds."""
    lines = {}
    for row in rows:
        line = lines.setdefault((row["B"], row["H"], row["T"], row["D"], row["dtype"]), [])
        line += [median(row["ms"]), median(row["torch_ms"]), f"{median(found_ratios(row)):.2f}"]
    columns = [f"{name}{what}" for name in PASSES for what in (", ms", ": PyTorch's", "; ratio")]
    return ["B", "H", "T", "D", "format", *columns], [[*case, *line] for case, line in lines.items()]


def step_table(rows):
    return (["model", "format", "ours, ms", "torch.compile, ms", "ratio (lowest-highest)"],
            [[row["size"], row["dtype"], median(row["ms"]), median(row["torch_ms"]),
              ratio_text(found_ratios(row)).strip() if row["ms"] and row["torch_ms"] else "-"] for row in rows])


def step_repeats(quick):
    return 10 if quick else 20


def steps(ours, report, rounds, quick, sizes):
    rows = []
    for name in sizes:
        workers, _ = compiled_side_by_side({dtype: course_model(name, dtype) for dtype in STEPS}, (MODE,))
        for dtype in STEPS:
            rows.append(measured_step(name, dtype, ours, workers.get(dtype), report, rounds, quick))
            report.keep("fp32.steps", rows)
            print(table.text(*step_table(rows[-1:])), flush=True)


def measured_step(name, dtype, ours, torch, report, rounds, quick):
    keys = [f'precision.compute="{dtype}"', 'precision.gradients="fp32"', 'precision.reduce="fp32"']
    size = Size(name, Ours(ours.program, [*keys, *ours.step_overrides]), torch, step_repeats(quick), modes=(MODE,), clipping={"": True})
    try:
        if torch:
            torch.ask(do="wake")
        for number in range(rounds):
            size.round(number)
            print(f"  {name} in {dtype}: round {number + 1} of {rounds}", flush=True)
    except Failed as reason:
        report.failed(f"{name} in {dtype}", reason)
    finally:
        if torch:
            torch.stop()
    found = ratios(size.mine, size.theirs, "", MODE)
    report.found(step_promise(name, dtype), median(found), ratio_text(found) if found else None)
    return {"size": name, "dtype": dtype, "ms": [row["step_ms"] for row in size.mine.get("graph", [])],
            "torch_ms": [answer["step"] for answer in size.theirs.get(MODE, [])]}


def measure(section, ours, torch, report, rounds, quick, timing, sizes):
    if section == "fp32.steps":
        steps(ours, report, rounds, quick, sizes)
    else:
        attention(section.removeprefix("fp32."), ours, torch, report, rounds, timing)
