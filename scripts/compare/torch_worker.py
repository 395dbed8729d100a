#!/usr/bin/env python3
"""PyTorch's side of a comparison, as a process of its own, ended when its memory is needed: on a GPU, or where it sees none on a CPU.

Reads one JSON object per line from stdin and answers each with one line on stdout. Both sides of a comparison take
turns in one call; this process keeps its models and compiled code between its turns, and works only when asked.

    {"do": "attention", "cases": [...], "backends": [...], "passes": [...], "timing": {...}}  (the arguments of `timed`)
    {"do": "error", ...}      errors of PyTorch's attention and of ours against float64
    {"do": "model", ...}      builds and compiles a transformer in each mode, and lays it aside in host memory
    {"do": "wake"}            brings it back, with an optimizer
    {"do": "step", "mode": m, "clips": b, "repeats": n, "warmup_ms": n}   times it; modes are "eager" and those of torch.compile
    {"do": "stop"}

Every time is taken with events of the GPU around a call, many calls in the queue at once, or by the clock of a CPU; medians in
milliseconds, beside each "NAME" its standard deviation as "NAME_std".
"""
import json
import math
import os
import statistics
import sys
import time

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from verdicts import NOT_COMPILED, NOT_RECORDED  # beside this file

BACKENDS = {"FLASH": SDPBackend.FLASH_ATTENTION, "CUDNN": SDPBackend.CUDNN_ATTENTION, "MATH": SDPBackend.MATH,
            "EFFICIENT": SDPBackend.EFFICIENT_ATTENTION}
EAGER, STORED = "EAGER", "STORED"  # two more, which store the scores: as written, and compiled, which fuses what is not a product
IS_GPU = torch.cuda.is_available()
DEVICE = "cuda" if IS_GPU else "cpu"
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32, "tf32": torch.float32}


def fence():
    if IS_GPU:
        torch.cuda.synchronize()


class HostMark:
    """A moment on a CPU, where a call returns when its work is done; used as an event of a GPU is."""

    def record(self):
        self.s = time.perf_counter()

    def elapsed_time(self, later):
        return 1e3 * (later.s - self.s)


def marks_of(count):
    return [torch.cuda.Event(enable_timing=True) if IS_GPU else HostMark() for _ in range(count)]


def timed(call, repeats, warmup, warmup_ms, rest_ms, row_limit_s):
    """Median and standard deviation of the milliseconds of `call`, measured as time_repeats of our bench jobs does."""
    call()  # makes plans, allocates memory
    fence()
    time.sleep(1e-3 * rest_ms)
    begin, once_s, count = time.perf_counter(), math.inf, 2  # this call, and the one that the repeats wait behind
    while count < warmup or 1e3 * (time.perf_counter() - begin) < warmup_ms:
        before = time.perf_counter()
        call()
        fence()
        once_s = min(once_s, time.perf_counter() - before)
        count += 1
    if 0 < row_limit_s < once_s * repeats < math.inf:  # 0: no limit
        repeats = max(1, int(row_limit_s / once_s))
    call()  # so that the first counted call finds the queue busy
    return middle(queued(call, repeats))


def middle(times):
    return statistics.median(times), statistics.stdev(times) if len(times) > 1 else 0.0


def named(name, median_and_std):
    return dict(zip((name, f"{name}_std"), median_and_std))


def queued(call, repeats):
    """Milliseconds of each call, by events around it, all in the queue."""
    marks = list(zip(marks_of(repeats), marks_of(repeats)))
    for first, last in marks:
        first.record()
        call()
        last.record()
    fence()
    return [first.elapsed_time(last) for first, last in marks]


def spaced(call, repeats, warmup, warmup_ms=0):
    """Median and standard deviation of the milliseconds from the end of one call to the end of the next, as steps of a run follow each other,
    after at least so many calls, and milliseconds, of warm-up."""
    begin, count = time.perf_counter(), 0
    while count < warmup or 1e3 * (time.perf_counter() - begin) < warmup_ms:
        call()
        count += 1
        if warmup_ms > 0:
            fence()
    marks = marks_of(repeats + 1)
    marks[0].record()
    for mark in marks[1:]:
        call()
        mark.record()
    fence()
    return middle([a.elapsed_time(b) for a, b in zip(marks, marks[1:])])


