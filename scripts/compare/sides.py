"""Both sides of a comparison on a GPU, and the report: the basis of every section of gpu.py."""
import json
import math
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import places  # scripts/, where compare_torch is
from launching import Refusal, replace_text

ROOT = Path(__file__).resolve().parents[2]
GPUS = places.visible_gpus()
ON_ONE_GPU = {**os.environ, "CUDA_VISIBLE_DEVICES": GPUS[0] if GPUS else "0"}  # where both sides run, but for scaling


class Failed(Exception):
    """One side failed; the text says why. `code`: our program's exit code, where it was ours and ended."""

    def __init__(self, text, code=None):
        super().__init__(text)
        self.code = code


class CutShort(Exception):
    """Ends the sections and reports what is known: the caller's time limit has sent SIGTERM."""


def cut_short(*_):
    raise CutShort


class Torch:
    """A process of PyTorch's side, started at the first request; what it says besides its answers goes to `log`."""

    def __init__(self, worker="torch_worker.py", env=ON_ONE_GPU, log=subprocess.DEVNULL, python=sys.executable):
        self.process, self.worker, self.env, self.log, self.python = None, worker, env, log, python
        self.is_at_work = False

    def send(self, **request):
        if self.process is None:
            self.process = subprocess.Popen([self.python, Path(__file__).with_name(self.worker)], text=True,
                                            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, env=self.env)
        self.is_at_work = True
        try:
            print(json.dumps(request), file=self.process.stdin, flush=True)
        except BrokenPipeError:
            self.give_up()

    def receive(self):
        line = self.process.stdout.readline()
        self.is_at_work = False
        if not line:
            self.give_up()
        answer = json.loads(line)
        if "failed" in answer:
            raise Failed(answer["failed"])
        return answer["answer"]

    def give_up(self):
        """The process has died; the next request starts another."""
        process, self.process = self.process, None
        raise Failed(f"PyTorch's process ended with {process.wait()}")

    def ask(self, **request):
        self.send(**request)
        return self.receive()

    def stop(self):
        """Ends the process: at once if it is at work on a request, which may take minutes."""
        if self.process is not None:
            if self.is_at_work:
                self.process.kill()
            try:
                self.process.stdin.close()
            except BrokenPipeError:
                pass  # it had died already
            self.process.wait()
            self.process = None


class Ours:
    """Our program: one process per call, started through scripts/run where there are several ranks."""

    def __init__(self, program, step_overrides=()):
        self.program, self.step_overrides = program, list(step_overrides)

    def run(self, deck, *overrides, ranks=1, timeout=300):
        """The rows of what it wrote in its directory: rows_of()."""
        with tempfile.TemporaryDirectory() as folder:
            launcher = [] if ranks == 1 else [ROOT / "scripts/run", "--quiet", "-n", ranks]
            command = [*launcher, self.program, deck, f"job.directory={folder}/run", *overrides]
            try:
                answer = subprocess.run(list(map(str, command)), text=True, capture_output=True, timeout=timeout,
                                        env=ON_ONE_GPU if ranks == 1 else None)
            except subprocess.TimeoutExpired:
                raise Failed(f"our program took longer than {timeout} s") from None
            if answer.returncode != 0:
                said = [line for line in (answer.stderr + answer.stdout).splitlines() if line.strip()]
                raise Failed(f"exit code {answer.returncode}: " + " | ".join(said[-3:])[-400:], answer.returncode)
            return rows_of(Path(folder) / "run")


def rows_of(folder):
    """[{column: value}] of the rows that ran; Failed where none did, None where a job writes no such result."""
    import results

    path = results.file_in(folder)
    if not path.exists():
        return None
    rows = results.read(path)
    if rows and not any(row.has_run for row in rows):
        raise Failed(f"exit code {rows[0].exit_code}: {rows[0].reason.splitlines()[0][:400]}", rows[0].exit_code)
    plain = lambda value: value.item() if hasattr(value, "item") else value
    return [{**{name: plain(value) for name, value in entry.items()}, "outcome": entry.outcome}
            for row in rows if row.has_run for entry in row.entries()]


def deck(name):
    """The bench deck of this name: NAME/deck.toml where it has a page, else NAME.toml."""
    own = ROOT / "input/bench" / name / "deck.toml"
    return own if own.exists() else ROOT / "input/bench" / f"{name}.toml"


def words(*items):
    return "[" + ", ".join(f'"{item}"' for item in items) + "]"


def numbers(items):
    return "[" + ", ".join(str(item).lower() for item in items) + "]"


