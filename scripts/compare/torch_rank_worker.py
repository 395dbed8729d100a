#!/usr/bin/env python3
"""One rank of PyTorch's side where several processes share a step: scripts/compare_torch --only strategies.

Every rank gets the same requests, in the protocol of torch_worker.py, whose model and training it uses. RANK,
WORLD_SIZE and LOCAL_RANK say which one this is, MEETING names a file that does not exist yet, through which the ranks
find each other; BACKEND is "nccl" (GPUs) or "gloo" (CPUs).

    {"do": "comm", "operations": [...], "mbytes": [...], "warmup": n, "repeats": n}
                              times collective operations; seconds of the whole message, as nccl-tests count it
    {"do": "model", ...}      builds and compiles a transformer: "sharing" is "alone", "ddp" or "fsdp"; "compiled" is
                              "blocks" (each block, and the head with its loss), "whole" or "eager" (not at all)
    {"do": "step", "optimizer": "adamw" | "zero", "reshards": b, "warmup": n, "repeats": n}

DDP sums gradients in bf16 through bf16_compress_hook, in buckets of 25 MB; its weights are fp32 under autocast. FSDP2
gathers and reduces in bf16 by its MixedPrecisionPolicy. "zero" is ZeroRedundancyOptimizer around AdamW.
"""

import os
import statistics
import time
from functools import partial

import torch
import torch.distributed as dist
from torch_worker import ADAMW, BACKENDS, Training, queued, sdpa_kernel, serve, spaced

RANK, RANKS, LOCAL_RANK = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
IS_GPU = os.environ["BACKEND"] == "nccl"
DEVICE = "cuda" if IS_GPU else "cpu"


def fence():
    if IS_GPU:
        torch.cuda.synchronize()


def meet():
    """The ranks stand at the same place, and this one's device has nothing left to do."""
    fence()
    dist.barrier()
    fence()


# --- collective operations


def part_of(whole):
    """This rank's part of a message, in place."""
    count = whole.numel() // RANKS
    return whole[RANK * count : (RANK + 1) * count]


OPERATIONS = {
    "all_reduce": lambda x: dist.all_reduce(x),
    "reduce_scatter": lambda x: dist.reduce_scatter_tensor(part_of(x), x),
    "all_gather": lambda x: dist.all_gather_into_tensor(x, part_of(x)),
    "broadcast": lambda x: dist.broadcast(x, 0),
}


def times_of(call, repeats):
    """Seconds of each of `repeats` calls: on GPUs by events around them, all in the queue; else by the clock."""
    if not IS_GPU:
        seconds = []
        for _ in range(repeats):
            dist.barrier()
            begin = time.perf_counter()
            call()
            seconds.append(time.perf_counter() - begin)
        return seconds
    call()  # the queue that the first counted call finds
    return [1e-3 * ms for ms in queued(call, repeats)]


def comm(request):
    """[{"operation", "mbyte", "bytes", "seconds"}]: the mean over the repeats of the slowest rank's time."""
    answer = []
    for mbyte in request["mbytes"]:
        count = int(mbyte * 1e6) // (16 * RANKS) * 16 * RANKS // 4
        message = torch.zeros(count, device=DEVICE)  # fp32; zeros, so that repeated sums do not grow
        for name in request["operations"]:
            call = partial(OPERATIONS[name], message)
            for _ in range(request["warmup"]):
                call()
            meet()
            seconds = torch.tensor(times_of(call, request["repeats"]), dtype=torch.float64, device=DEVICE)
            dist.all_reduce(seconds, op=dist.ReduceOp.MAX)
            answer.append({"operation": name, "mbyte": mbyte, "bytes": 4 * count, "seconds": seconds.mean().item()})
        del message
        if IS_GPU:
            torch.cuda.empty_cache()
    return answer


# --- steps


def keeps_attention():
    """A recomputation that keeps what attention has written, as recompute = "all_but_attention" does."""
    from torch.utils.checkpoint import create_selective_checkpoint_contexts

    kernels = torch.ops.aten
    kept = [kernels._scaled_dot_product_cudnn_attention.default, kernels._scaled_dot_product_flash_attention.default]
    return create_selective_checkpoint_contexts(kept)


