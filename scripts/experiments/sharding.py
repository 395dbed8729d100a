"""Replicated against ZeRO-1, 2, 3: memory at three moments, time, bytes; and the plan of large models on many GPUs."""
import os
import subprocess

import matplotlib.pyplot as plt
import numpy as np
import plotting
from plotting import BLUE, GREEN, GREY, ORANGE, PHASES, SKY, VERMILION, byte_unit

from experiments.parts import legend_above, legend_beside
from experiments.table import spread
from launching import ROOT, Refusal, program_of

STAGES = {"none": "replicated", "optimizer": "ZeRO-1", "gradients": "ZeRO-2", "parameters": "ZeRO-3"}
MOMENTS = {"initial_mib": ("after initialisation", SKY), "before_update_mib": ("before the update", BLUE), "in_update_mib": ("in the update", ORANGE)}
KEY = "parallel.shard"
KEEPS = ("timeline",)  # of each row's own file, in a published run
PASSES = {"forward": PHASES["forward"], "recompute": GREEN, "backward": PHASES["backward"]}
TRANSFERS = {"params": ("gathers its weights", ORANGE), "grad": ("sums its gradients", GREY)}


def size_of(row):
    return row.get("model.size") or row["size"]  # of a row that did not fit the second is empty


def tables(results):
    moments = moments_of(results.rows)
    columns = ["ranks", "size", "sharded", *(f"{label}, MiB" for label, _ in moments.values()), "step, ms", "under way, ms", "exposed, ms", "messages, MB", "outcome"]
    yield columns, [[row.ranks, size_of(row), STAGES[row[KEY]], *(row[moment] for moment in moments), spread(row["step_mean_ms"], row["step_std_ms"]),
                     row["under_way_ms"], row["exposed_ms"], row["message_bytes"] / 1e6, row.outcome] for row in results.rows]
    yield from measured(results.rows)
    yield planned(results.preset)


def moments_of(rows):
    """Those of MOMENTS of which a row has a figure: none in an update that begins during backward."""
    return {moment: shown for moment, shown in MOMENTS.items() if any(row[moment] > 0 for row in rows)}


def page_tables(results):
    return [next(tables(results)), *measured(results.rows)]


def measured(rows):
    yield by_category(rows)
    if kept := rows_of_blocks(rows):
        yield by_block(kept)


# Of a parameter. In the optimizer, bf16 weights keep their low halves, and fp16 weights a copy in fp32.
WEIGHT_AND_OPTIMIZER_BYTES = {"fp32": (4, 8), "tf32": (4, 8), "bf16": (2, 10), "fp16": (2, 12)}


def expected(row):
    """Bytes of weights, gradients and optimizer on a rank: together 16 P (fp16: 18 P), less what is sharded."""
    P, R, shard = row["parameters"], row.ranks, row[KEY]
    part = lambda stages: 1 / R if shard in stages else 1
    weight, optimizer = WEIGHT_AND_OPTIMIZER_BYTES.get(row["compute"], (np.nan, np.nan))  # of a row that did not fit
    return (weight * P * part(("parameters",)), 4 * P * part(("gradients", "parameters")), optimizer * P * part(("optimizer", "gradients", "parameters")))


def by_category(rows):
    """Weights, gradients and optimizer after initialisation, beside the arithmetic, and what activations add before the update."""
    columns = ["ranks", "size", "sharded", "weights, MiB", "expected", "gradients, MiB", "expected", "optimizer, MiB", "expected", "activations in backward, MiB"]
    lines = []
    for row in rows:
        found = [row[f"initial_{name}_bytes"] for name in ("parameters", "gradients", "optimizer")]
        line = [value / 2**20 for pair in zip(found, expected(row)) for value in pair]
        lines.append([row.ranks, size_of(row), STAGES[row[KEY]], *line, row["before_update_activations_bytes"] / 2**20])
    return columns, lines


class Blocks:
    """One step by unit of the model (the embedding, the blocks, the head): (what, unit, start, end) in ms, in the order of their starts."""

    def __init__(self, row):
        with row.file() as file:
            timeline = plotting.columns(file["timeline"])
        events = [(lane, *(label.split("/") if lane == "unit" else label.split(".", 1)), start, end) for lane, label, start, end in
                  sorted(zip(*(timeline[name] for name in ("lane", "label", "start_ms", "end_ms"))), key=lambda event: event[2]) if lane != "compute"]
        self.passes = [event[1:] for event in events if event[0] == "unit"]
        self.units = list(dict.fromkeys(unit for name, unit, *_ in self.passes if name == "forward"))
        self.transfers = [event[1:] for event in events if event[0] == "communication" and event[2] in self.units]

    def took(self, name):
        """Mean and deviation over the blocks, without the first and the last unit."""
        times = [end - start for each, unit, start, end in (*self.passes, *self.transfers) if each == name and unit in self.units[1:-1]]
        return spread(np.mean(times), np.std(times)) if times else "-"

    def between(self, name):
        """Before each unit of a pass, since the end of the one before, all together: there a rank waits for weights."""
        ends = [0, *(end for *_, end in self.passes)]
        return sum(start - before for before, (each, _, start, _) in zip(ends, self.passes) if each == name)


