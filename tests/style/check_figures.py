#!/usr/bin/env python3
"""Holds the tables of experiments and benchmarks to their stored results. Prints what differs; exit 1 if anything does.

    check_figures.py               check the checkout
    check_figures.py --self-test   change figures, results and the list in a copy and see that each is found

Every folder of input/experiments and input/bench with a deck.toml has a page and a picture. Its tables are made anew from results.toml
and must be those of the page; so must the tables of drills.toml and of compare_torch's compare.toml. What stands in without_results.txt
keeps a hand-written table, and must have no stored results.
"""
import shutil
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LIST = Path(__file__).with_name("without_results.txt")
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "tests/drills")]
import plotting  # noqa: E402  (after the path to it)

plotting.require_modules("check_figures")
import drill_tables  # noqa: E402
import equations  # noqa: E402
import solutions  # noqa: E402
from compare import stored  # noqa: E402
from experiments.homes import homes  # noqa: E402
from published import fault_of  # noqa: E402


def listed(path):
    lines = (line.split("#")[0].strip() for line in path.read_text().splitlines())
    return [line for line in lines if line]


def check(root, names):
    """`names`: those that may lack stored results."""
    folders = homes(root)
    faults = [f"{name} is on the list of pages without stored results, and is no page" for name in names if name not in folders]
    for name, folder in folders.items():
        if fault := fault_of(name, folder, name in names):
            faults.append(f"{folder.relative_to(root)}: {fault}")
    for script in (equations, solutions):
        if fault := script.fault(script.page_of(root).read_text()):
            faults.append(f"{script.page_of(root).parent.relative_to(root)}: {fault}")
    return [*faults, *stored.faults(root)]


def self_test():
    """Of the pages that have results one is enough."""
    names = listed(LIST)
    name, folder = next((name, folder) for name, folder in homes(ROOT).items() if name not in names)
    home = folder.relative_to(ROOT)
    page, results, kernels = home / "README.md", home / "results.toml", Path("kernels")

    def replaced(file, old, new, is_last=False):
        def change(root):
            text = (root / file).read_text()
            place = text.rfind(old) if is_last else text.find(old)
            assert place >= 0, f"{file} lacks {old}"
            (root / file).write_text(text[:place] + new + text[place + len(old):])
        return change

    def last_row(page):
        return (ROOT / page).read_text().split("<!-- end -->")[0].rstrip("\n").splitlines()[-1]

    def another_digit(page):
        table = last_row(page)
        digit = next(letter for letter in reversed(table) if letter.isdigit())
        return replaced(page, table, str(9 - int(digit)).join(table.rsplit(digit, 1)))

    changes = {
        "nothing": (lambda root: None, names, ""),
        "a figure": (another_digit(page), names, "where results.toml gives"),
        "a row that is gone": (replaced(page, last_row(page) + "\n", "", is_last=True), names, "where results.toml gives"),
        "the date": (replaced(page, "Measured 20", "Measured 19"), names, "where results.toml gives"),
        "the stored date": (replaced(results, 'created = "20', 'created = "19'), names, "where results.toml gives"),
        "no marks": (replaced(page, "<!-- end -->", ""), names, "no generated part"),
        "no results": (lambda root: (root / results).unlink(), names, "has no results.toml"),
        "no picture": (lambda root: (root / home / f"{home.name}.png").unlink(), names, "has no " + folder.name + ".png"),
        "no page": (lambda root: (root / page).unlink(), names, "has no README.md"),
        "a listed page with results": (lambda root: None, [*names, name], "take it off the list"),
        "a listed page that is none": (lambda root: None, [*names, "nowhere"], "nowhere is on the list"),
        "a figure beside PyTorch's": (another_digit(kernels / page.name), names, f"where {stored.FILE} gives"),
        "a figure beside another's": (another_digit(solutions.page_of().relative_to(ROOT)), names, "where scripts/solutions.py gives"),
        "PyTorch's results gone": (lambda root: (root / kernels / stored.FILE).unlink(), names, "compare.toml the sections []"),
    }
    wrong = []
    for what, (change, allowed, expected) in changes.items():
        with tempfile.TemporaryDirectory() as place:
            root = Path(place)
            for tree in ("input/experiments", "input/bench"):
                shutil.copytree(ROOT / tree, root / tree)
            (root / "kernels").mkdir()
            for file in (page.name, stored.FILE):
                shutil.copy(ROOT / "kernels" / file, root / "kernels" / file)
            change(root)
            found = check(root, allowed)
        if (len(found) != 1 or expected not in found[0]) if expected else found:
            wrong.append(f"{what}: expected {[expected] if expected else 'nothing'}, found {found}")
    return wrong


if __name__ == "__main__":
    faults = self_test() if sys.argv[1:] == ["--self-test"] else [*check(ROOT, listed(LIST)), *filter(None, [drill_tables.fault()])]
    print("\n".join(faults) or "figures: all tables are those of their results")
    sys.exit(bool(faults))
