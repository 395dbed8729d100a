#!/usr/bin/env python3
"""Makes lion.h5: the training of model.h5, from the same weights on the same batches, by Lion.

Gradients are those of golden_model.py: PyTorch in float64, by autograd. Lion is written out (arXiv:2302.06675,
algorithm 2). The whole gradient is clipped by its norm + 1e-6, as torch.nn.utils.clip_grad_norm_ does: Lion takes
signs, so that another clip factor could turn a weight's direction.

    python3 tests/golden/golden_lion.py            writes tests/golden/lion.h5 (needs torch and h5py)
    python3 tests/golden/golden_lion.py --check    recomputes and compares

Contents: train/loss, train/grad_norm and train/params/<label> as in model.h5; numbers of the optimizer are root attributes.
"""
import math
from pathlib import Path

import h5py
import numpy as np

import golden_io
import golden_model

OPTIMIZER = dict(steps=20, learning_rate=1e-3, beta1=0.9, beta2=0.99, weight_decay=0.3, clip_norm=2.2)


def train(params, tokens):
    """Lion with decoupled decay; norm gains are not decayed."""
    o = OPTIMIZER
    m = {label: np.zeros_like(value) for label, value in params.items()}
    losses, norms = [], []
    for batch in tokens:
        _, loss, grads = golden_model.gradients(params, batch)
        norm = math.sqrt(sum((g * g).sum() for g in grads.values()))
        losses.append(loss)
        norms.append(norm)
        factor = min(1.0, o["clip_norm"] / (norm + 1e-6))
        for label, g in grads.items():
            update = np.sign(o["beta1"] * m[label] + (1 - o["beta1"]) * factor * g)
            m[label] = o["beta2"] * m[label] + (1 - o["beta2"]) * factor * g
            decay = 0.0 if label.endswith("gain") else o["weight_decay"]
            params[label] = params[label] - o["learning_rate"] * (update + decay * params[label])
    return losses, norms, params


def make():
    with h5py.File(Path(__file__).parent / "model.h5", "r") as file:
        params = {label: file[f"params/{label}"][()].astype(np.float64) for label in golden_model.parameter_shapes()}
        tokens = file["train/tokens"][()]
    losses, norms, trained = train(params, tokens)
    arrays = {"train/loss": np.array(losses), "train/grad_norm": np.array(norms)}
    arrays |= {f"train/params/{label}": value for label, value in trained.items()}
    return arrays, {"made_by": "tests/golden/golden_lion.py", **OPTIMIZER}


if __name__ == "__main__":
    golden_io.run(__doc__, Path(__file__).parent / "lion.h5", make)
