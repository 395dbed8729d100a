"""scripts/compare_torch --gpu: every figure we promise for a GPU, both sides in one call, in alternating rounds.

Sections, in this order (--only picks some, separated by commas):

    attention   forward and backward over D x T x mask, ours by engine, against PyTorch's CUDNN and FLASH in every
                round and MATH once up to T = 4096; D = 80 and 256; the course's case, forward and backward together
    error       errors of out, d_q, d_k, d_v against float64, ours and PyTorch's FLASH, on the same inputs
    kernels     memory-bound kernels at 65,536 x 4,096, against a copy
    gpt2        the GPT-2-124M- and 1558M-class decks, against the tokens/s of llm.c
    steps       whole steps of the named sizes, against torch.compile in its default mode and with "reduce-overhead",
                each with clipping and without; forward, forward+backward and peak memory of the default mode
    scaling     the step of size large on 1, 2, 4 ... GPUs
    parts       steps against the sum of what they must do: products alone, attention alone, and the bytes of all other
                kernels at the rate of a copy, by ncu
    fp32        in fp32 and TF32 (compare/fp32.py): fp32.steps, clipped steps of small and large; fp32.mma, tensor cores;
                fp32.flash2, the portable kernel; fp32.standard, stored scores
    portable    kernels of a step in fp32, built for Kokkos alone, against the tuned build (compare/portable.py; this, fp32 and
                parts only where --only names them)

Of attention alone there is no compiled form: scaled_dot_product_attention is one kernel already. Where torch.compile
has something to join, in whole steps, it is the other side.

Each finished part is printed at once and kept in --output, so that a call that is cut short keeps what it has; the
table of all promises comes last, and names those that were not measured. Ratios are PyTorch's time over ours, above 1
we are faster: the median over the rounds, with the lowest and the highest.
"""
import math
import re
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import places  # scripts/, where compare_torch is
from compare import fp32, plots, portable
from compare.sides import ON_ONE_GPU, ROOT, CutShort, Failed, Ours, Report, Torch, cut_short, deck, lowest, machine, median, numbers, ratio_text, words
from compare.steps import STEP_HEADER, gpt2, promise_gpt2, promise_steps, step_line, steps


# --- attention

