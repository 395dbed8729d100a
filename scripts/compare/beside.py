"""PyTorch beside an experiment's rows, after ours, in the same call and on the same GPU, or both on one core: `experiment --torch`.

A module of scripts/experiments says what it wants: PEERS, {PyTorch's number format: backends of torch_worker} for rows of attention;
MODES, in which torch_worker runs the models of the rows of whole steps; each in the number formats of ours. What was measured stays in the
run, as torch.json, and is not measured again, unless it failed and may run another time:

    {"pytorch": version, "device": GPU or "CPU",
     "shapes": [{"dtype", "B", "H", "T", "D", "causal", backend: {pass: ms, pass_std: ms} or {"failed": why}}],
     "steps": [{"size", "dtype", mode: {part: ms, part_std: ms} or {"failed": why}}]}

Files from before 2026-11-27 have no deviations.
"""
import contextlib
import json
import math
import os
import subprocess
import sys
import tomllib
from typing import NamedTuple

from compare.sides import ON_ONE_GPU, Failed, Torch
from compare.steps import compiled_side_by_side
from compare.verdicts import NOT_RECORDED, cannot_run
from experiments.parts import size_of
from experiments.table import spread
from launching import Refusal, replace_text, stops_at_signals

FILE = "torch.json"
PASSES = ("forward", "backward", "both")
PARTS = ("forward", "forward_backward", "step")
SHAPE = ("dtype", "B", "H", "T", "D", "causal")
TIMING = ("repeats", "warmup", "warmup_ms", "rest_ms", "row_limit_s")  # keys of [bench] that both sides follow, beside `pass`
FORMATS = ("fp32", "tf32", "bf16")
ATTENTION = {"fp32": ("EAGER", "STORED", "EFFICIENT", "FLASH"), "tf32": ("EAGER", "STORED", "EFFICIENT"), "bf16": ("EAGER", "STORED", "EFFICIENT", "FLASH", "CUDNN")}
STEPS = {"eager": "eager", "default": "compiled", "reduce-overhead": "compiled, graphs"}  # torch_worker's modes, as tables name them
GPU_ONLY = ("tf32", "EFFICIENT", "CUDNN", "reduce-overhead")
# A table's columns of attention: the backends of which the fastest counts, and the formats in which there are others beside
COLUMNS = {"stored scores": (("EAGER",), FORMATS), "compiled": (("STORED",), FORMATS), "fused": (("EFFICIENT", "FLASH", "CUDNN"), FORMATS),
           "memory-efficient": (("EFFICIENT",), ("bf16",))}
TOGETHER = 0.75  # of a GPU's memory, for weights, gradients and moments of models that are compiled at the same time
ENVIRONMENT = 3


# --- what stands beside

def has_peers(chapter):
    return hasattr(chapter, "PEERS") or hasattr(chapter, "MODES")


def shape_of(row):
    """Of a row of bench.attention."""
    return {"dtype": str(row["dtype"]), **{name: int(row[name]) for name in "BHTD"}, "causal": row["causal"] == "yes"}


def found(results):
    """What torch.json of a run, or of a published one, holds; {} where there is none."""
    if not hasattr(results, "beside"):
        path = results.output / FILE
        results.beside = json.loads(path.read_text()) if path.exists() else {}
        results.beside_by_shape = {tuple(each[key] for key in SHAPE): each for each in results.beside.get("shapes", ())}
    return results.beside


def version(results):
    """"PyTorch 2.11.0+cu130" of what stands beside; "" where nothing does."""
    return f"PyTorch {found(results)['pytorch']}" if found(results) else ""


def columns(results, *wanted):
    """Those of COLUMNS (of `wanted`) of which a shape was measured."""
    shapes = found(results).get("shapes", ())
    return [name for name, (backends, formats) in COLUMNS.items() if name in (wanted or COLUMNS)
            and any(each["dtype"] in formats and any(backend in each for backend in backends) for each in shapes)]


def ms(results, row, column, name):
    """PyTorch's time of a pass on a row's shape, by one of COLUMNS [ms]; NaN where it was not measured, or failed."""
    return measured(results, row, column, name)[0]


def measured(results, row, column, name):
    """The same with its standard deviation."""
    backends, formats = COLUMNS[column]
    found(results)
    each = results.beside_by_shape.get(tuple(shape_of(row).values()), {}) if row["dtype"] in formats else {}
    if any(may_run(each.get(backend, {})) for backend in backends):  # it might be the fastest
        return math.nan, math.nan
    return min(((each[backend][name], each[backend].get(f"{name}_std", math.nan)) for backend in backends if name in each.get(backend, {})),
               default=(math.nan, math.nan))


