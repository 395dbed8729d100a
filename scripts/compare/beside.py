"""PyTorch's attention on the shapes of an experiment, after our rows, in the same call and on the same GPU: `experiment --torch`.

A module of scripts/experiments names the backends of torch_worker in PEERS, {number format: backends}. What was measured stays in
the run, as torch.json, and is not measured again:

    {"pytorch": version, "device": GPU, "shapes": [{"dtype", "B", "H", "T", "D", "causal", backend: {pass: ms} or {"failed": why}}]}
"""
import json
import math
import os
import subprocess
import sys
import tomllib

from compare.sides import ON_ONE_GPU, Failed, Torch
from launching import Refusal

FILE = "torch.json"
PASSES = ("forward", "backward", "both")
SHAPE = ("dtype", "B", "H", "T", "D", "causal")
TIMING = ("repeats", "warmup", "warmup_ms", "rest_ms", "row_limit_s")  # keys of [bench] that both sides follow
ENVIRONMENT = 3


def rows_of_attention(results):
    return [row for row in results.rows if math.isfinite(row.get("B", math.nan))]


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


def ms(results, row, backend, name):
    """PyTorch's time of a pass on a row's shape [ms]; NaN where it was not measured, or failed."""
    if not found(results):
        return math.nan
    return results.beside_by_shape.get(tuple(shape_of(row).values()), {}).get(backend, {}).get(name, math.nan)


def version(results):
    """"PyTorch 2.11.0+cu130" of what stands beside; "" where nothing does."""
    return f"PyTorch {found(results)['pytorch']}" if found(results) else ""


def python_with_torch():
    """(path, PyTorch's version, GPU): of TESSERA_PYTHON, or of the Python that runs this."""
    path = os.environ.get("TESSERA_PYTHON", sys.executable)
    asks = "import torch; print(torch.__version__); print(torch.cuda.get_device_name() if torch.cuda.is_available() else '')"
    answer = subprocess.run([path, "-c", asks], capture_output=True, text=True, env=ON_ONE_GPU)
    if answer.returncode != 0:
        raise Refusal(ENVIRONMENT, f"--torch: {path} has no PyTorch; name a Python that has it in TESSERA_PYTHON")
    torch, device = (answer.stdout.splitlines() + ["", ""])[:2]
    if not device:
        raise Refusal(ENVIRONMENT, f"--torch: the PyTorch {torch} of {path} sees no GPU")
    return path, torch, device


def measure(results, peers, python):
    """Adds the shapes that torch.json lacks; a shape is kept as soon as it has run."""
    path, torch, device = python
    rows = rows_of_attention(results)
    with rows[0].file() as file:
        bench = tomllib.loads(file["info"].attrs["deck"])["bench"]
    timing = {key: bench[key] for key in TIMING}
    kept = found(results)
    if kept and (kept["pytorch"], kept["device"]) != (torch, device):
        raise Refusal(ENVIRONMENT, f"--torch: {results.output / FILE} has PyTorch {kept['pytorch']} on {kept['device']}, here is {torch} on {device}: "
                      "delete it to measure again")
    shapes = [shape for shape in {tuple(shape_of(row).items()): None for row in rows}
              if dict(shape)["dtype"] in peers and tuple(value for _, value in shape) not in results.beside_by_shape]
    stored = kept.get("shapes", [])
    worker = Torch(python=path)
    try:
        for shape in map(dict, shapes):
            try:
                answer, = worker.ask(do="attention", cases=[shape], backends=peers[shape["dtype"]], passes=PASSES, timing=timing)
            except Failed as fault:  # its process died; the next shape starts another
                answer = {backend: {"failed": str(fault)} for backend in peers[shape["dtype"]]}
            stored.append({**shape, **answer})
            (results.output / FILE).write_text(json.dumps({"pytorch": torch, "device": device, "shapes": stored}, indent=1) + "\n")
    finally:
        worker.stop()
    del results.beside
