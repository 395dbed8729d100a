"""Whole steps, ours and PyTorch's: the sections `gpt2` and `steps` of gpu.py.

Our side is one graph; PyTorch's is torch.compile of forward and backward in each of MODES, with the fused AdamW and the
clipping of torch.nn.utils behind it. The default mode is bound by its host where steps are short; "reduce-overhead"
replays CUDA graphs, as we do. All are timed with the whole gradient clipped and without, and the ratio that counts is to
the fastest.
"""
import time

from compare.sides import Failed, Torch, deck, median, ratio_text, words
from compare.verdicts import cannot_run

SIZES = {"small": (768, 3072, 12, 12), "medium": (1024, 4096, 24, 16), "large": (1280, 5120, 36, 20),
         "xl": (1600, 6400, 48, 25), "2.7b": (2560, 10240, 32, 32)}  # C, F, L, H
VANILLA_SIZES = ("small", "medium", "large")  # where what graphs and compilers save is more than a few percent
MODES = ("default", "reduce-overhead")        # of torch.compile
WARMUP_MS = 200                               # before steps are timed; of ours the deck says so
UNCLIPPED = ", no clipping"                   # behind the name of what is timed without it
CLIPPING = {"": True, UNCLIPPED: False}

GPT2 = {"gpt2_124m": (530_000, 580_000), "gpt2_1558m": (48_400, 55_000)}  # at least; llm.c on an H200


STEP_NAME = 42  # columns


def step_line(what, row):
    return (f"{what:<{STEP_NAME}}{row['forward_ms']:>9.2f}{row['forward_backward_ms']:>9.2f}{row['optimizer_ms']:>8.2f}{row['step_ms']:>9.2f}"
            f"{row['tokens_per_s']:>12,.0f}{100 * row['mfu']:>7.1f} %{row['planned_mib']:>10.0f}{row['peak_mib']:>10.0f}  {row['outcome']}")


STEP_HEADER = (f"\n{'step (bf16)':<{STEP_NAME}}{'fwd ms':>9}{'f+b ms':>9}{'opt ms':>8}{'step ms':>9}{'tokens/s':>12}{'MFU':>9}"
               f"{'plan MiB':>10}{'peak MiB':>10}")


def promise_gpt2(report, _):
    for name, (least, aim) in GPT2.items():
        report.promise(f"{name} [tokens/s]", least, aim)


def gpt2(ours, torch, report, quick):
    print(STEP_HEADER)
    data = []
    for name, (of_llm_c, _) in GPT2.items():
        try:
            row = ours.run(deck(name), *(["bench.repeats=4"] if quick else []), *ours.step_overrides)[0]
            print(step_line(name, row), flush=True)
            data.append({"deck": name, "llm_c_tokens_per_s": of_llm_c, **row})
            report.found(f"{name} [tokens/s]", row["tokens_per_s"])
        except Failed as reason:
            report.failed(name, reason)
    report.keep("gpt2", data)


def course_model(size, dtype):
    """A model of the course, as torch_worker's `model` wants it."""
    C, F, L, H = SIZES[size]
    return {"size": size, "dtype": dtype, "V": 10000, "T": 512, "B": 4, "C": C, "F": F, "L": L, "H": H}


def compiled_side_by_side(models, modes=MODES, make_worker=Torch):
    """{key: a PyTorch process that has compiled its model in all modes} of {key: model}: compiling takes minutes of one
    core each. A model that runs in no mode is told and left out; why: the second result, {key: reason}."""
    begin = time.perf_counter()
    workers, reasons = {key: make_worker() for key in models}, {}

    def on_all(work):
        for key in list(workers):
            try:
                work(models[key], workers[key])
            except Failed as reason:
                print(f"  torch.compile of {models[key]['size']} in {models[key]['dtype']}: {reason}", flush=True)
                workers.pop(key).stop()
                reasons[key] = str(reason)

    def wait_for(model, worker):
        answer = worker.receive()
        print(f"  torch.compile of {model['size']} in {model['dtype']}: ready after {time.perf_counter() - begin:.0f} s", flush=True)
        for fault in answer["faults"]:
            print(f"  torch.compile of {model['size']} in {model['dtype']}, {fault}", flush=True)

    try:
        on_all(lambda model, worker: worker.send(do="model", modes=modes, **model))
        on_all(wait_for)
    except BaseException:  # a signal
        for worker in workers.values():
            worker.stop()
        raise
    return workers, reasons


