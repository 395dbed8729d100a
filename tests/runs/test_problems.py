#!/usr/bin/env python3
"""The index of the course's problems: all of both years, links that lead somewhere, commands that exist, a table of today."""
import contextlib
import io
import sys
import unittest
from unittest import mock

from harness import SOURCE

sys.path.insert(0, str(SOURCE / "scripts"))
import problems  # noqa: E402  (after the path to it)
from experiments.homes import homes  # noqa: E402

# Of the handouts: points in 2025 and in 2026.
POINTS = """
benchmarking_script 4 4, nsys_profile 5 5, mixed_precision_accumulation 1 1, benchmarking_mixed_precision 2 2, memory_profiling 4 4,
gradient_checkpointing - 4, pytorch_attention 2 2, torch_compile 2 2, flash_forward 15 15, flash_backward 5 5, flash_benchmarking 5 5,
leaderboard (attention) 0 -, distributed_communication_single_node 5 5, naive_ddp 5 5, naive_ddp_benchmarking 3 3,
minimal_ddp_flat_benchmarking 2 2, ddp_overlap_individual_parameters 5 5, ddp_overlap_individual_parameters_benchmarking 1 1,
ddp_overlap_bucketed 8 -, ddp_bucketed_benchmarking 3 -, communication_accounting 10 -, optimizer_state_sharding 15 15,
optimizer_state_sharding_accounting 5 5, fsdp - 15, fsdp_accounting - 5, alternate_ring_all_reduce - 1, data_parallel_calcs - 3,
fsdp_calcs - 3, tp_calcs - 4, fsdp_tp_calcs - 6, leaderboard (a step) - 10
"""


class Index(unittest.TestCase):
    def test_every_problem_of_both_years_is_there_once(self):
        expected = {name: points for name, *points in (entry.rsplit(maxsplit=2) for entry in POINTS.strip().split(","))}
        expected = {" ".join(name.split()): points for name, points in expected.items()}
        found = {each["name"]: [str(each["points"].get(year, "-")) for year in problems.YEARS] for each in problems.problems()}
        self.assertEqual(found, expected)
        self.assertEqual(len(problems.problems()), len(expected))
        self.assertEqual(sum(points != ["0", "-"] for points in found.values()), 30)

    def test_links_lead_somewhere(self):
        for each in problems.problems():
            self.assertTrue(each["where"], each["name"])
            for place in each["where"]:
                file, anchor = problems.target(place)
                self.assertTrue(file.is_file(), f"{each['name']}: {place}")
                if anchor:
                    self.assertIn(anchor, problems.anchors_of(file.read_text()), f"{each['name']}: {place}")

    def test_commands_exist(self):
        for each in problems.problems():
            program, *words = each["command"].split()
            if not program.startswith("build/"):
                self.assertTrue((SOURCE / program).is_file(), each["command"])
            if program == "scripts/experiment":
                self.assertIn(words[0], homes(), each["command"])
            for word in words:
                if word.endswith(".toml"):
                    self.assertTrue((SOURCE / word).is_file(), each["command"])

    def test_a_page_without_results_leaves_its_problem_open(self):
        lines = (SOURCE / "tests/style/without_results.txt").read_text().splitlines()
        awaited = {name for name in (line.split("#")[0].strip() for line in lines) if name}
        for each in problems.problems():
            if awaited & set(each["where"]):
                self.assertIn("await", each["open"], each["name"])

    def test_what_is_open_is_what_no_stored_run_has(self):
        from results import Results
        run = lambda name: Results(homes()[name])
        open_of = {each["name"]: each["open"] for each in problems.problems()}
        for gpus in {2, 4, 6} - set(run("comm").ranks):
            self.assertIn(str(gpus), open_of["distributed_communication_single_node"])
        for size in {"small", "medium", "large", "xl", "2.7b"} - set(run("profile").different("model.size")):
            self.assertIn(size, open_of["nsys_profile"])
        for name, rows in (("naive_ddp_benchmarking", ("order_xl_per_parameter",)), ("minimal_ddp_flat_benchmarking", ("order_xl_flat",)),
                           ("ddp_bucketed_benchmarking", ("bucket_1", "bucket_10", "bucket_100", "bucket_1000")),
                           ("ddp_overlap_individual_parameters_benchmarking", ("order_xl_overlap",)),
                           ("optimizer_state_sharding_accounting", ("stage_xl_none", "stage_xl_optimizer")), ("fsdp_accounting", ("stage_xl_parameters",))):
            where, = (each["where"] for each in problems.problems() if each["name"] == name)
            found = {row.name for home in set(where) & {"ddp_course"} for row in run(home).rows if (row["compute"], row["tokens"], row.ranks) == ("fp32", 4 * 512, 2)}
            self.assertTrue(found.issuperset(rows) or open_of[name], name)
        for name, gpu in (("flash_benchmarking", "B200"), ("leaderboard (a step)", "B200"), ("leaderboard (attention)", "H100")):
            if not any(gpu in model for model in run("flash_grid").gpus()):
                self.assertIn(gpu, open_of[name])

    def test_the_table_is_that_of_the_index(self):
        page = problems.PAGE.read_text()
        self.assertEqual(problems.fault(page), "")
        self.assertIn("where problems.toml gives", problems.fault(page.replace("`tp_calcs`", "`tp_calc`")))
        self.assertIn("no generated part", problems.fault(page.replace("<!-- generated: problems -->", "")))
        for words, code in ((["problems.py"], 0), (["problems.py", "--write"], 2)):
            with mock.patch.object(sys, "argv", words), contextlib.redirect_stdout(io.StringIO()) as printed:
                self.assertEqual(problems.main(), code)
            self.assertIn("`fsdp_tp_calcs`" if code == 0 else "--publish", printed.getvalue())


if __name__ == "__main__":
    unittest.main()
