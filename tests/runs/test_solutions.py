#!/usr/bin/env python3
"""scripts/solutions.py: another's tables beside stored rows."""
import contextlib
import io
import math
import re
import sys
import tomllib
import unittest
from unittest import mock

from harness import SOURCE

sys.path.insert(0, str(SOURCE / "scripts"))
import solutions  # noqa: E402  (after the path to it)
from results import OUT_OF_MEMORY, Row  # noqa: E402

THEIRS = tomllib.loads((solutions.page_of(SOURCE).parent / "solutions.toml").read_text())


class Cells(unittest.TestCase):
    def test_a_cell_says_why_it_has_no_number(self):
        row = Row({"both_ms": 2.0, "forward_ms": math.nan})
        self.assertEqual(solutions.cell(row, "both_ms"), 2)
        self.assertEqual(solutions.cell(row, "forward_ms"), "no row")
        self.assertEqual(solutions.cell(None, "both_ms"), "no row")
        row.exit_code = OUT_OF_MEMORY
        self.assertEqual(solutions.cell(row, "forward_ms"), "out of memory")

    def test_there_is_no_quotient_without_both(self):
        self.assertEqual(solutions.quotient(6.0, 2.0), 3)
        self.assertEqual(solutions.quotient("out of memory", 2.0), "")
        self.assertEqual(solutions.quotient(6.0, "no row"), "")


class Theirs(unittest.TestCase):
    def test_columns_are_of_one_length(self):
        for name in ("step", "attention", "all_reduce", "ddp"):
            self.assertEqual(len({len(column) for column in THEIRS[name].values()}), 1, name)
        grid = solutions.grid_of(THEIRS["flash"])
        self.assertEqual(len({(each["dtype"], each["D"], each["T"]) for each in grid}), 80)
        for each in grid:
            self.assertLess(each["forward"], each["both"])
        self.assertEqual({each["T"] for each in grid if each["stored"] == "out of memory"}, {65536})


class Tables(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.tables = solutions.tables()
        cls.step, cls.attention, cls.flash, cls.crossover, cls.generations, cls.all_reduce, cls.ddp = cls.tables

    def column(self, table, title):
        return [row[table[0].index(title)] for row in table[1]]

    def answer(self):
        return " ".join(re.search(r"\*\*Answer\.\*\*(.*)\*\*Next\.\*\*", solutions.page_of(SOURCE).read_text(), re.S)[1].split())

    def test_tf32_stands_beside_theirs(self):
        for theirs, mine in zip(self.column(self.step, "compiled / ours in TF32"), self.column(self.step, "in bf16")):
            self.assertGreater(theirs, 1, "theirs never beat our TF32")
            self.assertGreater(mine, theirs)
        machine = [a / b for a, b in zip(self.column(self.step, "compiled / ours in TF32"), self.column(self.step, "compiled / PyTorch"))]
        self.assertLess(max(abs(each - 1) for each in machine), 0.15, "compiled PyTorch on our GPU nearly equals ours")

    def test_pytorchs_tf32_beats_our_fp32_at_the_widest_head(self):
        columns, rows = self.attention
        wide = [row for row in rows if row[0] == 128]
        self.assertTrue(wide)
        for row in wide:
            self.assertLess(row[columns.index("PyTorch on the H200, TF32, stored scores")], row[columns.index("theirs / flash2") - 3])

    def test_generations(self):
        rows = {(row[0], row[1]): row for row in self.generations[1]}
        self.assertEqual(set(rows), {("bf16", 1), ("bf16", 64), ("fp32", 1), ("fp32", 64)})
        for row in rows.values():
            self.assertEqual(row[2], "no row", "theirs has FA2 alone")
            self.assertAlmostEqual(row[-1], row[4] / row[5])

    def test_crossovers(self):
        found = {(row[0], row[1]): row[2:] for row in self.crossover[1]}
        self.assertEqual({first for first, *_ in found.values()}, {"128"})
        self.assertEqual({each[1] for (dtype, _), each in found.items() if dtype == "bf16"}, {"2048", "4096"})
        self.assertEqual([dtype_D for dtype_D, each in found.items() if each[-1] == "65536"], [("bf16", 64), ("bf16", 128)])

    def test_the_answer_says_what_the_tables_say(self):
        answer = self.answer()
        self.assertLessEqual(len(answer.split()), 150)
        ratios = {(row[0], row[1]): row[self.flash[0].index("theirs / ours")] for row in self.flash[1]}
        bf16 = [each for (dtype, _), each in ratios.items() if dtype == "bf16"]
        self.assertIn(f"leads in bf16 by {min(bf16):.0f} to {max(bf16):.0f}", answer)
        self.assertEqual([T for (dtype, T), each in ratios.items() if each < 1], [4096])
        self.assertIn(f"loses in fp32 at T 4096 ({ratios['fp32', 4096]:.3f})", answer)

    def test_the_picture_has_every_quotient(self):
        groups = solutions.quotients()
        self.assertEqual([len(each) for each in groups.values()], [5, 5, 9, 4, 4, 4, 7])
        self.assertLess(min(groups["flash, fp32"]), 1)

    def test_what_no_run_has_is_said(self):
        for row in self.all_reduce[1]:
            self.assertEqual(row[-1] == "", row[3] == "no row")
        self.assertEqual(len(self.ddp[1]), 7)


class Script(unittest.TestCase):
    def test_prints_tables_and_refuses_other_words(self):
        for words, code in ((["solutions.py"], 0), (["solutions.py", "--write"], 2)):
            with mock.patch.object(sys, "argv", words), contextlib.redirect_stdout(io.StringIO()) as printed:
                self.assertEqual(solutions.main(), code)
            self.assertIn("FA1" if code == 0 else "--publish", printed.getvalue())

    def test_a_changed_figure_is_found(self):
        page = solutions.page_of(SOURCE).read_text()
        self.assertEqual(solutions.fault(page), "")
        self.assertIn("where scripts/solutions.py gives", solutions.fault(page.replace("1963", "1964")))


if __name__ == "__main__":
    unittest.main()
