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


def all_of(uses_gpus):
    """Names of those that --all runs: the benchmarks' shapes are of a size for GPUs."""
    return [name for name in homes() if uses_gpus or not name.startswith("bench/")]


def module_of(name):
    """What draws it: scripts/experiments/NAME.py, of a benchmark bench_NAME.py or, where there is none, bench.py."""
    own = name.replace("/", "_")
    has_own = (ROOT / "scripts/experiments" / f"{own}.py").exists()
    return importlib.import_module(f"experiments.{own if has_own or not name.startswith('bench/') else 'bench'}")