def machine(program, has_gpu=True):
    """Prints what is compared where; what the program says of itself."""
    if has_gpu:
        print(subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version,clocks.sm,power.limit", "--format=csv,noheader"],
                             text=True, capture_output=True).stdout.strip())
    version = subprocess.run([program, "--version"], text=True, capture_output=True).stdout.strip()
    print(version, flush=True)
    commits = [*re.findall(r"git (?!unknown)(\w+)", version), os.environ.get("TESSERA_COMMIT", "")]  # the second: of a build without git
    return {"build": version, "git_hash": commits[0]}


class Report:
    """Gathers what was found: the table of promises, everything as JSON.

    Promises are made before anything is measured, so that one whose section fails, or never begins, is in the table.
    """

    def __init__(self, folder, file="compare.json"):
        self.folder, self.file = folder, file
        self.promises, self.data, self.infos, self.code = {}, {}, {}, 0
        device = next(iter(re.findall(r"GPU \d+: (.+?) \(UUID", places.nvidia_smi())), "")
        self.info = {"created": time.strftime("%Y-%m-%d"), "device": device, "git_hash": ""}
        folder.mkdir(parents=True, exist_ok=True)

    def read(self):
        """Takes everything from the file of an earlier call."""
        stored = json.loads((self.folder / self.file).read_text())
        self.info, self.data, self.promises, self.infos = stored["info"], stored["data"], stored["promises"], stored.get("infos", {})
        return self

    def info_of(self, section):
        """Of the call that measured it."""
        return self.infos.get(section, self.info)

    def adopt(self):
        """Keeps the sections of an earlier call with this build on this GPU; refuses to replace another's."""
        path = self.folder / self.file
        if not path.exists():
            return
        stored = json.loads(path.read_text())
        if any(stored["info"].get(name) != self.info.get(name) for name in ("build", "device")):
            raise Refusal(6, f"{path} has what {stored['info'].get('build')} did on {stored['info'].get('device')}: name another --output, or delete it")
        self.data, self.promises = stored["data"], {**stored["promises"], **self.promises}
        self.infos = {section: stored.get("infos", {}).get(section, stored["info"]) for section in stored["data"]}

    def failed(self, what, reason):
        """Tells a Failed; the first exit code of our program becomes the call's."""
        print(f"{what}: {reason}", flush=True)
        self.code = self.code or reason.code or 0

    def promise(self, what, least, aim):
        """Larger is better: times and errors are negated, here and in found(). None: no lower bound."""
        self.promises[what] = {"value": None, "least": least, "aim": aim, "text": None}

    def found(self, what, value, text=None):
        """What was measured; NaN counts as not measured."""
        self.promises[what].update(value=None if math.isnan(value) else value, text=text)

    def keep(self, section, value):
        self.data[section], self.infos[section] = value, dict(self.info)
        text = json.dumps(without_nan({"info": self.info, "data": self.data, "promises": self.promises, "infos": self.infos}), indent=1, allow_nan=False)
        replace_text(self.folder / self.file, text)

    def table(self):
        show = lambda x: "-" if x is None else f"{abs(x):,.0f}" if abs(x) >= 1000 else f"{abs(x):.3g}"
        lines = [f"\n{'promise':<58}{'found':>12}{'at least':>12}{'aim':>10}"]
        for what, p in self.promises.items():
            value, least, aim = p["value"], p["least"], p["aim"]
            if value is None:
                verdict = "NOT MEASURED"
            elif value >= aim:
                verdict = "aim reached"
            else:
                verdict = "below the aim" if least is None else "reached" if value >= least else "MISSED"
            lines.append(f"{what:<58}{show(value):>12}{show(least):>12}{show(aim):>10}  {verdict}"
                         + (f"  {p['text']}" if p["text"] else ""))
        return "\n".join(lines)


def without_nan(value):
    """The same with None for every NaN, since JSON has none."""
    if isinstance(value, dict):
        return {key: without_nan(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_nan(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def lowest(values):
    """The minimum; NaN if there are no values or one is unknown."""
    values = list(values)
    return min(values) if values and not any(math.isnan(value) for value in values) else math.nan


def median(values):
    """NaN if there are no values or one is unknown."""
    values = list(values or ())
    return statistics.median(values) if values and not any(value is None or math.isnan(value) for value in values) else math.nan


def spread(values):
    return statistics.median(values), min(values), max(values)


def ratio_text(ratios):
    middle, low, high = spread(ratios)
    return f"{middle:5.2f} ({low:.2f}-{high:.2f})"