def may_run(answer):
    """Whether what failed may run another time."""
    return "failed" in answer and not cannot_run(answer["failed"]) and NOT_RECORDED not in answer["failed"]


def step_tables(results):
    """[(columns, rows)] of whole steps, each beside our fastest of the same size and number format; [] where none was measured."""
    ours = {}
    for row in results.rows:
        if math.isfinite(row.get("step_ms", math.nan)):
            key = size_of(row), row["precision.compute"]
            ours[key] = min(ours.get(key, math.inf), row["step_ms"])
    rows = []
    for each in found(results).get("steps", ()):
        for mode in (mode for mode in STEPS if mode in each):
            times = [each[mode].get(part, math.nan) for part in PARTS]
            own = ours.get((each["size"], each["dtype"]), math.nan)
            stds = [each[mode].get(f"{part}_std", math.nan) for part in PARTS]
            rows.append([each["size"], each["dtype"], STEPS[mode], *map(spread, times, stds), own, times[-1] / own, each[mode].get("failed", "ok")])
    return [(["size", "compute", "PyTorch, medians", "forward with gradients on, ms", "forward + backward, ms", "step, ms", "ours, step, ms",
              "PyTorch / ours", "outcome"], rows)] if rows else []


# --- measuring it

class Python(NamedTuple):
    path: str
    version: str  # of its PyTorch
    device: str   # a GPU's name, or "CPU"
    memory: float = 80e9  # of that GPU [bytes]

    @property
    def has_gpu(self):
        return self.device != "CPU"

    def worker(self):
        return Torch(python=self.path, env=environment(self.has_gpu))

    def existing(self, names):
        return [name for name in names if self.has_gpu or name not in GPU_ONLY]


def environment(on_gpu):
    """One GPU; or none and as many threads as scripts/run gives a rank."""
    return ON_ONE_GPU if on_gpu else {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}


def python_with_torch(on_gpu):
    """TESSERA_PYTHON, or the Python that runs this. `on_gpu`: where our rows run."""
    path = os.environ.get("TESSERA_PYTHON", sys.executable)
    asks = "import torch; print(torch.__version__); " \
           "print(torch.cuda.get_device_name(), torch.cuda.get_device_properties(0).total_memory, sep='\\n') if torch.cuda.is_available() else None"
    answer = subprocess.run([path, "-c", asks], capture_output=True, text=True, env=environment(on_gpu))
    if answer.returncode != 0:
        raise Refusal(ENVIRONMENT, f"--torch: {path} has no PyTorch; name a Python that has it in TESSERA_PYTHON")
    torch, device, memory = (answer.stdout.splitlines() + ["", "", ""])[:3]
    if on_gpu and not device:
        raise Refusal(ENVIRONMENT, f"--torch: the PyTorch {torch} of {path} sees no GPU")
    return Python(path, torch, device, float(memory)) if device else Python(path, torch, "CPU")


def measure(results, chapter, python):
    """Adds what torch.json lacks; a shape, or a model, is kept as soon as it has run. What PyTorch has on GPUs alone, if it was left out."""
    kept = {"pytorch": python.version, "device": python.device, **found(results)}
    if (kept["pytorch"], kept["device"]) != (python.version, python.device):
        raise Refusal(ENVIRONMENT, f"--torch: {results.output / FILE} has PyTorch {kept['pytorch']} on {kept['device']}, here is {python.version} on "
                      f"{python.device}: delete it to measure again")
    peers, modes = getattr(chapter, "PEERS", {}), getattr(chapter, "MODES", ())

    def keep():
        replace_text(results.output / FILE, json.dumps(kept, indent=1) + "\n")

    formats = python.existing(FORMATS)
    backends = {dtype: python.existing(names) for dtype, names in peers.items() if dtype in formats}
    with stops_at_signals("the same command continues after what has been measured"):
        measure_attention(results, backends, python, kept.setdefault("shapes", []), keep)
        measure_steps(results, formats, python.existing(modes), python, kept.setdefault("steps", []), keep)
    del results.beside
    asked = [name for name in GPU_ONLY if name in (*modes, *(("tf32",) if modes else ()), *peers, *(name for names in peers.values() for name in names))]
    return [name for name in asked if not python.existing([name])]


