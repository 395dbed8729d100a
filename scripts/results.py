"""What experiments and bench jobs wrote, as rows: of an experiment.h5, of one for each launch, or of the bench.h5 of one set-up."""
import re
import tomllib
import warnings
from contextlib import contextmanager
from pathlib import Path

import h5py
import numpy as np
import plotting
from launching import STOPPED, Refusal

FINISHED, OUT_OF_MEMORY, FILES = 0, 4, 6
STOPPED_BY_ITS_LIMIT = "stopped by its train.time_limit_s"  # the reason of a row with exit code 75 that a resumed launch keeps
FORMAT, BENCH_FORMAT = "tessera experiment", "tessera bench"
# Of a row's resolved deck, if its job repeats something.
REPEATS = re.compile(r'kind = "bench\.(?!accumulation).*?\n\[bench\]\n.*?\nrepeats = (\d+).*?\nrow_limit_s = ([\d.]+)', re.S)
STORED, ROWS = "results.toml", "rows.h5"  # of a published run


class Row(dict):
    """One row: its keys by name ("model.size"), its quantities by entry ("step_ms", "steps/loss:last"), and these beside those of
    the baseline's row ("relative/step_ms"). Of several rounds a quantity is the median; `rounds` has them all."""

    name = reason = ""
    ranks = exit_code = 0
    seconds = float("nan")
    folder = Path()

    def __init__(self, values=(), rounds=()):
        super().__init__(values)
        self.rounds = dict(rounds)  # by entry: [round], or [round, entry]

    def spread(self, entry):
        """The difference between the largest and the smallest of the rounds, as a part of their median; NaN of one round."""
        values = finite(self.rounds.get(entry, []))
        return float(np.ptp(values) / abs(np.median(values))) if len(values) > 1 else float("nan")

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
        return self.get("outcome") or "ok"  # "" where only other rows' jobs name one

    @property
    def needed_mib(self):
        """Of a row that does not fit: what its plan asks for, which its reason tells; else NaN."""
        found = re.match(r"this deck needs ([\d.]+) ([KMGT])iB", self.reason) if self.exit_code == OUT_OF_MEMORY else None
        return float(found[1]) * 1024.0 ** ("KMGT".index(found[2]) - 1) if found else float("nan")

    @property
    def is_result(self):
        """Whether it has run, or does not fit in memory, which is a result, too."""
        return self.has_run or self.exit_code == OUT_OF_MEMORY

    @property
    def place(self):
        """Of what is stored of the row's own file, in rows.h5."""
        return f"ranks_{self.ranks:04d}/{self.name}"

    @property
    def has_file(self):
        """Whether file() can open one: older published runs of an experiment keep less than today's."""
        return self.has_run and ((self.folder / ROWS).exists() or any((self.folder / name).exists() for name in ("run.h5", "bench.h5")))

    @contextmanager
    def file(self):
        """The row's own file, open: run.h5 or bench.h5; of a published run what is stored of it."""
        if (self.folder / ROWS).exists():
            with h5py.File(self.folder / ROWS, "r") as stored:
                yield stored[self.place]
        else:
            with h5py.File(next(self.folder / name for name in ("run.h5", "bench.h5") if (self.folder / name).exists()), "r") as file:
                yield file

    def entries(self):
        """The rows of this row's table, where it has several: a bench job's kernels, or sums in several formats."""
        several = {name: value.split(", ") if isinstance(value, str) else list(value) for name, value in self.items()
                   if (isinstance(value, str) and ", " in value) or getattr(value, "ndim", 0) == 1}
        for i in range(max(map(len, several.values()), default=1)):
            entry = Row({**self, **{name: values[i] for name, values in several.items()}})
            entry.__dict__.update({**self.__dict__, "rounds": {}})
            yield entry


class Absent(Row):
    """Stands for a row that was not run (experiment.only): every key and quantity is NaN."""

    def __missing__(self, key):
        return float("nan")

    @property
    def outcome(self):
        return "not run"


def info_of(file):
    """What an open file says of itself: the attributes of /info, of older bench jobs those of the file. `format` is of today's spelling."""
    info = dict(file["info"].attrs if isinstance(file.get("info"), h5py.Group) else file.attrs)
    return {**info, "format": str(info.get("format", "")).replace("-", " ")}


