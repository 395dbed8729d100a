#!/usr/bin/env python3
"""The job `experiment`: its rows, those that fail, its file, and going on after a stop."""
import os
import re
import shutil
import signal
import sys
import time
import unittest

import h5py
import numpy as np

from harness import FILES, FINISHED, NUMBERS, OUT_OF_MEMORY, SOURCE, STOPPED, TINY, USAGE, RunTest, descendants, end_all, latest_step, snapshot

sys.path.insert(0, str(SOURCE / "scripts"))
from experiments import launch  # noqa: E402  (after the path to it)

MODEL = TINY.read_text().split("[data]")[0].split("[model]")[1]
ROWS = f"""
job.kind = "experiment"
[experiment]
job = "train"
record = ["steps/loss", "steps/loss:last", "steps/step_time:median", "memory/peaks:max"]
[experiment.product]
precision.compute = ["fp32", "bf16"]
[experiment.rows.small]
train.batch_size = 2
[experiment.rows.too_big]
model.d_model = 16384
model.num_heads = 64
model.num_layers = 1000
[experiment.rows.last]
train.batch_size = 4
[experiment.when_quick]
train.steps = 2
[model]
{MODEL}
[train]
steps = 4
"""
NAMES = ["small_fp32", "small_bf16", "too_big_fp32", "too_big_bf16", "last_fp32", "last_bf16"]


def contents(directory):
    """{path: array} of experiment.h5, text as str."""
    found = {}
    with h5py.File(directory / "experiment.h5", "r") as file:
        file.visititems(lambda name, item: found.__setitem__(name, item.asstr()[...] if h5py.check_string_dtype(item.dtype) else item[...])
                        if isinstance(item, h5py.Dataset) else None)
    return found


