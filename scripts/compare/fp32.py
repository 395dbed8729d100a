"""Attention and steps in fp32, on arithmetic units and in TF32 on tensor cores: the section `fp32` of gpu.py.

PyTorch's side of attention is one of torch_worker's backends: STORED stores the scores, compiled by torch.compile, and
EFFICIENT is its fused kernel, whose fp32 is three TF32 products on tensor cores. Steps are clipped graphs on both sides,
torch.compile's with "reduce-overhead". TF32: precision.compute = "tf32", and allow_tf32.
"""
import math

from compare.sides import Failed, Ours, deck, lowest, median, numbers, ratio_text
from compare.steps import Size, compiled_side_by_side, print_size, ratios

CHANNELS = 1024  # 16 heads of 64
TOKENS = 16384
PASSES = ("forward", "backward")

# attention.kernel, PyTorch's backend, number formats, lengths, head widths, and what is promised of each format: at
# least, aim.
ATTENTION = [
    ("standard", "STORED", (1024, 4096), (64,), {"fp32": (0.9, 1.1), "tf32": (0.9, 1.1), "bf16": (0.9, 1.1)}),
]
STEPS = {"fp32": (1.0, 1.2), "tf32": (1.1, 1.3)}
STEP_SIZES = ("small", "large")
MODE = "reduce-overhead"


def attention_promise(kernel, backend, dtype):
    return f"{kernel} {dtype}, forward and backward, x {backend}"


def step_promise(size, dtype):
    return f"step of {size} in {dtype}, x {MODE}"


def promise_fp32(report, _):
    for kernel, backend, _, _, formats in ATTENTION:
        for dtype, (least, aim) in formats.items():
            report.promise(attention_promise(kernel, backend, dtype), least, aim)
    for size in STEP_SIZES:
        for dtype, (least, aim) in STEPS.items():
            report.promise(step_promise(size, dtype), least, aim)


def format_keys(dtype, key):
    """The overrides for a number format; `key`: of the job's dtype."""
    is_tf32 = dtype == "tf32"
    return [f'{key}="{"fp32" if is_tf32 else dtype}"', *(['precision.compute="tf32"'] if is_tf32 else [])]


def our_attention(ours, kernel, dtype, lengths, widths, timing):
    """{(T, D): row} of one process."""
    rows = ours.run(deck("attention_gpu"), f'experiment.rows={{own={{attention={{kernel="{kernel}"}}}}}}', "experiment.baseline=",
                    "bench.causal=true", f"bench.length={numbers(lengths)}", f"bench.head_width={numbers(widths)}",
                    f"bench.tokens={TOKENS}", f"bench.channels={CHANNELS}", *format_keys(dtype, "bench.dtype"),
                    *(f"bench.{key}={value}" for key, value in timing.items()))
    return {(int(row["T"]), int(row["D"])): row for row in rows}


def attention_rows(ours, torch, report, rounds, timing):
    data = []
    print(f"\n{'attention':<28}{'':>10}{'ours ms':>9}{'torch ms':>10}{'ratio':>19}", flush=True)
    for kernel, backend, lengths, widths, formats in ATTENTION:
        for dtype in formats:
            cases = [{"B": TOKENS // T, "H": CHANNELS // D, "T": T, "D": D, "causal": True, "dtype": dtype} for T in lengths for D in widths]
            mine, theirs = [], []
            for number in range(rounds):
                turns = [lambda: mine.append(our_attention(ours, kernel, dtype, lengths, widths, timing)),
                         lambda: theirs.append(torch.ask(do="attention", cases=cases, backends=[backend], passes=PASSES, timing=timing))]
                for turn in turns if number % 2 == 0 else reversed(turns):
                    turn()
            worst = []
            for index, case in enumerate(cases):
                for direction in PASSES:
                    our_ms = [run[case["T"], case["D"]][f"{direction}_ms"] for run in mine]
                    answers = [run[index][backend] for run in theirs]
                    if reasons := [answer["failed"] for answer in answers if "failed" in answer]:
                        print(f"  {backend}: {reasons[0]}", flush=True)
                        worst.append(math.nan)
                        continue
                    found = [answer[direction] / ms for answer, ms in zip(answers, our_ms)]
                    worst.append(median(found))
                    torch_ms = median([answer[direction] for answer in answers])
                    name = f"{kernel} {dtype} T={case['T']} D={case['D']}"
                    print(f"{name:<28}{direction:>10}{median(our_ms):>9.3f}{torch_ms:>10.3f}{ratio_text(found):>19}", flush=True)
                    data.append({**case, "kernel": kernel, "backend": backend, "direction": direction, "ms": our_ms, "ratios": found})
            report.found(attention_promise(kernel, backend, dtype), lowest(worst))
    report.keep("fp32_attention", data)


def step_rows(ours, report, rounds, quick):
    data = {}
    for dtype in STEPS:
        keys = [f'precision.compute="{dtype}"', 'precision.gradients="fp32"', 'precision.reduce="fp32"']
        workers = compiled_side_by_side(STEP_SIZES, dtype, (MODE,))
        for name in STEP_SIZES:
            torch = workers.get(name)
            size = Size(name, Ours(ours.program, [*keys, *ours.step_overrides]), torch, repeats=10 if quick else 20,
                        modes=(MODE,), clipping={"": True})
            try:
                if torch:
                    torch.ask(do="wake")
                for number in range(rounds):
                    size.round(number)
            except Failed as reason:
                print(f"{name} in {dtype}: {reason}", flush=True)
            finally:
                if torch:
                    torch.stop()
            print_size(f"{name} {dtype}", size.mine, size.theirs)
            found = ratios(size.mine, size.theirs, "", MODE)
            report.found(step_promise(name, dtype), median(found), ratio_text(found) if found else None)
            data[f"{name} {dtype}"] = {"ours": size.mine, "torch": size.theirs}
    report.keep("fp32_steps", data)


def fp32(ours, torch, report, rounds, quick, timing):
    attention_rows(ours, torch, report, rounds, timing)
    torch.stop()  # frees its memory
    step_rows(ours, report, rounds, quick)
