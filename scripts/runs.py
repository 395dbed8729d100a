"""What run.h5 files say, as collect and report need it: where they are, their figures, their decks' keys by name."""
import tomllib
import warnings
from pathlib import Path

import h5py
import numpy as np
import plotting

FORMAT = "tessera run"
WARMUP_STEPS = 5  # of each start, which no time counts (src/jobs/counted_steps.hpp)


def files_in(path):
    """`path` itself, the run.h5 of that folder, or those of all runs below it, in order."""
    path = Path(path)
    if not path.is_dir():
        return [path]
    if (path / "run.h5").exists():
        return [path / "run.h5"]
    return sorted(file for file in path.rglob("run.h5") if not file.parent.name.startswith("abandoned_"))  # a rewind's copy


def open_run(path):
    """The file, open; OSError if no training run wrote it."""
    file = h5py.File(path, "r")
    if not isinstance(file.get("info"), h5py.Group) or file["info"].attrs.get("format") != FORMAT:
        file.close()
        raise OSError("no training run wrote it")
    return file


def columns(file, group):
    """The columns of a group, text as str; {} where the file lacks it. Tables of other axes below it are left out."""
    if group not in file:
        return {}
    return {name: plotting.values(item) for name, item in file[group].items() if isinstance(item, h5py.Dataset)}


def of_ranks(file):
    """The tables of all ranks: of each, [step, rank], and of their spread, [step, statistic]. A run has one, the other is {}."""
    return columns(file, "steps/by_rank"), columns(file, "steps/over_ranks")


def keys_of(file):
    """{"train.steps": 30, ...}, in the deck's order."""
    keys = {}

    def take(table, prefix):
        for name, value in table.items():
            take(value, f"{prefix}{name}.") if isinstance(value, dict) else keys.__setitem__(prefix + name, value)

    take(tomllib.loads(file["info"].attrs["deck"]), "")
    return keys


def counted(steps):
    """[step] Whether its times count: not of the first steps of a start, nor of a profiled step."""
    attempt = steps.get("attempt", np.zeros(len(steps["step"]), int))
    first = {number: np.flatnonzero(attempt == number)[0] for number in np.unique(attempt)}
    place = np.arange(len(attempt)) - np.array([first[number] for number in attempt], int)
    return (place >= WARMUP_STEPS) & np.isfinite(steps["step_time"])


def last_number(values):
    known = values[np.isfinite(values)]
    return float(known[-1]) if len(known) else float("nan")


def median(values):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of nothing, or of NaN alone
        return float(np.nanmedian(values)) if len(values) else float("nan")


def figures(file):
    """{name: (value, units, meaning)} of a run as a whole."""
    info, steps, attempts = file["info"].attrs, columns(file, "steps"), columns(file, "attempts")
    counts = counted(steps) if len(steps["step"]) else np.zeros(0, bool)
    text = lambda name: str(info.get(name, ""))
    found = {
        "run_id": (text("run_id"), "1", "of the run, through all its starts"),
        "created": (text("created"), "1", "first start, UTC"),
        "ended": (str(attempts["reason"][-1]) if attempts else "", "1", "how its latest start ended"),
        "attempts": (int(info.get("attempts", 1)), "1", "starts of the run"),
        "git_hash": (text("git_hash"), "1", "commit of the program, of the latest start"),
        "hosts": (text("hosts"), "1", "hosts and their ranks, of the latest start"),
        "job": (text("job"), "1", "Slurm job, of the latest start"),
        "ranks": (int(info.get("ranks", 0)), "1", "ranks, of the latest start"),
        "host_count": (int(info.get("host_count", 0)), "1", "hosts, of the latest start"),
        "gpus": (", ".join(info.get("gpu_models", [])), "1", "models of GPUs; empty on CPUs"),
        "steps": (int(steps["step"][-1]) if len(steps["step"]) else 0, "1", "optimizer steps done"),
        "tokens": (last_number(steps["tokens"]), "token", "trained on"),
        "loss": (float(steps["loss"][-1]) if len(steps["loss"]) else np.nan, "nat", "of the last step"),
        "validation_loss": (last_number(steps["validation_loss"]), "nat", "the last one"),
        "peak_bytes": (last_number(steps["peak_bytes"]), "byte", "of rank 0's arena"),
    }
    for name, units in (("step_time", "s"), ("forward", "s"), ("backward", "s"), ("exposed_comm", "s"), ("optimizer", "s"),
                        ("tokens_per_second", "token/s"), ("mfu", "1")):
        found[name] = (median(steps[name][counts]), units, f"median of the steps after the first {WARMUP_STEPS} of each start")
    return found
