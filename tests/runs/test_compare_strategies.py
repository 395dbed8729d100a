#!/usr/bin/env python3
"""scripts/compare_torch --only strategies without PyTorch: our rows, turns, groups of processes, the table."""

import contextlib
import io
import json
import math
import subprocess
import sys
import time
import unittest
import unittest.mock
from argparse import Namespace

from harness import PROGRAM, SOURCE, RunTest

sys.path.insert(0, str(SOURCE / "scripts"))
from compare import plots, strategies, strategy_cases, strategy_steps, torch_ranks  # noqa: E402  (after the path to it)
from compare.findings import Findings  # noqa: E402
from compare.rounds import Block, Turn, fastest  # noqa: E402
from compare.sides import Failed, Ours, Report, Torch  # noqa: E402
from compare.strategy_setup import Setup  # noqa: E402
from launching import deck_name  # noqa: E402


class Fake:
    """Our program, with answers of its own: `rows` of a deck's name and ranks."""

    step_overrides = ()

    def __init__(self, rows):
        self.rows = rows

    def run(self, deck, *overrides, ranks=1):
        return self.rows(deck_name(deck), ranks, overrides)


class Strategies(RunTest):
    def setup_of(self, ours, is_gpu=True, compiled=("blocks",)):
        return Setup(ours, self.folder / "logs", is_gpu, [1, 4], list(compiled), warmup=1, repeats=2)

    def measured(self, block, theirs, rounds=1):
        """The findings of a block whose peers answer {name: answer, or Failed}."""
        for turn in block.turns:
            if not turn.is_ours:
                answer = theirs[turn.name]
                turn.work = unittest.mock.Mock(
                    side_effect=answer if isinstance(answer, Failed) else None, return_value=answer
                )
        findings = Findings()
        block.run(rounds, math.inf, lambda _: None)
        block.conclude(findings)
        return findings, {row["what"]: row for row in findings.rows}

    def test_our_program_answers_every_turn_on_two_ranks(self):
        setup = self.setup_of(Ours(PROGRAM), is_gpu=False)
        block = strategy_cases.comm(setup, 2)
        bandwidths = {(operation, mbyte): 1.0 for operation in strategy_cases.OPERATIONS for mbyte in (1, 4)}
        findings, rows = self.measured(block, {"PyTorch": bandwidths})
        self.assertEqual(findings.faults, [])
        self.assertEqual(len(rows), 8)
        for what, row in rows.items():
            self.assertGreater(row["ours"], 0, what)
            self.assertEqual(row["ratio"], row["ours"], what)  # PyTorch has 1 GB/s
        setup.our_step = lambda *_: {"step_ms": 10.0}  # test_compare.py runs bench.step
        answer = {"step": 5.0, "peak_mib": None, "optimizer_mib": 2.0}
        block = strategy_steps.steps_on_ranks(setup, "deck", 2, True, True)
        findings, rows = self.measured(block, {turn.name: answer for turn in block.turns})
        self.assertEqual(findings.faults, [])
        for row in rows.values():
            self.assertIsNotNone(row["ours"], row)
        # half of the optimizer's state is the other rank's: float32 moments of 864,256 parameters and padding
        self.assertLess(rows["deck, optimizer memory, 2 ranks"]["ours"], 1.01 * 4 * 864_256 / 2**20)

    def orders(self, theirs, outcome="ok", rounds=1):
        def rows(deck, ranks, _):
            if deck == "step_gpu":
                self.assertEqual(ranks, 1)
                return [{"step_ms": 30.0}]
            times = {"per_parameter": 45.0, "flat": 40.0, "overlap": 36.0, "bucket": 31.0, "optimizer": 28.0}
            return [
                {
                    "strategy": name,
                    "step_ms": ms if outcome == "ok" else math.nan,
                    "outcome": outcome,
                    "initial_optimizer_bytes": 2**30,
                }
                for name, ms in times.items()
            ]

        block = strategy_steps.steps_on_ranks(
            self.setup_of(Fake(rows), compiled=("blocks", "whole")), "xl", 2, True, True
        )
        answer = lambda ms: {"step": ms, "peak_mib": 1.0, "optimizer_mib": 2048.0}
        return self.measured(
            block, {name: answer(ms) if isinstance(ms, float) else ms for name, ms in theirs.items()}, rounds
        )

    THEIRS = {
        "PyTorch alone, blocks": 40.0,
        "PyTorch alone, whole": 36.0,
        "DDP, blocks": 50.0,
        "DDP, whole": 60.0,
        "SHARD_GRAD_OP, blocks": 45.0,
        "SHARD_GRAD_OP, whole": 44.0,
        "ZeroRedundancyOptimizer, blocks": 56.0,
        "ZeroRedundancyOptimizer, whole": 66.0,
    }

    def test_the_fastest_variants_of_both_sides_are_compared(self):
        findings, rows = self.orders(self.THEIRS, rounds=3)
        bucket = rows["xl, bucket, 2 GPUs"]
        self.assertAlmostEqual(bucket["ours"], 100 * 30 / 31)
        self.assertAlmostEqual(bucket["peer"], 100 * 36 / 50)
        self.assertEqual((bucket["asked"], bucket["judged"]), (95, "ours"))
        self.assertIsNone(rows["xl, flat, 2 GPUs"]["asked"])
        self.assertEqual(rows["xl, time, 1 GPU"]["ratio"], 36 / 30)
        zero = rows["xl, ZeRO-1, 2 GPUs"]
        self.assertEqual((zero["ours"], zero["peer"]), (28.0, 44.0))
        self.assertIn("ZeroRedundancyOptimizer, blocks 56.0 ms", zero["note"])
        self.assertEqual(rows["xl, optimizer memory, 2 GPUs"]["ratio"], 2.0)
        self.assertEqual(findings.code, 0)
        line = next(line for line in findings.table().splitlines() if " xl, bucket, 2 GPUs" in line)
        self.assertRegex(line, r"96\.77 +72\.00 +% linear +1\.34 .* 95 +98  reached  ")

    def test_a_peer_that_fails_gives_rows_with_its_reason(self):
        findings, rows = self.orders(
            {**self.THEIRS, "DDP, blocks": Failed("out of memory"), "DDP, whole": Failed("no answer within 9 s")}
        )
        self.assertEqual(findings.code, 0)
        row = rows["xl, bucket, 2 GPUs"]
        self.assertEqual((row["peer"], row["ratio"]), (None, None))
        self.assertIn("DDP, blocks: out of memory; DDP, whole: no answer within 9 s", row["note"])
        self.assertEqual(rows["xl, ZeRO-1, 2 GPUs"]["peer"], 44.0)

    def test_our_failures_are_faults_and_the_rest_goes_on(self):
        findings, rows = self.orders(self.THEIRS, outcome="out of memory")
        self.assertEqual(findings.code, 1)
        self.assertIn("OURS FAILED  xl, per_parameter on 2 GPUs: out of memory", findings.table())
        self.assertIn("NOT MEASURED", findings.table())

        def refuses(*_):
            raise Failed("exit code 4: out of memory", 4)

        block = strategy_steps.parameters(self.setup_of(Fake(refuses)), 2)
        answer = {"step": 221.0, "peak_mib": 34508.8, "optimizer_mib": 1.0}
        findings, rows = self.measured(block, {turn.name: answer for turn in block.turns})
        self.assertEqual((findings.code, len(findings.faults)), (4, 3))
        self.assertEqual(
            (rows["2.7b, sharded, peak, 2 GPUs"]["ours"], rows["2.7b, resharded, 2 GPUs"]["peer"]), (None, 221.0)
        )

    def test_sharded_parameters_are_judged_by_the_fastest_of_each_side(self):
        def rows(_, ranks, overrides):
            kept = "parallel.reshard_after_forward=false" in overrides
            return [{"step_ms": 160.0 if kept else 170.0, "peak_mib": 51200.0 if kept else 20480.0}]

        block = strategy_steps.parameters(self.setup_of(Fake(rows)), 2)
        answer = lambda ms: {"step": ms, "peak_mib": 34508.8, "optimizer_mib": 1.0}
        _, rows = self.measured(
            block, {"FSDP2, resharded, blocks": answer(224.0), "FSDP2, kept, blocks": answer(208.0)}
        )
        self.assertEqual(rows["2.7b, kept, 2 GPUs"]["ratio"], 1.3)
        self.assertEqual(rows["2.7b, sharded, peak, 2 GPUs"]["ours"], 50.0)
        self.assertEqual(rows["2.7b, resharded, 2 GPUs"]["ratio"], 224 / 170)
        self.assertEqual(rows["2.7b, sharded, speed, 2 GPUs"]["ours"], 1e3 * 2 * 8 * 512 / 160)
        sharded = rows["2.7b, sharded, time, 2 GPUs"]
        self.assertEqual((sharded["ours"], sharded["peer"], sharded["asked"]), (160.0, 208.0, 1.25))

    def test_slow_variants_rest_and_rounds_alternate(self):
        order = []
        turn = lambda name, ms, **other: Turn(name, lambda: order.append(name) or {"step": ms}, **other)
        block = Block(
            "b",
            [
                turn("ours", 1.0, is_ours=True),
                turn("x, blocks", 10.0, rivals="x"),
                turn("x, whole", 10.4, rivals="x"),
                turn("x, eager", 11.0, rivals="x"),
            ],
            lambda *_: None,
        )
        block.run(2, math.inf, lambda _: None)
        self.assertEqual(order, ["ours", "x, blocks", "x, whole", "x, eager", "x, whole", "x, blocks", "ours"])
        turns = {t.name: t for t in block.turns}
        self.assertEqual(fastest(turns, "x").name, "x, blocks")
        for reason, name in (("CUDA out of memory", "x, whole"), ("its process ended with -9", None)):  # the second might be the fastest
            turns["x, blocks"].values, turns["x, blocks"].reason = [], reason
            self.assertEqual(getattr(fastest(turns, "x"), "name", None), name)
        said = []
        Block("b", block.turns, None).run(2, time.perf_counter() - 1, said.append)
        self.assertEqual(said, ["b: 0 of 2 rounds, the time is nearly spent"])

    def test_bandwidths_are_those_of_nccl_tests(self):
        self.assertEqual(
            [strategy_cases.bus_factor(operation, 4) for operation in strategy_cases.OPERATIONS], [1.5, 0.75, 0.75, 1]
        )

    def group(self, *programs):
        """A group of processes that run these programs in place of PyTorch's."""

        class Process(Torch):
            def __init__(self, worker, env, log):
                super().__init__(worker, env, log)
                self.process = subprocess.Popen(
                    [sys.executable, "-c", programs[int(env["RANK"])]],
                    text=True,
                    env=env,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                )

        patch = unittest.mock.patch.object(torch_ranks, "Torch", Process)
        patch.start()
        self.addCleanup(patch.stop)
        group = torch_ranks.TorchRanks("a group", len(programs), self.folder / "logs", is_gpu=False)
        self.addCleanup(group.stop)
        return group

    ANSWERS = (
        'import json, os, sys\n'
        'for line in sys.stdin: print(json.dumps({"answer": int(os.environ["RANK"])}), flush=True)'
    )
    FAILS = 'input(); print(\'{"failed": "OutOfMemoryError: 80 GiB"}\', flush=True); input()'
    HANGS = "input(); __import__('time').sleep(60)"
    DIES = "import sys; print('what broke', file=sys.stderr); input(); sys.exit(3)"

    def test_ranks_answer_together(self):
        group = self.group(self.ANSWERS, self.ANSWERS)
        self.assertEqual([group.ask(do="step"), group.ask(do="step")], [[0, 1], [0, 1]])

    def test_one_rank_that_fails_ends_all_and_its_words_stay(self):
        for program, words in ((self.FAILS, "80 GiB"), (self.DIES, "ended with 3.*a_group.1.log")):
            group = self.group(self.HANGS, program)
            with unittest.mock.patch.object(torch_ranks, "LEAVING", 0.2):
                with self.assertRaisesRegex(Failed, words):
                    group.ask(30, do="step")
            self.assertEqual(group.processes, [])
            with self.assertRaisesRegex(Failed, words):
                group.ask(30, do="step")
        self.assertEqual(group.log(1).read_text(), "what broke\n")

    def test_ranks_that_hang_are_ended(self):
        group = self.group(self.ANSWERS, self.HANGS)
        with self.assertRaisesRegex(Failed, "no answer within 1 s"):
            group.ask(1, do="step")
        self.assertEqual(group.processes, [])

    def test_findings_have_a_table_a_file_and_a_picture(self):
        findings, _ = self.orders(self.THEIRS)
        for title in ("Bus bandwidth", "Parameters sharded"):
            findings.panel(
                title, "GB/s", "all_reduce\n1 MB x 2", {"ring": 300.0, "PyTorch": 310.0, "copy engines": math.nan}
            )
        report = Report(self.folder / "report", "strategies.json")
        report.keep("strategies", findings.data())
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            plots.draw(report)
        self.assertIn("strategies.json, strategies.png", printed.getvalue())
        self.assertEqual((report.folder / "strategies.png").read_bytes()[:8], b"\x89PNG\r\n\x1a\n")
        kept = json.loads((report.folder / "strategies.json").read_text())["data"]["strategies"]
        self.assertEqual(
            kept["panels"]["Bus bandwidth"]["groups"], {"all_reduce\n1 MB x 2": {"ring": 300.0, "PyTorch": 310.0}}
        )
        again = self.script("--redraw", "--output", report.folder)
        self.assertEqual(again.returncode, 0, again.stderr)
        self.assertTrue(again.stdout.startswith(findings.table() + "\n"), again.stdout)
        self.assertEqual(self.script("--redraw", "--output", report.folder / "none").returncode, 6)
        self.assertFalse((report.folder / "none").exists())
        head = findings.table().splitlines()[0].split()
        self.assertEqual(head, ["case", "what", "ours", "peer", "unit", "ratio", "asked", "aim"])

    def test_blocks_are_those_that_were_chosen(self):
        names = lambda cases, sizes="large,xl": [
            block.name for block in strategies.blocks_of(self.setup_of(None), Namespace(cases=cases, sizes=sizes), [2])
        ]
        self.assertEqual(
            names("comm,orders,zero1,parameters"),
            [
                "comm on 2 GPUs",
                "orders of large on 2 GPUs",
                "orders and ZeRO-1 of xl on 2 GPUs",
                "parameters of 2.7b on 2 GPUs",
            ],
        )
        self.assertEqual(names("orders,zero1", "large"), ["orders of large on 2 GPUs", "ZeRO-1 of xl on 2 GPUs"])
        self.assertEqual(names("8b"), ["8b on 2 GPUs"])

    def script(self, *words):
        command = [sys.executable, SOURCE / "scripts/compare_torch", "--only", "strategies", *words]
        return subprocess.run(command, text=True, capture_output=True)

    def test_a_wrong_command_line_is_refused_without_pytorch(self):
        for option, value, legal in (
            ("--cases", "comms", "comm, orders"),
            ("--ranks", "1", "from 2"),
            ("--compile", "some", "blocks, whole"),
            ("--mbytes", "x", "whole numbers"),
            ("--sizes", "huge", "small"),
        ):
            answer = self.script(option, value)
            self.assertEqual(answer.returncode, 2, answer.stderr)
            self.assertRegex(answer.stderr, f"{option} takes .*{legal}")


if __name__ == "__main__":
    unittest.main(verbosity=2)  # so that a test that skips itself says so
