#!/usr/bin/env python3
"""A plan beside the run that it was for, and scripts/scaling: measured rows, predicted rows, refusals."""
import json
import os
import re
import signal
import subprocess
import sys
import tomllib
import unittest

import h5py
import numpy as np

from harness import FILES, LIMIT_S, PROGRAM, SOURCE, TINY, USAGE, Job, RunTest, column, descendants, gpus, wait_for_end

DECK = SOURCE / "input/scaling/tiny.toml"
RATES = ("plan.gemm_tflops=0.05", "plan.attention_tflops=0.01", "plan.copy_gbyte_per_s=10", "plan.link_gbyte_per_s=1")
ROW = re.compile(r"^ +(\S.*?) {2,}(\S+)( B| ms|) +(\S+)(?: B| ms|) +(\S+)(?: %)?$", re.M)


class Compare(RunTest):
    def compare(self, *arguments, **more):
        result = self.run_deck("--plan", "--compare", *arguments, **more)
        return result, {(f"{name}, bytes" if unit == " B" and name == "optimizer" else name): (predicted, measured, difference)
                        for name, predicted, unit, measured, difference in ROW.findall(result.out)}

    def test_memory_and_transfers_agree_to_the_byte_and_times_are_the_medians_of_the_run(self):
        sums, scatters, gathers = (f"sent by {name}" for name in ("all-reduce", "reduce-scatter", "all-gather"))
        for ranks, keys, transfers in ((1, (), ()), (2, (), (sums,)), (2, ("parallel.shard=parameters",), (scatters, gathers)),
                                       (2, ("train.checkpoint_activations=1",), (sums,)),
                                       (4, ("parallel.shard=gradients", "parallel.shard_ranks=2", "train.micro_batch_size=1"),
                                        (sums, scatters, gathers))):
            with self.subTest(ranks=ranks, keys=keys):
                run = self.train(f"run {ranks} {len(keys)} {'-'.join(keys)[:20]}", *keys, ranks=ranks)
                _, rows = self.compare(run / "run.h5", *RATES)
                planned, measured, difference = rows["arena of a rank"]
                self.assertEqual(planned, measured)
                self.assertEqual(int(measured), int(column(run, "peak_bytes").max()))
                self.assertEqual(difference, "+0.0")
                self.assertEqual({name for name in rows if name.startswith("sent")}, set(transfers))
                for name in ("parameters", "gradients", "optimizer, bytes", "activations", "workspace", *transfers):
                    planned, measured, difference = rows[name]
                    self.assertGreater(int(planned), 0, name)
                    self.assertEqual((planned, "+0.0"), (measured, difference), name)
                for name, quantity in (("step", "step_time"), ("forward", "forward"), ("optimizer", "optimizer")):
                    median = 1e3 * np.nanmedian(column(run, quantity)[5:])
                    predicted, shown, percent = rows[name]
                    self.assertAlmostEqual(float(shown) / median, 1, 3, name)
                    self.assertAlmostEqual(float(percent), 100 * (median / float(predicted) - 1), delta=0.2 + 0.002 * abs(float(percent)))
                exposed = 1e3 * np.nanmedian(column(run, "exposed_comm")[5:])
                self.assertAlmostEqual(float(rows["exposed communication"][1]), exposed, delta=1e-3 * max(exposed, 1e-3))

    def test_a_resumed_run_is_compared_by_its_last_start(self):
        run = self.train("run", "train.steps=12")
        self.run_deck(TINY, f"job.directory={run}", "train.steps=30", "parallel.shard=optimizer", "--resume", "auto", ranks=2)
        result, rows = self.compare(run / "run.h5")
        for name in ("arena of a rank", "parameters", "optimizer, bytes", "sent by reduce-scatter"):
            self.assertEqual(rows[name][2], "+0.0", name)
        self.assertIn("2 ranks, medians of 13 steps since the last resume after 5", result.out)
        self.assertAlmostEqual(float(rows["step"][1]) / (1e3 * np.nanmedian(column(run, "step_time")[12 + 5:])), 1, 3)

    def test_a_start_that_recorded_no_step_is_not_taken_for_the_one_before(self):
        run = self.train("run", "train.steps=12")
        with h5py.File(run / "run.h5", "a") as file:
            file["info"].attrs["attempts"] = 2
        self.run_deck("--plan", "--compare", run / "run.h5", code=FILES, says="0 steps recorded since the last resume")

    def test_an_offloaded_run_tells_its_link_and_both_times_of_a_step(self):
        """The prediction comes before the steps, the measurement after them, and a comparison finds both in run.h5."""
        result = self.run_deck(TINY, f"job.directory={self.folder / 'run'}", "parallel.offload=optimizer", *RATES,
                               "plan.device=h200", "plan.host_link_gbyte_per_s=1e-6")  # for --plan alone
        if gpus() is None:
            self.assertNotIn("(measured)", result.out)
        rate, least = re.search(r"the link moves ([\d.]+) GB/s in each direction: a step takes at least ([\d.]+) ms", result.out).groups()
        self.assertGreater(float(rate), 0)
        predicted = float(re.search(r"^time +([\d.]+) ms per step: .* on the link to the host", result.out, re.M)[1])
        taken, percent, which, again, alone = re.search(
            r"^offload +a step took ([\d.]+) ms, the median after 5 of warm-up, ([\d.]+) % (less|more) than the predicted ([\d.]+), "
            r"the link alone takes ([\d.]+) ms", result.out, re.M).groups()
        self.assertEqual(alone, least)
        self.assertAlmostEqual(float(again), predicted, delta=1e-3 * predicted)
        median = 1e3 * np.nanmedian(column(self.folder / "run", "step_time")[5:])
        self.assertAlmostEqual(float(taken), median, delta=1e-3 * median)
        self.assertAlmostEqual((-1 if which == "less" else 1) * float(percent), 100 * (median / predicted - 1), delta=0.2)
        with h5py.File(self.folder / "run/run.h5") as file:
            self.assertAlmostEqual(file["info"].attrs["host_link"] / 1e9, float(rate), delta=0.051)
        _, rows = self.compare(self.folder / "run/run.h5")
        self.assertAlmostEqual(float(rows["step"][0]), predicted, delta=1e-3 * predicted)
        self.assertAlmostEqual(float(rows["step"][1]), median, delta=1e-3 * median)
        self.assertEqual(rows["forward"][0], "-")

    def test_an_offloaded_run_without_rates_names_them(self):
        result = self.run_deck(TINY, f"job.directory={self.folder / 'run'}", "parallel.offload=optimizer", "train.steps=4",
                               "optimizer.warmup_steps=2")
        if gpus() is None:
            self.assertIn("no figure for plan.gemm_tflops, plan.attention_tflops, plan.copy_gbyte_per_s ships", result.out)
        self.assertIn("no time of a step: the first 5 warm up, the link alone takes", result.out)

    def test_without_rates_times_are_only_measured_and_the_keys_are_named(self):
        run = self.train("run")
        result, rows = self.compare(run / "run.h5")
        self.assertEqual(rows["step"][0], "-")
        self.assertGreater(float(rows["step"][1]), 0)
        self.assertEqual(rows["step"][2], "-")
        if gpus() is None:
            self.assertIn("plan.gemm_tflops, plan.attention_tflops, plan.copy_gbyte_per_s", result.out)

    def test_another_deck_shows_what_it_would_have_taken(self):
        run = self.train("run")
        result = self.run_deck(TINY, "model.num_layers=3", "--plan", "--compare", run / "run.h5")
        planned, _, measured, difference = ROW.search(result.out).groups()[1:]
        self.assertGreater(int(planned), int(measured))
        self.assertTrue(difference.startswith("-"), difference)

    def test_what_was_measured_is_the_same_beside_any_deck(self):
        run = self.train("run", "parallel.shard=gradients", "parallel.shard_ranks=2", ranks=4)
        measured = {}
        for key in ("parallel.shard_ranks=2", "parallel.shard_ranks=0", "parallel.shard=parameters"):
            _, rows = self.compare(run / "run.h5", key)
            measured[key] = {name: row[1] for name, row in rows.items()}
        self.assertEqual(len({name for name in measured["parallel.shard_ranks=2"] if name.startswith("sent")}), 3)
        for key, found in measured.items():
            self.assertEqual(found, measured["parallel.shard_ranks=2"], key)

    def test_a_run_without_recorded_events_is_compared_without_them(self):
        run = self.train("run", ranks=2)
        with h5py.File(run / "run.h5", "a") as file:
            del file["comm"], file["memory"]
        _, rows = self.compare(run / "run.h5", *RATES)
        self.assertEqual(rows["sent by all-reduce"][1:], ("-", "-"))
        self.assertNotIn("parameters", rows)
        self.assertEqual(rows["arena of a rank"][2], "+0.0")

    def test_hosts_and_gpus_are_those_that_the_run_names(self):
        run = self.train("run", ranks=2)
        with h5py.File(run / "run.h5", "a") as file:
            file["info"].attrs.update(host_count=2, ranks_per_host=1, hosts="words that nobody reads")
        result, _ = self.compare(run / "run.h5", *RATES)
        self.assertIn("no figure for plan.node_link_gbyte_per_s ships", result.out)
        result, _ = self.compare(run / "run.h5", *RATES, "plan.node_link_gbyte_per_s=3")
        self.assertIn("link between hosts 3 GB/s (given)", result.out)
        with h5py.File(run / "run.h5", "a") as file:
            file["info"].attrs["gpu_models"] = ["NVIDIA H200"]
        result, _ = self.compare(run / "run.h5", "plan.ranks_per_node=2", "plan.gemm_tflops=1", "plan.attention_tflops=1")
        self.assertIn("copy 4160 GB/s (measured), link 250 GB/s (measured)", result.out)
        with h5py.File(run / "run.h5", "a") as file:
            file["info"].attrs.update(gpu_models=["another make"], devices="a GPU of another make", host_count=1)
        if gpus() is None:
            self.run_deck("--plan", "--compare", run / "run.h5", code=USAGE, says=["another make", "plan.device"])
        with h5py.File(run / "run.h5", "a") as file:
            file["info"].attrs["ranks"] = 0
        self.run_deck("--plan", "--compare", run / "run.h5", code=FILES, says=["info", "1 or more"])
        with h5py.File(run / "run.h5", "a") as file:
            del file["info"].attrs["host_count"]
        self.run_deck("--plan", "--compare", run / "run.h5", code=FILES, says=["info", "host_count", "an older version"])

    def test_files_that_are_no_run_say_what_is_missing(self):
        self.run_deck("--plan", "--compare", self.folder / "absent.h5", code=FILES, says="absent.h5")
        text = self.deck("no HDF5 at all", "text.h5")
        self.run_deck("--plan", "--compare", text, code=FILES, says="text.h5")
        with h5py.File(self.folder / "other.h5", "w") as file:
            file["rows"] = [1.0]
        self.run_deck("--plan", "--compare", self.folder / "other.h5", code=FILES, says=["other.h5", 'format "tessera run"'])
        run = self.train("short", "train.steps=5")
        self.run_deck("--plan", "--compare", run / "run.h5", code=FILES, says=["no step that counts", "longer run"])
        run = self.train("whole")
        with h5py.File(run / "run.h5", "a") as file:
            del file["steps/exposed_comm"]
        self.run_deck("--plan", "--compare", run / "run.h5", code=FILES, says="steps/exposed_comm")

    def test_command_lines_that_ask_for_something_else_are_refused(self):
        run = self.train("run")
        self.run_deck(TINY, "--compare", run / "run.h5", code=USAGE, says="--compare goes with --plan")
        self.run_deck("--plan", "--compare", TINY, code=USAGE, says="takes a run's file")
        self.run_deck("--plan", "--compare", run / "run.h5", "parallel.ranks=4", code=USAGE, says=["parallel.ranks = 4", "1 rank"])
        self.run_deck(SOURCE / "input/bench/step.toml", "--plan", "--compare", run / "run.h5", code=USAGE, says="job.kind")


