"""What pages keep of scripts/compare_torch: compare.toml beside the page, and the tables and the picture that come from it.

A section of HOMES whose page has the marks `<!-- generated: compare/SECTION -->` and `<!-- end -->` is stored with what ran where; its
table lies between them.
"""
import tomllib

from compare import fp32, plots, portable
from compare.sides import ROOT, Report, median
from experiments import table
from launching import Refusal
from published import MARKS, difference, key_text, section, with_part
from results import FILES, measured

FILE = "compare.toml"
OF_OUR_STEPS = ("fp32.steps", "portable")  # which --ours changes
PICTURES = {"attention": ("attention_page", "attention.png")}  # of a section: its name in plots.py, its file


def attention_table(rows):
    """"any order": of the sums of gradients, which the peers' are."""
    ours = lambda row: next(side for side in ("wgmma", "mma") if row["ms"][side])
    ratio = lambda row, side, mine: f"{median([b / a for a, b in zip(row['ms'][mine], row['ms'][side])]):.2f}" if row["ms"][side] and row["ms"][mine] else "-"
    return (["pass", "D", "T", "mask", "ours, ms", "x cuDNN", "any order, x cuDNN", "x FlashAttention-2", "x PyTorch's MATH, in fp32"],
            [[row["direction"], row["D"], row["T"], "causal" if row["causal"] else "full", median(row["ms"][ours(row)]), ratio(row, "CUDNN", ours(row)),
              ratio(row, "CUDNN", "any"), ratio(row, "FLASH", ours(row)), ratio(row, "MATH", ours(row))] for row in rows])


# {section: (folder of its page, its table)}
HOMES = {"attention": ("input/bench/attention_gpu", attention_table), "fp32.steps": ("kernels", fp32.step_table),
         "portable": ("kernels", portable.kernel_table),
         **{f"fp32.{kernel}": ("kernels", fp32.attention_table) for kernel in fp32.ATTENTION}}


def stored(folder):
    """{section: {"info": ..., "rows": {column: values}}}"""
    path = folder / FILE
    return tomllib.loads(path.read_text()) if path.exists() else {}


def flat(row):
    """A row with a column for each side that was timed, empty where it was not."""
    sides = row["ms"].items() if isinstance(row["ms"], dict) else ()
    return {**{key: value for key, value in row.items() if key != "ratios" and not (sides and key == "ms")},
            **{f"ms.{side}": times or [] for side, times in sides}}


def rows_of(columns):
    """The rows that flat() had."""
    rows = []
    for values in zip(*columns.values()):
        row = dict(zip(columns, values))
        if sides := {key: row.pop(key) for key in columns if key.startswith("ms.")}:
            row["ms"] = {key.removeprefix("ms."): times for key, times in sides.items()}
        rows.append(row)
    return rows


def generated(name, kept):
    """What ran where, and the section's table."""
    info, rows = kept["info"], rows_of(kept["rows"])
    rounds = max(len(times) for row in rows for times in (row["ms"].values() if isinstance(row["ms"], dict) else [row["ms"]]))
    repeats = {"fp32.steps": f"{info['steps']} steps", "portable": "one step"}.get(name, f"up to {info['repeats']} repeats")
    where = measured(info, "one " + info["device"], f"median of {rounds} rounds of {repeats}")
    beside = "" if name == "portable" else f", beside {info['pytorch']}"
    return f"{where}{beside}.\n\n{table.text(*HOMES[name][1](rows), True)}"


def publish(folder, root=ROOT):
    """Stores each section of the report in this folder that a page shows, and writes the page's tables and picture."""
    report = Report(folder).read()
    if not report.info["git_hash"]:
        raise Refusal(FILES, f"{folder}: the program that ran does not know its commit; build it in a checkout, or set TESSERA_COMMIT")
    shown = {name: rows for name, rows in report.data.items() if name in HOMES and name in parts_of((root / HOMES[name][0] / "README.md").read_text())}
    for name in report.data:
        info = report.info_of(name)
        if name not in shown:
            print(f"{name}: no page shows it")
        elif info.get("quick") or info.get("overrides") and name in OF_OUR_STEPS:
            raise Refusal(FILES, f"{folder}: {name} was measured with --quick or --ours; pages show neither")
    for name, rows in shown.items():
        info = report.info_of(name)
        home = root / HOMES[name][0]
        kept = {**stored(home), name: {"info": info, "rows": {key: [flat(row)[key] for row in rows] for key in flat(rows[0])}}}
        (home / FILE).write_text("# Written by scripts/compare_torch --publish; tables and pictures of README.md come from it.\n"
                                 + "".join(section(f"{key_text(name)}.{part}", columns) for name, parts in kept.items() for part, columns in parts.items()))
        page = home / "README.md"
        page.write_text(with_part(page.read_text(), f"compare/{name}", generated(name, kept[name])))
        if name in PICTURES:
            plots.draw_one(PICTURES[name][0], report, home / PICTURES[name][1])


def parts_of(text):
    """{section: what stands in this page's text}"""
    return {mark[1].removeprefix("compare/"): mark[2] for mark in MARKS.finditer(text) if mark[1].startswith("compare/")}


def faults(root=ROOT):
    """What is wrong with pages beside their compare.toml."""
    found = []
    for place in dict.fromkeys(place for place, _ in HOMES.values()):
        marks, kept = parts_of((root / place / "README.md").read_text()), stored(root / place)
        if marks.keys() != kept.keys():
            found.append(f"{place}: README.md has the tables {sorted(marks)} and {FILE} the sections {sorted(kept)}")
            continue
        for name, part in marks.items():
            if fault := difference(part, generated(name, kept[name]), FILE, "scripts/compare_torch --publish"):
                found.append(f"{place}: {fault}")
        found += [f"{place} has no {file}" for name, (_, file) in PICTURES.items() if name in marks and not (root / place / file).exists()]
    return found