def rows_of_blocks(rows):
    """Those of ZeRO-3 whose own file is kept, and has the passes by unit."""
    def has_units(row):
        with row.file() as file:
            return "timeline" in file and "unit" in plotting.columns(file["timeline"])["lane"]

    return [row for row in rows if row[KEY] == "parameters" and row.has_file and has_units(row)]


def by_block(rows):
    """Whether gathers end in time: what a block's gather takes beside its passes, and what is between blocks."""
    columns = ["ranks", "size", "a block: gather, ms", "forward, ms", "backward, ms", "sum of gradients, ms", "between units in forward, ms", "in backward, ms"]
    blocks = [(row, Blocks(row)) for row in rows]
    return columns, [[row.ranks, size_of(row), *(each.took(name) for name in ("params", "forward", "backward", "grad")), each.between("forward"),
                      each.between("backward")] for row, each in blocks]


def planned(preset):
    """The table of scripts/plan_sharding by a preset's program: GiB of weights, gradients and optimizer on a GPU."""
    decks = [ROOT / f"input/sizes/{size}.toml" for size in ("1b", "10b", "100b")]
    answer = subprocess.run([ROOT / "scripts/plan_sharding", *decks], capture_output=True, text=True,
                            env={**os.environ, "TESSERA_PROGRAM": program_of(preset)})
    if answer.returncode != 0:
        raise Refusal(answer.returncode, answer.stderr.strip())
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in answer.stdout.strip().splitlines()]
    return lines[0], lines[2:]


def draw(results):
    """Memory and time, a line of panels for each number of ranks and two of them for each size; below, of the most ranks of which the row's file
    is kept, steps of ZeRO-3 by block."""
    groups = {}
    for row in results.rows:
        groups.setdefault((row.ranks, size_of(row)), []).append(row)
    kept = rows_of_blocks(results.rows)
    kept = [row for row in kept if row.ranks == max(each.ranks for each in kept)]
    heights = [1.2 + 0.075 * len(Blocks(row).units) for row in kept]
    above, across = 3.2 * len(results.ranks), 2 * len(groups) // len(results.ranks)
    figure = plt.figure(figsize=(max(12, 4.5 * across), 1 + above + sum(heights)), constrained_layout=True)
    upper, lower = figure.subfigures(2, 1, height_ratios=(above, sum(heights))) if kept else (figure, None)
    panels = upper.subplots(len(results.ranks), across, squeeze=False).reshape(-1, 2)
    for (memory, time), ((R, size), rows) in zip(panels, groups.items()):
        places = np.arange(len(rows))
        factor, unit = byte_unit(2**20 * np.nanmax([row["before_update_mib"] for row in rows]))
        moments = moments_of(rows)
        for number, (moment, (label, colour)) in enumerate(moments.items()):
            memory.bar(places + 0.27 * (number - (len(moments) - 1) / 2), np.nan_to_num([2**20 * row[moment] / factor for row in rows]), width=0.25, color=colour, label=label)
        memory.set_title(f"Live memory of rank 0 of {R}, {size}, {unit}")
        step, exposed = (np.nan_to_num([row[name] for row in rows]) for name in ("step_mean_ms", "exposed_ms"))
        time.bar(places, step - np.minimum(exposed, step), color=BLUE, width=0.6, label="computing")
        time.bar(places, np.minimum(exposed, step), bottom=step - np.minimum(exposed, step), color=VERMILION, width=0.6,
                 label="only waiting for communication", yerr=np.nan_to_num([row["step_std_ms"] for row in rows]), **plotting.SPREAD)
        time.set_title(f"Step on {R} ranks, {size}, ms")
        for axes in (memory, time):
            axes.set_xticks(places, [STAGES[row[KEY]] for row in rows])
            axes.grid(axis="x", visible=False)
            legend_above(axes)
    if kept:
        for axes, row in zip(lower.subplots(len(kept), 1, squeeze=False, height_ratios=heights)[:, 0], kept):
            draw_blocks(axes, Blocks(row))
            axes.set_title(f"A step of ZeRO-3 on {row.ranks} ranks, {size_of(row)}, kernel by kernel, ms", fontsize=10)
    return figure


def draw_blocks(axes, blocks):
    """A line for each unit: above what it computes, below what crosses for it."""
    places = {unit: place for place, unit in enumerate(blocks.units)}
    bars = [(unit, -0.2, start, end, name, PASSES[name]) for name, unit, start, end in blocks.passes]
    bars += [(unit, 0.25, start, end, *TRANSFERS[name]) for name, unit, start, end in blocks.transfers]
    for unit, offset, start, end, label, colour in bars:
        axes.barh(places[unit] + offset, end - start, left=start, height=0.5 if offset < 0 else 0.4, color=colour, linewidth=0)
    numbered = [unit for unit in blocks.units if unit.startswith("block.")]
    every = max(1, len(numbered) // 12)
    shown = {*numbered[every if every > 1 else 0::every], *(unit for unit in blocks.units if unit not in numbered)}
    axes.set_yticks([places[unit] for unit in blocks.units if unit in shown],
                    [f"block {int(unit.removeprefix('block.'))}" if unit in numbered else unit for unit in blocks.units if unit in shown], fontsize=7)
    axes.set_ylim(len(places) - 0.4, -0.6)  # the first on top
    axes.set_xlim(0, None)
    axes.grid(axis="y", visible=False)
    for label, colour in dict(bar[4:] for bar in bars).items():
        axes.bar(0, 0, color=colour, label=label)
    legend_beside(axes)