def rows_of(file, folder=Path(), ranks=1):
    """The rows of an open experiment.h5 or bench.h5; OSError if it is neither."""
    info = info_of(file)
    if info.get("format") == BENCH_FORMAT:
        columns = plotting.columns(file)
        count = len(next(iter(columns.values()), ()))
        return [Row({name: column[i] for name, column in columns.items()}) for i in range(count)]
    if info.get("format") != FORMAT:
        raise OSError("no experiment and no bench job wrote this")
    columns, rounds = {}, {}

    def take(name, item):
        values = plotting.values(item)
        if has_rounds(item):
            rounds[name], values = values, median_of_rounds(values)
        columns[name] = values

    for group, prefix in (("keys", ""), ("record", ""), ("relative", "relative/")):
        if group in file:
            file[group].visititems(lambda name, item, prefix=prefix: take(prefix + name, item) if isinstance(item, h5py.Dataset) else None)
    names, codes, reasons = (plotting.values(file[name]) for name in ("name", "exit_code", "reason"))
    seconds = median_of_rounds(file["seconds"][...]) if has_rounds(file["seconds"]) else file["seconds"][...]
    rows = []
    for i, number in enumerate(file["row"][...]):
        row = Row({name: column[i] for name, column in columns.items()}, {name: column[i] for name, column in rounds.items()})
        row.name, row.exit_code, row.reason, row.ranks = names[i], int(codes[i]), reasons[i], ranks
        row.seconds = float(seconds[i])
        row.folder = folder / "rows" / f"{number:04d}_{row.name}"
        rows.append(row)
    return rows


def lacks_of(file, rows, launch):
    """In words, what an open experiment.h5 has not measured yet of its deck's rows, and of their rounds."""
    absent = int(info_of(file).get("rows", len(rows))) - len(rows)
    seconds = file["seconds"][...]
    cut = [row.name for row, each in zip(rows, seconds) if row.has_run and not np.isfinite(each).all()]
    return ([f"{absent} of {absent + len(rows)} rows in {launch}"] if absent else []) + ([f"rounds of {', '.join(cut)}"] if cut else [])


def has_rounds(dataset):
    """Whether its second axis is that of rounds: [row, round] or [row, round, entry]."""
    return dataset.ndim > 1 and "round" in dataset.dims[1].keys()


def median_of_rounds(values):
    """[row, round, ...] -> [row, ...], of the rounds that were measured; NaN where none was."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # all are NaN
        return np.nanmedian(values, axis=1)


def finite(values):
    return np.asarray(values, float)[np.isfinite(np.asarray(values, float))]


def file_in(path):
    """`path`, or the result in that folder."""
    path = Path(path)
    if not path.is_dir():
        return path
    return next((path / name for name in ("experiment.h5", "bench.h5") if (path / name).exists()), path / "bench.h5")


def read(path):
    """The rows of a result, or of the one in that folder."""
    path = file_in(path)
    with h5py.File(path, "r") as file:
        return rows_of(file, path.parent)


def columns_of(rows):
    """{column: array over all entries of the rows}; NaN and "" where a row has none. `row` and `outcome` are columns, too."""
    entries = [entry for row in rows for entry in row.entries()]
    table = {}
    for name in dict.fromkeys(name for entry in entries for name in entry):
        column = [entry.get(name) for entry in entries]
        is_text = any(isinstance(value, str) for value in column)
        table[name] = np.array([("" if is_text else np.nan) if value is None else value for value in column], object if is_text else float)
    return {**table, "row": np.array([entry.name for entry in entries], object),
            "outcome": np.array([entry.outcome for entry in entries], object)}


def gpus_of(info):
    """The models of the GPUs, each with its number of ranks; empty on CPUs. Of the attributes of an experiment or a bench job."""
    if "gpu_models" not in info:
        raise Refusal(6, "an older version wrote this file, without the models of GPUs (gpu_models): run it again, without --redraw")
    return dict(zip(info["gpu_models"], map(int, info["ranks_of_gpu_models"])))


def overrides_of(info):
    """The keys on the command line, but for those that say where its files go; their values may have spaces. Of the same attributes."""
    words = re.findall(r"(?<= )([a-z_]+\.[\w.]+=.*?)(?= [a-z_]+\.[\w.]+=| --|$)", str(info.get("command", "")))
    return [word for word in words if not word.startswith("job.")]


def made_by(info):
    """The build and what was asked of it, but for the choice of rows and rounds."""
    return " ".join([str(info.get("build", "an older version")), *(word for word in overrides_of(info) if not re.match("experiment.(only|rounds)=", word))])


def heading(info):
    """What ran, where, of the same attributes."""
    gpus = ", ".join(f"{ranks} x {model}" if info["ranks"] > 1 else model for model, ranks in gpus_of(info).items())
    return [gpus or info.get("device") or (str(info.get("device_name", info.get("hosts", ""))).splitlines() or [""])[0],
            str(info.get("created", ""))[:10], f"tessera {info.get('version', '?')}", str(info.get("git_hash", ""))[:12]]


def measured(info, where, repeats):
    """Where and how something was measured; of an /info's created, git_hash and build."""
    versions = re.findall(r"(?:GNU|Clang|NVIDIA|CUDA) [\d.]+|Kokkos [\d.]+ \([^)]*\)", str(info.get("build", "")))
    return ", ".join(filter(None, [f"Measured {info['created'][:10]} on {where}", repeats, f"commit {info['git_hash'][:12]}", *versions]))