class Size:
    """One size: what both sides took, round by round; `mine` and `theirs` are {what was timed: [one per round]}."""

    def __init__(self, name, ours, torch, repeats, modes=MODES, clipping=CLIPPING):
        self.name, self.ours, self.torch, self.repeats, self.clipping = name, ours, torch, repeats, clipping
        self.mine, self.theirs, self.failed = {}, {}, {}  # the last: {mode: why}
        self.modes = list(modes) if torch else []

    def our_turn(self, variant):
        for suffix in self.clipping if variant == "graph" else [""]:
            off = ["optimizer.clip_norm=0"] if suffix else []
            rows = self.ours.run(deck("step_gpu"), f"experiment.only={words(f'{variant}_{self.name}')}", f"bench.repeats={self.repeats}", *off, *self.ours.step_overrides)
            self.mine.setdefault(variant + suffix, []).append(rows[0])

    def their_turn(self, mode):
        """A mode that fails is reported and left out from then on; the others continue."""
        for suffix, clips in self.clipping.items() if mode in MODES else [("", True)]:
            try:
                answer = self.torch.ask(do="step", mode=mode, clips=clips, repeats=self.repeats, warmup_ms=WARMUP_MS)
            except Failed as reason:
                print(f"  {self.name}, {mode}{suffix}: {reason}", flush=True)
                self.modes = [other for other in self.modes if other != mode]
                self.failed[mode] = str(reason)
                return
            self.theirs.setdefault(mode + suffix, []).append(answer)

    def round(self, number):
        turns = [lambda: self.our_turn("graph")] + [lambda mode=mode: self.their_turn(mode) for mode in self.modes]
        for turn in turns if number % 2 == 0 else reversed(turns):
            turn()

    def vanilla(self):
        """The plain forms, once."""
        self.our_turn("plain")
        self.our_turn("fused")
        if self.torch:
            self.their_turn("eager")


def steps(ours, report, rounds, quick, sizes, deadline):
    """`deadline`: of time.perf_counter(); no round begins that would not end before it, by the longest one so far."""
    workers, _ = compiled_side_by_side({size: course_model(size, "bf16") for size in sizes})
    print(STEP_HEADER)
    data, longest = {}, 0.0
    for name in sizes:
        torch = workers.get(name)
        size = Size(name, ours, torch, repeats=10 if quick or name in ("xl", "2.7b") else 20)
        try:
            if torch:
                torch.ask(do="wake")
            for number in range(rounds):
                begin = time.perf_counter()
                if begin + (longest if number else 2 * longest) > deadline:  # the next size is a larger one
                    print(f"  {name}: {number} of {rounds} rounds, the time is nearly spent", flush=True)
                    break
                size.round(number)
                longest = max(longest, time.perf_counter() - begin)
            if name in VANILLA_SIZES and not quick and time.perf_counter() + longest < deadline:
                size.vanilla()
        except Failed as reason:
            report.failed(name, reason)
        finally:
            if torch:
                torch.stop()
        if size.mine or size.theirs:
            data[name] = {"ours": size.mine, "torch": size.theirs}
        print_size(name, size.mine, size.theirs)
        judge_size(name, size.mine, size.theirs, report, size.failed)
        report.keep("steps", data)


def fastest(theirs, suffix):
    """The mode of torch.compile with the shortest step, by the median of its rounds; None where none was measured."""
    known = [mode for mode in MODES if theirs.get(mode + suffix)]
    return min(known, key=lambda mode: median([t["step"] for t in theirs[mode + suffix]]), default=None)