class RankTraining(Training):
    """A rank's training: `sharing` with the other ranks, each with B sequences of its own."""

    def __init__(self, request):
        super().__init__(request, DEVICE)
        self.sharing, self.state = request["sharing"], request["state"]
        self.attention = BACKENDS.get(request["attention"])  # None: PyTorch chooses
        self.kind = None  # of the optimizer
        if self.state == "bf16":
            self.model.to(torch.bfloat16)
        blocks, by_block = self.model.blocks, request["compiled"] == "blocks"
        for i, block in enumerate(blocks):
            if request["recompute"]:
                from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

                block = checkpoint_wrapper(block, context_fn=keeps_attention, preserve_rng_state=False)
            blocks[i] = torch.compile(block) if by_block else block
        if by_block:
            self.model.loss = torch.compile(self.model.loss)
        shared = {"alone": lambda: self.model, "ddp": self.replicated, "fsdp": self.sharded}[self.sharing]()
        self.run = torch.compile(shared) if request["compiled"] == "whole" else shared

    def replicated(self):
        from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook

        ddp = torch.nn.parallel.DistributedDataParallel(
            self.model,
            device_ids=[LOCAL_RANK] if IS_GPU else None,
            bucket_cap_mb=25,
            gradient_as_bucket_view=True,
            broadcast_buffers=False,
        )
        ddp.register_comm_hook(None, bf16_compress_hook)
        return ddp

    def sharded(self):
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        mesh = init_device_mesh(DEVICE, (RANKS,))
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
        for block in self.model.blocks:
            fully_shard(block, mesh=mesh, mp_policy=policy)
        return fully_shard(self.model, mesh=mesh, mp_policy=policy)

    def forward(self):
        if self.sharing == "fsdp":  # its policy has cast weights and inputs
            return self.run(self.tokens, self.targets)
        return super().forward()

    def forward_backward(self):
        if self.attention is None:
            return super().forward_backward()
        with sdpa_kernel(self.attention):
            super().forward_backward()

    def use(self, kind, reshards):
        """Makes the optimizer of that kind unless it is there; `reshards`: FSDP2's blocks after their forward pass."""
        if self.sharing == "fsdp":
            for block in self.model.blocks:
                block.set_reshard_after_forward(reshards, recurse=False)
        if kind == self.kind:
            return
        self.optimizer, self.kind = None, kind
        if kind == "zero":
            from torch.distributed.optim import ZeroRedundancyOptimizer

            self.optimizer = ZeroRedundancyOptimizer(
                self.parameter_groups(), optimizer_class=torch.optim.AdamW, parameters_as_bucket_view=True, **ADAMW
            )
        else:
            self.make_optimizer()

    def optimizer_bytes(self):
        """Of the moments that this rank has."""
        optimizer = self.optimizer.optim if self.kind == "zero" else self.optimizer
        tensors = [x for state in optimizer.state.values() for x in state.values() if torch.is_tensor(x)]
        local = [x.to_local() if hasattr(x, "to_local") else x for x in tensors]
        return sum(x.numel() * x.element_size() for x in local)


training = None


def model(request):
    """Compiles the model by running it once; {"seconds": that took, "parameters": of the whole model}."""
    global training
    begin = time.perf_counter()
    training = RankTraining(request)
    parameters = sum(p.numel() for p in training.model.parameters())
    training.forward_backward()
    fence()
    release()
    return {"seconds": time.perf_counter() - begin, "parameters": parameters}


def release():
    training.drop_gradients()
    if IS_GPU:
        torch.cuda.empty_cache()


def step_times(repeats, warmup):
    """Median milliseconds of a step."""
    if IS_GPU:
        return spaced(training.step, repeats, warmup)[0]
    times = []
    for _ in range(warmup + repeats):
        begin = time.perf_counter()
        training.step()
        times.append(1e3 * (time.perf_counter() - begin))
    return statistics.median(times[warmup:])


def step(request):
    """{"step": ms, "peak_mib": tensors, "optimizer_mib": moments} of this rank."""
    training.use(request["optimizer"], request["reshards"])
    training.step()  # makes the moments
    meet_here = fence if training.sharing == "alone" else meet
    meet_here()
    if IS_GPU:
        torch.cuda.reset_peak_memory_stats()
    answer = {
        "step": step_times(request["repeats"], request["warmup"]),
        "optimizer_mib": training.optimizer_bytes() / 2**20,
        "peak_mib": torch.cuda.max_memory_allocated() / 2**20 if IS_GPU else None,
    }
    meet_here()
    training.optimizer = training.kind = None  # the other side's turn
    release()
    return answer


if __name__ == "__main__":
    if IS_GPU:
        torch.cuda.set_device(LOCAL_RANK)
    dist.init_process_group(
        os.environ["BACKEND"],
        init_method=f"file://{os.environ['MEETING']}",
        rank=RANK,
        world_size=RANKS,
        device_id=torch.device("cuda", LOCAL_RANK) if IS_GPU else None,
    )
    serve({"comm": comm, "model": model, "step": step})
    os._exit(0)  # without the exchange of a tidy end, for which another rank may be gone
