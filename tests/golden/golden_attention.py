#!/usr/bin/env python3
"""Makes attention.h5: softmax attention and its gradients in float64, for shapes that tiles do not divide.

PyTorch in float64, plain arithmetic (no fused attention), gradients by autograd.

    python3 tests/golden/golden_attention.py            writes tests/golden/attention.h5 (needs torch and h5py)
    python3 tests/golden/golden_attention.py --check    recomputes and compares

One group per case, in the layout that verify.attention reads and writes:
    @causal 0 or 1
    q, d_out float32 [B,H,Tq,D]     k, v float32 [B,H,Tk,D]
    out      float64 [B,H,Tq,D]     lse  float64 [B,H,Tq]  natural log of the sum of exp(score)
    d_q, d_k, d_v float64, shaped as q, k, v
Scores are q.k / sqrt(D). Causal is bottom-right: query i sees the keys j <= i + Tk - Tq. A query that sees no key
has out 0, lse -inf and gives no gradient.
"""
import math
from pathlib import Path

import numpy as np
import torch

import golden_io

#        name              causal  B  H  Tq  Tk   D
CASES = {
    "square_causal":         (1,   2, 3, 33, 33, 16),
    "square_full":           (0,   2, 3, 33, 33, 16),
    "many_tiles_causal":     (1,   1, 1, 131, 131, 24),
    "fewer_queries_causal":  (1,   1, 2, 7, 45, 8),
    "fewer_queries_full":    (0,   1, 2, 7, 45, 8),
    "more_queries_causal":   (1,   1, 2, 45, 17, 8),   # the first 28 queries see nothing
    "more_queries_full":     (0,   1, 2, 45, 17, 8),
    "head_width_80":         (1,   1, 2, 19, 19, 80),
    "head_width_256":        (1,   1, 1, 5, 9, 256),
    "one_query_causal":      (1,   2, 2, 1, 1, 8),
    "large_scores":          (1,   1, 2, 21, 21, 16),  # exp of a score overflows without the running maximum
}


def attend(q, k, v, causal):
    Tq, Tk = q.shape[-2], k.shape[-2]
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    visible = torch.ones(Tq, Tk, dtype=torch.bool)
    if causal:
        visible = torch.arange(Tk)[None, :] <= torch.arange(Tq)[:, None] + (Tk - Tq)
    seen = visible.any(-1)
    highest = torch.where(seen, scores.masked_fill(~visible, -math.inf).amax(-1), 0.0).detach()
    weights = torch.exp(torch.where(visible, scores - highest[..., None], 0.0)) * visible
    total = weights.sum(-1)
    out = weights @ v / torch.where(seen, total, 1.0)[..., None]
    lse = torch.where(seen, highest + torch.log(torch.where(seen, total, 1.0)), -math.inf)
    return out, lse


def make():
    rng = np.random.default_rng(20230717)
    arrays = {}
    for name, (causal, B, H, Tq, Tk, D) in CASES.items():
        spread = 12.0 if name == "large_scores" else 1.0
        inputs = {"q": spread * rng.standard_normal((B, H, Tq, D)), "k": spread * rng.standard_normal((B, H, Tk, D)),
                  "v": rng.standard_normal((B, H, Tk, D)), "d_out": rng.standard_normal((B, H, Tq, D))}
        inputs = {key: value.astype(np.float32) for key, value in inputs.items()}
        q, k, v = (torch.tensor(inputs[key], dtype=torch.float64, requires_grad=True) for key in "qkv")
        out, lse = attend(q, k, v, causal)
        out.backward(torch.tensor(inputs["d_out"], dtype=torch.float64))
        results = {"out": out.detach(), "lse": lse.detach(), "d_q": q.grad, "d_k": k.grad, "d_v": v.grad}
        arrays[f"{name}@causal"] = np.int32(causal)
        arrays |= {f"{name}/{key}": value for key, value in inputs.items()}
        arrays |= {f"{name}/{key}": value.numpy() for key, value in results.items()}
    return arrays, {"made_by": "tests/golden/golden_attention.py"}


if __name__ == "__main__":
    golden_io.run(__doc__, Path(__file__).parent / "attention.h5", make)
