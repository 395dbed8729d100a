"""A first training run: losses, learning rate, and its kernels by time."""
import math

import matplotlib.pyplot as plt
import numpy as np
import plotting
from plotting import BLUE, GREEN, ORANGE

KEEPS = ("kernels", "sample", "info")  # of each row's own file, in a published run


def kernels_of(row, count):
    """[(label, calls, seconds, share)] of the kernels of the profiled step that took longest."""
    with row.file() as file:
        kernels = plotting.columns(file["kernels"])
    order = np.argsort(-kernels["total"])[:count]
    return [(kernels["label"][i].removeprefix("tessera::"), int(kernels["calls"][i]), kernels["total"][i], kernels["total"][i] / kernels["total"].sum())
            for i in order]


def tables(results):
    columns = ["compute", "first loss", "ln V", "last loss", "first gradient norm", "step, ms", "tokens/s", "outcome"]
    with_file = [row for row in results.rows if row.has_run]
    yield columns, [[row["precision.compute"], f"{row['steps/loss:first']:.4f}", f"{math.log(vocabulary(row)):.4f}", f"{row['steps/loss:last']:.4f}",
                     row["steps/grad_norm:first"], 1e3 * row["steps/step_time:median"], row["steps/tokens_per_second:median"], row.outcome]
                    for row in results.rows]
    for row in with_file:
        yield ["kernel", "calls", "ms", "% of all"], [[label, calls, 1e3 * seconds, 100 * share] for label, calls, seconds, share in kernels_of(row, 10)]
        prompt, generated = sample_of(row)
        yield ["prompt, tokens", "generated"], [[" ".join(map(str, prompt)), " ".join(map(str, generated))]]


def sample_of(row):
    """(tokens of the prompt, generated ones) that the run ended with; none in files from before /sample."""
    with row.file() as file:
        if "sample" not in file:
            return (), ()
        tokens, is_prompt = (file[f"sample/{name}"][...] for name in ("token", "is_prompt"))
    return tokens[is_prompt == 1], tokens[is_prompt == 0]


def vocabulary(row):
    import tomllib

    with row.file() as file:
        return tomllib.loads(file["info"].attrs["deck"])["model"]["vocab_size"]


def draw(results):
    figure, (loss, rate, kernels) = plt.subplots(1, 3, figsize=(15, 4.2), constrained_layout=True, width_ratios=(1, 1, 1.1))
    row = next(row for row in results.rows if row.has_run)
    steps = np.arange(1, len(row["steps/loss"]) + 1)
    loss.plot(steps, row["steps/loss"], color=BLUE, linewidth=1)
    loss.axhline(math.log(vocabulary(row)), color=ORANGE, linestyle=":", label="ln V")
    loss.set_title("Loss, nats per token")
    loss.legend()
    rate.plot(steps, row["steps/learning_rate"], color=GREEN)
    rate.set_title("Learning rate")
    for axes in (loss, rate):
        axes.set_xlabel("step")
    top = kernels_of(row, 10)
    kernels.barh(np.arange(len(top)), [1e3 * seconds for _, _, seconds, _ in top], color=BLUE)
    kernels.set_yticks(np.arange(len(top)), [label for label, *_ in top], fontsize=7.5)
    kernels.set_ylim(len(top) - 0.4, -0.6)
    kernels.set_title("Kernels of one step, ms")
    kernels.grid(axis="y", visible=False)
    return figure
