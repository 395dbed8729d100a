#!/usr/bin/env python3
"""A published solution of the course's problems beside our stored results.

    scripts/solutions.py              prints the tables
    scripts/solutions.py --publish    writes them, and the picture, into input/experiments/solutions

Theirs are input/experiments/solutions/solutions.toml, which names the source; ours the published runs of compiled, flash_grid,
flash_ladder, comm and ddp, and PyTorch's beside them. "no row": no run has it.
Exit codes: 0 printed or written, 2 command line.
"""
import functools
import math
import sys
import tomllib

import equations
import plotting
from experiments import table
from experiments.homes import ROOT, homes
from launching import replace_text

PAGE = "solutions"
NAN, NO_ROW, NO_MEMORY = float("nan"), "no row", "out of memory"
AT_T = 1024  # of the table of FA1 and FA2
SHOWN = (64, (1024, 4096, 16384, 65536))  # D, T of the table of flash


def ours(name):
    """(rows of a published run, its GPU); ([], "") where there is none."""
    from results import STORED

    if not (homes()[name] / STORED).exists():
        return [], ""
    results = published_run(name)
    return [row for row in results.rows if row.is_result], next(iter(results.gpus()), results.device).removeprefix("NVIDIA ").split(" ")[0]


def found(rows, **keys):
    """The first row with these keys ("__" for a dot); None where none has them."""
    return next((row for row in rows if all(row.get(key.replace("__", ".")) == wanted for key, wanted in keys.items())), None)


def cell(row, entry):
    """A number of a row; in words why there is none."""
    if row is None:
        return NO_ROW
    number = row.get(entry, NAN)
    return number if math.isfinite(number) else NO_ROW if row.outcome == "ok" else row.outcome


def columns_of(part):
    """The rows of a section of solutions.toml."""
    return [dict(zip(part, values)) for values in zip(*part.values())]


def quotient(theirs, mine):
    return "" if isinstance(theirs, str) or isinstance(mine, str) or not mine else theirs / mine


@functools.cache
def published_run(name):
    from results import Results

    return Results(homes()[name])


def peer(name, row, column, dtype):
    """PyTorch's forward and backward in that number format beside a row of a published run, on the same GPU."""
    from compare import beside

    number = beside.ms(published_run(name), {**row, "dtype": dtype}, column, "both") if row else NAN
    return number if math.isfinite(number) else NO_ROW


def step_peer(size):
    """PyTorch's forward and backward of a model in TF32, compiled, beside compiled's rows."""
    from compare import beside

    step = next((each for each in beside.found(published_run("compiled")).get("steps", ()) if (each["size"], each["dtype"]) == (size, "tf32")), {})
    return step.get("default", {}).get("forward_backward", NO_ROW)


def step_table(theirs):
    rows, gpu = ours("compiled")
    mine = lambda size, compute, entry: cell(found(rows, model__size=size, precision__compute=compute, train__fused="true", train__graph="false"), entry)
    formats = ("fp32", "tf32", "bf16")
    lines = []
    for each in columns_of(theirs):
        own = [mine(each["size"], compute, f"{part}_mean_ms") for part in ("forward", "forward_backward") for compute in formats]
        torch = step_peer(each["size"])
        lines.append([each["size"], each["forward"], each["forward_compiled"], *own[:3], each["both"], each["both_compiled"], *own[3:], torch,
                      *(quotient(each["both_compiled"], number) for number in (*own[4:], torch))])
    return ["size", "forward: theirs, ms", "compiled", f"ours on an {gpu}: fp32", "TF32", "bf16", "and backward: theirs", "compiled",
            "ours: fp32", "TF32", "bf16", f"PyTorch on the {gpu}, TF32, compiled", "compiled / ours in TF32", "in bf16", "compiled / PyTorch"], lines