# --- attention

def tensors_of(case, dtype):
    shape = (case["B"], case["H"], case["T"], case["D"])
    torch.manual_seed(1)
    q, k, v = (torch.randn(shape, device=DEVICE, dtype=dtype, requires_grad=True) for _ in range(3))
    return q, k, v, torch.randn(shape, device=DEVICE, dtype=dtype)


def stored_attention(q, k, v, causal):
    scores = (q @ k.transpose(-2, -1)) / math.sqrt(q.shape[3])
    if causal:
        position = torch.arange(q.shape[2], device=q.device)
        scores = scores.masked_fill(position[None, :] > position[:, None], -math.inf)
    return torch.softmax(scores, -1) @ v


def attention(request):
    """[{backend: {pass: ms, pass_std: ms} or {"failed": why}}] for each case; passes are "forward", "backward", "both"."""
    answers = []
    for case in request["cases"]:
        q, k, v, d_out = tensors_of(case, DTYPES[case.get("dtype", "bf16")])
        torch.backends.cuda.matmul.allow_tf32 = case.get("dtype") == "tf32"
        answer = {}
        for backend in case.get("backends", request["backends"]):
            if backend == STORED:
                torch._dynamo.reset()  # allow_tf32 may have changed
                torch._functorch.config.donated_buffer = False  # backward runs many times
            stored = {EAGER: lambda: stored_attention, STORED: lambda: torch.compile(stored_attention)}.get(backend, lambda: None)()

            def forward():
                return stored(q, k, v, case["causal"]) if stored else F.scaled_dot_product_attention(q, k, v, is_causal=case["causal"])

            try:
                with sdpa_kernel(BACKENDS.get(backend, SDPBackend.MATH)):
                    out = forward()
                    calls = {"forward": forward,
                             "backward": lambda: torch.autograd.grad(out, (q, k, v), d_out, retain_graph=True),
                             "both": lambda: torch.autograd.grad(forward(), (q, k, v), d_out)}
                    answer[backend] = {}
                    for each in request["passes"]:
                        answer[backend] |= named(each, timed(calls[each], **request["timing"]))
            except (RuntimeError, torch.cuda.OutOfMemoryError) as error:
                answer[backend] = {"failed": str(error).splitlines()[0][:120]}
            out = calls = None  # or the graph of one that failed takes the memory of the next
        answers.append(answer)
        del q, k, v, d_out
        torch.cuda.empty_cache()
    return answers


def exact_attention(q, k, v, d_out, causal):
    """The same in float64, head by head, straight from the definition; causal is bottom-right."""
    results = [torch.empty_like(x, dtype=torch.float64) for x in (q, q, k, v)]
    queries, keys = q.shape[2], k.shape[2]
    hidden = torch.ones(queries, keys, dtype=torch.bool, device=q.device).triu(keys - queries + 1) if causal else None
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            inputs = [x[b, h].double().detach().requires_grad_() for x in (q, k, v)]
            scores = inputs[0] @ inputs[1].T / math.sqrt(q.shape[3])
            if causal:
                scores = scores.masked_fill(hidden, -math.inf)
            out = torch.softmax(scores, -1) @ inputs[2]
            for result, value in zip(results, (out, *torch.autograd.grad(out, inputs, d_out[b, h].double()))):
                result[b, h] = value.detach()
    return results


def error(request):
    """Writes the inputs that verify.attention reads, then compares what it wrote, and PyTorch's own, with float64.

    With "inputs": writes them and answers at once. With "ours": {name: file}; answers {name: {tensor: error}} where
    an error is |x - exact| / |exact| in the Frobenius norm.
    """
    import h5py
    import numpy as np

    case = request["case"]
    dtype = DTYPES[case.get("dtype", "bf16")]
    q, k, v, d_out = tensors_of(case, dtype)
    if "inputs" in request:
        with h5py.File(request["inputs"], "w") as file:
            for name, x in zip(("q", "k", "v", "d_out"), (q, k, v, d_out)):
                file[name] = x.detach().float().cpu().numpy()
            file.attrs["causal"] = np.int64(case["causal"])
        return "written"
    names = ("out", "d_q", "d_k", "d_v")
    exact = exact_attention(q, k, v, d_out, case["causal"])

    def errors(tensors):
        return {name: ((x.double() - e).norm() / e.norm()).item() for name, x, e in zip(names, tensors, exact)}

    answer = {}
    for backend in request["backends"]:
        with sdpa_kernel(BACKENDS[backend]):
            out = F.scaled_dot_product_attention(q, k, v, is_causal=case["causal"])
            answer[backend] = errors((out, *torch.autograd.grad(out, (q, k, v), d_out)))
    for name, path in request["ours"].items():
        with h5py.File(path, "r") as file:
            answer[name] = errors([torch.from_numpy(file[tensor][...]).cuda() for tensor in names])
    return answer