class Scaling(RunTest):
    def scale(self, *arguments, code=0, says=()):
        result = subprocess.run([sys.executable, SOURCE / "scripts/scaling", *map(str, arguments)], text=True, capture_output=True,
                                cwd=self.folder, env={**os.environ, "TESSERA_PROGRAM": str(PROGRAM)}, timeout=300)
        self.assertEqual(result.returncode, code, result.stdout + result.stderr)
        for words in [says] if isinstance(says, str) else says:
            self.assertIn(words, result.stderr)
        self.assertNotIn("Traceback", result.stderr)
        return result

    def rows(self, output):
        return json.loads((output / "scaling.json").read_text())["rows"]

    def setUp(self):
        super().setUp()
        self.room = len(os.sched_getaffinity(0)) if gpus() is None else gpus()

    def test_ranks_that_fit_are_measured_and_the_others_predicted(self):
        if self.room < 2:
            self.skipTest(f"needs room for 2 ranks, found {self.room}")
        absent = 8 * self.room
        for way, key in (("--strong", 1), ("--weak", 0)):
            output = self.folder / f"out {way}"
            keys = (f"train.batch_size={absent if key else 4}", "bench.repeats=3", "bench.warmup=1")
            answer = self.scale(DECK, "--ranks", f"1,2,{absent}", way, "--output", output, *keys).stdout
            one, two, many = self.rows(output)
            self.assertEqual([row["is_predicted"] for row in (one, two, many)], [False, False, True])
            self.assertEqual([row["batch"] for row in (one, two, many)], [absent] * 3 if key else [4, 8, 4 * absent])
            with h5py.File(output / "ranks_0002/bench.h5") as file:
                self.assertAlmostEqual(two["time_s"], 1e-3 * file["step_ms"][0])
            growth = two["batch"] / one["batch"]
            self.assertAlmostEqual(two["speedup"], one["measured_s"] / two["measured_s"] * growth)
            self.assertAlmostEqual(two["efficiency"], two["speedup"] / 2)
            self.assertAlmostEqual(many["speedup"], one["predicted_s"] / many["predicted_s"] * many["batch"] / one["batch"])
            self.assertLess(many["efficiency"], 1)
            self.assertRegex(answer, rf"\| {absent} \| - \| \d+ \| [\d.e+]+ \| predicted \|")
            self.assertRegex(answer, r"\| 2 \| 1 \| \d+ \| [\d.e+]+ \| measured \|")
            self.assertTrue((output / "scaling.png").read_bytes().startswith(b"\x89PNG"))

    def test_a_training_deck_gives_the_median_of_its_steps(self):
        output = self.folder / "out"
        self.scale(TINY, "--ranks", "1", "--output", output)
        with h5py.File(output / "ranks_0001/run.h5") as file:
            times = file["steps/step_time"][5:]
        self.assertAlmostEqual(self.rows(output)[0]["time_s"], float(np.median(times[np.isfinite(times)])))

    def test_what_the_last_row_lacks_is_refused_before_the_first_runs(self):
        output = self.folder / "out"
        self.scale(DECK, "--ranks", "1,2,3", "train.batch_size=16", "--output", output, code=USAGE, says="not a multiple of 3 ranks")
        self.scale(DECK, "--ranks", f"1,{8 * self.room}", f"train.batch_size={8 * self.room}", "plan.link_gbyte_per_s=0", "--output", output,
                   code=USAGE, says="--plan has no time")
        self.assertFalse(output.exists())

    def test_a_signal_ends_the_run_and_keeps_the_rows_before_it(self):
        if self.room < 2:
            self.skipTest(f"needs room for 2 ranks, found {self.room}")
        for number in (signal.SIGTERM, signal.SIGINT):
            output = self.folder / f"out {number.name}"
            command = [sys.executable, SOURCE / "scripts/scaling", DECK, "--ranks", "1,2", "bench.repeats=300", "--output", output]
            series = subprocess.Popen([str(word) for word in command], text=True, cwd=self.folder, stdout=subprocess.PIPE,
                                      stderr=subprocess.PIPE, env={**os.environ, "TESSERA_PROGRAM": str(PROGRAM)})
            self.addCleanup(series.kill)
            while "running 2 ranks" not in series.stderr.readline():
                self.assertIsNone(series.poll())
            while not (below := [pid for pid in descendants(series.pid) if Job._runs_program(pid)]):
                self.assertIsNone(series.poll())
            series.send_signal(number)
            printed, errors = series.communicate(timeout=LIMIT_S)
            self.assertEqual(series.returncode, 128 + number, errors)
            self.assertIn(f"stopped by {number.name} on 2 ranks", errors)
            self.assertNotIn("Traceback", errors)
            self.assertTrue(wait_for_end(below))
            self.assertRegex(printed, r"\| 1 \| 1 \| \d+ \| [\d.e+]+ \| measured \|")
            self.assertEqual([row["ranks"] for row in self.rows(output)], [1])

    def test_what_cannot_be_is_refused(self):
        self.scale(DECK, "--ranks", "2,1", code=USAGE, says="rise")
        self.scale(DECK, "--ranks", "one", code=USAGE, says="whole numbers")
        self.scale(DECK, "--strong", "--weak", code=USAGE)
        self.scale(DECK, "parallel.ranks=2", code=USAGE, says="leave it out")
        output = self.folder / "refused"
        self.scale(TINY, "--output", output, "train.steps=5", code=USAGE, says="larger train.steps than 5")
        self.assertFalse(output.exists(), "it would be refused the next time")
        self.scale(SOURCE / "input/bench/attention.toml", code=USAGE, says="experiment")
        self.scale(self.folder / "absent.toml", code=USAGE, says="absent.toml")
        absent = 8 * self.room
        self.scale(DECK, "--ranks", f"{absent}", f"train.batch_size={absent}", "plan.gemm_tflops=0", code=USAGE,
                   says=["--plan has no time", "plan.gemm_tflops"])
        full = self.folder / "full"
        full.mkdir()
        (full / "file").write_text("mine")
        self.scale(DECK, "--output", full, code=FILES, says="not empty")
        self.assertEqual((full / "file").read_text(), "mine")


