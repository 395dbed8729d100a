#!/usr/bin/env python3
"""The GPU side of scripts/compare_torch as far as it goes without a GPU: our program's rows, ratios, verdicts."""
import contextlib
import io
import itertools
import json
import math
import re
import subprocess
import sys
import unittest
import unittest.mock
from argparse import Namespace
from unittest import mock

from harness import PROGRAM, SOURCE, TINY, RunTest

sys.path.insert(0, str(SOURCE / "scripts"))
from compare import fp32, gpu, plots, portable, sides, steps, stored, verdicts  # noqa: E402  (after the path to it)
from compare.strategy_setup import Setup  # noqa: E402
from launching import Refusal, deck_name  # noqa: E402


class Compare(RunTest):
    def report(self):
        return gpu.Report(self.folder / "report")

    def test_our_rows_come_back_as_the_program_measured_them(self):
        deck = self.deck('[job]\nkind = "experiment"\n[experiment]\njob = "bench.attention"\n[experiment.product]\nbench.causal = [true]\n'
                         "bench.length = [8]\n[bench]\nwarmup = 0\nrepeats = 1\nheads = 1\nhead_width = 8\n")
        rows = gpu.Ours(PROGRAM).run(deck, f"bench.length={gpu.numbers([16, 32])}", f"bench.causal={gpu.numbers([True, False])}")
        self.assertEqual([(row["causal"], row["T"], row["D"], row["engine"]) for row in rows],
                         [("yes", 16, 8, "portable"), ("yes", 32, 8, "portable"), ("no", 16, 8, "portable"), ("no", 32, 8, "portable")])
        self.assertTrue(all(row["forward_ms"] > 0 for row in rows))

    def test_our_steps_have_the_columns_that_lines_and_promises_want(self):
        deck = self.deck(TINY.read_text().replace('"train"', '"bench.step"') + "\n[bench]\nwarmup = 1\nrepeats = 2\n")
        row = gpu.Ours(PROGRAM).run(deck)[0]
        self.assertTrue(gpu.step_line("tiny", row).endswith("ok"), row)
        row = {**row, "peak_mib": row["planned_mib"]}  # a host does not measure it
        report = self.report()
        gpu.promise_steps(report, Namespace(sizes="small"))
        theirs = self.their_rounds({"default": 2 * row["step_ms"]}, {"default": 3 * row["step_ms"]})
        steps.judge_size("small", {"graph": [row], "graph, no clipping": [row]}, theirs, report, {})
        self.assertAlmostEqual(report.promises["step of small, x torch.compile's fastest"]["value"], 2)
        self.assertNotIn(None, [promise["value"] for promise in report.promises.values()])

    @staticmethod
    def their_rounds(*rounds):
        """{mode: answers of torch_worker.py, one per round} of rounds {mode: milliseconds}, the same without clipping."""
        answer = lambda ms: {"step": ms, "forward_backward": ms, "forward": ms, "peak_mib": 1e6, "taken_mib": 1e6}
        return {mode + suffix: [answer(each[mode]) for each in rounds] for mode in rounds[0] for suffix in steps.CLIPPING}

    def test_a_step_is_held_against_the_fastest_mode_of_each_clipping(self):
        row = {"forward_ms": 1.0, "forward_backward_ms": 3.0, "step_ms": 4.0, "peak_mib": 1.0, "planned_mib": 1.0}
        theirs = self.their_rounds({"default": 8.0, "reduce-overhead": 5.0}, {"default": 4.0, "reduce-overhead": 6.0},
                                   {"default": 9.0, "reduce-overhead": 6.0})
        theirs["reduce-overhead, no clipping"] = []  # it failed
        mine = {"graph": [row] * 3, "graph, no clipping": [{**row, "step_ms": 2.0}] * 3}
        report = self.report()
        gpu.promise_steps(report, Namespace(sizes="small"))
        steps.judge_size("small", mine, theirs, report, {"reduce-overhead": "RuntimeError: CUDA out of memory."})
        clipped, free = (report.promises[f"step of small{suffix}, x torch.compile's fastest"] for suffix in steps.CLIPPING)
        self.assertEqual((clipped["value"], clipped["text"]), (1.5, "1.25-1.50, reduce-overhead"))
        self.assertEqual((free["value"], free["text"]), (4.0, "2.00-4.50, default"))
        steps.judge_size("small", mine, theirs, report, {"reduce-overhead": "3 graphs were not recorded"})  # it might be the fastest
        clipped, free = (report.promises[f"step of small{suffix}, x torch.compile's fastest"] for suffix in steps.CLIPPING)
        self.assertEqual((free["value"], free["text"]), (None, "reduce-overhead: 3 graphs were not recorded"))
        self.assertEqual(clipped["value"], 1.5, "it was measured with clipping")

    def test_a_mode_that_fails_is_told_once_and_the_others_go_on(self):
        asked = []

        class Torch:
            def ask(self, mode, clips, **_):
                asked.append((mode, clips))
                if mode == "reduce-overhead":
                    raise gpu.Failed("out of memory")
                return {"step": 1.0}

        class Ours:
            step_overrides = ()

            def run(self, deck, *overrides):
                return [{"is_clipped": "optimizer.clip_norm=0" not in overrides}]

        size = steps.Size("small", Ours(), Torch(), repeats=1)
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            for number in range(3):
                size.round(number)
        self.assertEqual(printed.getvalue(), "  small, reduce-overhead: out of memory\n")
        self.assertEqual([row["is_clipped"] for row in size.mine["graph"] + size.mine["graph, no clipping"]], [True] * 3 + [False] * 3)
        self.assertEqual({mode: len(rounds) for mode, rounds in size.theirs.items()}, {"default": 3, "default, no clipping": 3})
        self.assertEqual(asked.count(("reduce-overhead", True)), 1)

    def test_no_round_of_steps_begins_that_would_not_end_in_time(self):
        clock = iter(range(0, 10_000, 60)).__next__  # each reading is a minute later
        rounds = []

        class Size:
            mine, theirs, failed = {}, {}, {}
            __init__ = lambda self, *_, **__: None
            round = lambda self, number: rounds.append(number)
            vanilla = lambda self: rounds.append("vanilla")

        with unittest.mock.patch.multiple(steps, Size=Size, compiled_side_by_side=lambda _: ({}, {})), \
                unittest.mock.patch.object(steps.time, "perf_counter", clock), \
                contextlib.redirect_stdout(io.StringIO()) as printed:
            report = self.report()
            gpu.promise_steps(report, Namespace(sizes="small,xl"))
            gpu.steps(None, report, 3, False, ["small", "xl"], deadline=200)
        self.assertEqual(rounds, [0, 1])  # at 0 and 120 s; at 240 s it is too late
        self.assertIn("small: 2 of 3 rounds", printed.getvalue())
        self.assertIn("xl: 0 of 3 rounds", printed.getvalue())

    def test_a_refusal_of_our_program_is_told_with_its_words(self):
        deck = self.deck('[job]\nkind = "bench.attention"\n')
        with self.assertRaisesRegex(gpu.Failed, "exit code 2.*bench.length"):
            gpu.Ours(PROGRAM).run(deck, "bench.length=[]")

    def test_what_is_run_on_gpus_is_what_the_decks_have(self):
        checked = []

        def check(_, deck, *overrides, **__):
            command = [PROGRAM, deck, *map(str, overrides), "--check"]
            answer = subprocess.run(command, capture_output=True, text=True)
            self.assertEqual(answer.returncode, 0, answer.stderr)
            checked.append(deck_name(deck))
            raise gpu.Failed("only checked")

        with mock.patch.object(gpu.Ours, "run", check), contextlib.redirect_stdout(io.StringIO()):
            ours = gpu.Ours(PROGRAM)
            for quick in (True, False):
                gpu.gpt2(ours, None, self.report(), quick)
                for work in (*(lambda kernel=kernel: fp32.our_attention(ours, kernel, gpu.timing(quick)) for kernel in fp32.ATTENTION),
                             lambda: gpu.ours_attention(ours, gpu.ATTENTION_CASES, quick, "all", gpu.TUNED),
                             lambda: gpu.course(ours, None, self.report(), 1, quick), lambda: gpu.kernels(ours, None, self.report(), quick)):
                    with self.assertRaises(gpu.Failed):
                        work()
            gpu.scaling(ours, self.report(), 2, True)
            for size, variant in itertools.product(steps.SIZES, ("plain", "fused", "graph")):
                with self.assertRaises(gpu.Failed):
                    steps.Size(size, ours, None, 2).our_turn(variant)
            for is_gpu in (True, False):
                setup = Setup(ours, self.folder, is_gpu, [1, 4], [])
                for work in (lambda: setup.our_step("large", 4, 2), lambda: setup.our_strategies("xl", 4, 2, ["bucket", "optimizer"])):
                    with self.assertRaises(gpu.Failed):
                        work()
        self.assertEqual(set(checked), {"gpt2_124m", "gpt2_1558m", "attention_gpu", "kernels_gpu", "step_gpu", "step", "strategies_gpu", "strategies"})

    def attention(self, wgmma, mma, any_order):
        """A report of what `attention` would have gathered, CUDNN at 1 ms and FLASH at 2 ms everywhere, and its rows."""
        report = self.report()
        gpu.promise_attention(report, None)
        sides = lambda ours: [1.0 / x for x in ours]
        return report, [{**case, "direction": direction,
                         "ratios": {"cudnn": wgmma, "flash": [2 * x for x in wgmma], "mma": mma, "any": any_order, "mma_cudnn": mma},
                         "ms": {"wgmma": sides(wgmma)}} for case in gpu.ATTENTION_CASES for direction in ("forward", "backward")]

    def verdicts(self, report):
        return {line[:58].strip(): re.split(r"\s{2,}", line[58:].strip())[3] for line in report.table().splitlines()[2:]}

    def test_a_promise_takes_the_worst_case_by_the_median_of_its_rounds(self):
        report, rows = self.attention([1.1, 1.0, 9.0], [1.0], [1.2])
        rows[2]["ratios"]["cudnn"] = [0.5, 0.93, 9.0]  # D=128, T=1024
        gpu.judge_attention(rows, report)
        found = {what: promise["value"] for what, promise in report.promises.items()}
        self.assertEqual(found["forward D=128, T>=4096, x CUDNN"], 1.1)
        self.assertEqual(found["forward D=64 and 128, T=1024, x CUDNN"], 0.93)
        self.assertEqual(found["backward D=64 and 128, T>=4096, any order, x CUDNN"], 1.2)
        self.assertEqual(found["forward D=80 and 256, T=4096, best engine, x FLASH"], 2.2)
        self.assertEqual(found["forward D=80 and 256, T=4096, best engine, x CUDNN"], 1.1)

    def test_a_case_that_was_not_measured_never_passes(self):
        for missing in (0, -1):  # first or last: a minimum over NaN would depend on it
            report, rows = self.attention([1.5], [1.5], [1.5])
            for D in (64, 80):
                row = [row for row in rows if row["D"] == D and row["T"] == 4096][missing]
                row["ratios"] = dict.fromkeys(row["ratios"])
            gpu.judge_attention(rows, report)
            direction = ("forward", "backward")[missing]
            verdicts = self.verdicts(report)
            self.assertEqual(verdicts["forward D=128, T>=4096, x CUDNN"], "aim reached")
            for what in ("mma {} D=64 and 128, T>=4096, x FLASH", "{} D=80 and 256, T=4096, best engine, x FLASH",
                         "{} D=80 and 256, T=4096, best engine, x CUDNN"):
                self.assertEqual(verdicts[what.format(direction)], "NOT MEASURED", what)

    def test_what_fails_everywhere_or_never_begins_is_in_the_table(self):
        class Failing:
            step_overrides = ()

            def run(self, *_, **__):
                raise gpu.Failed("exit code 3: no GPU")

        class Torch:
            def ask(self, **_):
                return {"FLASH": dict.fromkeys(("out", "d_q", "d_k", "d_v"), 1e-3)}

        report, arguments = self.report(), Namespace(sizes="small,2.7b")
        for promise in gpu.PROMISES.values():
            promise(report, arguments)
        with contextlib.redirect_stdout(io.StringIO()):
            gpu.error(Failing(), Torch(), report, quick=True)
            gpu.gpt2(Failing(), None, report, quick=True)
        verdicts = self.verdicts(report)
        self.assertEqual(set(verdicts.values()), {"NOT MEASURED"})
        for what in (gpu.WORST_ERROR, "gpt2_124m [tokens/s]", "peak memory of 2.7b / torch.compile's tensors",
                     "size large on 4 GPUs, fraction of linear", "adamw bf16, fraction of the copy rate", gpu.COURSE):
            self.assertIn(what, verdicts)

    def test_verdicts_and_the_file_of_what_was_found(self):
        report = self.report()
        for what, value in (("a", 1.0), ("b", 0.95), ("c", 0.9), ("d", math.nan)):
            report.promise(what, 0.95, 1.0)
            report.found(what, value)
        report.promise("time [ms]", -4.5, -3.9)  # smaller is better: negated
        report.found("time [ms]", -4.2, "of three")
        report.promise("only an aim", None, 1.0)
        report.found("only an aim", 0.99)
        with self.assertRaises(KeyError):
            report.found("never promised", 1.0)
        self.assertEqual(list(self.verdicts(report).values()),
                         ["aim reached", "reached", "MISSED", "NOT MEASURED", "reached", "below the aim"])
        report.keep("a section", [1, math.nan, {"b": (2, math.inf)}])
        self.assertEqual(json.loads((self.folder / "report/compare.json").read_text())["data"], {"a section": [1, None, {"b": [2, None]}]})

    def test_a_later_call_keeps_the_sections_of_an_earlier_one_with_the_same_build(self):
        first, second, other = self.report(), self.report(), self.report()
        first.info["build"] = second.info["build"] = "tessera 1"
        first.promise("a", 0, 1)
        first.found("a", 2.0)
        first.keep("kernels", [1])
        second.promise("b", 0, 1)
        second.adopt()
        second.keep("gpt2", [2])
        stored = json.loads((self.folder / "report/compare.json").read_text())
        self.assertEqual((stored["data"], stored["promises"]["a"]["value"]), ({"kernels": [1], "gpt2": [2]}, 2.0))
        other.info["build"] = "tessera 2"
        with self.assertRaisesRegex(Refusal, "has what tessera 1 did"):
            other.adopt()

    def test_the_first_exit_code_of_our_program_becomes_the_calls(self):
        report = self.report()
        with contextlib.redirect_stdout(io.StringIO()) as told:
            for reason in (gpu.Failed("PyTorch's"), gpu.Failed("ours", 5), gpu.Failed("ours, too", 4)):
                report.failed("gpt2_124m", reason)
        self.assertEqual((report.code, told.getvalue().splitlines()[0]), (5, "gpt2_124m: PyTorch's"))

    def test_every_section_has_a_picture(self):
        report, rows = self.attention([1.5], [1.5], [1.5])
        for row in rows:
            row["ms"] = {side: None if side == "MATH" and row["T"] > 4096 else [1.0] for side in plots.COLOURS}
        step = {"step_ms": 5.0, "tokens_per_s": 4e5}
        report.data = {"attention": rows, "error": [{**case, "tensor": "out", "FLASH": 1e-3, "mma": 1e-3} for case in gpu.ERROR_CASES],
                       "kernels": [{"kernel": "rope", "dtype": "bf16", "of_copy": 0.9}],
                       "gpt2": [{"deck": "gpt2_124m", "llm_c_tokens_per_s": 530_000, **step}],
                       "steps": {"small": {"ours": {"graph": [step]}, "torch": {"reduce-overhead": [{"step": 6.0}]}}}, "scaling": {1: 10.0, 2: 19.0},
                       "parts": {"small": {"products": 2.0, "attention": 1.0, "bytes": 1.0, **step}}}
        drawn = [section for section in gpu.PROMISES if section not in gpu.TABLES]
        self.assertEqual(list(report.data), drawn)
        with contextlib.redirect_stdout(io.StringIO()):
            plots.draw(report)
        for section in (*drawn, "attention_page"):
            self.assertEqual((report.folder / f"{section}.png").read_bytes()[:8], b"\x89PNG\r\n\x1a\n", section)
        self.assertLess((report.folder / "attention_page.png").stat().st_size, 60_000)  # part of the repository

    def measured_fp32(self, report, torch_ms):
        """Runs the sections of attention in fp32 on numbers: ours takes 2 ms, and D / 64 ms at D of more than 64."""
        class Ours:
            def run(self, deck, rows, *_):
                kernel = re.search(r'kernel="(\w+)"', rows)[1]
                _, shapes, formats = fp32.ATTENTION[kernel]
                return [{"dtype": dtype, "H": H, "T": T, "D": D, "forward_ms": 2.0 * D / 64, "backward_ms": 4.0 * D / 64}
                        for dtype in formats for H, _, lengths, widths in shapes for T in lengths for D in widths]

        class Torch:
            def ask(self, cases, backends, **_):
                return [{backends[0]: torch_ms} for _ in cases]

        with contextlib.redirect_stdout(io.StringIO()):
            for kernel in fp32.ATTENTION:
                fp32.promise_attention(kernel, report)
                fp32.attention(kernel, Ours(), Torch(), report, 2, gpu.timing(True))

    def test_fp32_is_held_against_the_worst_case_of_each_pass(self):
        report = self.report()
        self.measured_fp32(report, {"forward": 4.8, "backward": 8.0})
        found = {what: promise["value"] for what, promise in report.promises.items()}
        self.assertEqual(found["mma fp32, forward, x EFFICIENT"], 1.2)  # at D = 128
        self.assertEqual(found["standard tf32, backward, x STORED"], 2.0)
        self.assertEqual(found["flash2 fp32, forward, T=4096 D=128 [ms]"], -4.0)
        self.assertEqual(found["flash2 fp32, backward, FLOP/s at D=32, 80, 256 / D=64"], 1.0)
        self.assertEqual(found["flash2 bf16, forward, time / fp32's"], -1.0)
        self.measured_fp32(report, {"failed": "no kernel"})
        self.assertEqual({line.split("  ")[-1] for line in report.table().splitlines() if " x " in line}, {"NOT MEASURED"})

    def test_what_is_published_makes_the_tables_of_its_page(self):
        for place in dict.fromkeys(place for place, _ in stored.HOMES.values()):
            names = [name for name, (home, _) in stored.HOMES.items() if home == place]
            (self.folder / place).mkdir(parents=True)
            (self.folder / place / "README.md").write_text("".join(f"<!-- generated: compare/{name} -->\n<!-- end -->\n" for name in names))
        report, rows = self.attention([1.5], [1.5], [1.5])
        for row in rows:
            row["ms"] = {side: None if side == "MATH" and row["T"] > 4096 else [1.0, 2.0] for side in plots.COLOURS}
        report.info |= {"git_hash": "0123456789abcdef", "build": "GNU 13.3.0, CUDA 13.0", "device": "H100", "repeats": 8, "steps": 10, "pytorch": "PyTorch"}
        self.measured_fp32(report, {"forward": 4.8, "backward": 8.0})
        report.keep("fp32.steps", [{"size": "small", "dtype": "fp32", "ms": [5.0, 6.0, 7.0], "torch_ms": [12.0, 12.0, 7.0]}])
        report.keep("attention", rows)
        step = [(f"void parallel<tessera::kernels::{name}<Cuda, float>>", us, 0) for name, us in (("Rope", 30), ("RmsnormForward", 10), ("RegisterForwardTeam", 90),
                                                                                              ("Rope", 10))]
        report.keep("portable", portable.rows_of([portable.of_step(step)] * 2, [portable.of_step([(name, 1.2 * us, 0) for name, us, _ in step])] * 2))
        stored.publish(report.folder, self.folder)
        self.assertEqual(stored.faults(self.folder), [])
        self.assertEqual(report.read().infos["portable"]["repeats"], 8)
        report.info |= {"repeats": 9, "quick": True}  # a later call
        report.keep("attention", rows)
        self.assertEqual((report.read().info_of("fp32.mma")["repeats"], report.info_of("attention")["repeats"]), (8, 9))
        before = (self.folder / "kernels/compare.toml").read_text()
        with self.assertRaisesRegex(Refusal, "attention was measured with --quick"):
            stored.publish(report.folder, self.folder)
        self.assertEqual((self.folder / "kernels/compare.toml").read_text(), before, "all or nothing")
        page = self.folder / "kernels/README.md"
        self.assertIn("median of 3 rounds of 10 steps, commit 0123456789ab, GNU 13.3.0, CUDA 13.0, beside PyTorch.", page.read_text())
        self.assertRegex(page.read_text(), r"\| small \| fp32 +\| +6 \| +12 \| +2.00 \(1.00-2.40\) +\|")
        self.assertIn("median of 2 rounds of one step, commit 0123456789ab, GNU 13.3.0, CUDA 13.0.\n", page.read_text())
        self.assertRegex(page.read_text(), r"\| Rope +\| +2 \| +40 \| +48 \| +1.20 \|\n\| RmsnormForward +\| +1 \|[^\n]*\n<!-- end")
        page.write_text(page.read_text().replace(" 2.00 (", " 2.10 (", 1))
        self.assertRegex(stored.faults(self.folder)[0], r"(?s)kernels: README.md has\n.*2\.10.*where compare.toml gives.*2\.00")
        page.write_text(page.read_text().replace("compare/fp32.steps", "compare/steps"))
        self.assertIn("compare.toml the sections", stored.faults(self.folder)[0])

    def test_what_is_unknown_has_no_median(self):
        for values in (None, [], [None], [1.0, math.nan], [math.nan, 1.5, 1.6]):
            self.assertTrue(math.isnan(sides.median(values)), values)
        self.assertEqual(sides.median(iter([3.0, 1.0, 2.0])), 2.0)

    def test_failures_of_pytorch_are_told_apart(self):
        for reason in ("No available kernel. Aborting execution.", "CUDA out of memory. Tried to allocate 2 GiB", "CUBLAS_STATUS_ALLOC_FAILED"):
            self.assertTrue(verdicts.cannot_run(reason), reason)
        for reason in ("PyTorch's process ended with -9", f"{verdicts.NOT_COMPILED}CUDA out of memory", f"3 {verdicts.NOT_RECORDED}"):
            self.assertFalse(verdicts.cannot_run(reason), reason)

    def test_a_profile_is_summed_by_kind(self):
        table = self.folder / "ncu.csv"
        kernels = [("tessera::kernels::WeightUpdate<tessera::kernels::Adamw>", 9), ("nvjet_sm90_tst_128x256_64x4", 100),
                   ("void parallel<tessera::kernels::detail::hopper_forward::Forward<bfloat16, 64>>", 30),
                   ("void parallel<tessera::kernels::ampere::BackwardRowsTeam<bfloat16, 8>>", 20),
                   ("void parallel<tessera::kernels::RmsnormForward<bfloat16>>", 30), ("void parallel<tessera::optim::PrepareUpdate, int>", 10),
                   ("tessera::kernels::WeightUpdate<tessera::kernels::Adamw>", 60)]
        rows = ['"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"']
        for number, (name, us) in enumerate(kernels):
            rows.append(f'"{number}","{name}","gpu__time_duration.sum","usecond","{us}"')
            rows.append(f'"{number}","{name}","dram__bytes.sum","Mbyte","1,{us:03}"')
        table.write_text("==PROF== something\n" + "\n".join(rows) + "\n")
        answer = subprocess.run([sys.executable, SOURCE / "scripts/profile_step", "--csv", table], text=True, capture_output=True)
        self.assertEqual(answer.returncode, 0, answer.stderr)
        self.assertIn("0.250 ms in 6 launches: products 0.100, attention 0.050, the rest 0.100, which moves 3.100 GB", answer.stdout)
        self.assertIn("optim::PrepareUpdate", answer.stdout)
        self.assertEqual(gpu.parts_of(answer.stdout, 6200.0), {"products": 0.1, "attention": 0.05, "bytes": 0.5})

    def test_a_dead_process_of_pytorch_fails_one_section_and_not_the_call(self):
        for dies_before_it_is_asked in (True, False):
            torch = gpu.Torch()
            end = "exit 3" if dies_before_it_is_asked else "read line; exit 3"
            torch.process = subprocess.Popen(["sh", "-c", end], text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            if dies_before_it_is_asked:
                torch.process.wait()
            with self.assertRaisesRegex(gpu.Failed, "ended with 3"):
                torch.ask(do="copy", bytes=1)
            self.assertIsNone(torch.process)  # the next request starts another
            torch.stop()

    def test_one_gpu_leaves_scaling_out_by_name(self):
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            gpu.scaling(None, self.report(), gpus=1, quick=False)
        self.assertIn("needs 2 GPUs", printed.getvalue())


if __name__ == "__main__":
    unittest.main(verbosity=2)  # so that a test that skips itself says so
