#!/usr/bin/env python3
"""Makes the golden checkpoints of the format's version 1, which every later program must be able to resume.

    golden_checkpoint.py PROGRAM        a tessera on a CPU that writes whole tensors, one rank each (git b93df2c)

Trains checkpoint_v1/deck.toml for 6 steps on one rank and on two. Keeps the checkpoint after step 4 as
checkpoint_v1/ranks_N/step_00000004, and in checkpoint_v1/expected.json the losses of the uninterrupted run after it.
These files show what old programs wrote: a newer PROGRAM is no reason to make them anew.
"""
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import h5py

HERE = Path(__file__).resolve().parent
GOLDEN = HERE / "checkpoint_v1"
STEP = "step_00000004"

if len(sys.argv) != 2:
    sys.exit(__doc__)
program = Path(sys.argv[1]).resolve()
expected = {"made_by": subprocess.run([program, "--version"], check=True, capture_output=True, text=True).stdout.strip(),
            "command": "tests/golden/golden_checkpoint.py PROGRAM", "ranks": {}}
with tempfile.TemporaryDirectory() as folder:
    for ranks in (1, 2):
        run = Path(folder) / f"ranks_{ranks}"
        subprocess.run([HERE.parents[1] / "scripts/run", "--quiet", "-n", str(ranks), program, GOLDEN / "deck.toml",
                        f"job.directory={run}"], check=True)
        kept = GOLDEN / run.name / STEP
        shutil.rmtree(kept.parent, ignore_errors=True)
        shutil.copytree(run / "checkpoints" / STEP, kept)
        with h5py.File(run / "run.h5") as file:
            expected["ranks"][str(ranks)] = {"step": file["steps/step"][4:].tolist(), "loss": file["steps/loss"][4:].tolist()}
(GOLDEN / "expected.json").write_text(json.dumps(expected, indent=2) + "\n")
print(f"wrote {sum(path.stat().st_size for path in GOLDEN.rglob('*') if path.is_file())} bytes below {GOLDEN.name}")
