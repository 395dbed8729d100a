#!/usr/bin/env python3
"""Makes the golden runs of earlier programs, which every later program must be able to resume.

    golden_checkpoint.py PROGRAM checkpoint_v1   format 1 of checkpoints: git b93df2c, on a CPU
    golden_checkpoint.py PROGRAM old_keys        keys that decks had before one key named attention's kernel: git c4ee8bb

Trains GOLDEN/deck.toml for 6 steps on one rank and on two. Keeps the checkpoint after step 4 as
GOLDEN/ranks_N/step_00000004, and in GOLDEN/expected.json the losses of the uninterrupted run after it. With
GOLDEN/experiment.toml also the run.h5 of one rank, and the experiment.h5 of that deck.
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
STEP = "step_00000004"

if len(sys.argv) != 3 or not (HERE / sys.argv[2] / "deck.toml").exists():
    sys.exit(__doc__)
golden = HERE / sys.argv[2]
expected = {"made_by": None, "command": f"tests/golden/golden_checkpoint.py PROGRAM {golden.name}", "ranks": {}}
with tempfile.TemporaryDirectory() as folder:
    for source in (Path(sys.argv[1]).resolve(), *golden.glob("*.toml")):
        shutil.copy(source, Path(folder) / ("tessera" if source.suffix != ".toml" else source.name))

    def program(*arguments, ranks=1):
        command = ["./tessera", *arguments]
        if ranks > 1:
            command = [HERE.parents[1] / "scripts/run", "--quiet", "-n", str(ranks), *command]
        return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout

    expected["made_by"] = program("--version").strip()
    for ranks in (1, 2):
        run = Path(folder) / f"ranks_{ranks}"
        program("deck.toml", f"job.directory={run.name}", ranks=ranks)
        kept = golden / run.name
        shutil.rmtree(kept, ignore_errors=True)
        shutil.copytree(run / "checkpoints" / STEP, kept / STEP)
        with h5py.File(run / "run.h5") as file:
            expected["ranks"][str(ranks)] = {"step": file["steps/step"][4:].tolist(), "loss": file["steps/loss"][4:].tolist()}
    if (golden / "experiment.toml").exists():
        program("experiment.toml", "job.directory=experiment")
        shutil.copy(Path(folder) / "ranks_1/run.h5", golden / "ranks_1")
        shutil.copy(Path(folder) / "experiment/experiment.h5", golden)
(golden / "expected.json").write_text(json.dumps(expected, indent=2) + "\n")
print(f"wrote {sum(path.stat().st_size for path in golden.rglob('*') if path.is_file())} bytes below {golden.name}")