class Figures(RunTest):
    def test_figures_are_those_of_the_text(self):
        for keys in (("plan.device=h200", "precision.compute=bf16", "plan.attention_tflops=100"), ("plan.device=cpu",)):
            ask = (TINY, "--plan", "parallel.ranks=2", *keys)
            text = self.run_deck(*ask).out
            plan, = tomllib.loads(self.run_deck(*ask, "--figures").out)["plan"]
            self.assertEqual((plan["row"], plan["ranks"]), ("", 2))
            self.assertIn(f"({plan['rank_bytes']} bytes)", text)
            self.assertIn(f"of which   {plan['state_bytes']} bytes of weights, gradients and optimizer, "
                          f"{plan['activation_bytes']} of activations", text)
            if "step_s" in plan:
                self.assertIn(f"time       {1e3 * plan['step_s']:.4g} ms per step", text)
            else:
                self.assertIn(f"no figure for {', '.join(plan['missing_rates'])} ships", text)
            self.assertEqual("step_s" in plan, "plan.device=h200" in keys)

    def test_every_gpu_of_a_key_is_in_the_table(self):
        names = {gpu["name"] for gpu in tomllib.loads(self.run_deck("--show-config", "--figures").out)["gpus"]}
        self.assertGreater(names, {"A100", "H100", "H200"})


