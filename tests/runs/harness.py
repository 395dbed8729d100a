"""Starts the program as a user does, and inspects its results. Shared by the run tests.

ctest sets TESSERA_PROGRAM (the binary), TESSERA_SOURCE_DIR (the checkout) and TESSERA_TEST_PATIENCE (a factor of time
limits, for slow builds). Every test works in a folder of its own, with a space in its name, and ends every process that
it started.
"""
import functools
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

import h5py
import numpy as np

SOURCE = Path(os.environ.get("TESSERA_SOURCE_DIR", Path(__file__).parents[2]))
sys.path.insert(0, str(SOURCE / "scripts"))
import places  # noqa: E402

PROGRAM = Path(os.environ.get("TESSERA_PROGRAM", SOURCE / "build/cpu/tessera"))
TINY = SOURCE / "input/tiny.toml"
EPS32 = 2.0**-24  # unit roundoff of float
PATIENCE = int(os.environ.get("TESSERA_TEST_PATIENCE", 1))
LIMIT_S = 120 * PATIENCE  # a run that takes longer hangs; sanitizers slow it down

# Bounds between two ways to compute the same training of the deck TINY. Sums of a gradient in another order differ by
# about one unit roundoff of its largest entry (clipped: 1 at most) per step, over 30 steps. AdamW turns an error of a
# gradient into at most learning_rate / eps times it (with a small eps, into a flipped sign: hence a large one here). In
# the loss, errors of either sign over many weights average out, so it is bounded without that factor.
STEADY = ("optimizer.eps=1e-3",)
LOSS_BOUND = 30 * EPS32                     # 1.8e-6, relative
WEIGHT_BOUND = 1e-2 / 1e-3 * LOSS_BOUND     # 1.8e-5, of the largest weight of a tensor

# The environment of a program that LD_PRELOAD gives a library: the address sanitizer then is not the first.
PRELOADING = {"ASAN_OPTIONS": ":".join(filter(None, [os.environ.get("ASAN_OPTIONS"), "verify_asan_link_order=0"]))}

SHARED_GPUS = ("parallel.collectives=mpi", "parallel.allow_shared_device=true")  # more ranks than GPUs
FINISHED, USAGE, ENVIRONMENT, OUT_OF_MEMORY, NUMBERS, FILES, HANG, STOPPED = 0, 2, 3, 4, 5, 6, 7, 75


class Result:
    def __init__(self, code, out, err):
        self.code, self.out, self.err = code, out, err

    def __str__(self):
        return f"exit {self.code}\n--- stdout\n{self.out[-3000:]}\n--- stderr\n{self.err[-3000:]}"


def descendants(pid):
    """All live descendants of `pid`: process groups do not show them, since mpirun makes new ones."""
    children = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = stat.read_text()
        except OSError:
            continue
        fields = text[text.rindex(")") + 2:].split()
        if fields[0] != "Z":
            children.setdefault(int(fields[1]), []).append(int(stat.parent.name))
    found, todo = [], [pid]
    while todo:
        below = children.get(todo.pop(), [])
        found += below
        todo += below
    return found


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def end_all(pids, how=signal.SIGKILL):
    for pid in pids:
        try:
            os.kill(pid, how)
        except ProcessLookupError:
            pass


def wait_for_end(pids, limit_s=10):
    """True once all the processes have ended; killing takes a moment, and so does init's reaping."""
    end = time.monotonic() + limit_s
    while any(is_alive(pid) for pid in pids):
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


@functools.lru_cache(None)
def configuration():
    """What the program says of its build."""
    return subprocess.run([PROGRAM, "--show-config"], capture_output=True, text=True, errors="replace").stdout


@functools.lru_cache(None)
def gpus():
    """Number of GPUs that the program can use; None if it computes on the host."""
    if not re.search(r"^Kokkos .*\bCUDA\b", configuration(), re.M | re.I):
        return None
    return places.gpus()


def has_nccl():
    return re.search(r"^NCCL +yes", configuration(), re.M) is not None


def write_script(path, text):
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


