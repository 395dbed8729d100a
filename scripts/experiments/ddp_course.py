"""Orders, buckets and stages in the course's set-up: step, waiting, memory at three moments."""
import matplotlib.pyplot as plt
import numpy as np
import plotting
from plotting import BLUE, VERMILION, byte_unit

from experiments import ddp, sharding
from experiments.table import spread

KEEPS = sharding.KEEPS


def name_of(row):
    stage = row[sharding.KEY]
    return sharding.STAGES[stage] + (", in buckets" if stage == "none" else "") if row.name.startswith("stage") else ddp.order_of(row)


def tables(results):
    columns = ["ranks", "size", "strategy", "step, ms", "transfers", "communication, ms", "under way, ms", "exposed, ms", "exposed, % of the step", "outcome"]
    yield columns, [[row.ranks, sharding.size_of(row), name_of(row), spread(row["step_mean_ms"], row["step_std_ms"]), row["transfers"], row["communication_ms"],
                     row["under_way_ms"], row["exposed_ms"], 100 * row["exposed_ms"] / row["step_mean_ms"], row.outcome] for row in results.rows]
    stages = stages_of(results)
    if not stages:
        return
    moments = sharding.moments_of(stages)
    columns, lines = sharding.by_category(stages)
    yield ([*columns[:3], *(f"{label}, MiB" for label, _ in moments.values()), *columns[3:]],
           [[*line[:3], *(row[moment] for moment in moments), *line[3:]] for row, line in zip(stages, lines)])
    if kept := sharding.rows_of_blocks(stages):
        yield sharding.by_block(kept)


def stages_of(results):
    return [row for row in results.rows if row.name.startswith("stage")]


def draw(results):
    stages = stages_of(results)
    figure, (time, memory) = plt.subplots(1, 2, figsize=(14, 1.5 + 0.27 * len(results.rows)), constrained_layout=True)
    places = np.arange(len(results.rows))
    step, exposed = (np.nan_to_num([row[name] for row in results.rows]) for name in ("step_mean_ms", "exposed_ms"))
    waiting = np.minimum(step, exposed)
    time.barh(places, step - waiting, color=BLUE, height=0.6, label="computing")
    time.barh(places, waiting, left=step - waiting, color=VERMILION, height=0.6, label="only waiting for communication",
              xerr=np.nan_to_num([row["step_std_ms"] for row in results.rows]), **plotting.SPREAD)
    time.set_title(f"Step on {', '.join(map(str, results.ranks))} ranks, ms")
    places = np.arange(len(stages))
    factor, unit = byte_unit(2**20 * np.nanmax([0, *(row["before_update_mib"] for row in stages)]))
    moments = sharding.moments_of(stages)
    for number, (moment, (label, colour)) in enumerate(moments.items()):
        memory.barh(places + 0.27 * (number - (len(moments) - 1) / 2), np.nan_to_num([2**20 * row[moment] / factor for row in stages]), height=0.25, color=colour, label=label)
    memory.set_title(f"Live memory of rank 0, {unit}")
    for axes, rows in ((time, results.rows), (memory, stages)):
        axes.set_yticks(np.arange(len(rows)), [f"{sharding.size_of(row)}: {name_of(row)}" + (f", {row.ranks}" if len(results.ranks) > 1 else "") for row in rows])
        axes.set_ylim(max(len(rows), 1) - 0.5, -0.5)
        axes.grid(axis="y", visible=False)
        for place, row in enumerate(rows):
            if row.outcome != "ok":
                axes.text(0.02, place, row.outcome, transform=axes.get_yaxis_transform(), va="center", color=VERMILION, fontsize=8)
        if rows:
            axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.06), ncol=3)
    return figure
