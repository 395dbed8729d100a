"""Number formats of the tensors of a step, beside those of PyTorch's autocast, and what each format takes of its memory."""
import matplotlib.pyplot as plt
import numpy as np
from plotting import BLUE, GREEN, ORANGE, PALE, byte_unit

from experiments.parts import legend_above

FORMATS = {"fp32": BLUE, "bf16": ORANGE, "fp16": GREEN, "int32": PALE}
KEY, NARROW = "precision.compute", "16-bit"
# What a reader calls a tensor; the beginning of its label in the timeline, and PyTorch's format under autocast: parameters
# and optimizer state keep their own, fp32, and results follow the lists of operations of its documentation (linear, matmul:
# 16-bit; layer_norm, softmax, cross_entropy: fp32); what is in no list keeps the format of its inputs, the widest of several.
TENSORS = (("parameters that forward reads", "params.", "fp32"), ("master weights", "optimizer.master", "fp32, the parameters"),
           ("residual stream", "embedding.out", "fp32"), ("norm output", "block.00.normed1", "fp32"), ("norm statistics", "block.00.rrms1", "fp32"),
           ("linear output (q, k, v)", "block.00.qkv", NARROW), ("attention output", "block.00.attn", NARROW),
           ("log-sum-exp of attention", "block.00.lse", "fp32"), ("MLP, after SwiGLU", "block.00.act", NARROW), ("logits", "head.logits", NARROW),
           ("loss", "head.row_loss", "fp32"), ("gradient of the residual stream", "d_x", "fp32"), ("gradient of q, k, v", "block.00.d_qkv", NARROW),
           ("gradients of parameters", "grads.block.", "fp32"), ("AdamW's m", "optimizer.m.", "fp32"), ("AdamW's v", "optimizer.v.", "fp32"))
KEEPS = ("memory/events",)  # of each row's own file, in a published run


class Timeline:
    """Tensors of the recorded step: label, format, bytes, and whether they live when the sum is largest."""

    def __init__(self, row):
        with row.file() as file:
            events = {name: file[f"memory/events/{name}"][...] for name in ("label", "dtype", "bytes", "begin", "live_bytes")}
        labels, dtypes = ([text.decode() for text in events[name]] for name in ("label", "dtype"))
        self.format_of = dict(zip(labels, dtypes))
        self.at_peak = dict.fromkeys(FORMATS, 0)
        for dtype, nbytes, begins in list(zip(dtypes, events["bytes"], events["begin"]))[:int(events["live_bytes"].argmax()) + 1]:
            self.at_peak[dtype] = self.at_peak.get(dtype, 0) + (nbytes if begins else -nbytes)

    def format(self, label):
        """The format of the tensors whose label begins so; "-" if the step has none."""
        found = {dtype + (" low halves" if name.startswith("optimizer.master_low") else "")
                 for name, dtype in self.format_of.items() if name.startswith(label)}
        return ", ".join(sorted(found)) or "-"


def tables(results):
    ran = [row for row in results.rows if row.has_run]
    lines = [Timeline(row) for row in ran]
    yield (["tensor", "label", *(row[KEY] for row in ran), "autocast to 16 bits"],
           [[name, label.rstrip("."), *(line.format(label) for line in lines), autocast] for name, label, autocast in TENSORS])
    yield (["compute", *(f"{name}, MiB" for name in FORMATS), "first loss", "outcome"],
           [[row[KEY], *(line.at_peak[name] / 2**20 for name in FORMATS), f"{row['steps/loss:first']:.4f}", row.outcome] for row, line in zip(ran, lines)])


def draw(results):
    figure, (grid, memory) = plt.subplots(1, 2, figsize=(13, 5.4), constrained_layout=True, width_ratios=(2, 1))
    ran = [row for row in results.rows if row.has_run]
    lines = [Timeline(row) for row in ran]
    columns = [[line.format(label) for _, label, _ in TENSORS] for line in lines] + [[autocast for *_, autocast in TENSORS]]
    for x, column in enumerate(columns):
        for y, text in enumerate(column):
            colour = next((shade for name, shade in FORMATS.items() if text.startswith(name)), ORANGE if text == NARROW else "white")
            grid.add_patch(plt.Rectangle((x - 0.47, y - 0.44), 0.94, 0.88, color=colour, alpha=0.35, linewidth=0))
            grid.text(x, y, text, ha="center", va="center", fontsize=8)
    grid.set_xlim(-0.5, len(columns) - 0.5)
    grid.set_ylim(len(TENSORS) - 0.5, -0.5)
    grid.set_xticks(range(len(columns)), [*(row[KEY] for row in ran), "autocast"])
    grid.set_yticks(range(len(TENSORS)), [name for name, *_ in TENSORS], fontsize=8)
    grid.xaxis.tick_top()
    grid.tick_params(length=0)
    grid.grid(visible=False)
    factor, unit = byte_unit(max(sum(line.at_peak.values()) for line in lines))
    bottom = np.zeros(len(ran))
    for name, colour in FORMATS.items():
        heights = np.array([line.at_peak[name] for line in lines]) / factor
        if heights.any():
            memory.bar(range(len(ran)), heights, bottom=bottom, width=0.6, color=colour, label=name)
        bottom += heights
    memory.set_xticks(range(len(ran)), [row[KEY] for row in ran])
    memory.set_xlabel("precision.compute")
    memory.set_title(f"Step, where it is fullest, {unit}")
    memory.grid(axis="x", visible=False)
    legend_above(memory, columns=4)
    return figure
