"""Published runs: the stored results of an experiment, and the tables of its page that come from them.

A folder input/experiments/NAME, or input/bench/NAME for the name bench/NAME, holds deck.toml, results.toml (every quantity of every
row of the run, in text), rows.h5 (what the module's KEEPS names of each row's own file), NAME.png, and README.md, whose generated part
lies between `<!-- generated: NAME -->` and `<!-- end -->`.
"""
import re
import shutil

import h5py
import numpy as np
from compare import beside
from experiments import table
from experiments.homes import homes, module_of
from launching import Refusal, replace_text
from results import FILES, ROWS, STORED, Results, overrides_of, provenance

INFO = ("created", "version", "git_hash", "build", "question", "ranks", "ranks_per_host", "host_count", "gpu_models", "ranks_of_gpu_models")
EXTRA = ("ncu.json", "torch.json")  # files of a run that a module reads beside its rows


# --- results as text

def text_of(value):
    """A value of TOML; numbers to their last bit, so that tables of a run and of what is stored of it are the same."""
    if isinstance(value, (list, tuple, np.ndarray)):
        return "[" + ", ".join(map(text_of, value)) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key_text(key)} = {text_of(item)}" for key, item in value.items()) + "}"
    if isinstance(value, str):
        short = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t"}
        return '"' + "".join(short.get(letter, letter if letter.isprintable() else f"\\u{ord(letter):04x}") for letter in value) + '"'
    if isinstance(value, (bool, np.bool_)):
        return "true" if value else "false"
    if isinstance(value, (int, np.integer)):
        return str(int(value))
    return repr(float(value))


def key_text(key):
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else text_of(key)


def section(name, columns):
    """`name`: a key of TOML."""
    return f"\n[{name}]\n" + "".join(f"{key_text(key)} = {text_of(value)}\n" for key, value in columns.items())


def stored_text(results, name):
    """results.toml of a run: columns, one number or text per row, of several rounds a list of them; once where all rows have the same."""
    rows, info = results.rows, {key: results.info[key] for key in INFO if key in results.info}
    info["overrides"] = overrides_of(results.info)
    info["device"] = results.device
    info["repeats"] = results.repeats
    facts = getattr(module_of(name), "facts", None)
    outcome = {"ranks": [row.ranks for row in rows], "name": [row.name for row in rows], "exit_code": [row.exit_code for row in rows],
               "reason": [row.reason for row in rows], "seconds": [row.seconds for row in rows]}
    names = list(dict.fromkeys(key for row in rows for key in row))
    in_rounds = [key for key in names if any(key in row.rounds for row in rows)]
    absent = {key: "" if any(isinstance(row.get(key), str) for row in rows) else float("nan") for key in names}
    columns = {key: [row.get(key, absent[key]) for row in rows] for key in names if key not in in_rounds}
    same = [key for key, column in columns.items() if len(set(map(text_of, column))) == 1]
    return (f"# The published run of scripts/experiment {name}, written by its --publish; the tables and the picture of README.md come from it.\n"
            + section("info", info) + section("facts", facts(results) if facts else {}) + section("outcome", outcome)
            + section("same", {key: columns[key][0] for key in same})
            + section("values", {key: column for key, column in columns.items() if key not in same})
            + section("rounds", {key: [row.rounds.get(key, [float("nan")]) for row in rows] for key in in_rounds}))


def store(results, name, folder):
    keeps = getattr(module_of(name), "KEEPS", ())
    text, rows = stored_text(results, name), (folder / ROWS).with_suffix(".tmp")
    if keeps:
        with h5py.File(rows, "w") as stored:
            for row in results.rows:
                if row.has_run:
                    with row.file() as file:
                        keep(file, stored.create_group(row.place), keeps)
        rows.replace(folder / ROWS)
    else:
        (folder / ROWS).unlink(missing_ok=True)
    replace_text(folder / STORED, text)
    for extra in EXTRA:
        (folder / extra).unlink(missing_ok=True)  # of the run before
        if (results.output / extra).exists():
            shutil.copy(results.output / extra, folder / extra)


def keep(file, group, names):
    """Copies these groups of a row's file, compressed; of /info the deck, without its paths."""
    def copy(name, item):
        if isinstance(item, h5py.Dataset):
            values = item[...]
            if h5py.check_string_dtype(item.dtype) and values.ndim:  # of one length: those of their own lengths are not compressed
                longest = max(map(len, values), default=1)
                values = values.astype(h5py.string_dtype(length=max(longest, 1)))
            group.create_dataset(f"{top}/{name}", data=values, **({"compression": 9, "shuffle": True} if values.ndim else {}))

    for top in names:
        if top == "info":
            group.create_group(top).attrs["deck"] = re.sub(r"(?m)^\w+ = \".*/.*\n", "", file[top].attrs["deck"])
        elif top in file:
            file[top].visititems(copy)


