"""Numbers of ranks: those that a command line asks for, and how many this machine, or Slurm's allocation, has room for.

Shared by scaling, experiment and plan_sharding; imports nothing but the standard library.
"""
import argparse
import ctypes
import os
import re
import shutil
import subprocess


def ranks_of(text):
    """The numbers of ranks in a LIST such as 1,2,4,8: the type of an argument of argparse, which exits with 2 for others."""
    try:
        ranks = [int(word) for word in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text}: whole numbers with commas between them, such as 1,2,4,8") from None
    if ranks[0] < 1 or any(a >= b for a, b in zip(ranks, ranks[1:])):
        raise argparse.ArgumentTypeError(f"{text}: numbers from 1 that rise, such as 1,2,4,8")
    return ranks


class Places:
    """Where ranks can be started: `count` of them, which are `what`, of `where`; the first ranks fill the first node."""

    def __init__(self, count, what, where, on_nodes=None):
        self.count, self.what, self.where = count, what, where
        self.on_nodes = on_nodes  # tasks of each node of a Slurm job; None: this machine alone

    def __str__(self):
        return f"{self.where} has {self.count} {self.what}"

    def nodes(self, ranks):
        """The nodes that so many ranks take."""
        if self.on_nodes is None:
            return 1
        filled = [sum(self.on_nodes[:number]) for number in range(1, len(self.on_nodes) + 1)]
        return next((number for number, tasks in enumerate(filled, 1) if tasks >= ranks), len(filled))

    def launcher(self, ranks):
        """Words for scripts/run, and the environment, that start so many ranks here."""
        if self.on_nodes is None:
            return [], None
        nodes = str(self.nodes(ranks))  # srun takes its job's number unless it is told another
        return ["--launcher", "srun"], {**os.environ, "SLURM_NNODES": nodes, "SLURM_JOB_NUM_NODES": nodes,
                                        "SLURM_DISTRIBUTION": "block"}


def places(uses_gpus):
    """In a Slurm job its tasks; else the GPUs that a program started here can use, or the cores."""
    tasks = tasks_of_job(os.environ) if shutil.which("srun") else []
    if tasks:
        return Places(sum(tasks), "tasks", f"Slurm's job {os.environ['SLURM_JOB_ID']}", tasks)
    return Places(gpus(), "GPUs", "this machine") if uses_gpus else Places(len(os.sched_getaffinity(0)), "cores", "this machine")


def tasks_of_job(environment):
    """Tasks of each node, which Slurm writes as "2(x3),1"; none outside of its jobs."""
    counts = []
    if environment.get("SLURM_JOB_ID"):
        for part in re.finditer(r"(\d+)(?:\(x(\d+)\))?(?:,|$)", environment.get("SLURM_TASKS_PER_NODE", "")):
            counts += [int(part[1])] * int(part[2] or 1)
    return counts


def gpus():
    """As the driver counts them for a process, CUDA_VISIBLE_DEVICES and MIG included; without its library, from nvidia-smi."""
    counted = gpus_of_driver()
    return gpus_listed(os.environ.get("CUDA_VISIBLE_DEVICES"), nvidia_smi()) if counted is None else counted


def visible_gpus():
    """The words of CUDA_VISIBLE_DEVICES: indices or identifiers, as the caller chose them; [] for all GPUs."""
    return [word.strip() for word in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if word.strip()]


def gpus_of_driver():
    """None where there is no driver library."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    count = ctypes.c_int(0)
    is_there = driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0
    return count.value if is_there else 0


def nvidia_smi():
    """What nvidia-smi lists; "" where there is none."""
    try:
        return subprocess.run(["nvidia-smi", "--list-gpus"], capture_output=True, text=True, errors="replace").stdout
    except OSError:
        return ""


def gpus_listed(visible, listed):
    """Those of nvidia-smi's list that CUDA shows to a process.

    `visible` is CUDA_VISIBLE_DEVICES, or None: indices or beginnings of identifiers, of which CUDA takes those before the
    first that is none. A process sees one MIG device at most; a GPU in that mode is none by itself.
    """
    whole, parts = [], []  # identifiers; "" for a GPU in parts
    for line in listed.splitlines():
        identifier = (re.search(r"UUID: ([\w-]+)", line) or ["", ""])[1]
        if re.match(r"GPU \d+", line):
            whole.append(identifier or "GPU")
        elif re.match(r"\s+MIG ", line):
            parts.append(identifier)
            whole[-1] = ""
    if visible is None:
        return len([identifier for identifier in whole if identifier]) or min(1, len(parts))
    count = 0
    for word in (word.strip() for word in visible.split(",")):
        if word.startswith("MIG-") and any(identifier.startswith(word) for identifier in parts):
            return max(count, 1)
        is_index = word.isdigit() and int(word) < len(whole) and (whole[int(word)] or not count)
        if not is_index and not (word.startswith("GPU-") and any(identifier.startswith(word) for identifier in whole)):
            break
        count += 1
    return count
