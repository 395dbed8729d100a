#!/usr/bin/env python3
"""The index of the course's problems: where each is answered, and what is still open.

    scripts/problems.py              prints the table
    scripts/problems.py --publish    writes it into input/experiments/README.md

It comes from input/experiments/problems.toml.
Exit codes: 0 printed or written, 2 command line.
"""
import re
import sys
import tomllib

import plotting
from experiments import table
from experiments.homes import ROOT, homes

PART = "problems"
PAGE = ROOT / "input/experiments/README.md"
YEARS = ("2025", "2026")


def problems():
    return tomllib.loads((ROOT / "input/experiments/problems.toml").read_text())["problem"]


def target(place):
    """(file, anchor) of a word of `where`."""
    path, _, anchor = place.partition("#")
    folder = homes().get(path, PAGE.parent / path)  # without a deck: the page of equations
    return (folder / "README.md" if folder.is_dir() else ROOT / path), anchor


def anchors_of(text):
    """Of a page's headings, as GitHub makes them."""
    return {re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in re.findall(r"^#+ (.+)$", text, re.M)}


def link(place):
    file, anchor = target(place)
    label = place.split("#")[0]
    label = label.removesuffix("/README.md") if label.endswith("README.md") else label.split("/")[-1]
    path = "/".join([".."] * 2 + [str(file.relative_to(ROOT))]) if not file.is_relative_to(PAGE.parent) else str(file.relative_to(PAGE.parent))
    return f"[{label}]({path}{'#' + anchor if anchor else ''})"


def counts(every):
    """How many are answered in full, of how many."""
    return sum(not each["open"] for each in every), len(every)


def page_part():
    every = problems()
    answered, total = counts(every)
    rows = [[f"`{each['name']}`", " / ".join(str(each["points"].get(year, "-")) for year in YEARS), ", ".join(map(link, each["where"])), f"`{each['command']}`",
             each["open"]] for each in every]
    return f"{answered} of {total} are answered in full.\n\n" + table.text(["problem", "points, 2025 / 2026", "answered in", "command", "open"], rows, True)


def fault(text):
    """What is wrong with the page's text beside problems.toml, or ""."""
    import published

    parts = [mark[2] for mark in published.MARKS.finditer(text) if mark[1] == PART]
    if len(parts) != 1:
        return f"README.md has no generated part of the name {PART}, or several"
    return published.difference(parts[0], page_part(), "problems.toml", "scripts/problems.py --publish")


def main():
    if sys.argv[1:] not in ([], ["--publish"]):
        print(__doc__)
        return 0 if sys.argv[1:] in (["-h"], ["--help"]) else 2
    plotting.require_modules("problems")
    import published

    if not sys.argv[1:]:
        print(page_part(), end="")
        return 0
    PAGE.write_text(published.with_part(PAGE.read_text(), PART, page_part()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
