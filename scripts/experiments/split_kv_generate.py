"""Generation with the cache in one part per head, and in as many as the program chooses: tokens per second over the context."""
import matplotlib.pyplot as plt
import numpy as np
import plotting
from plotting import BLUE, FAINT, GREEN, ORANGE, PURPLE

from experiments.parts import log_axis
from experiments.table import spread

T, WANTED = "bench.length", "attention.decode_parts"


def name_of(wanted):
    return "as chosen" if wanted == 0 else "1 part" if wanted == 1 else f"{wanted:.0f} parts"


def bound_of(row, results, with_cache=True):
    """[ms] what a token must read, at the fastest rate of a copy that any row found: each measures one."""
    rate = max(other["weights_mib"] / other["bound_ms"] for other in results.rows if other["bound_ms"] > 0)
    return (row["weights_mib"] + (row["cache_mib"] if with_cache else 0)) / rate


def tables(results):
    columns = ["context", "asked", "parts", "token, ms", "tokens/s", "speed-up", "weights, MiB", "cache, MiB", "of a copy", "outcome"]
    one = {row[T]: row["token_ms"] for row in results.rows if row[WANTED] == 1}
    yield columns, [[row[T], name_of(row[WANTED]), row["parts"], spread(row["token_ms"], row["token_std_ms"]), row["tokens_per_s"],
                     one.get(row[T], np.nan) / row["token_ms"], row["weights_mib"], row["cache_mib"],
                     bound_of(row, results) / row["token_ms"], row.outcome] for row in results.rows]


def draw(results):
    figure, (rate, time) = plt.subplots(1, 2, figsize=(11, 4), constrained_layout=True)
    for wanted, colour in zip(results.different(WANTED), (ORANGE, BLUE, GREEN, PURPLE)):
        rows = sorted([row for row in results.rows if row[WANTED] == wanted and np.isfinite(row["token_ms"])], key=lambda row: row[T])
        if not rows:
            continue
        style = dict(color=colour, label=name_of(wanted))
        x = [row[T] for row in rows]
        plotting.line_with_spread(rate, x, [row["tokens_per_s"] for row in rows], [row["tokens_per_s"] * row["token_std_ms"] / row["token_ms"] for row in rows],
                                  **style)
        plotting.line_with_spread(time, x, [row["token_ms"] for row in rows], [row["token_std_ms"] for row in rows], **style)
    rows = sorted([row for row in results.rows if row[WANTED] == results.rows[0][WANTED]], key=lambda row: row[T])
    for with_cache, style, label in ((False, ":", "reading weights at a copy's rate"), (True, "--", "weights and cache")):
        values = [bound_of(row, results, with_cache) for row in rows]
        time.plot([row[T] for row in rows], values, color=FAINT, linestyle=style, linewidth=1.2, label=label)
    rate.set_title("Tokens per second")
    rate.set_ylim(0, None)
    time.set_title("Time of a token, ms")
    log_axis(time.yaxis)
    for axes in (rate, time):
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(lambda value, _: plotting.length_text(int(value)))
        axes.set_xlabel("tokens of context")
    rate.legend()
    time.legend()
    return figure
