"""scripts/compare_torch --only strategies: how ranks share a step, ours and PyTorch's on the same GPUs in one call.

Cases, in this order (--cases picks some, separated by commas; 8b runs only where it is named):

    comm        bus bandwidth of collective operations at --mbytes, by NCCL's ring and by copy
                engines, beside PyTorch's NCCL
    orders      steps of --sizes, 4 x 512 tokens per GPU: percent of linear for our four orders of summing, and for DDP
                with bf16_compress_hook
    zero1       size xl: ZeRO-1 against `bucket`, beside ZeroRedundancyOptimizer and FSDP2 that shards no parameters
    parameters  size 2.7b, 8 x 512 per GPU: parameters sharded, beside FSDP2 with and without resharding
    8b          the leaderboard's step, one sequence of 32,768 tokens per GPU, beside FSDP2

The models of PyTorch are compiled before anything is timed, by default block by block (--compile blocks,whole adds
models compiled as a whole; eager ones serve tests). Of PyTorch's variants all are timed in the first round and the
fastest in the others. Multicast over NVLink is off on both sides unless NCCL_NVLS_ENABLE says otherwise.
"""

import os
import signal
import time
from pathlib import Path

import places  # scripts/, where compare_torch is
from compare import plots, strategy_cases, strategy_steps
from compare.findings import Findings
from compare.sides import CutShort, Failed, Ours, Report, cut_short, machine
from compare.strategy_setup import SIZES, Setup

FILE = "strategies.json"
CASES = ("comm", "orders", "zero1", "parameters", "8b")
COMPILED = ("blocks", "whole", "eager")
NO_MULTICAST = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NVSHMEM_DISABLE_NVLS": "1"}
COMPILE_LIMIT = {"blocks": 180, "whole": 360, "eager": 180}  # [s] for all models of a call together


def numbers_of(text):
    return [int(word) for word in text.split(",")]


def fault_of(arguments):
    """What is wrong with the command line; None if nothing is."""
    for option, known in (("cases", CASES), ("compile", COMPILED)):
        if not set(getattr(arguments, option).split(",")) <= set(known):
            return f"--{option} takes {', '.join(known)}"
    for option, least in (("ranks", 2), ("mbytes", 1)):
        text = getattr(arguments, option)
        try:
            if text and min(numbers_of(text)) < least:
                raise ValueError
        except ValueError:
            return f"--{option} takes whole numbers from {least}, separated by commas"
    if not set(arguments.sizes.split(",")) <= set(SIZES):
        return f"--sizes takes {', '.join(SIZES)}"
    return None


def blocks_of(setup, arguments, counts):
    """Everything that is measured side by side, in order."""
    cases, blocks = arguments.cases.split(","), []
    sizes = arguments.sizes.split(",") if setup.is_gpu else ["deck"]
    zero_size = strategy_steps.ZERO_SIZE if setup.is_gpu else "deck"
    for ranks in counts:
        if "comm" in cases:
            blocks.append(strategy_cases.comm(setup, ranks))
        for size in sizes if "orders" in cases else []:
            blocks.append(
                strategy_steps.steps_on_ranks(setup, size, ranks, True, "zero1" in cases and size == zero_size)
            )
        if "zero1" in cases and not ("orders" in cases and zero_size in sizes):
            blocks.append(strategy_steps.steps_on_ranks(setup, zero_size, ranks, False, True))
        if "parameters" in cases:
            blocks.append(strategy_steps.parameters(setup, ranks))
        if "8b" in cases:
            blocks.append(strategy_cases.eight_b(setup, ranks))
    return blocks


def prepare(block, limit, say):
    """Starts PyTorch's processes and compiles a block's models side by side; a failure is told again by its turn."""
    begin = time.perf_counter()

    def on_each(work):
        for torch, request in block.models:
            try:
                work(torch, request)
            except Failed as reason:
                say(f"PyTorch, {torch.name}: {reason}")

    def send(torch, request):
        torch.send(**request) if request else torch.start()

    def receive(torch, request):
        if request and not torch.reason:
            seconds = max(answer["seconds"] for answer in torch.receive(max(1, begin + limit - time.perf_counter())))
            say(f"PyTorch, {torch.name}: ready, {seconds:.0f} s of building and compiling")

    on_each(send)
    on_each(receive)


def measure(blocks, rounds, limit, deadline, findings, say, keep):
    """Runs every block. The models of one block lie on the GPUs together; all blocks' would not fit."""
    for block in blocks:
        try:
            if time.perf_counter() > deadline:
                say(f"{block.name}: left out, the time is spent")
            else:
                prepare(block, limit, say)
                block.run(rounds, deadline, say)
        finally:
            block.stop()
            block.conclude(findings)
            keep()


def main(arguments, program):
    """0 compared, 3 not enough GPUs, else the code of what failed on our side."""
    begin = time.perf_counter()
    say = lambda text: print(f"[{time.perf_counter() - begin:6.1f} s] {text}", flush=True)
    for name, value in NO_MULTICAST.items():
        os.environ.setdefault(name, value)
    is_gpu = not arguments.quick
    here = places.gpus() if is_gpu else len(os.sched_getaffinity(0))
    counts = numbers_of(arguments.ranks) if arguments.ranks else [here if is_gpu else 2]
    if is_gpu and max(counts) > here or max(counts) < 2:
        print(
            f"compare_torch: strategies on {max(counts)} GPUs: this machine has {here}; "
            "--ranks 2 needs two, and --quick compares two ranks on a host, to test this script"
        )
        return 3
    if not is_gpu:
        say("--quick: two small models on host ranks; their ratios say nothing of GPUs")

    folder = Path(arguments.output)
    report, findings = Report(folder, FILE), Findings()
    report.info |= machine(program, is_gpu)
    compiled = arguments.compile.split(",") if is_gpu else ["eager"]
    setup = Setup(
        Ours(program, arguments.ours),
        folder / "torch_logs",
        is_gpu,
        numbers_of(arguments.mbytes) if is_gpu else [1, 4],
        compiled,
        *((5, arguments.repeats) if is_gpu else (1, 2)),
    )
    blocks = blocks_of(setup, arguments, counts)
    keep = lambda: report.keep("strategies", {**findings.data(), "command": vars(arguments)})
    signal.signal(signal.SIGTERM, cut_short)
    try:
        measure(
            blocks,
            min(arguments.rounds, 3) if is_gpu else 2,
            max(COMPILE_LIMIT[each] for each in compiled),
            begin + arguments.budget,
            findings,
            say,
            keep,
        )
    except CutShort:
        say("cut short")
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # nothing may cut the table short
        for block in blocks:
            block.stop()
            block.conclude(findings)
        keep()
    print("\n" + findings.table(), flush=True)
    plots.draw(report)
    return findings.code or (0 if any(row["ours"] is not None for row in findings.rows) else 3)