# (B, H) keep 16,384 tokens of about 2,048 channels; 25 heads of 80 are the 2.7b model's 2,000 of them.
def case(T, D, causal, tokens=16384, channels=2048):
    return {"B": max(1, tokens // T), "H": max(1, channels // D), "T": T, "D": D, "causal": causal}


ATTENTION_CASES = [case(T, D, causal) for D in (128, 64) for T in (1024, 4096, 16384) for causal in (False, True)]
ATTENTION_CASES += [case(4096, D, causal) for D in (80, 256) for causal in (False, True)]
PASSES = ["forward", "backward"]
# Of every timing, on both sides. A GPU at its power limit keeps its full clocks for some 40 ms after a rest, then loses
# up to a sixth of its speed: a timing that does not begin rested depends on what ran before it. Passes longer than a few
# milliseconds outlast that time, and are repeated least.
TIMING = {"repeats": 12, "warmup": 3, "warmup_ms": 5, "rest_ms": 100, "row_limit_s": 0.03}
COURSE = "forward+backward of the course's case [ms]"
COURSE_CASE = {"B": 1, "H": 16, "T": 16384, "D": 64, "causal": True}


def timing(quick):
    return {**TIMING, "repeats": 8} if quick else TIMING


def tuned_rows(orders):
    """The overrides that leave attention_gpu.toml the rows of some engines ("auto": the fastest); `orders` of summation by engine."""
    row = lambda engine: f'{{attention={{kernel="{engine}"}}, product={{attention={{deterministic={numbers(orders[engine])}}}}}}}'
    return f"experiment.rows={{{', '.join(f'{engine}={row(engine)}' for engine in orders)}}}", "experiment.baseline="


TUNED = tuned_rows({"wgmma": (True, False), "mma": (True,)})


def ours_attention(ours, cases, quick, which_pass, rows, **more):
    """{(T, D, causal, engine, ordered): row} of one process per block of cases with the same widths and lengths."""
    found = {}
    widths = sorted({c["D"] for c in cases})
    blocks = [(D, sorted({c["T"] for c in cases if c["D"] == D})) for D in widths]
    merged = {}
    for D, lengths in blocks:
        merged.setdefault(tuple(lengths), []).append(D)
    for lengths, group in merged.items():
        measured = ours.run(deck("attention_gpu"), *rows, f"bench.length={numbers(lengths)}", f"bench.head_width={numbers(group)}",
                            f"bench.causal={numbers(sorted({c['causal'] for c in cases}))}", f"bench.pass={which_pass}",
                            *(f"bench.{key}={value}" for key, value in {**timing(quick), **more}.items()))
        for row in measured:
            key = (int(row["T"]), int(row["D"]), row["causal"] == "yes", row["engine"], row["ordered"] == "yes")
            found[key] = row
    return found


def attention(ours, torch, report, rounds, quick):
    runs, theirs = [], []
    cases = [c for c in ATTENTION_CASES if c["causal"] or not quick]
    short = [c for c in cases if c["T"] <= 4096]  # MATH keeps several arrays of T x T
    try:
        stored = dict(zip(map(key_of, short), torch.ask(do="attention", cases=short, backends=["MATH"],
                                                          passes=PASSES, timing={**TIMING, "repeats": 3})))
    except Failed as reason:
        print(f"  MATH: {reason}", flush=True)
        stored = {}
    for number in range(rounds):
        def our_turn():
            runs.append(ours_attention(ours, cases, quick, "all", TUNED))

        def their_turn():
            theirs.append(torch.ask(do="attention", cases=cases, backends=["CUDNN", "FLASH"], passes=PASSES,
                                    timing=timing(quick)))

        for turn in (our_turn, their_turn) if number % 2 == 0 else (their_turn, our_turn):
            turn()
        print(f"  attention, round {number + 1} of {rounds}", flush=True)

    data = []
    print(f"\n{'attention (bf16)':<24}{'':>10}{'ours ms':>9}{'TFLOP/s':>9}{'CUDNN ms':>10}{'FLASH ms':>10}"
          f"{'x CUDNN':>19}{'x FLASH':>19}{'mma x FLASH':>19}{'any order x CUDNN':>19}{'x MATH':>8}")
    for index, c in enumerate(cases):
        flop = 4 * c["B"] * c["H"] * c["T"] ** 2 * c["D"] * (0.5 if c["causal"] else 1)
        for direction, factor in zip(PASSES, (1, 2.5)):
            def mine(engine, ordered):
                column = [run.get((c["T"], c["D"], c["causal"], engine, ordered), {}).get(f"{direction}_ms") for run in runs]
                return column if all(x is not None and x == x for x in column) else None

            def torchs(backend):
                column = [run[index][backend].get(direction) for run in theirs]
                return column if all(column) else None

            math_ms = stored.get(key_of(c), {}).get("MATH", {}).get(direction)
            sides = {"wgmma": mine("wgmma", True), "any": mine("wgmma", False), "mma": mine("mma", True),
                     "CUDNN": torchs("CUDNN"), "FLASH": torchs("FLASH")}
            ratio = lambda ours_, theirs_: ([t / o for o, t in zip(sides[ours_], sides[theirs_])]
                                            if sides[ours_] and sides[theirs_] else None)
            ratios = {"cudnn": ratio("wgmma", "CUDNN"), "flash": ratio("wgmma", "FLASH"), "mma": ratio("mma", "FLASH"),
                      "any": ratio("any", "CUDNN"), "mma_cudnn": ratio("mma", "CUDNN")}
            best = sides["wgmma"] or sides["mma"]
            speedup = math_ms / median(best) if math_ms and best else math.nan
            print(f"D={c['D']:<4}T={c['T']:<6}{'causal' if c['causal'] else 'full':<9}{direction:>10}{median(best):>9.3f}"
                  f"{1e-9 * factor * flop / median(best):>9.0f}{median(sides['CUDNN']):>10.3f}{median(sides['FLASH']):>10.3f}"
                  + "".join(f"{ratio_text(r) if r else '-':>19}" for r in (ratios["cudnn"], ratios["flash"], ratios["mma"],
                                                                        ratios["any"] if direction == "backward" else None))
                  + (f"{speedup:>8.1f}" if speedup == speedup else f"{'-':>8}"))
            data.append({**c, "direction": direction, "ms": {**sides, "MATH": [math_ms] if math_ms else None}, "ratios": ratios})
    judge_attention(data, report)
    report.keep("attention", data)
    print(flush=True)


def key_of(c):
    return tuple(sorted(c.items()))


def promise_attention(report, _):
    add = report.promise
    add("forward D=128, T>=4096, x CUDNN", 0.95, 1.08)
    add("forward D=64, T>=4096, x CUDNN", 1.05, 1.2)
    add("forward D=64 and 128, T=1024, x CUDNN", 0.9, 1.05)
    add("backward D=64 and 128, T>=4096, any order, x CUDNN", 0.95, 1.1)
    add("backward D=64 and 128, T>=4096, deterministic, x CUDNN", 0.85, 1.0)
    add("mma forward D=64 and 128, T>=4096, x FLASH", 1.0, 1.1)
    add("mma backward D=64 and 128, T>=4096, x FLASH", 0.9, 1.0)
    for direction in ("forward", "backward"):
        add(f"{direction} D=80 and 256, T=4096, best engine, x FLASH", 1.0, 1.0)
        add(f"{direction} D=80 and 256, T=4096, best engine, x CUDNN", None, 1.0)
    add(COURSE, -4.5, -3.9)


def judge_attention(data, report):
    """The lowest median over the cases that a promise covers."""
    def worst(direction, which, keep):
        """Of several columns the best counts: the engine that training would use."""
        return lowest(max((median(r["ratios"][key]) for key in which if r["ratios"][key]), default=math.nan)
                      for r in data if r["direction"] == direction and keep(r))

    long = lambda D: lambda r: r["D"] == D and r["T"] >= 4096
    short = lambda r: r["D"] in (64, 128) and r["T"] == 1024
    both = lambda r: r["D"] in (64, 128) and r["T"] >= 4096
    rare = lambda r: r["D"] in (80, 256)
    found = report.found
    found("forward D=128, T>=4096, x CUDNN", worst("forward", ["cudnn"], long(128)))
    found("forward D=64, T>=4096, x CUDNN", worst("forward", ["cudnn"], long(64)))
    found("forward D=64 and 128, T=1024, x CUDNN", worst("forward", ["cudnn"], short))
    found("backward D=64 and 128, T>=4096, any order, x CUDNN", worst("backward", ["any"], both))
    found("backward D=64 and 128, T>=4096, deterministic, x CUDNN", worst("backward", ["cudnn"], both))
    found("mma forward D=64 and 128, T>=4096, x FLASH", worst("forward", ["mma"], both))
    found("mma backward D=64 and 128, T>=4096, x FLASH", worst("backward", ["mma"], both))
    for direction in ("forward", "backward"):
        found(f"{direction} D=80 and 256, T=4096, best engine, x FLASH", worst(direction, ["flash", "mma"], rare))
        found(f"{direction} D=80 and 256, T=4096, best engine, x CUDNN", worst(direction, ["cudnn", "mma_cudnn"], rare))


def course(ours, torch, report, rounds, quick):
    c = COURSE_CASE
    mine, theirs = {True: [], False: []}, []
    for _ in range(rounds):
        rows = ours_attention(ours, [c], quick, "both", tuned_rows({"auto": (True, False)}), tokens=0, channels=0, heads=c["H"], batch=c["B"])
        for key, row in rows.items():
            mine[key[4]].append(row["both_ms"])
        theirs.append(torch.ask(do="attention", cases=[c], backends=["CUDNN", "FLASH"], passes=["both"],
                                timing=timing(quick))[0])
    middle = {"deterministic": median(mine[True]), "any order": median(mine[False]),
              **{backend: median([t[backend].get("both", math.nan) for t in theirs]) for backend in ("CUDNN", "FLASH")}}
    print("forward + backward, B=1 H=16 T=16384 D=64 causal: "
          + ", ".join(f"{name} {ms:.3f} ms" for name, ms in middle.items()), flush=True)
    report.found(COURSE, -lowest([middle["deterministic"], middle["any order"]]))
    report.keep("course", middle)


# --- errors

ERROR_CASES = [{"B": 1, "H": 2, "T": T, "D": D, "causal": causal} for D in (64, 128) for T in (1000, 2048) for causal in (False, True)]
ERROR_CASES += [{"B": 1, "H": 2, "T": 1024, "D": D, "causal": True} for D in (80, 256)]


WORST_ERROR = "largest error / FLASH's own"
NO_SUCH_KERNEL = "this build has no such kernel"  # wgmma on another architecture, or of another width


def promise_error(report, _):
    report.promise(WORST_ERROR, -1.2, -1.0)


def error(ours, torch, report, quick):
    ratios, data = [], []
    print(f"\n{'error against float64':<26}{'tensor':>8}{'FLASH':>10}{'wgmma':>10}{'mma':>10}")
    for c in ERROR_CASES[:4] if quick else ERROR_CASES:
        with tempfile.TemporaryDirectory() as folder:
            inputs = f"{folder}/inputs.h5"
            torch.ask(do="error", case=c, inputs=inputs)
            files = {}
            for engine in ("wgmma", "mma"):
                path = f"{folder}/{engine}.h5"
                try:
                    ours.run(verify_deck(folder), f"job.input={inputs}", f"job.output={path}", f"attention.kernel={engine}")
                    files[engine] = path
                except Failed as reason:
                    what = f"  {engine} D={c['D']}"
                    if NO_SUCH_KERNEL in str(reason):
                        print(f"{what}: {reason}")
                    else:
                        ratios.append(math.nan)  # it should have run
                        report.failed(what, reason)
            if not files:
                ratios.append(math.nan)
            answer = torch.ask(do="error", case=c, backends=["FLASH"], ours=files)
        for tensor in ("out", "d_q", "d_k", "d_v"):
            row = {name: values[tensor] for name, values in answer.items()}
            print(f"D={c['D']:<4}T={c['T']:<6}{'causal' if c['causal'] else 'full':<12}{tensor:>8}{row['FLASH']:>10.2e}"
                  + "".join(f"{row[e]:>10.2e}" if e in row else f"{'-':>10}" for e in ("wgmma", "mma")))
            data.append({**c, "tensor": tensor, **row})
            ratios += [row[e] / row["FLASH"] for e in ("wgmma", "mma") if e in row]
    report.found(WORST_ERROR, lowest(-ratio for ratio in ratios))
    report.keep("error", data)
    print(flush=True)


def verify_deck(folder):
    path = Path(folder) / "verify.toml"
    path.write_text('# Attention on tensors of a file.\n[job]\nkind = "verify.attention"\n[precision]\ncompute = "bf16"\n')
    return path


# --- memory-bound kernels

PROMISED_KERNELS = ("rmsnorm", "rmsnorm_residual", "rmsnorm_backward", "rope", "swiglu", "swiglu_backward", "cross_entropy", "adamw")


def promise_kernels(report, _):
    for kernel in PROMISED_KERNELS:
        report.promise(f"{kernel} bf16, fraction of the copy rate", 0.85, 0.92)


def kernels(ours, torch, report, quick):
    rows = ours.run(deck("kernels_gpu"), *(["bench.rows=16384"] if quick else []))
    print(f"\n{'kernel':<26}{'dtype':>6}{'ms':>9}{'GB/s':>8}{'of copy':>9}")
    for row in rows:
        print(f"{row['kernel']:<26}{row['dtype']:>6}{row['median_ms']:>9.3f}{row['gbyte_per_s']:>8.0f}{row['of_copy']:>9.2f}")
    for kernel in PROMISED_KERNELS:
        report.found(f"{kernel} bf16, fraction of the copy rate",
                     lowest(row["of_copy"] for row in rows if row["kernel"] == kernel and row["dtype"] == "bf16"))
    report.keep("kernels", rows)
    print(flush=True)


# --- several GPUs

def promise_scaling(report, _):
    for ranks in (2, 4):
        report.promise(f"size large on {ranks} GPUs, fraction of linear", 0.9, 0.97)


def scaling(ours, report, gpus, quick):
    counts = [ranks for ranks in (1, 2, 4) if ranks <= gpus]
    if len(counts) < 2:
        print("scaling: needs 2 GPUs or more, found 1; skipped", flush=True)
        return
    tokens = {}
    print(STEP_HEADER)
    for ranks in counts:
        try:
            row = ours.run(deck("step_gpu"), f"experiment.only={words('graph_large')}", f"train.batch_size={4 * ranks}",
                           *ours.step_overrides, ranks=ranks)[0]
        except Failed as reason:
            report.failed(f"large on {ranks} GPUs", reason)
            continue
        print(step_line(f"large on {ranks}", row), flush=True)
        tokens[ranks] = row["tokens_per_s"]
        if ranks > 1 and 1 in tokens:
            report.found(f"size large on {ranks} GPUs, fraction of linear", tokens[ranks] / (ranks * tokens[1]))
    report.keep("scaling", tokens)


# --- what a step is made of

def promise_parts(report, arguments):
    for size in arguments.sizes.split(","):
        report.promise(f"step of {size} / its parts alone", -1.15, -1.15)


def parts(ours, report, sizes):
    """A step as a graph against what it must do: products and attention as ncu times them one by one, and the bytes
    that all other kernels move there (scripts/profile_step) at the rate of a copy."""
    copies = [row["gbyte_per_s"] for row in ours.run(deck("kernels_gpu"), "bench.dtype=bf16", "bench.repeats=10")
              if row["kernel"] == "copy"]
    data = {}
    for size in sizes:
        profile = subprocess.run([ROOT / "scripts/profile_step", deck("step_gpu"), f"experiment.only={words(f'fused_{size}')}",
                                  *ours.step_overrides], text=True, capture_output=True,
                                 env={**ON_ONE_GPU, "TESSERA_PROGRAM": str(ours.program)})
        if profile.returncode != 0:
            raise Failed("profile_step: " + " | ".join((profile.stderr or profile.stdout).splitlines()[-3:]))
        print(f"\nkernels of one step of {size}, alone:\n" + "\n".join(profile.stdout.splitlines()[-16:]), flush=True)
        alone = parts_of(profile.stdout, copies[0])
        row = ours.run(deck("step_gpu"), f"experiment.only={words(f'graph_{size}')}", *ours.step_overrides)[0]
        data[size] = {**alone, "step_ms": row["step_ms"], "copy_gbyte_per_s": copies[0], "profile": profile.stdout}
        report.found(f"step of {size} / its parts alone", -row["step_ms"] / sum(alone.values()),
                     f"{row['step_ms']:.2f} ms; " + ", ".join(f"{part} {ms:.2f}" for part, ms in alone.items()))
        report.keep("parts", data)


def parts_of(profile, copy_gbyte_per_s):
    """{part: milliseconds} from the last line of scripts/profile_step."""
    total = profile.splitlines()[-1]
    number = lambda pattern: float(re.search(pattern, total)[1])
    return {"products": number(r"products ([\d.]+)"), "attention": number(r"attention ([\d.]+)"),
            "bytes": 1e3 * number(r"moves ([\d.]+) GB") / copy_gbyte_per_s}


# --- all of it

PROMISES = {"attention": promise_attention, "error": promise_error, "kernels": promise_kernels, "gpt2": promise_gpt2,
            "steps": promise_steps, "scaling": promise_scaling, "parts": promise_parts, "portable": portable.promise, **fp32.PROMISES}
TABLES = ("portable", *fp32.SECTIONS)  # without pictures
ONLY_BY_NAME = ("parts", *TABLES)
SHORT = {"fp32": fp32.SECTIONS}  # names of several sections
OF_ATTENTION = ("attention", "error", "fp32.mma", "fp32.flash2", "fp32.standard")  # which share a process of PyTorch's side


def chosen(only):
    """The sections that --only names."""
    return [section for word in only.split(",") for section in SHORT.get(word, [word])]


def main(arguments, program):
    begin = time.perf_counter()
    import torch as pytorch

    ours, report, torch = Ours(program, arguments.ours), Report(Path(arguments.output)), Torch()
    sections = chosen(arguments.only) if arguments.only else [section for section in PROMISES if section not in ONLY_BY_NAME]
    for section in sections:
        PROMISES[section](report, arguments)
    rounds, quick = arguments.rounds, arguments.quick
    gpus = places.gpus()
    report.info |= {**machine(program), "repeats": timing(quick)["repeats"], "steps": fp32.step_repeats(quick), "quick": quick, "overrides": arguments.ours,
                    "pytorch": f"PyTorch {pytorch.__version__} (CUDA {pytorch.version.cuda})"}
    own = list(report.promises)
    report.adopt()
    work = {"attention": lambda: (attention(ours, torch, report, rounds, quick), course(ours, torch, report, min(rounds, 3), quick)),
            "error": lambda: error(ours, torch, report, quick),
            "kernels": lambda: kernels(ours, torch, report, quick),
            "gpt2": lambda: gpt2(ours, torch, report, quick),
            "steps": lambda: steps(ours, report, min(rounds, 3), quick, arguments.sizes.split(","), begin + arguments.budget),
            "scaling": lambda: scaling(ours, report, gpus, quick),
            "parts": lambda: parts(ours, report, arguments.sizes.split(",")),
            "portable": lambda: portable.measure(ours, report, min(rounds, 3)),
            **{section: lambda section=section: fp32.measure(section, ours, torch, report, min(rounds, 3), quick, timing(quick), fp32.sizes_of(arguments))
               for section in fp32.SECTIONS}}
    signal.signal(signal.SIGTERM, cut_short)
    try:
        for section in sections:
            if section not in OF_ATTENTION:
                torch.stop()  # frees its memory
            spent = time.perf_counter() - begin
            if spent > arguments.budget:
                print(f"{section}: left out, {spent:.0f} s of {arguments.budget} are gone", flush=True)
                continue
            try:
                work[section]()
            except Failed as reason:
                report.failed(section, reason)
            print(f"[{section}: {time.perf_counter() - begin - spent:.0f} s]", flush=True)
    except CutShort:
        print(f"{section}: cut short", flush=True)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # nothing may cut the table short
    torch.stop()
    print(report.table(), flush=True)
    plots.draw(report)
    measured = sum(report.promises[name]["value"] is not None for name in own)
    return report.code or (0 if measured > 0 else 3)
