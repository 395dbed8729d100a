"""Replicated against ZeRO-1, 2, 3: memory at three moments, time, bytes; and the plan of large models on many GPUs."""
import subprocess

import matplotlib.pyplot as plt
import numpy as np
from plotting import BLUE, ORANGE, PHASES, SKY, VERMILION, byte_unit

from experiments.ddp import draw_step
from experiments.parts import legend_above
from experiments.table import spread
from launching import ROOT, Refusal

STAGES = {"none": "replicated", "optimizer": "ZeRO-1", "gradients": "ZeRO-2", "parameters": "ZeRO-3"}
MOMENTS = {"initial_mib": ("after initialisation", SKY), "before_update_mib": ("before the update", BLUE), "in_update_mib": ("in the update", ORANGE)}
KEY = "parallel.shard"
KEEPS = ("timeline",)  # of each row's own file, in a published run


def size_of(row):
    return row.get("model.size") or row["size"]  # of a row that did not fit the second is empty


def tables(results):
    columns = ["ranks", "size", "sharded", "after initialisation, MiB", "before the update, MiB", "in the update, MiB", "step, ms",
               "communication, ms", "exposed, ms", "messages, MB", "outcome"]
    yield columns, [[row.ranks, size_of(row), STAGES[row[KEY]], *(row[moment] or np.nan for moment in MOMENTS), spread(row["step_mean_ms"], row["step_std_ms"]),
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
    columns = ["ranks", "size", "sharded", "weights, MiB", "expected", "gradients, MiB", "expected", "optimizer, MiB", "expected", "activations in backward, MiB"]
    rows = []
    for row in results.rows:
        found = [row[f"initial_{name}_bytes"] for name in ("parameters", "gradients", "optimizer")]
        line = [value / 2**20 for pair in zip(found, expected(row, row["compute"] in ("bf16", "fp16"))) for value in pair]
        rows.append([row.ranks, size_of(row), STAGES[row[KEY]], *line, row["before_update_activations_bytes"] / 2**20])
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
    """A line of panels for each number of ranks and size: memory, time, and where the row's file is kept a step of ZeRO-3 on a time axis."""
    groups = {}
    for row in results.rows:
        groups.setdefault((row.ranks, size_of(row)), []).append(row)
    kept = [row for row in results.rows if row[KEY] == "parameters" and row.has_file]
    figure = plt.figure(figsize=(12, 1 + 3.2 * len(groups) + 1.1 * len(kept)), constrained_layout=True)
    upper, lower = figure.subfigures(2, 1, height_ratios=(3.2 * len(groups), 1.1 * len(kept))) if kept else (figure, None)
    panels = upper.subplots(len(groups), 2, squeeze=False)
    for (memory, time), ((R, size), rows) in zip(panels, groups.items()):
        places = np.arange(len(rows))
        factor, unit = byte_unit(2**20 * np.nanmax([row["before_update_mib"] for row in rows]))
        for number, (moment, (label, colour)) in enumerate(MOMENTS.items()):
            memory.bar(places + 0.27 * (number - 1), np.nan_to_num([2**20 * row[moment] / factor for row in rows]), width=0.25, color=colour, label=label)
        memory.set_title(f"Live memory of rank 0 of {R}, {size}, {unit}")
        step, exposed = (np.nan_to_num([row[name] for row in rows]) for name in ("step_mean_ms", "exposed_ms"))
        time.bar(places, step - np.minimum(exposed, step), color=BLUE, width=0.6, label="computing")
        time.bar(places, np.minimum(exposed, step), bottom=step - np.minimum(exposed, step), color=VERMILION, width=0.6,
                 label="only waiting for communication", yerr=np.nan_to_num([row["step_std_ms"] for row in rows]), ecolor="#404040", capsize=2)
        time.set_title(f"Step on {R} ranks, {size}, ms")
        for axes in (memory, time):
            axes.set_xticks(places, [STAGES[row[KEY]] for row in rows])
            axes.grid(axis="x", visible=False)
            legend_above(axes)
    if kept:
        for axes, row in zip(lower.subplots(len(kept), 1, squeeze=False)[:, 0], kept):
            draw_step(axes, 0, row)
            axes.set_ylim(0.55, -0.55)
            axes.set_yticks([-0.18, 0.2], ["passes", "transfers"])
            axes.set_title(f"A step of ZeRO-3 on {row.ranks} ranks, {size_of(row)}, kernel by kernel, ms: gathers of weights beside forward and backward", fontsize=10)
            axes.grid(axis="y", visible=False)
            names = {"exposed": "all waits", **{phase: phase for phase in ("forward", "backward", "optimizer")}}
            axes.legend(handles=[plt.Rectangle((0, 0), 1, 1, color=PHASES[phase], label=name) for phase, name in names.items()],
                        loc="upper left", bbox_to_anchor=(1, 1.2), handlelength=1.2)
    return figure
