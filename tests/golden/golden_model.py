#!/usr/bin/env python3
"""Makes model.h5: what a small transformer must compute, by an independent implementation.

PyTorch in float64, plain arithmetic (no fused attention, no layer from torch.nn), gradients by autograd.

    python3 tests/golden/golden_model.py            writes tests/golden/model.h5 (needs torch and h5py)
    python3 tests/golden/golden_model.py --check    recomputes and compares

Contents (the layout that verify.model reads and writes):
    tokens         int32   [B,T+1]   inputs tokens[:, :T], targets tokens[:, 1:]
    params/<label> float32           labels and shapes in parameter_shapes()
    logits         float64 [B,T,V]
    loss           float64 []        mean cross-entropy over all B*T targets, nats
    grads/<label>  float64           d loss / d params
    train/tokens    int32   [S,B,T+1]   one batch per step
    train/loss      float64 [S]         loss of step s, before its update
    train/grad_norm float64 [S]         2-norm of the whole gradient, before clipping
    train/params/<label> float64        after S steps
Numbers of the model and the optimizer are root attributes.
"""
import math
from pathlib import Path

import numpy as np
import torch

import golden_io

MODEL = dict(vocab_size=61, context_length=24, d_model=32, num_heads=4, num_layers=2, d_ff=48, rope_theta=10000.0, norm_eps=1e-5)
# The gradient's norm crosses clip_norm on the way, so steps with and without clipping occur.
# eps is large because Adam's first steps are otherwise signs of gradients, and a sign hides a wrong gradient or doubles a rounding.
OPTIMIZER = dict(steps=20, learning_rate=1e-2, beta1=0.9, beta2=0.95, eps=1e-3, weight_decay=0.1, clip_norm=2.2)
BATCH = 3


def parameter_shapes():
    V, C, F, L = MODEL["vocab_size"], MODEL["d_model"], MODEL["d_ff"], MODEL["num_layers"]
    shapes = {"embedding.weight": (V, C)}
    for i in range(L):
        shapes |= {
            f"block.{i:02d}.attn.norm.gain": (C,),
            f"block.{i:02d}.attn.qkv.weight": (3 * C, C),  # rows: heads of q, of k, of v
            f"block.{i:02d}.attn.out.weight": (C, C),
            f"block.{i:02d}.mlp.norm.gain": (C,),
            f"block.{i:02d}.mlp.gate_up.weight": (2 * F, C),  # rows: gate, up
            f"block.{i:02d}.mlp.down.weight": (C, F),
        }
    return shapes | {"head.norm.gain": (C,), "head.weight": (V, C)}


def initial_parameters(rng):
    """Large enough that attention is far from uniform and every gradient matters; exact in float32."""
    values = {}
    for label, shape in parameter_shapes().items():
        if label.endswith("gain"):
            value = 1 + 0.2 * rng.standard_normal(shape)
        else:
            value = rng.standard_normal(shape) / math.sqrt(MODEL["d_model"])
        values[label] = value.astype(np.float32)
    return values


def batches(rng, count):
    """Noisy affine sequences: something to learn, every token of the vocabulary in use."""
    V, T = MODEL["vocab_size"], MODEL["context_length"]
    tokens = np.empty((count, BATCH, T + 1), np.int32)
    tokens[:, :, 0] = rng.integers(0, V, (count, BATCH))
    for t in range(T):
        noise = rng.random((count, BATCH)) < 0.15
        tokens[:, :, t + 1] = np.where(noise, rng.integers(0, V, (count, BATCH)), (5 * tokens[:, :, t] + 7) % V)
    return tokens


def rmsnorm(x, gain):
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + MODEL["norm_eps"]) * gain


def rope(x):
    """x [B,H,T,D]: rotates the pairs (x[2i], x[2i+1]) by t * theta^(-2i/D)."""
    T, D = x.shape[-2:]
    frequency = MODEL["rope_theta"] ** (-torch.arange(0, D, 2, dtype=torch.float64) / D)
    angle = torch.arange(T, dtype=torch.float64)[:, None] * frequency
    cos, sin, even, odd = angle.cos(), angle.sin(), x[..., 0::2], x[..., 1::2]
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(-2)


