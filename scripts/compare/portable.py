"""The build by Kokkos alone (preset cuda-portable) beside the tuned one: the section `portable` of gpu.py.

One step of `small` in fp32, launch by launch, under Nsight Compute: every kernel of ours but attention, one at a time. Products and
attention are other kernels in that build.
"""
import runpy
import subprocess
import tempfile
from pathlib import Path
from types import SimpleNamespace

from compare.sides import ON_ONE_GPU, ROOT, Failed, deck, median, words
from experiments import table

profile = SimpleNamespace(**runpy.run_path(str(ROOT / "scripts/profile_step")))
PROGRAM = ROOT / "build/cuda-portable/tessera"
LAUNCHES = 520  # which hold a whole step
WORST = "portable build, slowest kernel / the tuned build's"
STEP = (f"experiment.only={words('fused_small')}", *(f"precision.{key}=fp32" for key in ("compute", "gradients", "reduce")))
ONCE = ("bench.warmup=1", "bench.warmup_ms=0", "bench.rest_ms=0", "bench.repeats=1")


def promise(report, _):
    report.promise(WORST, -1.3, -1.3)


def kernels_of(program, overrides):
    """{kernel: [launches, milliseconds]} of a step."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "ncu.csv"
        command = ["ncu", *profile.NAMES, "--kernel-name-base", "demangled", "-k", "regex:tessera", "-c", LAUNCHES, "--clock-control", "none",
                   "--metrics", profile.TIME, "--csv", "--log-file", log, program, deck("step_gpu"), *STEP, *ONCE, *overrides, f"job.directory={folder}/run"]
        answer = subprocess.run(list(map(str, command)), text=True, capture_output=True, env=ON_ONE_GPU)
        if answer.returncode != 0:
            raise Failed(f"{program} under ncu: " + " | ".join((answer.stderr + answer.stdout).splitlines()[-3:])[-300:])
        return of_step(profile.one_step(profile.launches_of(log)))


def of_step(launches):
    found = {}
    for name, us, _ in launches:
        if profile.kind_of(name) == "the rest":
            row = found.setdefault(profile.label_of(name).split()[0].removeprefix("kernels::").removeprefix("detail::"), [0, 0.0])
            row[0] += 1
            row[1] += 1e-3 * us
    return found


def rows_of(tuned, portable):
    """Of the rounds of both; one entry per kernel, the slowest first."""
    names = sorted(portable[0], key=lambda name: -portable[0][name][1])
    ms = lambda rounds, name: [found[name][1] for found in rounds if name in found]
    return [{"kernel": name, "launches": portable[0][name][0], "ms": ms(portable, name), "tuned_ms": ms(tuned, name)} for name in names]


def ratio(row):
    return median(row["ms"]) / median(row["tuned_ms"])


def kernel_table(rows):
    return (["kernel", "launches", "tuned, us", "Kokkos alone, us", "ratio"],
            [[row["kernel"], row["launches"], 1e3 * median(row["tuned_ms"]), 1e3 * median(row["ms"]), f"{ratio(row):.2f}"] for row in rows])


def measure(ours, report, rounds):
    tuned, portable = [], []
    for number in range(rounds):
        turns = [lambda: tuned.append(kernels_of(ours.program, ours.step_overrides)), lambda: portable.append(kernels_of(PROGRAM, ours.step_overrides))]
        for turn in turns if number % 2 == 0 else reversed(turns):
            turn()
    rows = rows_of(tuned, portable)
    print(table.text(*kernel_table(rows)), flush=True)
    report.keep("portable", rows)
    report.found(WORST, -max(map(ratio, rows)))
