"""Shared by the golden scripts: writing an HDF5 file with the versions that made it, and checking one again."""
import argparse
import platform
import sys
from pathlib import Path

import h5py
import numpy as np
import torch


def write(path, arrays, attributes):
    """Writes {name: array} and {attribute: value}; a name ending in '@key' is an attribute of that group."""
    with h5py.File(path, "w") as file:
        for name, value in arrays.items():
            group, _, key = name.partition("@")
            if key:
                file.require_group(group).attrs[key] = value
            else:
                file[name] = value
        versions = {"python": platform.python_version(), "torch": str(torch.__version__), "numpy": np.__version__, "h5py": h5py.__version__}
        for key, value in {**attributes, **versions}.items():
            file.attrs[key] = value


def check(path, arrays, bound):
    """Compares with the stored file; returns the largest difference relative to each array's largest value."""
    worst = 0.0
    with h5py.File(path, "r") as file:
        for name, value in arrays.items():
            group, _, key = name.partition("@")
            stored, made = (np.asarray(file[group].attrs[key]) if key else file[name][()]), np.asarray(value)
            if stored.shape != made.shape:
                sys.exit(f"{path}: {name} has shape {stored.shape}, recomputed {made.shape}")
            finite = np.isfinite(made)
            if not np.array_equal(stored[~finite], made[~finite]):
                sys.exit(f"{path}: {name} differs in its infinities")
            if finite.any():
                scale = max(np.abs(made[finite]).max(), 1e-300)
                difference = np.abs(stored[finite] - made[finite]).max() / scale
                worst = max(worst, difference)
                if difference > bound:
                    sys.exit(f"{path}: {name} differs by {difference:.3g} relative, more than {bound:.0e}")
    return worst


def run(description, path, make):
    """Command line of a golden script. `make()` returns (arrays, attributes)."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="recompute and compare with the stored file (1e-12)")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    path = Path(path)
    arrays, attributes = make()
    if not arguments.check:
        write(path, arrays, attributes)
        print(f"wrote {path.name}, {path.stat().st_size} bytes")
    print(f"{path.name}: largest relative difference {check(path, arrays, 1e-12):.3g}")