def attention_table(theirs):
    rows, gpu = ours("compiled")
    row = lambda each, kernel, dtype="fp32": found(rows, bench__head_width=each["D"], bench__length=each["T"], attention__kernel=kernel, dtype=dtype)
    lines = []
    for each in columns_of(theirs):
        standard, flash, tf32 = row(each, "standard"), row(each, "auto"), row(each, "auto", "tf32")
        both, mine, torch = each["forward"] + each["backward"], cell(flash, "both_mean_ms"), peer("compiled", flash, "stored scores", "tf32")
        lines.append([each["D"], each["T"], each["forward"], *(cell(row, "forward_mean_ms") for row in (standard, flash)), both,
                      each["forward_compiled"] + each["backward_compiled"], cell(standard, "both_mean_ms"), mine, cell(tf32, "both_mean_ms"), torch,
                      quotient(both, mine), quotient(both, torch)])
    return ["D", "T", "forward: theirs, ms", f"ours on an {gpu}: standard", "flash2", "and backward: theirs", "compiled", "ours: standard", "flash2", "in TF32",
            f"PyTorch on the {gpu}, TF32, stored scores", "theirs / flash2", "theirs / PyTorch"], lines


def grid_of(theirs):
    """The rows of flash: one for each format, width and length."""
    return [{"dtype": each["dtype"], "D": each["D"], "T": T, **{name: each[name][i] or NO_MEMORY for name in ("forward", "both", "stored", "simple")}}
            for each in theirs["grid"] for i, T in enumerate(theirs["T"])]


def flash_row(rows, each, kernel):
    """Ours of a shape of theirs."""
    return found(rows, dtype=each["dtype"], D=each["D"], T=each["T"], H=1, attention__kernel=kernel)


def flash_ms(rows, each, kernel, name):
    return cell(flash_row(rows, each, kernel), f"{name}_ms")


def compiled_peer(rows, each):
    """PyTorch's stored scores, compiled as theirs are, which for fp32 are TF32."""
    return peer("flash_grid", flash_row(rows, each, "auto"), "compiled", "tf32" if each["dtype"] == "fp32" else each["dtype"])


def flash_table(theirs):
    rows, gpu = ours("flash_grid")
    lines = []
    for each in grid_of(theirs):
        if each["D"] == SHOWN[0] and each["T"] in SHOWN[1]:
            mine = [flash_ms(rows, each, *wanted) for wanted in (("auto", "forward"), ("auto", "both"), ("standard", "both"))]
            tf32 = flash_ms(rows, {**each, "dtype": "tf32"}, "auto", "both") if each["dtype"] == "fp32" else ""
            lines.append([each["dtype"], each["T"], each["forward"], each["both"], each["stored"], *mine, tf32, compiled_peer(rows, each),
                          quotient(each["both"], mine[1]), quotient(each["stored"], mine[2])])
    return ["format", "T", "theirs: forward, ms", "and backward", "stored scores", f"ours on an {gpu}: forward", "and backward", "stored scores",
            "flash in TF32", f"PyTorch on the {gpu}, stored scores (fp32: in TF32)", "theirs / ours", "stored: theirs / ours"], lines


def crossover_table(theirs):
    """From which T on flash is faster, forward and backward: theirs than its two peers, ours than what is stored, by us and by PyTorch."""
    from experiments.flash_grid import from_length

    rows, gpu = ours("flash_grid")
    number = lambda cell: NAN if isinstance(cell, str) else cell
    lines = []
    for dtype, D in dict.fromkeys((each["dtype"], each["D"]) for each in grid_of(theirs)):
        shapes = [each for each in grid_of(theirs) if (each["dtype"], each["D"]) == (dtype, D)]
        mine = [number(flash_ms(rows, each, "auto", "both")) for each in shapes]
        firsts = [flash_ms(rows, each, "standard", "both") for each in shapes], *(
            [peer("flash_grid", flash_row(rows, each, "auto"), column, dtype) for each in shapes] for column in ("compiled", "fused"))
        lines.append([dtype, D, *(from_length([(each["T"], number(each[name]), number(each["both"])) for each in shapes]) for name in ("stored", "simple")),
                      *(from_length([(each["T"], number(first), own) for each, first, own in zip(shapes, column, mine)]) for column in firsts)])
    return ["format", "D", "theirs is faster than its model's attention from T on", "than a simpler one", "ours: than stored scores",
            f"than PyTorch's, compiled, on the {gpu}", "than PyTorch's fused kernel"], lines


