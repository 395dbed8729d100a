"""Orders, buckets and stages in the course's set-up: step, waiting, memory at three moments."""
import matplotlib.pyplot as plt
import numpy as np
from plotting import BLUE, byte_unit

from experiments import ddp, sharding

KEEPS = sharding.KEEPS


def name_of(row):
    stage = row[sharding.KEY]
    return sharding.STAGES[stage] + (", in buckets" if stage == "none" else "") if row.name.startswith("stage") else ddp.order_of(row)


def tables(results):
    yield ddp.times(results, ["size", "strategy"], lambda row: [sharding.size_of(row), name_of(row)])
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
    ddp.draw_waiting(time, results.rows, BLUE)
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
                ddp.name_outcome(axes, place, row)
        if rows:
            axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.06), ncol=3)
    return figure