class Sharding(RunTest):
    def plan(self, *arguments, code=0):
        answer = subprocess.run([sys.executable, SOURCE / "scripts/plan_sharding", *arguments], text=True, capture_output=True,
                                env={**os.environ, "TESSERA_PROGRAM": str(PROGRAM)})
        self.assertEqual(answer.returncode, code, answer.stderr)
        return answer

    def test_the_table_is_what_the_plan_says(self):
        answer = self.plan(*(SOURCE / f"input/sizes/{size}.toml" for size in ("1b", "10b", "100b")), "--ranks", "8")
        self.assertIn(f"<!-- generated: plan_sharding -->\n{answer.stdout}<!-- end -->", (SOURCE / "parallel/README.md").read_text())
        names, _, cells = (re.split(r" *\| *", line)[4:8] for line in answer.stdout.splitlines()[:3])
        rows = {name: float(cell.split(" ")[0].rstrip(",")) for name, cell in zip(names, cells)}
        self.assertTrue(all(cell.endswith(", 80 GB") for cell in cells), cells)
        P = 2 * 32000 * 2048 + 16 * (4 * 2048**2 + 3 * 2048 * 8192 + 2 * 2048) + 2048
        self.assertAlmostEqual(rows["DDP"], 14 * P / 2**30, delta=0.1)  # 2 + 2 + 2 + 4 + 4 bytes
        self.assertAlmostEqual(rows["ZeRO-1"], (4 + 10 / 8) * P / 2**30, delta=0.1)
        self.assertGreater(rows["ZeRO-1"], rows["ZeRO-2"])
        self.assertGreater(rows["ZeRO-2"], rows["ZeRO-3"])

    def test_what_cannot_be_planned_is_refused_without_a_part_of_the_table(self):
        for decks, ranks, words in (([TINY], "x", "whole numbers"), ([TINY], "8,", "whole numbers"), ([TINY], "-5", "from 1"),
                                    ([TINY], "8,4", "rise"), ([TINY], "8,99999999999999999999", "parallel.ranks"),
                                    ([TINY, self.folder / "absent.toml"], "8", "absent.toml"),
                                    ([TINY, SOURCE / "input/bench/generate.toml"], "8", "generate.toml: its job trains nothing")):
            with self.subTest(decks=decks, ranks=ranks):
                answer = self.plan(*decks, "--ranks", ranks, code=USAGE)
                self.assertEqual(answer.stdout, "")
                self.assertIn(words, answer.stderr)
                self.assertNotIn("Traceback", answer.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