def measure_attention(results, backends, python, stored, keep):
    rows = [row for row in results.rows if math.isfinite(row.get("B", math.nan))] if backends else []
    if not rows:
        return
    found(results)
    missing = []  # (entry, the backends that it lacks, the row whose timing they follow)
    for row in {tuple(shape_of(row).values()): row for row in rows}.values():
        shape = shape_of(row)
        entry = results.beside_by_shape.get(tuple(shape.values()), shape)
        if lacking := [backend for backend in backends.get(shape["dtype"], ()) if backend not in entry or may_run(entry[backend])]:
            missing.append((entry, lacking, row))
    worker = python.worker()
    try:
        for entry, lacking, row in missing:
            with row.file() as file:
                bench = tomllib.loads(file["info"].attrs["deck"])["bench"]
            try:
                answer, = worker.ask(do="attention", cases=[{key: entry[key] for key in SHAPE}], backends=lacking,
                                     passes=PASSES if bench["pass"] == "all" else [bench["pass"]], timing={key: bench[key] for key in TIMING})
            except Failed as fault:  # its process died; the next shape starts another
                answer = {backend: {"failed": str(fault)} for backend in lacking}
            if not any(each is entry for each in stored):
                stored.append(entry)
            entry.update(answer)
            keep()
    finally:
        worker.stop()


def models_of(results):
    """{(size, PyTorch's format): (torch_worker's model, torch_worker's step)} of the rows of whole steps that have run."""
    models = {}
    for row in results.rows:
        if not (row.has_file and math.isfinite(row.get("step_ms", math.nan))):
            continue
        with row.file() as file:
            deck = tomllib.loads(file["info"].attrs["deck"])
        shape, key = deck["model"], (size_of(row), row["precision.compute"])
        models.setdefault(key, ({"size": key[0], "dtype": key[1], "V": shape["vocab_size"], "T": shape["context_length"], "B": deck["train"]["batch_size"],
                                 "C": shape["d_model"], "F": shape["d_ff"], "L": shape["num_layers"], "H": shape["num_heads"]},
                                {"clips": deck["optimizer"]["clip_norm"] > 0, "repeats": deck["bench"]["repeats"], "warmup_ms": deck["bench"]["warmup_ms"]}))
    return models


def batches(models, memory):
    """Models in sets that fit on a GPU together while they are compiled: from the largest on, each goes into the first set with room for it."""
    needs = {key: 16 * (2 * each["V"] * each["C"] + each["L"] * (4 * each["C"]**2 + 3 * each["C"] * each["F"])) for key, each in models.items()}
    sets = []
    for key in sorted(models, key=needs.get, reverse=True):
        with_room = (chosen for chosen in sets if sum(map(needs.get, chosen)) + needs[key] <= TOGETHER * memory)
        chosen = next(with_room, None)
        if chosen is None:
            sets.append(chosen := [])
        chosen.append(key)
    return [{key: models[key] for key in models if key in chosen} for chosen in sets]


def measure_steps(results, formats, modes, python, stored, keep):
    models, entries = models_of(results) if modes else {}, {(each["size"], each["dtype"]): each for each in stored}
    places = {key: place for place, key in enumerate(models)}
    lacking = {key: [mode for mode in modes if mode not in entries.get(key, {}) or may_run(entries[key][mode])] for key in models if key[1] in formats}
    for batch in batches({key: models[key][0] for key in lacking if lacking[key]}, python.memory):
        wanted = [mode for mode in modes if any(mode in lacking[key] for key in batch)]
        with contextlib.redirect_stdout(sys.stderr):
            workers, reasons = compiled_side_by_side(batch, wanted, python.worker)
        for key in batch:
            times = step_times(workers[key], lacking[key], models[key][1]) if key in workers else {mode: {"failed": reasons[key]} for mode in lacking[key]}
            if key not in entries:
                stored.append(entries.setdefault(key, {"size": key[0], "dtype": key[1]}))
            entries[key].update(times)
            stored.sort(key=lambda each: places.get((each["size"], each["dtype"]), len(places)))
            keep()


def step_times(worker, modes, timing):
    """{mode: {part: ms} or {"failed": why}}; ends the worker."""
    times = {}
    try:
        for mode in modes:
            try:
                if not times:
                    worker.ask(do="wake")
                elif worker.process is None:  # another would have no model
                    raise Failed("its process had ended")
                answer = worker.ask(do="step", mode=mode, **timing)
                times[mode] = {name: answer[name] for part in PARTS for name in (part, f"{part}_std") if name in answer}
            except Failed as fault:
                times[mode] = {"failed": str(fault)}
    finally:
        worker.stop()
    return times