class Job:
    """A running program; `ranks=None` starts it without mpirun; `wrapper` starts each rank's program; `stdout` replaces
    the file in which wait() finds its standard output."""

    def __init__(self, arguments, ranks, cwd, env=None, wrapper=(), stdout=None, **popen):
        start = [*map(str, wrapper), str(PROGRAM)]
        if ranks is not None:
            start = [str(SOURCE / "scripts/run"), "--quiet", "-n", str(ranks), *start]
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1",
                       "OMP_NUM_THREADS": os.environ.get("TESSERA_TEST_THREADS", "1"), **(env or {})}
        self.out, self.err = (tempfile.TemporaryFile("w+", errors="replace") for _ in range(2))
        self.process = subprocess.Popen(start + [str(a) for a in arguments], stdout=stdout or self.out, stderr=self.err, cwd=cwd,
                                        env=environment, stdin=subprocess.DEVNULL, **popen)

    def ranks(self):
        """Process ids of the ranks (the program itself without mpirun)."""
        return [pid for pid in [self.process.pid, *descendants(self.process.pid)] if self._runs_program(pid)]

    @staticmethod
    def _runs_program(pid):
        try:
            return os.path.samefile(f"/proc/{pid}/exe", PROGRAM)
        except OSError:
            return False

    def printed(self):
        """Standard output so far; leaves the file position alone, which the program shares."""
        return os.pread(self.out.fileno(), 1 << 20, 0).decode(errors="replace")

    def kill_everything(self):
        end_all([*descendants(self.process.pid), self.process.pid])
        self.process.wait()

    def close(self):
        if self.process.poll() is None:
            self.kill_everything()
        self.out.close()
        self.err.close()

    def wait(self, limit_s=LIMIT_S):
        try:
            code = self.process.wait(limit_s)
        except subprocess.TimeoutExpired:
            self.kill_everything()
            code = "none: it hung"
        texts = []
        for file in (self.out, self.err):
            file.seek(0)
            texts.append(file.read())
            file.close()
        return Result(code, *texts)


class RunTest(unittest.TestCase):
    def setUp(self):
        self.folder = Path(tempfile.mkdtemp(prefix="tessera run "))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.jobs = []
        self.addCleanup(lambda: [job.close() for job in self.jobs])

    def start(self, deck, *arguments, ranks=None, **more):
        shares_gpus = set(SHARED_GPUS) <= set(arguments)
        if (ranks or 1) > 1 and gpus() is not None and gpus() < ranks and not shares_gpus:
            self.skipTest(f"needs {ranks} GPUs, found {gpus()}")
        job = Job([deck, *arguments], ranks, self.folder, **more)
        self.jobs.append(job)
        return job

    def run_deck(self, deck, *arguments, ranks=None, code=FINISHED, says=(), limit_s=LIMIT_S, **more):
        """Runs to the end; the exit code and the words in the message must be as expected."""
        result = self.start(deck, *arguments, ranks=ranks, **more).wait(limit_s)
        self.assertEqual(result.code, code, str(result))
        for words in [says] if isinstance(says, str) else says:
            self.assertIn(words, result.err + (result.out if code in (FINISHED, STOPPED) else ""), str(result))
        return result

    def train(self, name, *arguments, deck=TINY, **more):
        """Trains in the folder `name`; returns that folder."""
        self.run_deck(deck, f"job.directory={self.folder / name}", *arguments, **more)
        return self.folder / name

    def wait_until(self, condition, what, job, limit_s=LIMIT_S):
        end = time.monotonic() + limit_s
        while not condition():
            if job.process.poll() is not None:
                self.fail(f"ended before {what}: {job.wait()}")
            self.assertLess(time.monotonic(), end, f"never saw {what}")
            time.sleep(0.001)

    def deck(self, text, name="deck.toml"):
        path = self.folder / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    def assert_same_tensors(self, made, expected, what=""):
        """The same labels and bits."""
        self.assertEqual(sorted(made), sorted(expected), what)
        for label in expected:
            np.testing.assert_array_equal(made[label], expected[label], f"{what} {label}")

    def assert_close(self, made, expected, bound, what):
        """max |made - expected| <= bound * max |expected|; infinities must agree."""
        made, expected = np.asarray(made, np.float64), np.asarray(expected, np.float64)
        self.assertEqual(made.shape, expected.shape, what)
        finite = np.isfinite(expected)
        np.testing.assert_array_equal(made[~finite], expected[~finite], what)
        if not finite.any():
            return
        scale = np.abs(expected[finite]).max()
        difference = np.abs(made[finite] - expected[finite])
        self.assertLessEqual(difference.max(), bound * scale if scale > 0 else bound,
                             f"{what}: largest difference {difference.max():.3g}, of values up to {scale:.3g}")