# --- the model: README.md's table of tensors, one class

class Block(torch.nn.Module):
    def __init__(self, C, H, F_):
        super().__init__()
        self.heads = H
        self.norm1, self.norm2 = torch.nn.RMSNorm(C, eps=1e-5), torch.nn.RMSNorm(C, eps=1e-5)
        linear = lambda i, o: torch.nn.Linear(i, o, bias=False)
        self.qkv, self.out, self.gate_up, self.down = linear(C, 3 * C), linear(C, C), linear(C, 2 * F_), linear(F_, C)

    def forward(self, x, cos, sin):
        B, T, C = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(B, T, 3, self.heads, -1).unbind(2)
        q, k, v = turned(q, cos, sin).transpose(1, 2), turned(k, cos, sin).transpose(1, 2), v.transpose(1, 2)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(B, T, C))
        gate, up = self.gate_up(self.norm2(x)).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)


def turned(x, cos, sin):
    """x [B,T,H,D]: the pairs (x[2i], x[2i+1]) turned by the angle of their position."""
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(-2).type_as(x)


class Model(torch.nn.Module):
    def __init__(self, V, T, C, L, H, F_):
        super().__init__()
        self.embedding = torch.nn.Embedding(V, C)
        self.blocks = torch.nn.ModuleList(Block(C, H, F_) for _ in range(L))
        self.norm, self.head = torch.nn.RMSNorm(C, eps=1e-5), torch.nn.Linear(C, V, bias=False)
        angle = torch.arange(T)[:, None] * 10000.0 ** (-torch.arange(0, C // H, 2) * H / C)
        self.register_buffer("cos", angle.cos()[:, None, :])
        self.register_buffer("sin", angle.sin()[:, None, :])

    def forward(self, tokens, targets):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        return self.loss(x, targets)

    def loss(self, x, targets):
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), targets.flatten())


ADAMW = {"lr": 3e-4, "betas": (0.9, 0.95), "fused": True}


class Training:
    """A model with its optimizer, as we train ours: bf16 autocast (or fp32, or TF32), fused AdamW, the whole gradient clipped to 1 or not.

    Inputs are the same tensors in every step. With "reduce-overhead", losses and gradients lie in the graphs' memory and
    are gone when the next step begins: each step drops them and says so before its forward pass.
    """

    def __init__(self, request, device=DEVICE):
        torch.manual_seed(1)
        dtype = request.get("dtype", "bf16")
        torch.set_float32_matmul_precision("highest" if dtype == "fp32" else "high")
        self.device, self.has_autocast = device, dtype == "bf16"
        with torch.device(device):
            self.model = Model(*(request[key] for key in ("V", "T", "C", "L", "H", "F")))
            ids = torch.randint(request["V"], (request["B"], request["T"] + 1))
        self.tokens, self.targets = ids[:, :-1].contiguous(), ids[:, 1:].contiguous()
        self.runs = {"eager": self.model}  # {mode: the model in that mode}
        self.faults = {}                   # {mode: why there is none}
        self.run = self.model
        self.optimizer = None

    def compile(self, mode):
        """Runs the model once, which compiles it."""
        self.run = torch.compile(self.model, mode=mode)
        self.forward_backward()
        fence()
        self.drop_gradients()
        self.runs[mode] = self.run

    def parameter_groups(self):
        decayed = [p for p in self.model.parameters() if p.dim() > 1]
        gains = [p for p in self.model.parameters() if p.dim() == 1]
        return [{"params": decayed, "weight_decay": 0.1}, {"params": gains, "weight_decay": 0.0}]

    def make_optimizer(self):
        self.optimizer = torch.optim.AdamW(self.parameter_groups(), **ADAMW)

    def forward(self):
        with torch.autocast(self.device, torch.bfloat16, enabled=self.has_autocast):
            return self.run(self.tokens, self.targets)

    def drop_gradients(self):
        for p in self.model.parameters():
            p.grad = None

    def forward_backward(self):
        self.drop_gradients()
        torch.compiler.cudagraph_mark_step_begin()
        self.forward().backward()

    def step(self, clips=True):
        self.forward_backward()
        if clips:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()


