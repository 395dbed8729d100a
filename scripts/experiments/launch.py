"""Starts the launches of an experiment, and reads what they wrote."""
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import h5py
import numpy as np
import plotting
from launching import STOPPED, run_handing_on
from places import places

ROOT = Path(__file__).resolve().parent.parent.parent
FINISHED, OUT_OF_MEMORY = 0, 4
STOPPED_BY_ITS_LIMIT = "stopped by its train.time_limit_s"  # the reason of a row with exit code 75 that a resumed launch keeps


class Refusal(Exception):
    def __init__(self, code, words):
        super().__init__(words)
        self.code = code


def note(words):
    print(f"experiment: {words}", file=sys.stderr)


class Program:
    def __init__(self, preset):
        self.path = os.environ.get("TESSERA_PROGRAM") or str(ROOT / "build" / preset / "tessera")
        if not os.access(self.path, os.X_OK):
            raise Refusal(3, f"there is no program {self.path}; scripts/build {preset} makes build/{preset}/tessera")
        self.preset = preset
        self.figures = tomllib.loads(self.ask("--show-config", "--figures"))
        self.uses_gpus = self.figures["gpu_code"] != ""

    def ask(self, *words):
        answer = subprocess.run([self.path, *map(str, words)], capture_output=True, text=True)
        if answer.returncode != 0:
            raise Refusal(answer.returncode, answer.stderr.strip().removeprefix("tessera: "))
        return answer.stdout

    def run(self, ranks, deck, *words):
        """The exit code; what the program says goes to standard error. Signals that ask to stop are handed on."""
        command = [str(ROOT / "scripts/run"), "-n", str(ranks), "--quiet", "--preset", self.preset, self.path, str(deck), *words]
        code, _, signal_name = run_handing_on(command, stdout=sys.stderr)
        if signal_name:
            raise Refusal(STOPPED, f"stopped by {signal_name}: the same command goes on after the rows that have run")
        return code


def room_of(program, settings):
    """How many ranks may run, and what limits them. `settings`: the keys that the deck and the command line set."""
    room, what = places(program.uses_gpus)
    return (sys.maxsize if program.uses_gpus and room > 0 and settings.get("parallel", {}).get("allow_shared_device") else room), what


def numbers_of_ranks(asked, of_deck, room, what):
    """Those that are run: all of --ranks, which are refused if there is no room; of the deck's those for which there is."""
    try:
        wanted = [int(word) for word in asked.split(",")] if asked is not None else of_deck
    except ValueError:
        wanted = [0]
    if min(wanted) < 1:
        raise Refusal(2, f"--ranks {asked}: whole numbers from 1 with commas between them, such as 1,2,4")
    absent, here = [R for R in wanted if R > room], f"this machine has {room} {what}"
    if absent and (asked is not None or len(absent) == len(wanted)):
        raise Refusal(3, f"there is no room for {' or '.join(map(str, absent))} ranks: {here}")
    if absent:
        note(f"left out: {', '.join(map(str, absent))} ranks, {here}")
    return [R for R in wanted if R <= room]


def launch_all(deck, overrides, ranks, preset, output):
    program = Program(preset)
    settings = tomllib.loads(program.ask(deck, *overrides, "--print"))
    experiment = settings["experiment"]
    rows = re.findall(r"^row (\S+)$", program.ask(deck, *overrides, "--check"), re.M)
    for R in numbers_of_ranks(ranks, experiment.get("ranks", [1]), *room_of(program, settings)):
        place = output / f"ranks_{R:04d}"
        words = [*overrides, f"job.directory={place}", "job.progress=none", "--resume", "auto"]
        launches = [[f'experiment.only=["{row}"]'] for row in rows] if experiment.get("fresh_processes") else [[]]
        for own in launches:
            code = program.run(R, deck, *own, *words)
            if code != FINISHED:
                raise Refusal(code, f"the launch on {R} rank{'s' if R > 1 else ''} ended with exit code {code}")


