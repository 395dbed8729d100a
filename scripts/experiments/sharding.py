"""Replicated against ZeRO-1, 2, 3: memory at three moments, time, bytes; and the plan of large models on many GPUs."""
import subprocess

import matplotlib.pyplot as plt
import numpy as np
from plotting import BLUE, ORANGE, SKY, VERMILION, byte_unit

from experiments.parts import legend_above
from experiments.table import spread
from launching import ROOT, Refusal

STAGES = {"none": "replicated", "optimizer": "ZeRO-1", "gradients": "ZeRO-2", "parameters": "ZeRO-3"}
MOMENTS = {"initial_mib": ("after initialisation", SKY), "before_update_mib": ("before the update", BLUE), "in_update_mib": ("in the update", ORANGE)}
KEY = "parallel.shard"


def tables(results):
    columns = ["ranks", "sharded", "after initialisation, MiB", "before the update, MiB", "in the update, MiB", "step, ms",
               "communication, ms", "exposed, ms", "messages, MB", "outcome"]
    yield columns, [[row.ranks, STAGES[row[KEY]], *(row[moment] or np.nan for moment in MOMENTS), spread(row["step_mean_ms"], row["step_std_ms"]),
                     row["communication_ms"], row["exposed_ms"], row["message_bytes"] / 1e6, row.outcome] for row in results.rows]
    yield by_category(results)
    yield planned()


def page_tables(results):
    return list(tables(results))[:2]


def expected(row, master):
    """Bytes of weights, gradients and optimizer on a rank: together 16 P, less what is sharded; 16-bit weights keep their low halves in the optimizer."""
    P, R, shard = row["parameters"], row.ranks, row[KEY]
    part = lambda stages: 1 / R if shard in stages else 1
    weight = 2 if master else 4
    return (weight * P * part(("parameters",)), 4 * P * part(("gradients", "parameters")), (12 - weight) * P * part(("optimizer", "gradients", "parameters")))


def by_category(results):
    """Weights, gradients and optimizer after initialisation, beside the arithmetic, and what activations add before the update."""
    columns = ["ranks", "sharded", "weights, MiB", "expected", "gradients, MiB", "expected", "optimizer, MiB", "expected", "activations in backward, MiB"]
    rows = []
    for row in results.rows:
        found = [row[f"initial_{name}_bytes"] for name in ("parameters", "gradients", "optimizer")]
        line = [value / 2**20 for pair in zip(found, expected(row, row["compute"] in ("bf16", "fp16"))) for value in pair]
        rows.append([row.ranks, STAGES[row[KEY]], *line, row["before_update_activations_bytes"] / 2**20])
    return columns, rows



def planned():
    """The table of scripts/plan_sharding: GiB of weights, gradients and optimizer on a GPU."""
    decks = [ROOT / f"input/sizes/{size}.toml" for size in ("1b", "10b", "100b")]
    answer = subprocess.run([ROOT / "scripts/plan_sharding", *decks], capture_output=True, text=True)
    if answer.returncode != 0:
        raise Refusal(answer.returncode, answer.stderr.strip())
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in answer.stdout.strip().splitlines()]
    return lines[0], lines[2:]


def draw(results):
    figure, panels = plt.subplots(len(results.ranks), 2, figsize=(12, 1 + 3.2 * len(results.ranks)), constrained_layout=True, squeeze=False)
    for (memory, time), R in zip(panels, results.ranks):
        rows = [row for row in results.rows if row.ranks == R]
        places = np.arange(len(rows))
        factor, unit = byte_unit(2**20 * np.nanmax([row["before_update_mib"] for row in rows]))
        for number, (moment, (label, colour)) in enumerate(MOMENTS.items()):
            memory.bar(places + 0.27 * (number - 1), np.nan_to_num([2**20 * row[moment] / factor for row in rows]), width=0.25, color=colour, label=label)
        memory.set_title(f"Live memory of rank 0 of {R}, {unit}")
        step, exposed = (np.nan_to_num([row[name] for row in rows]) for name in ("step_mean_ms", "exposed_ms"))
        time.bar(places, step - np.minimum(exposed, step), color=BLUE, width=0.6, label="computing")
        time.bar(places, np.minimum(exposed, step), bottom=step - np.minimum(exposed, step), color=VERMILION, width=0.6,
                 label="only waiting for communication", yerr=np.nan_to_num([row["step_std_ms"] for row in rows]), ecolor="#404040", capsize=2)
        time.set_title(f"Step on {R} ranks, ms")
        for axes in (memory, time):
            axes.set_xticks(places, [STAGES[row[KEY]] for row in rows])
            axes.grid(axis="x", visible=False)
            legend_above(axes)
    return figure