def ratios(mine, theirs, suffix, mode, ours="step_ms", torchs="step"):
    """PyTorch's time in that mode over ours as a graph, round by round."""
    return [t[torchs] / m[ours] for m, t in zip(mine.get("graph" + suffix, []), theirs.get(f"{mode}{suffix}", []))]


def print_size(size, mine, theirs):
    for variant, rows in mine.items():
        middle = sorted(rows, key=lambda row: row["step_ms"])[len(rows) // 2]
        print(step_line(f"{size}, ours {variant}", middle))
    for kind, rounds in theirs.items():
        middle = sorted(rounds, key=lambda r: r["step"])[len(rounds) // 2]
        part = lambda name: f"{middle[name]:>9.2f}" if name in middle else f"{'-':>9}"
        print(f"{f'{size}, torch {kind}':<{STEP_NAME}}{part('forward')}{part('forward_backward')}{'':>8}{middle['step']:>9.2f}"
              f"{1e3 * 2048 / middle['step']:>12,.0f}{'':>9}{'':>10}{middle['peak_mib']:>10.0f}")
    for suffix in CLIPPING:
        texts = [f"{mode} {ratio_text(found)}" for mode in MODES if (found := ratios(mine, theirs, suffix, mode))]
        if texts:
            print(f"  ours x torch.compile{suffix}: step {', '.join(texts)}; its fastest mode is {fastest(theirs, suffix)}", flush=True)
    if found := ratios(mine, theirs, "", "default", "forward_backward_ms", "forward_backward"):
        print(f"  ours x torch.compile: forward (theirs keeps activations) {ratio_text(ratios(mine, theirs, '', 'default', 'forward_ms', 'forward'))}, "
              f"forward+backward {ratio_text(found)} (default mode)", flush=True)


# What a size may take of the memory that torch.compile's tensors take; large and xl are reported, not promised.
MEMORY_OF_TORCH = {"small": 1.0, "medium": 1.0, "2.7b": 1.05}


def promise_steps(report, arguments):
    for size in arguments.sizes.split(","):
        for suffix in CLIPPING:
            report.promise(f"step of {size}{suffix}, x torch.compile's fastest", 1.1, 1.25)
        report.promise(f"  peak memory of {size} off the plan [%]", -2, -2)
        if size in MEMORY_OF_TORCH:
            report.promise(f"  peak memory of {size} / torch.compile's tensors", -MEMORY_OF_TORCH[size], -1.0)


def judge_size(size, mine, theirs, report, failed):
    """`failed`: {mode: why} of PyTorch's; one without a time that might have been the fastest leaves nothing to compare with."""
    for suffix in CLIPPING:
        mode = fastest(theirs, suffix)
        unknown = "; ".join(f"{mode}: {why}" for mode, why in failed.items() if mode in MODES and not theirs.get(mode + suffix) and not cannot_run(why))
        found = [] if unknown else ratios(mine, theirs, suffix, mode)
        report.found(f"step of {size}{suffix}, x torch.compile's fastest", median(found),
                     f"{min(found):.2f}-{max(found):.2f}, {mode}" if found else unknown or None)
    graphs, compiled = mine.get("graph", []), theirs.get("default", [])
    report.found(f"  peak memory of {size} off the plan [%]", -100 * median([abs(m["peak_mib"] / m["planned_mib"] - 1) for m in graphs]))
    if size in MEMORY_OF_TORCH:
        # The least of the rounds: once "reduce-overhead" has had its turn, the process holds the memory of its graphs, too.
        tensors, taken = (min((t[key] for t in compiled), default=float("nan")) for key in ("peak_mib", "taken_mib"))
        peak = median([m["peak_mib"] for m in graphs])
        report.found(f"  peak memory of {size} / torch.compile's tensors", -peak / tensors,
                     f"GPU memory taken: {peak:.0f} MiB, torch {taken:.0f} (tensors {tensors:.0f})" if compiled and graphs else None)