class Row(dict):
    """One row: its keys by name ("model.size") and its quantities by entry ("step_ms", "steps/loss:last")."""

    name = reason = ""
    ranks = exit_code = 0
    seconds = float("nan")
    folder = Path()

    @property
    def is_cut_short(self):
        """Whether the row's own train.time_limit_s ended it: its figures are those of the steps until then."""
        return self.exit_code == STOPPED and self.reason == STOPPED_BY_ITS_LIMIT

    @property
    def has_run(self):
        return self.exit_code == FINISHED or self.is_cut_short

    @property
    def outcome(self):
        """"ok", or in a few words why figures are missing or of fewer steps."""
        if self.exit_code == OUT_OF_MEMORY:
            return "out of memory"
        if self.is_cut_short:
            return self.reason
        if not self.has_run:
            return f"exit {self.exit_code}: {self.reason.splitlines()[0][:60]}"
        return self.get("outcome", "ok")

    def file(self):
        """The row's own file, open: run.h5 or bench.h5."""
        return h5py.File(next(self.folder / name for name in ("run.h5", "bench.h5") if (self.folder / name).exists()), "r")


class Absent(Row):
    """Stands for a row that was not run (experiment.only): every key and quantity is NaN."""

    def __missing__(self, key):
        return float("nan")

    @property
    def outcome(self):
        return "not run"


class Results:
    """The rows of all launches, and what the files say of where they ran."""

    def __init__(self, output):
        self.output, self.rows, self.info = output, [], {}
        for path in sorted(output.glob("ranks_*/experiment.h5")):
            try:
                with h5py.File(path, "r") as file:
                    self.info = dict(file["info"].attrs)
                    self._add(file, path.parent, int(path.parent.name.removeprefix("ranks_")))
            except OSError as fault:
                raise Refusal(6, f"{path}: {fault}; delete it, and the same command runs its rows again") from fault
        if not self.rows:
            raise Refusal(6, f"{output} holds no rows; run the experiment first")
        self.ranks = sorted({row.ranks for row in self.rows})

    def _add(self, file, folder, ranks):
        columns = {}
        file["keys"].visititems(lambda name, item: columns.__setitem__(name, plotting.values(item))
                                if isinstance(item, h5py.Dataset) else None) if "keys" in file else None
        file["record"].visititems(lambda name, item: columns.__setitem__(name, plotting.values(item))
                                  if isinstance(item, h5py.Dataset) else None) if "record" in file else None
        names, codes, reasons = (plotting.values(file[name]) for name in ("name", "exit_code", "reason"))
        for i, number in enumerate(file["row"][...]):
            row = Row({name: column[i] for name, column in columns.items()})
            row.name, row.exit_code, row.reason, row.ranks = names[i], int(codes[i]), reasons[i], ranks
            row.seconds = float(file["seconds"][i])
            row.folder = folder / "rows" / f"{number:04d}_{row.name}"
            self.rows.append(row)

    def where(self, rows=None, **values):
        """The rows (of `rows`) with these values; "__" in a name stands for a dot: where(model__size="small")."""
        return [row for row in (self.rows if rows is None else rows) if all(row[key.replace("__", ".")] == value for key, value in values.items())]

    def one(self, rows=None, **values):
        """The first of them; if there is none, its stand-in."""
        return next(iter(self.where(rows, **values)), Absent())

    def different(self, key):
        """The values of a key, each once, in the order of the rows."""
        return list(dict.fromkeys(row[key] for row in self.rows))

    def gpus(self):
        """The models of the GPUs, each with its number of ranks; empty on CPUs."""
        if "gpu_models" not in self.info:
            raise Refusal(6, f"{self.output}: an older version wrote its experiment.h5, without the models of GPUs (gpu_models of /info); "
                             "the same command without --redraw writes it anew")
        return dict(zip(self.info["gpu_models"], map(int, self.info["ranks_of_gpu_models"])))

    def heading(self):
        gpus = ", ".join(f"{ranks} x {model}" if self.info["ranks"] > 1 else model for model, ranks in self.gpus().items())
        return [gpus or str(self.info["hosts"]).splitlines()[0],
                f"tessera {self.info['version']}", str(self.info["git_hash"])[:12], "quick" if self.is_quick else ""]


def draw(drawing, results, path):
    import matplotlib.pyplot as plt

    with plt.rc_context(plotting.STYLE):
        figure = drawing(results)
        plotting.heading(figure, results.heading())
        plotting.save(figure, path)
        plt.close(figure)


def judge(results):
    """The exit code of the first row that failed for another reason than memory; 0 if none did."""
    for row in results.rows:
        if not row.has_run and row.exit_code != OUT_OF_MEMORY:
            note(f"row {row.name} on {row.ranks} rank{'s' if row.ranks > 1 else ''} ended with exit code {row.exit_code}: {row.reason.splitlines()[0]}")
            return row.exit_code
    return 0


def finite(values):
    return np.asarray(values, float)[np.isfinite(np.asarray(values, float))]