class Rows(RunTest):
    def setUp(self):
        super().setUp()
        self.rows = self.deck(ROWS, "rows.toml")
        self.directory = self.folder / "runs/rows"

    def test_files_of_the_user_in_a_row_that_has_not_run_stay(self):
        notes = self.directory / "rows/0001_small_fp32/notes.txt"
        notes.parent.mkdir(parents=True)
        notes.write_text("mine")
        (notes.parent / "run.h5").write_text("of a start that was killed")
        for key in ("--resume", "auto"), ("job.overwrite=true",), ("--resume", "auto", "train.steps=3", "job.overwrite=true"):
            self.run_deck(self.rows, 'experiment.only=["small_fp32"]', *key)
            self.assertEqual(notes.read_text(), "mine")
            self.assertEqual(contents(self.directory)["exit_code"].tolist(), [FINISHED])
            self.assertEqual(sorted(path.name for path in notes.parent.iterdir() if path.name != ".lock"), ["checkpoints", "notes.txt", "run.h5"])

    def test_a_row_that_fails_does_not_end_the_experiment(self):
        result = self.run_deck(self.rows)
        self.assertIn("exit code 4: too_big_fp32 too_big_bf16", result.out)
        found = contents(self.directory)
        self.assertEqual(list(found["name"]), NAMES)
        self.assertEqual(list(found["exit_code"]), [FINISHED] * 2 + [OUT_OF_MEMORY] * 2 + [FINISHED] * 2)
        for code, reason in zip(found["exit_code"], found["reason"]):
            self.assertEqual(code == FINISHED, reason == "", reason)
        self.assertIn("are available", found["reason"][2])
        self.assertEqual(list(found["keys/precision.compute"]), ["fp32", "bf16"] * 3)
        self.assertEqual(list(found["keys/train.batch_size"]), [2, 2, 8, 8, 4, 4])
        self.assertEqual(found["record/steps/loss"].shape, (6, 4))
        with h5py.File(self.directory / "experiment.h5", "r") as file:
            self.assertEqual(file["record/steps/loss"].attrs["units"], "nat")
            self.assertEqual(file["record/steps/loss"].dims[0].keys(), ["row"])
            self.assertEqual(file["info"].attrs["format"], "tessera-experiment")
            for name in ("version", "git_hash", "build", "hosts", "command", "deck", "created"):
                self.assertTrue(file["info"].attrs[name], name)
            self.assertEqual([file["info"].attrs[name] for name in ("ranks", "host_count", "ranks_per_host")], [1, 1, 1])
        for i, name in enumerate(NAMES):
            run = self.directory / f"rows/{i + 1:04d}_{name}/run.h5"
            if found["exit_code"][i] != FINISHED:
                self.assertFalse(run.exists())
                self.assertTrue(np.isnan(found["record/steps/loss"][i]).all())
                continue
            with h5py.File(run, "r") as file:
                np.testing.assert_array_equal(file["steps/loss"][...], found["record/steps/loss"][i])
                self.assertEqual(file["steps/loss"][-1], found["record/steps/loss:last"][i])
                self.assertEqual(file["memory/peaks"][...].max(), found["record/memory/peaks:max"][i])

    def test_a_row_gives_what_its_resolved_deck_gives_alone(self):
        self.run_deck(self.rows, 'experiment.only=["last_fp32"]')
        found = contents(self.directory)
        self.assertEqual(list(found["name"]), ["last_fp32"])
        alone = self.deck(found["resolved_deck"][0], "alone.toml")
        self.run_deck(alone, f"job.directory={self.folder / 'alone'}")
        with h5py.File(self.folder / "alone/run.h5", "r") as file:
            np.testing.assert_array_equal(file["steps/loss"][...], found["record/steps/loss"][0])

    def test_on_two_ranks(self):
        self.run_deck(self.rows, "experiment.quick=true", ranks=2)
        found = contents(self.directory)
        self.assertEqual(list(found["exit_code"]), [FINISHED] * 2 + [OUT_OF_MEMORY] * 2 + [FINISHED] * 2)
        self.assertEqual(found["record/steps/loss"].shape, (6, 2))

    def test_rows_run_after_one_that_fails_in_its_steps_on_two_ranks(self):
        deck = self.deck(ROWS.replace('precision.compute = ["fp32", "bf16"]', "optimizer.learning_rate = [1e-3, 100.0]")
                         .replace("steps = 4", "steps = 30") + "[optimizer]\nclip_norm = 0\nwarmup_steps = 0\n")
        self.run_deck(deck, "parallel.shard=parameters", f"job.directory={self.directory}", ranks=2)
        found = contents(self.directory)
        self.assertEqual(list(found["exit_code"]), [FINISHED, NUMBERS, OUT_OF_MEMORY, OUT_OF_MEMORY, FINISHED, NUMBERS])
        self.assertTrue(np.isfinite(found["record/steps/loss"][[0, 4]]).all())

    def test_rows_share_their_ranks_in_groups_of_any_size_in_one_process(self):
        heads = ROWS.split("[experiment.product]")[0].replace('"steps/step_time:median", ', "")
        body = "[model]\n" + ROWS.split("[model]\n", 1)[1].replace("steps = 4", "steps = 3\nbatch_size = 4") + "[optimizer]\nclip_norm = 0\n"
        deck = self.deck(heads + """
[experiment.rows.whole]
[experiment.rows.sharded.product]
parallel.shard_ranks = [1, 2, 0, 3]
parallel.shard = ["optimizer", "parameters"]
""" + body)
        self.run_deck(deck, "parallel.collectives=mpi", f"job.directory={self.directory}", ranks=2)
        found = contents(self.directory)
        self.assertEqual(list(found["exit_code"]), [FINISHED] * 7 + [USAGE] * 2)  # two ranks make no groups of three
        for reason in found["reason"][7:]:
            self.assertIn("parallel.shard_ranks", reason)
        losses = found["record/steps/loss"][:7]  # two terms have the same sum in either order
        self.assertTrue(np.isfinite(losses).all())
        np.testing.assert_array_equal(losses, np.broadcast_to(losses[0], losses.shape))
        alone = self.deck(found["resolved_deck"][4], "alone.toml")  # groups of two after groups of one
        self.run_deck(alone, f"job.directory={self.folder / 'alone'}", ranks=2)
        with h5py.File(self.folder / "alone/run.h5", "r") as file:
            np.testing.assert_array_equal(file["steps/loss"][...], losses[4])

    def test_what_makes_the_communicators_is_of_all_rows(self):
        for key, values in (("parallel.collectives", '["mpi", "auto"]'), ("parallel.all_reduce", '["auto", "ring"]')):
            deck = self.deck(ROWS.replace('precision.compute = ["fp32", "bf16"]', f"{key} = {values}"))
            for arguments in (("--check",), ()):
                self.run_deck(deck, *arguments, code=USAGE, says=f"{key}  is of the whole experiment, not of a row  legal: set it in its own section\n")

    def test_a_directory_that_holds_one_is_not_overwritten(self):
        self.run_deck(self.rows, "experiment.quick=true")
        self.run_deck(self.rows, "experiment.quick=true", code=FILES, says="holds an experiment. Go on after its finished rows")
        self.run_deck(self.rows, "experiment.quick=true", "job.overwrite=true")

    def test_resume_keeps_what_has_run(self):
        self.run_deck(self.rows, 'experiment.only=["small_bf16", "too_big_fp32"]')
        run = self.directory / "rows/0002_small_bf16/run.h5"
        before = run.stat().st_mtime_ns
        result = self.run_deck(self.rows, "--resume", "auto")
        self.assertEqual(result.out.count(" has run\n"), 2, str(result))
        self.assertEqual(run.stat().st_mtime_ns, before)
        self.assertEqual(list(contents(self.directory)["name"]), NAMES)
        before = snapshot(self.directory)
        self.run_deck(self.rows, "--resume", "auto", "train.steps=3", code=FILES,
                      says=["experiment.h5 has 4 rows that are no rows of this deck", "small_fp32 small_bf16 last_fp32 last_bf16",
                            "--resume auto would lose what ran"])
        self.assertEqual(snapshot(self.directory), before)
        result = self.run_deck(self.rows, "--resume", "auto", "train.steps=3", "job.overwrite=true")  # nothing is kept
        self.assertNotIn(" has run\n", result.out)
        self.assertEqual(contents(self.directory)["record/steps/loss"].shape, (6, 3))

    def test_resume_keeps_rows_in_another_folder_and_with_another_number(self):
        self.run_deck(self.rows, 'experiment.only=["small_fp32", "last_bf16"]', "job.progress=line")
        times = {name: run.stat().st_mtime_ns for name in ("small_fp32", "last_bf16") for run in self.directory.glob(f"rows/*_{name}/run.h5")}
        moved = self.folder / "moved"
        self.directory.rename(moved)
        front = self.deck(ROWS.replace("[experiment.rows.small]", "[experiment.rows.first]\n[experiment.rows.small]"), "front.toml")
        only = 'experiment.only=["first_fp32", "small_fp32", "last_bf16"]'
        result = self.run_deck(front, f"job.directory={moved}", only, "train.steps=4", "--resume", "auto")  # the deck says 4, too
        self.assertEqual(result.out.count(" has run\n"), 2, str(result))
        found = contents(moved)
        self.assertEqual(list(found["name"]), ["first_fp32", "small_fp32", "last_bf16"])
        self.assertEqual(list(found["row"]), [1, 3, 8])
        self.assertTrue(np.isfinite(found["record/steps/loss"]).all())
        self.assertEqual(sorted(path.name for path in (moved / "rows").iterdir()), ["0001_first_fp32", "0003_small_fp32", "0008_last_bf16"])
        for name, time_ns in times.items():
            self.assertEqual(next(moved.glob(f"rows/*_{name}/run.h5")).stat().st_mtime_ns, time_ns)
        in_the_way = moved / "rows/0001_small_fp32"
        in_the_way.mkdir()
        self.run_deck(self.rows, f"job.directory={moved}", only.replace('"first_fp32", ', ""), "job.overwrite=true", "--resume", "auto",
                      code=FILES, says="the results of")
        in_the_way.rmdir()
        self.run_deck(self.rows, f"job.directory={moved}", only.replace('"first_fp32", ', ""), "job.overwrite=true", "--resume", "auto")
        self.assertEqual(list(contents(moved)["row"]), [1, 6])

    def test_rows_of_different_jobs(self):
        deck = self.deck("""
job.kind = "experiment"
bench = {lengths = [16], repeats = 1, warmup = 0, terms = [5]}
[experiment]
job = "bench.accumulation"
record = ["outcome", "sum"]
[experiment.rows.sums]
[experiment.rows.attention]
job.kind = "bench.attention"
""", "jobs.toml")
        self.run_deck(deck, f"job.directory={self.directory}")
        found = contents(self.directory)
        self.assertEqual(list(found["keys/job.kind"]), ["bench.accumulation", "bench.attention"])
        self.assertEqual(list(found["record/outcome"]), ["", "ok"])
        self.assertEqual([list(row) for row in np.isnan(found["record/sum"])], [[False] * 7, [True] * 7])
        self.run_deck(deck, f"job.directory={self.directory}", 'experiment.record=["nothing"]', "--resume", "auto", code=FILES,
                      says="has no dataset nothing")

    def test_what_is_recorded_may_change(self):
        self.run_deck(self.rows, 'experiment.only=["small_fp32"]')
        self.run_deck(self.rows, 'experiment.only=["small_fp32"]', 'experiment.record=["steps/grad_norm:max"]', "--resume", "auto",
                      says=" has run\n")
        self.assertIn("record/steps/grad_norm:max", contents(self.directory))
        self.run_deck(self.rows, 'experiment.only=["small_fp32"]', 'experiment.record=["steps/nothing"]', "--resume", "auto",
                      code=FILES, says="has no dataset steps/nothing")

    def test_rows_of_two_kinds_record_what_either_has(self):
        deck = self.deck(f"""
job.kind = "experiment"
[experiment]
job = "train"
record = ["steps/loss:last", "forward_ms"]
[experiment.rows.step]
[experiment.rows.forward]
job.kind = "bench.step"
bench.phase = "forward"
[model]
{MODEL}
[data]
validation_fraction = 0.1
[train]
steps = 2
batch_size = 2
[bench]
warmup = 0
repeats = 1
""", "kinds.toml")
        self.run_deck(deck)
        found = contents(self.folder / "runs/kinds")
        self.assertEqual(list(found["keys/job.kind"]), ["train", "bench.step"])
        for name, has in (("steps/loss:last", [True, False]), ("forward_ms", [False, True])):
            self.assertEqual(list(np.isfinite(found[f"record/{name}"].ravel())), has, name)
        self.run_deck(deck, 'experiment.record=["nothing"]', "--resume", "auto", code=FILES, says="has no dataset nothing")


    def test_a_wrong_name_to_record_costs_no_row(self):
        only = 'experiment.only=["small_fp32", "small_bf16"]'
        entries = 'experiment.record=["steps/nothing:last", "steps/loss:last"]'
        result = self.run_deck(self.rows, only, entries, code=FILES, says=["has no dataset steps/nothing", "--resume auto keeps them"])
        self.assertEqual(result.out.count(" took "), 2, str(result))
        found = contents(self.directory)
        self.assertEqual(list(found["name"]), NAMES[:2])
        self.assertTrue(np.isnan(found["record/steps/nothing:last"]).all())
        self.assertTrue(np.isfinite(found["record/steps/loss:last"]).all())
        again = self.run_deck(self.rows, only, "--resume", "auto")
        self.assertEqual(again.out.count(" has run\n"), 2)

    def test_outcomes_of_rows_that_are_not_chosen_stay(self):
        deck = self.deck(ROWS.replace("[model]\n", "[data]\nsource = \"text\"\npath = \"corpus.txt\"\n[model]\n", 1)
                         .replace("vocab_size = 64", "vocab_size = 257"))
        where = f"job.directory={self.directory}"
        self.run_deck(deck, where, 'experiment.only=["small_fp32", "small_bf16"]')  # there is no such file
        (self.folder / "corpus.txt").write_text("words and words again. " * 400)
        self.run_deck(deck, where, 'experiment.only=["small_bf16"]', "--resume", "auto")
        found = contents(self.directory)
        self.assertEqual(list(found["name"]), NAMES[:2])
        self.assertEqual(list(found["exit_code"]), [FILES, FINISHED])
        self.run_deck(deck, where, 'experiment.only=["small_fp32"]', "--resume", "auto")
        self.assertEqual(list(contents(self.directory)["exit_code"]), [FINISHED] * 2)

    def test_overwrite_does_not_follow_a_row_that_is_a_link(self):
        other = self.train("other", "train.steps=2")
        before = snapshot(other)
        only = 'experiment.only=["small_fp32"]'
        self.run_deck(self.rows, only)
        row = self.directory / "rows/0001_small_fp32"
        shutil.rmtree(row)
        row.symlink_to(other)
        self.run_deck(self.rows, only, "job.overwrite=true", code=FILES, says=["0001_small_fp32 is a link", "Move the link away"])
        self.assertEqual(snapshot(other), before)

    def test_overwrite_leaves_what_is_not_of_an_experiment(self):
        folder = self.folder / "mine"
        (folder / "rows/0001_small_fp32").mkdir(parents=True)
        notes = [folder / "rows/0001_small_fp32/notes.txt", folder / "rows/table.csv", folder / "experiment.h5"]
        for path in notes:
            path.write_text("mine")
        self.train("mine", "train.steps=1", "job.overwrite=true")
        for path in notes:
            self.assertEqual(path.read_text(), "mine")
        self.run_deck(self.rows, 'experiment.only=["small_fp32"]')
        (self.directory / "rows/table.csv").write_text("mine")
        self.train("runs/rows", "train.steps=1", "job.overwrite=true")
        self.assertFalse((self.directory / "experiment.h5").exists())
        (self.directory / "experiment.h5").write_text("mine")
        self.run_deck(self.rows, 'experiment.only=["small_fp32"]', "job.overwrite=true", code=FILES, says="experiment.h5 is not")
        self.assertEqual((self.directory / "experiment.h5").read_text(), "mine")
        self.assertEqual([path.name for path in (self.directory / "rows").iterdir()], ["table.csv"])


