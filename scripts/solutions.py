#!/usr/bin/env python3
"""A published solution of the course's problems beside our stored results.

    scripts/solutions.py              prints the tables
    scripts/solutions.py --publish    writes them into input/experiments/solutions/README.md

Theirs are input/experiments/solutions/solutions.toml, which names the source; ours the published runs of step, compiled, flash_grid,
comm and ddp, "-" where none has the row.
Exit codes: 0 printed or written, 2 command line.
"""
import sys
import tomllib

import plotting
from experiments import table
from experiments.homes import ROOT, homes

PAGE = "solutions"
NAN = float("nan")


def ours(name):
    """(rows of a published run, its GPU); ([], "") where there is none."""
    from results import STORED, Results

    if not (homes()[name] / STORED).exists():
        return [], ""
    results = Results(homes()[name])
    return [row for row in results.rows if row.outcome == "ok"], next(iter(results.gpus()), results.device).removeprefix("NVIDIA ").split(" ")[0]


def value(rows, entry, **keys):
    """`entry` of the first row with these keys ("__" for a dot); NaN where none has them."""
    return next((row.get(entry, NAN) for row in rows if all(row.get(key.replace("__", ".")) == wanted for key, wanted in keys.items())), NAN)


def columns_of(part):
    """The rows of a section of solutions.toml."""
    return [dict(zip(part, values)) for values in zip(*part.values())]


def quotient(theirs, mine):
    return theirs / mine if mine and theirs else NAN


def step_table(theirs):
    rows, gpu = ours("step")
    mine = lambda size, compute, entry: value(rows, entry, model__size=size, precision__compute=compute)
    lines = []
    for each in columns_of(theirs):
        own = [mine(each["size"], compute, f"{part}_mean_ms") for part in ("forward", "forward_backward") for compute in ("fp32", "bf16")]
        lines.append([each["size"], each["forward"], each["forward_compiled"], *own[:2], each["both"], each["both_compiled"], *own[2:],
                      quotient(each["both_compiled"], own[3])])
    return ["size", "forward: theirs, ms", "compiled", f"ours on an {gpu}: fp32", "bf16", "and backward: theirs", "compiled", "ours: fp32", "bf16",
            "compiled / ours in bf16"], lines


def attention_table(theirs):
    rows, gpu = ours("compiled")
    mine = lambda each, name, kernel: value(rows, f"{name}_mean_ms", bench__head_width=each["D"], bench__length=each["T"], implementation=kernel)
    lines = []
    for each in columns_of(theirs):
        both = each["forward"] + each["backward"]
        flash = mine(each, "both", "flash2")
        lines.append([each["D"], each["T"], each["forward"], *(mine(each, "forward", kernel) for kernel in ("standard", "flash2")), both,
                      mine(each, "both", "standard"), flash, quotient(both, flash)])
    return ["D", "T", "forward: theirs, ms", f"ours on an {gpu}: standard", "flash2", "and backward: theirs", "ours: standard", "flash2", "theirs / flash2"], lines


def flash_table(theirs):
    rows, gpu = ours("flash_grid")
    mine = lambda each, kernel, name: value(rows, f"{name}_ms", bench__dtype=each["dtype"], bench__head_width=64, bench__length=each["T"], attention__kernel=kernel)
    return ["format", "T", "theirs: forward, ms", "and backward", "stored scores", f"ours{f' on an {gpu}' if gpu else ''}: forward", "and backward",
            "stored scores", "theirs / ours"], [
        [each["dtype"], each["T"], each["forward"], each["both"], each["stored"] or NAN, mine(each, "auto", "forward"), mine(each, "auto", "both"),
         mine(each, "standard", "both"), quotient(each["both"], mine(each, "auto", "both"))] for each in columns_of(theirs)]


def all_reduce_table(theirs):
    rows, gpu = ours("comm")
    mine = lambda each: next((row["mean_ms"] for row in rows if row.ranks == 2 and row["bench.mbyte"] == each["mbyte"]), NAN)
    return ["all-reduce on 2 GPUs, MB", "theirs, ms", f"ours on {gpu}s, ms", "theirs / ours"], [
        [each["mbyte"], each["ms"], mine(each), quotient(each["ms"], mine(each))] for each in columns_of(theirs)]


def ddp_table(theirs):
    from experiments import ddp

    rows, gpu = ours("ddp")
    lines = []
    for each in columns_of(theirs):
        row = next((row for row in rows if row.ranks == 2 and ddp.name_of(row) == each["order"]), {})
        step, waiting = row.get("step_mean_ms", NAN), row.get("exposed_ms", NAN)
        lines.append([each["order"], each["step"], 100 * each["waiting"] / each["step"], step, 100 * waiting / step])
    return ["xl on 2 GPUs", "theirs: step, ms", "for gradients, %", f"ours on {gpu}s: step, ms", "exposed, %"], lines


def tables():
    theirs = tomllib.loads((page_of().parent / "solutions.toml").read_text())
    return [step_table(theirs["step"]), attention_table(theirs["attention"]), flash_table(theirs["flash"]), all_reduce_table(theirs["all_reduce"]),
            ddp_table(theirs["ddp"])]


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


def main():
    if sys.argv[1:] not in ([], ["--publish"]):
        print(__doc__)
        return 0 if sys.argv[1:] in (["-h"], ["--help"]) else 2
    plotting.require_modules("solutions")
    import published

    if not sys.argv[1:]:
        for columns, rows in tables():
            print(table.text(columns, rows))
        return 0
    page = page_of()
    page.write_text(published.with_part(page.read_text(), PAGE, page_part()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