# --- the page

MARKS = re.compile(r"<!-- generated: (\S+) -->\n(.*?)<!-- end -->\n", re.S)


def generated_text(name, folder):
    """The generated part of a page: what ran and where, then every table."""
    results = Results(folder)
    tables = [table.text(columns, rows, True) for columns, rows in page_tables(name, results)]
    peer = f" Beside it {beside.version(results)}." if beside.has_peers(module_of(name)) and beside.found(results) else ""
    return f"{provenance(results)}{peer}\n\n" + "\n".join(tables)


def page_tables(name, results):
    module = module_of(name)
    return getattr(module, "page_tables", module.tables)(results)


def rewrite(name, folder):
    """Puts the generated part into the page, which marks its place; on one without a mark above its answer, and the picture after it."""
    page = folder / "README.md"
    text = page.read_text() if page.exists() else ""
    if not MARKS.search(text):
        picture = f"![{Results(folder).info['question']}]({folder.name}.png)"
        text = text.replace("\n**Answer.**", f"\n<!-- generated: {name} -->\n<!-- end -->\n\n{picture}\n\n**Answer.**", 1)
    if [mark[1] for mark in MARKS.finditer(text)].count(name) != 1:
        raise Refusal(FILES, f"{page}: mark the place of its tables with the lines <!-- generated: {name} --> and <!-- end -->, once")
    replace_text(page, with_part(text, name, generated_text(name, folder)))


def with_part(text, name, part):
    """A page's text with this generated part in place of the one of that name."""
    return MARKS.sub(lambda mark: f"<!-- generated: {name} -->\n{part}<!-- end -->\n" if mark[1] == name else mark[0], text)


def publish(name, run, preset):
    """Stores the results of the run in the experiment's folder and rewrites the page; the results as they are stored."""
    folder, results = homes()[name], Results(run)
    results.preset = preset
    if results.is_quick:
        raise Refusal(FILES, f"{run} is a --quick run; publish a whole one")
    failed = next((row for row in results.rows if not row.is_result), None)
    if failed:
        raise Refusal(FILES, f"row {failed.name} ended with exit code {failed.exit_code}: run the experiment to its end first")
    if results.lacks:
        raise Refusal(FILES, f"{run} lacks {', '.join(results.lacks)}: run the experiment to its end first, with all rows")
    if results.other_builds:
        raise Refusal(FILES, f"{run} has rows of other builds or GPUs ({', '.join(results.other_builds)}): measure all rows in another --output")
    if (device := beside.found(results).get("device")) and device != (list(results.gpus()) or ["CPU"])[0]:
        raise Refusal(FILES, f"{run / beside.FILE} was measured on {device}, the rows were not: delete it, and --torch measures it again")
    store(results, name, folder)
    rewrite(name, folder)
    return Results(folder)


def fault_of(name, folder, is_listed):
    """What is wrong with a page beside its stored results, or "". `is_listed`: the page may keep hand-written tables."""
    page, stored = folder / "README.md", folder / STORED
    if not page.exists():
        return "has no README.md"
    marks = [(mark[1], mark[2]) for mark in MARKS.finditer(page.read_text()) if not mark[1].startswith("compare/")]  # those: compare/stored.py
    if is_listed:
        return "has stored results: take it off the list of pages without" if stored.exists() or marks else ""
    if not stored.exists():
        return f"has no {STORED}: publish a run, or list the page as one without stored results"
    if not (folder / f"{folder.name}.png").exists():
        return f"has no {folder.name}.png"
    if [mark for mark, _ in marks] != [name]:
        return f"README.md has no generated part of the name {name}, or several"
    return difference(marks[0][1], generated_text(name, folder), STORED, f"scripts/experiment {name} --publish")


def difference(found, expected, stored, command):
    """The first line in which a page's part differs from what its stored results give, in words; "" where none does."""
    found, expected = found.splitlines(), expected.splitlines()
    if found == expected:
        return ""
    first = next((i for i, pair in enumerate(zip(found, expected)) if pair[0] != pair[1]), min(len(found), len(expected)))
    shown = [lines[first] if first < len(lines) else "nothing" for lines in (found, expected)]
    return f"README.md has\n  {shown[0]}\nwhere {stored} gives\n  {shown[1]}\n({command} writes both)"