class Questions(RunTest):
    def test_every_row_is_checked_before_the_first_runs(self):
        deck = self.deck(ROWS.replace("num_heads = 64", "num_heads = 100"))
        for arguments in ((), ("--check",)):
            self.run_deck(deck, *arguments, code=USAGE,
                          says=["model.d_model  16384 is not a multiple of model.num_heads = 100 (row too_big_fp32)"])
        self.assertFalse((self.folder / "runs").exists())
        self.run_deck(self.deck(ROWS.replace("train.batch_size = 2", "train.batch_sise = 2")), code=USAGE,
                      says="train.batch_sise  unknown key")

    def test_check_names_the_rows_and_print_reads_back(self):
        deck = self.deck(ROWS)
        result = self.run_deck(deck, "--check")
        self.assertEqual([line.removeprefix("row ") for line in result.out.splitlines()[1:]], NAMES)
        printed = self.run_deck(deck, "--print").out
        again = self.run_deck(self.deck(printed, "printed.toml"), "--print").out
        self.assertEqual(again, printed.replace("  # default", ""))  # which is given there

    def test_plan_has_every_row(self):
        result = self.run_deck(self.deck(ROWS), "--plan")
        self.assertEqual(result.out.count("\nper rank "), len(NAMES))


class Stops(RunTest):
    STEPS = 3000  # of rows that are stopped: about a second

    def test_signals_and_the_limit_end_it_in_order_and_it_goes_on(self):
        deck = self.deck(ROWS.replace("steps = 4", "steps = 300"))
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, None):
            with self.subTest(signal=number):
                where = f"job.directory={self.folder / str(number)}"
                own = ["experiment.time_limit_s=1e-6"] if number is None else []
                job = self.start(deck, where, *own, "train.steps=100000")
                if number is not None:
                    self.wait_until(lambda: "--- row 1 of 6" in job.printed() and "ms/step" in job.printed(), "the first row", job)
                    os.kill(job.process.pid, number)
                result = job.wait()
                self.assertEqual(result.code, STOPPED, str(result))
                self.assertIn(f"stopped by {number.name if number else 'experiment.time_limit_s'} before row", result.out)
                if number is not None:
                    self.run_deck(deck, where, "train.steps=2", "--resume", "auto", code=FILES, says="1 row that is no row of this deck")
                again = self.run_deck(deck, where, "train.steps=2", "--resume", "auto", "job.overwrite=true")
                self.assertNotIn(" has run\n", again.out)
                self.assertEqual(list(contents(self.folder / str(number))["name"]), NAMES)

    def stop_rows(self, deck, where, rows):
        """Stops each row, the only one of its launch, in its first steps; whether all were stopped before their last step."""
        for row in rows:
            job = self.start(deck, f"job.directory={where}", f'experiment.only=["{row}"]', "--resume", "auto")
            self.wait_until(lambda job=job: re.search(r" ms/step .*\n +\d+ ", job.printed()), "the first steps", job)
            os.kill(job.process.pid, signal.SIGTERM)
            result = job.wait()
            if f"\n{self.STEPS} steps in " in result.out:
                return False
            self.assertEqual(result.code, STOPPED, str(result))
            self.assertIn("stopped by SIGTERM after the last row", result.out)
        return True

    def test_a_stopped_row_goes_on_and_rows_that_have_run_stay(self):
        deck = self.deck(ROWS.replace("steps = 4", f"steps = {self.STEPS}"))
        where = self.folder / "stopped"
        own = (f"job.directory={where}",)
        self.run_deck(deck, *own, 'experiment.only=["last_bf16"]')  # the last one of all
        for _ in range(5):  # on a busy machine a row may end before the signal is sent
            if self.stop_rows(deck, where, NAMES[:2]):
                break
            self.run_deck(deck, *own, 'experiment.only=["last_bf16"]', "job.overwrite=true")
        else:
            self.fail("the rows always ended before the signal was sent")
        found = contents(where)
        self.assertEqual(list(found["name"]), [*NAMES[:2], "last_bf16"])
        self.assertEqual(list(found["exit_code"]), [STOPPED, STOPPED, FINISHED])
        again = self.run_deck(deck, *own, f'experiment.only={NAMES[:2]}', "--resume", "auto")
        self.assertEqual(again.out.count("goes on\n"), 2, str(again))
        found = contents(where)
        self.assertEqual(list(found["exit_code"]), [FINISHED] * 3)
        self.assertTrue(np.isfinite(found["record/steps/loss"]).all())
        self.assertEqual(found["record/steps/loss"].shape, (3, self.STEPS))
        with h5py.File(where / f"rows/0001_{NAMES[0]}/run.h5", "r") as file:
            self.assertEqual(file["info"].attrs["attempts"], 2)

    def test_a_training_row_among_benchmarks_goes_on_from_its_checkpoint(self):
        deck = self.deck(f"""
job.kind = "experiment"
[experiment]
job = "bench.step"
record = ["steps/loss:last"]
[experiment.rows.trained]
job.kind = "train"
[model]
{MODEL}
[train]
steps = 3000
[checkpoint]
every = 20
""")
        where = self.folder / "runs/deck"
        row = where / "rows/0001_trained"
        job = self.start(deck)
        self.wait_until((row / "checkpoints/latest").exists, "a checkpoint", job)
        end_all(job.ranks(), signal.SIGUSR1)
        self.assertEqual(job.wait().code, STOPPED)
        stopped_at = latest_step(row)
        again = self.run_deck(deck, "--resume", "auto")
        self.assertIn("goes on", again.out)
        self.assertIn(f"(step {stopped_at}, written by 1 rank)", again.out)
        with h5py.File(row / "run.h5", "r") as file:
            self.assertEqual(file["info"].attrs["attempts"], 2)

    def test_a_benchmark_of_several_ranks_stops_between_its_rows_and_runs_again(self):
        deck = self.deck(f"""
job.kind = "experiment"
[experiment]
job = "bench.comm"
record = ["bytes"]
[experiment.rows.sizes]
bench.mbytes = {list(range(1, 400))}
""")
        row = self.folder / "runs/deck/rows/0001_sizes"
        job = self.start(deck, ranks=2)
        self.wait_until((row / "bench.h5.part").exists, "the first row of the benchmark", job)
        end_all(job.ranks(), signal.SIGTERM)
        result = job.wait()
        self.assertEqual(result.code, STOPPED, str(result))
        self.assertIn("stopped by SIGTERM after the last row", result.out)
        self.assertEqual(list(contents(self.folder / "runs/deck")["exit_code"]), [STOPPED])
        self.assertFalse((row / "bench.h5").exists())
        deck.write_text(deck.read_text().replace(str(list(range(1, 400))), "[1]"))
        self.run_deck(deck, "--resume", "auto", ranks=2)
        self.assertEqual(contents(self.folder / "runs/deck")["record/bytes"].tolist(), [[1e6] * 4])
        self.assertEqual([path.name for path in row.iterdir()], ["bench.h5"])

    def test_a_benchmark_whose_last_row_is_under_way_has_run(self):
        deck = self.deck("""
job.kind = "experiment"
[experiment]
job = "bench.comm"
record = ["bytes"]
[experiment.product]
bench.dtypes = [["fp32"], ["bf16"]]
[bench]
mbytes = [1]
operations = ["broadcast"]
repeats = 20000
row_limit_s = 0
""")
        job = self.start(deck, ranks=2)
        self.wait_until(lambda: "transport" in job.printed(), "the first benchmark", job)
        time.sleep(0.5)  # its row is under way, for seconds
        end_all(job.ranks(), signal.SIGTERM)
        result = job.wait()
        self.assertEqual(result.code, STOPPED, str(result))
        self.assertIn("stopped by SIGTERM before row 2 of 2", result.out)
        found = contents(self.folder / "runs/deck")
        self.assertEqual((found["exit_code"].tolist(), found["record/bytes"].tolist()), ([FINISHED], [1e6]))

    def test_a_row_that_its_own_limit_ended_has_run(self):
        deck = self.deck(ROWS.replace("steps = 4", "steps = 1000000\ntime_limit_s = 0.2"))
        only = 'experiment.only=["small_fp32"]'
        self.run_deck(deck, only)
        self.assertEqual(list(contents(self.folder / "runs/deck")["exit_code"]), [STOPPED])
        again = self.run_deck(deck, only, "--resume", "auto")
        self.assertIn("small_fp32 has run\n", again.out)

    def test_scripts_take_a_row_that_its_own_limit_ended_as_a_result(self):
        deck = self.deck(ROWS.replace("steps = 4", "steps = 1000000\ntime_limit_s = 1"))
        self.run_deck(deck, 'experiment.only=["small_fp32"]', f"job.directory={self.folder / 'rows/ranks_0001'}")
        results = launch.Results(self.folder / "rows")
        (row,) = results.rows
        self.assertEqual((row.exit_code, row.has_run, row.outcome), (STOPPED, True, "stopped by its train.time_limit_s"))
        with row.file() as file:  # a busy machine may not come to a first step
            self.assertEqual(len(file["steps/loss"]) > 0, np.isfinite(row["steps/loss:last"]))
        self.assertEqual(launch.judge(results), FINISHED)
        row.reason = "stopped by SIGTERM"
        self.assertFalse(row.has_run)
        self.assertEqual(launch.judge(results), STOPPED)

    def test_a_second_interrupt_does_not_wait(self):
        job = self.start(self.deck(ROWS), "train.steps=1000000", "trace.every_steps=1000000")
        self.wait_until(lambda: "ms/step" in job.printed() or "--- row 1" in job.printed(), "the first row", job)
        for _ in range(100):
            end_all([job.process.pid, *descendants(job.process.pid)], signal.SIGINT)
            if job.process.poll() is not None:
                break
        self.assertIn(job.wait().code, (130, STOPPED))


if __name__ == "__main__":
    unittest.main()
