#!/usr/bin/env python3
"""The GPU side of scripts/compare_torch as far as it goes without a GPU: our program's rows, ratios, verdicts."""
import contextlib
import io
import json
import math
import sys
import unittest

from harness import PROGRAM, SOURCE, RunTest

sys.path.insert(0, str(SOURCE / "scripts"))
from compare import gpu  # noqa: E402  (after the path to it)


class Compare(RunTest):
    def report(self):
        return gpu.Report(self.folder / "report")

    def test_our_rows_come_back_as_the_program_measured_them(self):
        deck = self.deck('[job]\nkind = "bench.attention"\n[bench]\nwarmup = 0\nrepeats = 1\nheads = 1\n')
        rows = gpu.Ours(PROGRAM).run(deck, f"bench.lengths={gpu.numbers([16, 32])}", f"bench.head_widths={gpu.numbers([8])}",
                                     f"bench.dtypes={gpu.words('fp32')}", f"bench.causal={gpu.numbers([True, False])}")
        self.assertEqual([(row["causal"], row["T"], row["D"], row["engine"]) for row in rows],
                         [("yes", 16, 8, "portable"), ("yes", 32, 8, "portable"), ("no", 16, 8, "portable"), ("no", 32, 8, "portable")])
        self.assertTrue(all(row["forward_ms"] > 0 for row in rows))

    def test_a_refusal_of_our_program_is_told_with_its_words(self):
        deck = self.deck('[job]\nkind = "bench.attention"\n')
        with self.assertRaisesRegex(gpu.Failed, "exit code 2.*bench.lengths"):
            gpu.Ours(PROGRAM).run(deck, "bench.lengths=[]")

    def rows(self, wgmma, mma, any_order):
        """As `attention` gathers them, CUDNN at 1 ms and FLASH at 2 ms everywhere."""
        sides = lambda ours: [1.0 / x for x in ours]
        return [{**case, "direction": direction,
                 "ratios": {"cudnn": wgmma, "flash": [2 * x for x in wgmma], "mma": mma, "any": any_order, "mma_cudnn": mma},
                 "ms": {"wgmma": sides(wgmma)}} for case in gpu.ATTENTION_CASES for direction in ("forward", "backward")]

    def test_a_promise_takes_the_worst_case_by_the_median_of_its_rounds(self):
        report, rows = self.report(), self.rows([1.1, 1.0, 9.0], [1.0], [1.2])
        rows[2]["ratios"]["cudnn"] = [0.5, 0.93, 9.0]  # D=128, T=1024
        gpu.promise_attention(rows, report)
        found = {p["what"]: p["value"] for p in report.promises}
        self.assertEqual(found["forward D=128, T>=4096, x CUDNN"], 1.1)
        self.assertEqual(found["forward D=64 and 128, T=1024, x CUDNN"], 0.93)
        self.assertEqual(found["backward D=64 and 128, T>=4096, any order, x CUDNN"], 1.2)
        self.assertEqual(found["forward D=80 and 256, T=4096, x FLASH (best engine)"], 2.2)

    def test_a_case_that_was_not_measured_never_passes(self):
        report, rows = self.report(), self.rows([1.5], [1.5], [1.5])
        for row in rows:
            if row["D"] == 64:
                row["ratios"] = dict.fromkeys(row["ratios"])
        gpu.promise_attention(rows, report)
        found = {p["what"]: p["value"] for p in report.promises}
        self.assertTrue(math.isnan(found["forward D=64, T>=4096, x CUDNN"]))
        self.assertIn("MISSED", next(line for line in report.table().splitlines() if line.startswith("forward D=64, T>=4096")))

    def test_verdicts_and_the_file_of_what_was_found(self):
        report = self.report()
        for what, value in (("a", 1.0), ("b", 0.95), ("c", 0.9), ("d", float("nan"))):
            report.promise(what, value, 0.95, 1.0)
        report.promise("time [ms]", -4.2, -4.5, -3.9)  # smaller is better: negated
        verdicts = [line.split("  ")[-1].strip() for line in report.table().splitlines()[2:]]
        self.assertEqual(verdicts, ["aim reached", "reached", "MISSED", "MISSED", "reached"])
        report.keep("a section", [1, 2])
        self.assertEqual(json.loads((self.folder / "report/compare.json").read_text())["data"], {"a section": [1, 2]})

    def test_one_gpu_leaves_scaling_out_by_name(self):
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            gpu.scaling(None, self.report(), gpus=1, quick=False)
        self.assertIn("needs 2 GPUs", printed.getvalue())


if __name__ == "__main__":
    unittest.main(verbosity=2)  # so that a test that skips itself says so