def example(page, words):
    """The example in Python of a page that holds `words`, as it stands there."""
    return next(code for code in re.findall(r"```python\n(.*?)```", (SOURCE / page).read_text(), re.S) if words in code)


def latest_step(directory):
    """Optimizer steps of the newest published checkpoint; 0 where there is none yet."""
    try:
        return int(re.search(r"step_(\d+)", (directory / "checkpoints/latest").read_text()).group(1))
    except (OSError, AttributeError):
        return 0


def index_of(directory, step=None):
    """The index of the newest (or the named) checkpoint, open."""
    return h5py.File(directory / f"checkpoints/step_{step or latest_step(directory):08d}/index.h5", "r")


def tensors_of(index):
    """{path: array} of every tensor in an open index, read as any HDF5 program would."""
    found = {}
    for group in ("params", "moments"):
        index[group].visititems(lambda name, item, group=group: found.__setitem__(f"{group}/{name}", item[()])
                                if isinstance(item, h5py.Dataset) else None)
    return found


def tensors(directory, step=None):
    """{path: array} of every tensor in the newest (or the named) checkpoint."""
    with index_of(directory, step) as index:
        return tensors_of(index)


def snapshot(directory):
    """{path: bytes} of every file below `directory` except the lock, to show that none was changed."""
    return {path.relative_to(directory): path.read_bytes() for path in sorted(directory.rglob("*"))
            if path.is_file() and path.name != ".lock"}


def column(directory, name):
    with h5py.File(directory / "run.h5", "r") as file:
        return file[f"steps/{name}"][()]


class Shimmed:
    """Of a RunTest: runs between whose program and its libraries some calls of the C program SHIM step in."""

    def preload(self, **variables):
        """What start() and its like are given for runs with the shim."""
        if not shutil.which("mpicc"):
            self.skipTest("no mpicc to compile the shim with")
        if not (self.folder / "shim.so").exists():
            (self.folder / "shim.c").write_text(self.SHIM)
            subprocess.run(["mpicc", "-shared", "-fPIC", "-O1", "-o", "shim.so", "shim.c"], cwd=self.folder, check=True)
        # LD_PRELOAD is split at spaces, so the path is one from the folder in which the ranks start
        return {"wrapper": ("env", "LD_PRELOAD=./shim.so", *(f"{name}={value}" for name, value in variables.items())),
                "env": PRELOADING}


class BenchTest(RunTest):
    """Runs a bench job and reads its table."""

    def rows(self, deck, *arguments, ranks=None):
        result = self.folder / "result.h5"
        folders = (f"job.output={result}", "job.overwrite=true", f"job.directory={self.folder / 'unused'}")
        answer = self.run_deck(deck, *folders, *arguments, ranks=ranks)
        self.assertEqual(list(self.folder.glob("result.h5?*")), [], "an unfinished result was left behind")
        with h5py.File(result, "r") as file:
            for attribute in ("device", "git_hash", "build", "deck", "command"):
                self.assertTrue(file["info"].attrs[attribute], attribute)
            columns = {name: item.asstr()[...] if h5py.check_string_dtype(item.dtype) else item[...] for name, item in file.items()
                       if isinstance(item, h5py.Dataset)}
        rows = [dict(zip(columns, values)) for values in zip(*(column.tolist() for column in columns.values()))]
        for row in rows:  # the console says the same
            self.assertTrue(any(all(str(value) in line for value in row.values() if isinstance(value, str))
                                for line in answer.out.splitlines()), str(answer))
        return rows


if __name__ == "__main__":
    sys.exit("this is no test; run the test_*.py beside it")