training = None


def model(request):
    """Compiles the model in each mode but "eager" by running it once, then takes its memory off the GPU.

    {"seconds": that took, "parameters": n, "faults": ["mode: why it cannot be timed"]}
    """
    global training
    begin = time.perf_counter()
    training = Training(request)
    for mode in request["modes"]:
        if mode in training.runs:
            continue
        try:
            training.compile(mode)
        except Exception as fault:  # the other modes can still be timed
            training.drop_gradients()
            training.faults[mode] = said(fault)
    faults = [f"{mode}: {why}" for mode, why in training.faults.items()]
    if not training.runs.keys() & request["modes"]:
        raise RuntimeError("; ".join(faults))
    training.model.to("cpu")
    torch.cuda.empty_cache()
    return {"seconds": time.perf_counter() - begin, "parameters": sum(p.numel() for p in training.model.parameters()), "faults": faults}


free_before = 0  # bytes of the GPU's memory before this process takes its own


def wake(_):
    global free_before
    free_before = torch.cuda.mem_get_info()[0] if IS_GPU else 0
    training.model.to(DEVICE)
    training.make_optimizer()
    training.run = training.runs.get("default", training.model)
    training.step()
    training.drop_gradients()
    torch.cuda.empty_cache()


def step(request):
    """{"step": ms; on a GPU "peak_mib": tensors alone, "taken_mib": of its memory}; clipped, in the default mode and eager
    also "forward_backward" and "forward" (a graph of a forward pass alone would be another graph)."""
    mode, repeats, warmup_ms = request["mode"], request["repeats"], request.get("warmup_ms", 0)
    if mode not in training.runs:
        raise RuntimeError(NOT_COMPILED + training.faults.get(mode, f"the mode {mode} was not asked for"))
    training.run = training.runs[mode]
    is_recorded = mode == "reduce-overhead"
    try:
        if IS_GPU:
            torch.cuda.reset_peak_memory_stats()
        answer = named("step", spaced(lambda: training.step(request["clips"]), repeats, 6 if is_recorded else 3, warmup_ms))  # records in the first ones
        if is_recorded and (skipped := torch._dynamo.utils.counters["inductor"]["cudagraph_skips"]):
            raise RuntimeError(f"{skipped} {NOT_RECORDED}, so that this is not the mode that was asked for")
        if IS_GPU:
            answer["peak_mib"] = torch.cuda.max_memory_allocated() / 2**20
            answer["taken_mib"] = (free_before - torch.cuda.mem_get_info()[0]) / 2**20
        if request["clips"] and not is_recorded:
            answer |= named("forward_backward", spaced(training.forward_backward, repeats, 1, warmup_ms))
            answer |= named("forward", spaced(training.forward, repeats, 1, warmup_ms))
    finally:
        training.drop_gradients()
        torch.cuda.empty_cache()  # the other side's turn
    return answer


def said(fault):
    """The type of a fault and the first line of its message."""
    return f"{type(fault).__name__}: {str(fault).splitlines()[0] if str(fault) else ''}"[:300]


def serve(works):
    """Answers requests until stdin ends or one says stop; `works`: {"do" of a request: what answers it}."""
    answers = os.fdopen(os.dup(1), "w")  # what libraries print goes to stderr instead of between our answers
    os.dup2(2, 1)
    for line in sys.stdin:
        request = json.loads(line)
        if request["do"] == "stop":
            break
        try:
            answer = {"answer": works[request["do"]](request)}
        except Exception as failure:  # reported to the other side, which decides
            answer = {"failed": said(failure)}
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    serve({"attention": attention, "error": error, "model": model, "wake": wake, "step": step})
