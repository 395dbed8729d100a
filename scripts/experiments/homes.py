"""Where experiments live: input/experiments/NAME, and input/bench/NAME for a benchmark, whose name here is bench/NAME.

Imports nothing but the standard library.
"""
import importlib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def homes(root=ROOT):
    """{name: folder}, experiments first."""
    folders = lambda place: sorted(path.parent for path in (root / place).glob("*/deck.toml"))
    return {**{folder.name: folder for folder in folders("input/experiments")},
            **{f"bench/{folder.name}": folder for folder in folders("input/bench")}}


def module_file(name):
    return ROOT / "scripts/experiments" / (name.replace("/", "_") + ".py")


def module_of(name):
    """What draws it: scripts/experiments/NAME.py, of a benchmark bench_NAME.py."""
    return importlib.import_module(f"experiments.{module_file(name).stem}")


def runnable():
    """Those that have a module."""
    return {name: folder for name, folder in homes().items() if module_file(name).exists()}