def attention(x, qkv_weight, out_weight):
    B, T, C = x.shape
    H, D = MODEL["num_heads"], C // MODEL["num_heads"]
    q, k, v = ((x @ qkv_weight.T)[..., i * C:(i + 1) * C].view(B, T, H, D).transpose(1, 2) for i in range(3))
    scores = rope(q) @ rope(k).transpose(-1, -2) / math.sqrt(D)
    visible = torch.ones(T, T, dtype=torch.bool).tril()
    weights = torch.exp(scores - scores.masked_fill(~visible, -math.inf).amax(-1, keepdim=True).detach()) * visible
    out = weights / weights.sum(-1, keepdim=True) @ v
    return out.transpose(1, 2).reshape(B, T, C) @ out_weight.T


def mlp(x, gate_up_weight, down_weight):
    gate, up = (x @ gate_up_weight.T).split(MODEL["d_ff"], -1)
    return (gate / (1 + torch.exp(-gate)) * up) @ down_weight.T


def forward(params, tokens):
    """tokens [B,T+1] -> logits [B,T,V], mean loss."""
    x = params["embedding.weight"][tokens[:, :-1]]
    for i in range(MODEL["num_layers"]):
        p = {label[9:]: value for label, value in params.items() if label.startswith(f"block.{i:02d}.")}
        x = x + attention(rmsnorm(x, p["attn.norm.gain"]), p["attn.qkv.weight"], p["attn.out.weight"])
        x = x + mlp(rmsnorm(x, p["mlp.norm.gain"]), p["mlp.gate_up.weight"], p["mlp.down.weight"])
    logits = rmsnorm(x, params["head.norm.gain"]) @ params["head.weight"].T
    shifted = logits - logits.amax(-1, keepdim=True).detach()
    log_sum = torch.log(torch.exp(shifted).sum(-1))
    return logits, (log_sum - shifted.gather(-1, tokens[:, 1:, None])[..., 0]).mean()


def gradients(params, tokens):
    leaves = {label: torch.tensor(value, dtype=torch.float64, requires_grad=True) for label, value in params.items()}
    logits, loss = forward(leaves, torch.tensor(tokens, dtype=torch.int64))
    loss.backward()
    return logits.detach().numpy(), loss.item(), {label: leaf.grad.numpy() for label, leaf in leaves.items()}


def train(params, tokens):
    """AdamW (Loshchilov & Hutter 2019) with the whole gradient clipped; norm gains are not decayed."""
    o = OPTIMIZER
    params = {label: value.astype(np.float64) for label, value in params.items()}
    m = {label: np.zeros_like(value) for label, value in params.items()}
    v = {label: np.zeros_like(value) for label, value in params.items()}
    losses, norms = [], []
    for step, batch in enumerate(tokens, start=1):
        _, loss, grads = gradients(params, batch)
        norm = math.sqrt(sum((g * g).sum() for g in grads.values()))
        losses.append(loss)
        norms.append(norm)
        factor = min(1.0, o["clip_norm"] / norm)
        for label, g in grads.items():
            g = factor * g
            m[label] = o["beta1"] * m[label] + (1 - o["beta1"]) * g
            v[label] = o["beta2"] * v[label] + (1 - o["beta2"]) * g * g
            decay = 0.0 if label.endswith("gain") else o["weight_decay"]
            m_hat, v_hat = m[label] / (1 - o["beta1"] ** step), v[label] / (1 - o["beta2"] ** step)
            params[label] = params[label] * (1 - o["learning_rate"] * decay) - o["learning_rate"] * m_hat / (np.sqrt(v_hat) + o["eps"])
    return losses, norms, params


def make():
    rng = np.random.default_rng(20240520)
    params = initial_parameters(rng)
    tokens = batches(rng, 1 + OPTIMIZER["steps"])
    logits, loss, grads = gradients(params, tokens[0])
    losses, norms, trained = train(params, tokens[1:])
    arrays = {"tokens": tokens[0], "logits": logits, "loss": np.float64(loss)}
    arrays |= {f"params/{label}": value for label, value in params.items()}
    arrays |= {f"grads/{label}": value for label, value in grads.items()}
    arrays |= {"train/tokens": tokens[1:], "train/loss": np.array(losses), "train/grad_norm": np.array(norms)}
    arrays |= {f"train/params/{label}": value for label, value in trained.items()}
    return arrays, {"made_by": "tests/golden/golden_model.py", **MODEL, **OPTIMIZER}


if __name__ == "__main__":
    golden_io.run(__doc__, Path(__file__).parent / "model.h5", make)
