"""The orders in which gradients are summed: times, exposed communication, and a step of each on a time axis."""
import matplotlib.pyplot as plt
import numpy as np
import plotting
from plotting import GREY, PHASES, VERMILION

from experiments.table import spread

KEY, BUCKET = "parallel.gradient_sync", "parallel.bucket_mbyte"
TRANSFERS = ("#404040", "#8C8C8C")  # one and the next, so that many in a row can be told apart
KEEPS = ("timeline",)  # of each row's own file, in a published run


def order_of(row):
    return f"buckets of {row[BUCKET]:g} MB" if row[KEY] == "bucket" else {"per_parameter": "each parameter, after backward", "flat": "all at once",
                                                                           "overlap": "each parameter, when ready"}[row[KEY]]


def name_of(row):
    """Of the order; with the size where it is another than the deck's."""
    return order_of(row) + (", 2.7b" if row.get("model.size") == "2.7b" else "")


def tables(results):
    return [times(results, ["order"], lambda row: [name_of(row)])]


def times(results, names, words):
    """Steps and their communication; columns of these names have the `words` of each row."""
    columns = ["ranks", *names, "step, ms", "transfers", "communication, ms", "under way, ms", "exposed, ms", "exposed, % of the step", "outcome"]
    return columns, [[row.ranks, *words(row), spread(row["step_mean_ms"], row["step_std_ms"]), row["transfers"], row["communication_ms"],
                      row["under_way_ms"], row["exposed_ms"], 100 * row["exposed_ms"] / row["step_mean_ms"], row.outcome] for row in results.rows]


def draw_waiting(axes, rows, colour):
    """A bar for each step, whose last part only waits."""
    step, exposed = (np.nan_to_num([row[name] for row in rows]) for name in ("step_mean_ms", "exposed_ms"))
    waiting, places = np.minimum(step, exposed), np.arange(len(rows))
    axes.barh(places, step - waiting, color=colour, height=0.6, label="computing")
    axes.barh(places, waiting, left=step - waiting, color=VERMILION, height=0.6, label="only waiting for communication",
              xerr=np.nan_to_num([row["step_std_ms"] for row in rows]), **plotting.SPREAD)


def name_outcome(axes, place, row):
    """In place of the bar of a row that did not run."""
    axes.text(0.02, place, row.outcome, transform=axes.get_yaxis_transform(), va="center", color=VERMILION, fontsize=8)


def draw_step(axes, place, row):
    """Phases and transfers of one step, two bars high, from its beginning. Backward ends with its last unit: what its phase has after that is waiting, too."""
    with row.file() as file:
        timeline = plotting.columns(file["timeline"])
    events = list(zip(*(timeline[name] for name in ("lane", "label", "start_ms", "end_ms"))))
    start, count = timeline["start_ms"].min(), 0
    last = max((end for lane, label, _, end in events if lane == "unit" and label.startswith("backward/")), default=np.inf)
    for lane, label, begin, end in events:
        is_transfer = lane == "communication"
        if lane == "compute" and label == "backward":
            end = min(end, last)
        elif lane == "compute" and label == "exposed":
            begin = min(begin, last)
        colour = TRANSFERS[count % 2] if is_transfer else PHASES.get(label)
        count += is_transfer
        if colour is not None:
            axes.barh(place + (0.2 if is_transfer else -0.18), end - begin, left=begin - start, height=0.3 if is_transfer else 0.4, color=colour)


def draw(results):
    height = 0.8 + 3.6 * len(results.ranks)
    figure = plt.figure(figsize=(14, height + 0.4), constrained_layout=True)
    upper, lower = figure.subfigures(2, 1, height_ratios=(height, 0.4))
    panels = upper.subplots(len(results.ranks), 2, squeeze=False, sharex="col", sharey="row", width_ratios=(1, 1.8))
    for (time, steps), R in zip(panels, results.ranks):
        rows = [row for row in results.rows if row.ranks == R]
        draw_waiting(time, rows, GREY)
        time.set_title(f"Step on {R} ranks, ms")
        time.set_yticks(np.arange(len(rows)), [name_of(row) for row in rows])
        time.set_ylim(len(rows) - 0.5, -0.5)
        for place, row in enumerate(rows):
            if row.outcome == "ok":
                draw_step(steps, place, row)
            else:
                name_outcome(time, place, row)
        steps.set_title("One step launched kernel by kernel, ms")
        for axes in (time, steps):
            axes.grid(axis="y", visible=False)
    colours = {"computing": GREY, "only waiting for communication": VERMILION, **{phase: PHASES[phase] for phase in ("forward", "backward", "optimizer")},
               "transfers": TRANSFERS[0]}
    lower.legend(handles=[plt.Rectangle((0, 0), 1, 1, color=colour, label=label) for label, colour in colours.items()], loc="center", ncol=6)
    return figure