def provenance(results):
    """A sentence on where and how a published run was measured."""
    info = results.info
    gpus = ", ".join(f"{ranks} x {model}" if info["ranks"] > 1 else f"one {model}" for model, ranks in results.gpus().items())
    shown = [word for word in info["overrides"] if not word.startswith("experiment.only=")]  # whose rows the tables show
    keys = f" With `{'`, `'.join(shown)}`." if shown else ""
    return measured(info, gpus or info["device"], results.repeats_text()) + "." + keys


class Results:
    """The rows of all launches, and what the files say of where they ran; of a run, or of the folder of a published one."""

    def __init__(self, output):
        self.output, self.rows, self.info, self.preset = output, [], {}, "cpu"
        self.facts = {}  # of a published run: what its module's facts() gave
        self.lacks = []  # in words: rows and rounds that a run has not measured yet
        self.other_builds = []  # that measured rows of it before, on other GPUs, or by other keys
        self.device, self.repeats, self.is_quick, self.is_redraw = "", "", False, False
        if (output / STORED).exists():
            self.read_stored(output / STORED)
        else:
            self.read_launches(output)
        if not self.rows:
            raise Refusal(FILES, f"{output} holds no rows; run the experiment first")
        self.ranks = sorted({row.ranks for row in self.rows})

    def read_launches(self, output):
        repeats, made = [], {}  # (bench.repeats, bench.row_limit_s) of each row that repeats something; {made_by(): launch}
        for path in sorted(output.glob("ranks_*/experiment.h5")):
            try:
                with h5py.File(path, "r") as file:
                    rows = rows_of(file, path.parent, int(path.parent.name.removeprefix("ranks_")))
                    self.rows += rows
                    self.info = info_of(file)
                    self.lacks += lacks_of(file, rows, path.parent.name)
                    self.other_builds += self.info.get("other_builds", np.array([])).tolist()
                    made.setdefault(made_by(self.info), path.parent.name)
                    decks = file["resolved_deck"].asstr()[...]
            except OSError as fault:
                raise Refusal(FILES, f"{path}: {fault}; delete it, and the same command runs its rows again") from fault
            repeats += [found.groups() for found in map(REPEATS.search, decks) if found]
            self.is_quick = self.is_quick or tomllib.loads(self.info["deck"])["experiment"].get("quick", False)
        self.other_builds += [f"{launch} by {words}" for words, launch in list(made.items())[:-1]]
        self.device = next(filter(None, map(device_of, self.rows)), "a CPU")
        counts = sorted({int(count) for count, _ in repeats})
        self.repeats = (("up to " if any(float(limit) for _, limit in repeats) else "")
                        + f"{' or '.join(map(str, counts))} repeat{'' if counts == [1] else 's'}" if counts else "")

    def read_stored(self, path):
        stored = tomllib.loads(path.read_text())
        self.info, self.facts, outcome = stored["info"], stored["facts"], stored["outcome"]
        self.device, self.repeats, self.is_redraw = self.info["device"], self.info["repeats"], True
        array = lambda value: np.asarray(value) if isinstance(value, list) else value
        for i, name in enumerate(outcome["name"]):
            rounds = {key: array(column[i]) for key, column in stored["rounds"].items()}
            row = Row({**{key: array(value) for key, value in stored["same"].items()},
                       **{key: array(column[i]) for key, column in stored["values"].items()},
                       **{key: median_of_rounds(values[None])[0] for key, values in rounds.items()}}, rounds)
            row.name, row.exit_code, row.reason = name, outcome["exit_code"][i], outcome["reason"][i]
            row.ranks, row.seconds, row.folder = outcome["ranks"][i], outcome["seconds"][i], path.parent
            self.rows.append(row)

    def where(self, rows=None, **values):
        """The rows (of `rows`) with these values; "__" in a name stands for a dot: where(model__size="small")."""
        return [row for row in (self.rows if rows is None else rows) if all(row.get(key.replace("__", ".")) == value for key, value in values.items())]

    def one(self, rows=None, **values):
        """The first of them; if there is none, its stand-in."""
        return next(iter(self.where(rows, **values)), Absent())

    def different(self, key):
        """The values of a key, each once, in the order of the rows."""
        return list(dict.fromkeys(row[key] for row in self.rows))

    def gpus(self):
        return gpus_of(self.info)

    def repeats_text(self):
        """"10 repeats", "median of 3 rounds of 10 repeats"; "one run" of jobs that repeat nothing."""
        rounds = max((len(values) for row in self.rows for values in row.rounds.values()), default=1)
        return f"median of {rounds} rounds" + (f" of {self.repeats}" if self.repeats else "") if rounds > 1 else self.repeats or "one run"

    def heading(self):
        return [*heading({**self.info, "device": self.device}), self.repeats_text(), "quick" if self.is_quick else ""]


def device_of(row):
    """The processor that a row's own file names, on a CPU; "" where there is no such file."""
    for path in map(row.folder.joinpath, ("bench.h5", "run.h5")):
        if path.exists():
            with h5py.File(path, "r") as file:
                return str(info_of(file).get("device_name", ""))
    return ""
