#!/usr/bin/env python3
"""The job `experiment`: its rows, those that fail, its file, and going on after a stop."""
import json
import os
import re
import shutil
import signal
import sys
import time
import unittest

import h5py
import numpy as np

from harness import (FILES, FINISHED, NUMBERS, OUT_OF_MEMORY, PATIENCE, SOURCE, STOPPED, TINY, USAGE, RunTest,
                     descendants, end_all, latest_step, snapshot)

sys.path.insert(0, str(SOURCE / "scripts"))
from experiments import launch  # noqa: E402  (after the path to it)
from results import Results  # noqa: E402

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
            self.assertEqual(sorted(path.name for path in notes.parent.iterdir() if not path.name.startswith(".")),
                             ["checkpoints", "notes.txt", "run.h5", "status"])

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
            self.assertEqual(file["info"].attrs["format"], "tessera experiment")
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

    def test_rows_of_another_build_are_kept_and_told(self):
        only = 'experiment.only=["small_fp32"]'
        self.run_deck(self.rows, only)
        with h5py.File(self.directory / "experiment.h5", "r+") as file:
            self.assertNotIn("other_builds", file["info"].attrs)
            file["info"].attrs["build"] = "tessera 0.0.1"
        for _ in range(2):  # the second start's file is today's, but its row is not
            result = self.run_deck(self.rows, only, "--resume", "auto")
            self.assertRegex(result.out, "note: rows that have run are of other builds or GPUs: tessera 0.0.1( on .*)?\n")
            with h5py.File(self.directory / "experiment.h5", "r") as file:
                other, = file["info"].attrs["other_builds"]
            self.assertRegex(other, "^tessera 0.0.1( on .*)?$")

    def test_on_two_ranks(self):
        self.run_deck(self.rows, "experiment.quick=true", ranks=2)
        found = contents(self.directory)
        self.assertEqual(list(found["exit_code"]), [FINISHED] * 2 + [OUT_OF_MEMORY] * 2 + [FINISHED] * 2)
        self.assertEqual(found["record/steps/loss"].shape, (6, 2))

    def test_goes_on_with_as_many_ranks(self):
        self.run_deck(self.rows, 'experiment.only=["small_fp32"]')
        before = (self.directory / "experiment.h5").read_bytes()
        self.run_deck(self.rows, "--resume", "auto", "job.overwrite=true", ranks=2, code=FILES, says="have run on 1 rank, not on 2")
        self.assertEqual((self.directory / "experiment.h5").read_bytes(), before)

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
        for key, values in (("parallel.collectives", '["mpi", "auto"]'), ("parallel.transfers", '["auto", "ring"]')):
            deck = self.deck(ROWS.replace('precision.compute = ["fp32", "bf16"]', f"{key} = {values}"))
            for arguments in (("--check",), ()):
                self.run_deck(deck, *arguments, code=USAGE, says=f"{key}  belongs to the whole experiment, not to a row  legal: set it in its own section\n")

    def test_a_directory_that_holds_one_is_not_overwritten(self):
        self.run_deck(self.rows, "experiment.quick=true")
        self.run_deck(self.rows, "experiment.quick=true", code=FILES, says="holds an experiment. Continue after its finished rows")
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
                      says=["experiment.h5 has 4 rows that this deck, with its overrides, does not describe", "small_fp32 small_bf16 last_fp32 last_bf16",
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
bench = {length = 16, repeats = 1, warmup = 0, terms = 5}
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

    def test_rows_whose_files_have_gone_keep_their_record(self):
        only = 'experiment.only=["small_fp32"]'
        self.run_deck(self.rows, only)
        before = contents(self.directory)
        shutil.rmtree(self.directory / "rows")
        self.run_deck(self.rows, only, "--resume", "auto", says=" has run\n")
        np.testing.assert_equal(contents(self.directory), before)
        self.run_deck(self.rows, only, 'experiment.record=["steps/grad_norm:max"]', "--resume", "auto", code=FILES, says="run.h5")

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


COMPARED = """
job.kind = "experiment"
[experiment]
job = "bench.attention"
rounds = 3
baseline = "standard"
[experiment.product]
bench.length = [16, 32]
[experiment.rows.standard]
attention.kernel = "standard"
[experiment.rows.flash2]
attention.kernel = "flash2"
[bench]
warmup = 0
repeats = 1
"""
COMPARED_NAMES = ["standard_16", "standard_32", "flash2_16", "flash2_32"]


class Rounds(RunTest):
    def setUp(self):
        super().setUp()
        self.compared = self.deck(COMPARED, "compared.toml")
        self.directory = self.folder / "runs/compared"

    def test_rows_alternate_and_every_round_is_kept(self):
        result = self.run_deck(self.compared)
        order = re.findall(r"--- round (\d), row (\d) of 4: ", result.out)
        self.assertEqual(order, [(r, i) for r in "123" for i in ("1234" if r != "2" else "4321")])
        found = contents(self.directory)
        self.assertEqual(found["seconds"].shape, (4, 3))
        self.assertEqual(list(found["round"]), [1, 2, 3])
        self.assertEqual(list(found["record/implementation"]), ["standard", "standard", "flash2", "flash2"])
        times = found["record/forward_ms"]
        self.assertEqual(times.shape, (4, 3))
        self.assertGreater(len(set(times.ravel())), 8, "measured each time: copies would leave 4 or 8, and two in twelve may be equal")
        with h5py.File(self.directory / "experiment.h5", "r") as file:
            self.assertEqual([file["record/forward_ms"].dims[axis].keys() for axis in (0, 1)], [["row"], ["round"]])
            self.assertEqual(file["info"].attrs["format_version"], 2)
            self.assertIn("standard", file["relative/forward_ms"].attrs["description"])
        for i, name in enumerate(COMPARED_NAMES):  # the last round is in the row's file
            with h5py.File(self.directory / f"rows/{i + 1:04d}_{name}/bench.h5", "r") as file:
                self.assertEqual(file["forward_ms"][0], times[i, -1])

    def test_numbers_are_compared_with_the_row_of_the_baseline(self):
        self.run_deck(self.compared, f"job.directory={self.folder / 'ranks_0001'}", "experiment.rounds=2")
        found = contents(self.folder / "ranks_0001")
        base = [0, 1, 0, 1]
        for entry, expected in (("forward_ms", lambda x: x[base] / x), ("backward_gflop_per_s", lambda x: x / x[base]),
                                ("memory_mib", lambda x: 1 - x / x[base])):
            np.testing.assert_allclose(found[f"relative/{entry}"], expected(found[f"record/{entry}"]), err_msg=entry)
        self.assertEqual({name for name in found if name.startswith("relative/")} & {f"relative/{name}" for name in ("T", "outcome", "forward_repeats")}, set())
        self.assertTrue((found["relative/memory_mib"][2:] > 0).all())
        flash2 = Results(self.folder).rows[3]
        self.assertEqual((flash2["implementation"], flash2["bench.length"]), ("flash2", 32))
        rounds = found["record/forward_ms"][3]
        self.assertEqual(flash2["forward_ms"], np.median(rounds))
        np.testing.assert_array_equal(flash2.rounds["forward_ms"], rounds)
        self.assertAlmostEqual(flash2.spread("forward_ms"), abs(rounds[0] - rounds[1]) / np.median(rounds))
        self.assertTrue(np.isnan(flash2.spread("implementation")))
        self.assertEqual(flash2["relative/forward_ms"], np.median(found["relative/forward_ms"][3]))
        self.assertEqual(flash2.seconds, np.median(found["seconds"][3]))

    def test_comparisons_do_not_depend_on_interruptions(self):
        deck = self.deck(ROWS.replace('["fp32", "bf16"]', '["fp32"]\ntrain.steps = [2, 3]')
                         .replace("[experiment.product]", 'baseline = "small"\n[experiment.product]'), "relative.toml")
        chosen, record = ["small_fp32_2", "small_fp32_3", "last_fp32_2", "last_fp32_3"], 'experiment.record=["steps/step_time"]'
        self.run_deck(deck, f"experiment.only={chosen[:3]}", record)
        self.run_deck(deck, f"experiment.only={chosen}", record, "--resume", "auto")
        found = contents(self.folder / "runs/relative")["relative/steps/step_time"]
        np.testing.assert_array_equal(np.isfinite(found), [[True, True, steps == 3] for steps in (2, 3, 2, 3)])

    def test_counts_and_deviations_are_not_compared(self):
        entries = ["steps/step_time:count", "steps/step_time:std", "steps/step_time:median"]
        deck = self.deck(ROWS.replace('["fp32", "bf16"]', '["fp32"]').replace("[experiment.product]", 'baseline = "small"\n[experiment.product]'), "counts.toml")
        self.run_deck(deck, f"experiment.record={json.dumps(entries)}")
        with h5py.File(self.folder / "runs/counts/experiment.h5", "r") as file:
            self.assertEqual([file[f"record/{entry}"].attrs["units"] for entry in entries], ["1", "s", "s"])
            self.assertEqual(list(file["relative/steps"]), ["step_time:median"])

    def test_without_its_baseline_a_row_has_no_comparison(self):
        self.run_deck(self.compared, 'experiment.only=["flash2_16"]', "experiment.rounds=1")
        found = contents(self.directory)
        self.assertEqual(found["relative/forward_ms"].shape, (1,))
        self.assertTrue(np.isnan(found["relative/forward_ms"]).all())
        self.assertTrue(np.isfinite(found["record/forward_ms"]).all())

    def test_a_baseline_that_is_not_there_is_refused_before_any_row(self):
        for name, says in (("standart", "there is no [experiment.rows.standart]"), ("flash2", "has 2 rows with the values of row")):
            deck = self.deck(COMPARED.replace('attention.kernel = "flash2"', 'product.bench.batch = [1, 2]'), "wrong.toml")
            self.run_deck(deck, f"experiment.baseline={name}", code=USAGE, says=says)
        self.assertFalse((self.folder / "runs").exists())

    def test_going_on_within_a_round_with_more_and_with_fewer(self):
        self.run_deck(self.compared, 'experiment.only=["standard_16", "flash2_32"]', "experiment.rounds=2")
        first = contents(self.directory)
        self.assertEqual(first["record/forward_ms"].shape, (2, 2))
        result = self.run_deck(self.compared, "--resume", "auto", "experiment.rounds=2")
        self.assertEqual(result.out.count(" has run\n"), 4, str(result))
        self.assertEqual(result.out.count(" took "), 4, str(result))
        second = contents(self.directory)
        np.testing.assert_array_equal(second["record/forward_ms"][[0, 3]], first["record/forward_ms"])
        self.assertTrue(np.isfinite(second["record/forward_ms"]).all())
        self.assertTrue(np.isfinite(second["relative/forward_ms"]).all())
        self.run_deck(self.compared, "--resume", "auto", 'experiment.only=["flash2_16"]')  # of three rounds
        third = contents(self.directory)
        np.testing.assert_array_equal(third["record/forward_ms"][:, :2], second["record/forward_ms"])
        self.assertEqual(np.isfinite(third["record/forward_ms"][:, 2]).tolist(), [False, False, True, False])
        result = self.run_deck(self.compared, "--resume", "auto", "experiment.rounds=1")
        self.assertEqual((result.out.count(" has run\n"), result.out.count(" took ")), (4, 0), str(result))
        np.testing.assert_array_equal(contents(self.directory)["record/forward_ms"], third["record/forward_ms"])
        self.run_deck(self.compared, "job.overwrite=true", "experiment.rounds=1")
        self.assertEqual(contents(self.directory)["record/forward_ms"].shape, (4,))

    def test_what_is_recorded_may_change_between_rounds(self):
        self.run_deck(self.compared, 'experiment.record=["forward_ms"]', "experiment.rounds=1")
        before = contents(self.directory)
        self.assertEqual({name for name in before if name.startswith("record/")}, {"record/forward_ms"})
        self.run_deck(self.compared, "--resume", "auto", "experiment.rounds=2")
        found = contents(self.directory)
        np.testing.assert_array_equal(found["record/forward_ms"][:, 0], before["record/forward_ms"])
        self.assertTrue(np.isfinite(found["record/backward_ms"]).all(), "the first round's were still in the rows' files")

    def test_a_signal_between_rounds_ends_it_and_it_goes_on(self):
        rest_s = 5 * PATIENCE
        words = ("experiment.rounds=2", "bench.pass=forward", f"bench.rest_ms={1000 * rest_s}", 'experiment.only=["flash2_16"]')
        job = self.start(self.compared, *words)
        self.wait_until(lambda: " took " in job.printed(), "the first round", job)
        os.kill(job.process.pid, signal.SIGTERM)  # while the program rests
        started = time.monotonic()
        result = job.wait()
        self.assertLess(time.monotonic() - started, rest_s - 0.5, "it does not rest to the end")
        self.assertEqual(result.code, STOPPED, str(result))
        self.assertIn("stopped by SIGTERM before round 2, row 3 of 4", result.out)
        self.assertEqual(np.isfinite(contents(self.directory)["seconds"]).tolist(), [[True, False]])
        started = time.monotonic()
        self.run_deck(self.compared, *words, "--resume", "auto")
        self.assertGreater(time.monotonic() - started, rest_s, "the rest within the timing")
        self.assertTrue(np.isfinite(contents(self.directory)["record/forward_ms"]).all())

    def test_the_program_rests_between_rounds(self):
        words = ("bench.pass=forward", "bench.rest_ms=1000", 'experiment.only=["flash2_16"]', "experiment.record=[\"forward_ms\"]")
        started = time.monotonic()
        self.run_deck(self.compared, *words, "experiment.rounds=2")
        self.assertGreater(time.monotonic() - started, 3, "two within timings, and one between them")

    def test_a_kill_at_any_time_leaves_a_file_that_goes_on(self):
        deck = self.deck(COMPARED.replace("[16, 32]", str(list(range(8, 58)))), "many.toml")
        directory = self.folder / "runs/many"
        job = self.start(deck, "experiment.rounds=1")
        self.wait_until(lambda: job.printed().count(" took ") > 20, "some rows", job)
        end_all(job.ranks(), signal.SIGKILL)
        job.wait()
        before = contents(directory)
        self.assertGreater(len(before["row"]), 0)
        self.run_deck(deck, "--resume", "auto", "experiment.rounds=1")
        found = contents(directory)
        self.assertEqual(found["record/forward_ms"].shape, (100,))
        self.assertTrue(np.isfinite(found["record/forward_ms"]).all())
        np.testing.assert_array_equal(found["record/forward_ms"][:len(before["row"])], before["record/forward_ms"])

    def test_a_row_that_failed_is_not_measured_again(self):
        deck = self.deck(ROWS)
        only = 'experiment.only=["small_fp32", "too_big_fp32"]'
        result = self.run_deck(deck, only, "experiment.rounds=2")
        self.assertEqual(result.out.count("too_big_fp32\n"), 2, "its title, and in the summary")
        found = contents(self.folder / f"runs/{self.folder.name}")
        self.assertEqual(list(found["exit_code"]), [FINISHED, OUT_OF_MEMORY])
        self.assertEqual(np.isfinite(found["seconds"]).tolist(), [[True, True], [True, False]])
        losses = found["record/steps/loss"]
        self.assertEqual(losses.shape, (2, 2, 4))
        np.testing.assert_array_equal(losses[0, 0], losses[0, 1])  # each round trains anew
        again = self.run_deck(deck, only, "experiment.rounds=2", "--resume", "auto")
        self.assertEqual(again.out.count(" has run\n"), 3)

    def test_a_training_that_was_stopped_in_its_second_round_goes_on(self):
        deck = self.deck(ROWS.replace("steps = 4", "steps = 3000"))
        words = ('experiment.only=["small_fp32"]', "experiment.rounds=2")
        for _ in range(5):  # on a busy machine it may end before the signal is sent
            job = self.start(deck, *words, "job.overwrite=true")
            self.wait_until(lambda: re.search(r"--- round 2(.|\n)* ms/step .*\n +\d+ ", job.printed()), "the second round", job)
            os.kill(job.process.pid, signal.SIGTERM)
            if job.wait().code == STOPPED:
                break
        found = contents(self.folder / f"runs/{self.folder.name}")
        self.assertEqual(list(found["exit_code"]), [STOPPED])
        again = self.run_deck(deck, *words, "--resume", "auto")
        self.assertIn("round 2, row 1 of 6: small_fp32, continued\n", again.out)
        losses = contents(self.folder / f"runs/{self.folder.name}")["record/steps/loss"]
        self.assertEqual(losses.shape, (1, 2, 3000))
        np.testing.assert_array_equal(losses[0, 0], losses[0, 1])

    def test_on_two_ranks(self):
        deck = self.deck("""
job.kind = "experiment"
[experiment]
job = "bench.comm"
rounds = 2
[experiment.product]
bench.operation = ["broadcast", "all_gather"]
[bench]
mbyte = 1
warmup = 0
repeats = 1
""")
        result = self.run_deck(deck, ranks=2)
        self.assertEqual(re.findall(r"--- (round . row .) of 2", result.out.replace(", ", " ")), ["round 1 row 1", "round 1 row 2", "round 2 row 2", "round 2 row 1"])
        self.assertEqual(contents(self.folder / f"runs/{self.folder.name}")["record/median_ms"].shape, (2, 2))

    def test_without_names_every_column_of_a_benchmark_is_recorded(self):
        deck = self.deck("""
job.kind = "experiment"
[experiment]
job = "bench.kernels"
[experiment.rows.kernels]
[experiment.rows.attention]
job.kind = "bench.attention"
[bench]
length = 16
rows = 8
width = 16
warmup = 0
repeats = 1
""")
        self.run_deck(deck)
        found = contents(self.folder / f"runs/{self.folder.name}")
        for i, name in enumerate(("kernels", "attention")):
            with h5py.File(next((self.folder / f"runs/{self.folder.name}/rows").glob(f"*_{name}/bench.h5")), "r") as file:
                for column in set(file) - {"info", "row"}:
                    kept, values = found[f"record/{column}"][i], file[column]
                    if h5py.check_string_dtype(values.dtype):
                        self.assertEqual(kept, ", ".join(values.asstr()[...]), column)
                    else:
                        np.testing.assert_array_equal(np.atleast_1d(kept)[:len(values)], values[...], column)
        trained = self.deck(re.sub("record = .*", "", ROWS), "trained.toml")
        self.run_deck(trained, 'experiment.only=["small_fp32"]', "train.steps=1")
        self.assertFalse([name for name in contents(self.folder / "runs/trained") if name.startswith("record/")])

    def test_files_of_the_version_before_go_on_and_later_ones_are_refused(self):
        self.run_deck(self.compared, "experiment.rounds=1")
        path = self.directory / "experiment.h5"
        for version, code in ((3, FILES), (1, FINISHED)):
            with h5py.File(path, "r+") as file:
                file["info"].attrs["format_version"] = version
            says = "is not an experiment of this version" if code else " has run\n"
            self.run_deck(self.compared, "experiment.rounds=2", "--resume", "auto", code=code, says=says)
        self.assertEqual(contents(self.directory)["record/forward_ms"].shape, (4, 2))

    def test_lists_and_values_of_the_command_line_take_the_place_of_lists(self):
        check = lambda *words: self.run_deck(self.compared, *words, "--check").out.splitlines()[1:]
        self.assertEqual(check("bench.length=8"), ["row standard_8", "row flash2_8"])
        self.assertEqual(check("bench.length=[8, 9]"), ["row standard_8", "row standard_9", "row flash2_8", "row flash2_9"])
        for words, says in ((("bench.repeats=[1, 2]",), "a list is for a key of an experiment's product"),
                            (("bench.length=[8, 8]",), "lists 8 twice"), (("experiment.rounds=0",), "0 is out of range")):
            self.run_deck(self.compared, *words, "--check", code=USAGE, says=says)

    def test_fresh_processes_alternate_too(self):
        self.assertEqual(launch.own_launches(["a", "b"], 3), [("a", 1), ("b", 1), ("b", 2), ("a", 2), ("a", 3), ("b", 3)])
        for round_number in (1, 2):  # what scripts/experiment starts
            for name in ("standard_16", "flash2_16")[::3 - 2 * round_number]:
                self.run_deck(self.compared, f'experiment.only=["{name}"]', f"experiment.rounds={round_number}", "--resume", "auto")
        self.assertTrue(np.isfinite(contents(self.directory)["record/forward_ms"]).all())
        self.assertEqual(contents(self.directory)["record/forward_ms"].shape, (2, 2))


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
                    self.run_deck(deck, where, "train.steps=2", "--resume", "auto", code=FILES, says="1 row that this deck, with its overrides, does not describe")
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
        self.assertEqual(again.out.count("continued\n"), 2, str(again))
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
        where = self.folder / f"runs/{self.folder.name}"
        row = where / "rows/0001_trained"
        job = self.start(deck)
        self.wait_until((row / "checkpoints/latest").exists, "a checkpoint", job)
        end_all(job.ranks(), signal.SIGUSR1)
        self.assertEqual(job.wait().code, STOPPED)
        stopped_at = latest_step(row)
        again = self.run_deck(deck, "--resume", "auto")
        self.assertIn("continued", again.out)
        self.assertIn(f"(step {stopped_at}, written by 1 rank)", again.out)
        with h5py.File(row / "run.h5", "r") as file:
            self.assertEqual(file["info"].attrs["attempts"], 2)

    def test_a_benchmark_of_many_kernels_stops_between_them_and_runs_again(self):
        deck = self.deck("""
job.kind = "experiment"
[experiment]
job = "bench.kernels"
record = ["kernel"]
[bench]
repeats = 400
""")
        row = self.folder / f"runs/{self.folder.name}/rows/0001_deck"
        job = self.start(deck)
        self.wait_until(lambda: "copy" in job.printed(), "the first kernel", job)
        end_all(job.ranks(), signal.SIGTERM)
        result = job.wait()
        self.assertEqual(result.code, STOPPED, str(result))
        self.assertIn("stopped by SIGTERM after the last row", result.out)
        self.assertEqual(list(contents(self.folder / f"runs/{self.folder.name}")["exit_code"]), [STOPPED])
        self.assertFalse((row / "bench.h5").exists())
        part, = row.glob("bench.h5.part*")  # what was measured until then
        with h5py.File(part) as file:
            self.assertEqual(file["kernel"].asstr()[0], "copy")
        deck.write_text(deck.read_text().replace("repeats = 400", "repeats = 1\nrows = 16\nwidth = 16"))
        self.run_deck(deck, "--resume", "auto")
        self.assertEqual(list(contents(self.folder / f"runs/{self.folder.name}")["exit_code"]), [FINISHED])
        self.assertEqual([path.name for path in row.iterdir()], ["bench.h5"])

    def test_a_benchmark_whose_last_row_is_under_way_has_run(self):
        deck = self.deck("""
job.kind = "experiment"
[experiment]
job = "bench.comm"
record = ["bytes"]
[experiment.product]
bench.dtype = ["fp32", "bf16"]
[bench]
mbyte = 1
operation = "broadcast"
repeats = 20000
row_limit_s = 0
""")
        job = self.start(deck, ranks=2)
        self.wait_until(lambda: "transport" in job.printed(), "the first benchmark", job)
        self.wait_until(lambda: list(self.folder.rglob("*.part*")), "its row under way, for seconds", job)
        end_all(job.ranks(), signal.SIGTERM)
        result = job.wait()
        self.assertEqual(result.code, STOPPED, str(result))
        self.assertIn("stopped by SIGTERM before row 2 of 2", result.out)
        found = contents(self.folder / f"runs/{self.folder.name}")
        self.assertEqual((found["exit_code"].tolist(), found["record/bytes"].tolist()), ([FINISHED], [1e6]))

    def test_a_row_that_its_own_limit_ended_has_run(self):
        deck = self.deck(ROWS.replace("steps = 4", "steps = 1000000\ntime_limit_s = 0.2"))
        only = 'experiment.only=["small_fp32"]'
        self.run_deck(deck, only)
        self.assertEqual(list(contents(self.folder / f"runs/{self.folder.name}")["exit_code"]), [STOPPED])
        again = self.run_deck(deck, only, "--resume", "auto")
        self.assertIn("small_fp32 has run\n", again.out)
        again = self.run_deck(deck, only, "experiment.rounds=2", "--resume", "auto")
        self.assertIn("round 2, row 1 of 6: small_fp32\n", again.out)  # anew, not from the checkpoint

    def test_scripts_take_a_row_that_its_own_limit_ended_as_a_result(self):
        deck = self.deck(ROWS.replace("steps = 4", "steps = 1000000\ntime_limit_s = 1"))
        self.run_deck(deck, 'experiment.only=["small_fp32"]', f"job.directory={self.folder / 'rows/ranks_0001'}")
        results = Results(self.folder / "rows")
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