def generations_table(theirs):
    """FlashAttention-1 and -2, forward, causal, D 64: theirs has the second; ours the fastest step of either's ladder."""
    rows, gpu = ours("flash_ladder")
    fastest = lambda kernel, dtype, heads: min((row["forward_ms"] for row in rows if (row["implementation"], row["dtype"], row["H"], row["D"], row["T"]) ==
                                                (kernel, dtype, heads, SHOWN[0], AT_T) and math.isfinite(row["forward_ms"])), default=NO_ROW)
    lines = []
    for each in grid_of(theirs):
        if (each["D"], each["T"]) == (SHOWN[0], AT_T):
            for heads in (1, 64):
                mine = [fastest(kernel, each["dtype"], heads) for kernel in ("flash1", "flash2")]
                lines.append([each["dtype"], heads, NO_ROW, each["forward"] if heads == 1 else NO_ROW, *mine, quotient(*mine)])
    return [f"T {AT_T}, forward: format", "B*H", "theirs: FA1, ms", "FA2, ms", f"ours on an {gpu}, best step: FA1", "best step: FA2", "ours: FA1 / FA2"], lines


def all_reduce_table(theirs):
    rows, gpu = ours("comm")
    lines = []
    for each in columns_of(theirs):
        mine = next((row["mean_ms"] for row in rows if (row.ranks, row["bench.mbyte"]) == (each["ranks"], each["mbyte"])), NO_ROW)
        lines.append([each["ranks"], each["mbyte"], each["ms"], mine, quotient(each["ms"], mine)])
    return ["GPUs", "all-reduce, MB", "theirs, ms", f"ours on {gpu}s, ms", "theirs / ours"], lines


def ddp_table(theirs):
    from experiments import ddp

    rows, gpu = ours("ddp")
    lines = []
    for each in columns_of(theirs):
        row = next((row for row in rows if row.ranks == 2 and ddp.name_of(row) == each["order"]), None)
        own = [row["step_mean_ms"], 100 * row["exposed_ms"] / row["step_mean_ms"]] if row else [NO_ROW, NO_ROW]
        lines.append([each["order"], each["step"], 100 * each["waiting"] / each["step"], *own, quotient(each["step"], own[0])])
    return ["xl on 2 GPUs", "theirs: step, ms", "for gradients, %", f"ours on {gpu}s: step, ms", "exposed, %", "theirs / ours"], lines


def tables():
    theirs = tomllib.loads((page_of().parent / "solutions.toml").read_text())
    return [step_table(theirs["step"]), attention_table(theirs["attention"]), flash_table(theirs["flash"]), crossover_table(theirs["flash"]),
            generations_table(theirs["flash"]), all_reduce_table(theirs["all_reduce"]),
            ddp_table(theirs["ddp"])]


def quotients():
    """{what: [theirs / ours]}, of the tables."""
    step, attention, flash, _, _, all_reduce, ddp = tables()
    of = lambda part, title, **keys: [row[part[0].index(title)] for row in part[1] if all(row[part[0].index(key)] == wanted for key, wanted in keys.items())]
    numbers = {"steps, compiled, TF32": of(step, "compiled / ours in TF32"), "steps, compiled, bf16": of(step, "in bf16"),
               "attention, fp32": of(attention, "theirs / flash2"), "flash, bf16": of(flash, "theirs / ours", format="bf16"),
               "flash, fp32": of(flash, "theirs / ours", format="fp32"), "all-reduce, 2 GPUs": of(all_reduce, "theirs / ours", GPUs=2),
               "steps on 2 GPUs": of(ddp, "theirs / ours")}
    return {what: [each for each in every if not isinstance(each, str)] for what, every in numbers.items()}


def page_of(root=ROOT):
    return root / "input/experiments" / PAGE / "README.md"


def page_part():
    return "\n".join(table.text(columns, rows, True) for columns, rows in tables())


def fault(text):
    """What is wrong with the page's text beside what the stored results give, or ""."""
    import published

    parts = [mark[2] for mark in published.MARKS.finditer(text) if mark[1] == PAGE]
    if len(parts) != 1:
        return f"README.md has no generated part of the name {PAGE}, or several"
    return published.difference(parts[0], page_part(), "scripts/solutions.py", "scripts/solutions.py --publish")


def publish():
    import published

    page = page_of()
    replace_text(page, published.with_part(page.read_text(), PAGE, page_part()))
    equations.draw(quotients(), "Times: theirs / ours", 1, page.with_name(f"{PAGE}.png"), is_log=True)


def main():
    if sys.argv[1:] not in ([], ["--publish"]):
        print(__doc__)
        return 0 if sys.argv[1:] in (["-h"], ["--help"]) else 2
    plotting.require_modules("solutions")
    if sys.argv[1:]:
        publish()
    else:
        for columns, rows in tables():
            print(table.text(columns, rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
