#!/usr/bin/env python3
"""Stopping and resuming: signals, limits and kills, and bitwise equality afterwards."""
import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import time
import unittest

import h5py
import numpy as np

from harness import (FILES, FINISHED, LOSS_BOUND, NUMBERS, OUT_OF_MEMORY, SOURCE, STOPPED, TINY, USAGE, RunTest, Shimmed, column, configuration,
                     end_all, gpus, index_of, latest_step, snapshot, tensors, tensors_of, wait_for_end, write_script)

STEPS = 240 if gpus() is None else 1000  # enough that a kill comes before the end
LONG = (f"train.steps={STEPS}", "train.validate_every=0", "checkpoint.every=20", "trace.flush_s=0.01")


class Resume(RunTest):
    def assert_same_bits(self, a, b):
        self.assert_same_tensors(tensors(a), tensors(b))
        np.testing.assert_array_equal(column(a, "step"), column(b, "step"))
        np.testing.assert_array_equal(column(a, "loss"), column(b, "loss"))

    def kill(self, job):
        """Power cut: every process of the job at once."""
        pids = [*job.ranks(), job.process.pid]
        job.kill_everything()
        self.assertTrue(wait_for_end(pids), "a killed process lives on")

    def check_after_a_kill(self, name, *more, ranks, killed=()):
        """`killed`: further keys of the run that is killed and resumed, which change no result."""
        whole = self.train(f"{name} whole", *LONG, *more, ranks=ranks)
        directory = self.folder / f"{name} killed"
        job = self.start(TINY, f"job.directory={directory}", *LONG, *more, *killed, ranks=ranks)
        self.wait_until(lambda: latest_step(directory) >= 40, "step 40", job)
        self.kill(job)
        self.assertLess(latest_step(directory), STEPS, "finished before the kill; make the run longer")
        self.run_deck(TINY, f"job.directory={directory}", *LONG, *more, *killed, "--resume", "auto", ranks=ranks)
        self.assert_same_bits(directory, whole)

    def test_after_a_kill_the_bits_are_those_of_no_interruption(self):
        lion = ("optimizer.kind=lion", "optimizer.learning_rate=1e-3", "precision.moments=bf16", "precision.master=none")
        for precision, more in (("fp32", ()), ("fp16", ()), ("bf16", lion)):
            for ranks in (None, 2):
                with self.subTest(precision=precision, ranks=ranks):  # two ranks: checkpoints in the background
                    self.check_after_a_kill(f"{precision} on {ranks}", f"precision.compute={precision}", *more, ranks=ranks,
                                            killed=() if ranks is None else ("checkpoint.background=on",))

    def test_lion_goes_on_with_the_same_bits_wherever_its_state_lies(self):
        lion = ("optimizer.kind=lion", "optimizer.learning_rate=1e-3", "train.steps=20", "checkpoint.every=8", "checkpoint.keep=9")
        for precision in ("fp32", "bf16"):
            whole = self.train(f"{precision} whole", *lion, f"precision.compute={precision}", ranks=2)
            expected = tensors(whole)
            self.assertEqual({path.split("/")[1] for path in expected if path.startswith("moments/")}, {"m"})
            for shard, offload in (("none", "optimizer"), ("optimizer", "none"), ("gradients", "optimizer"), ("parameters", "none"),
                                   ("parameters", "parameters")):
                with self.subTest(precision=precision, shard=shard, offload=offload):
                    directory = self.train(f"{precision} {shard} {offload}", *lion, f"precision.compute={precision}",
                                           f"parallel.shard={shard}", f"parallel.offload={offload}",
                                           "--resume", whole / "checkpoints/step_00000008", ranks=2)
                    self.assert_same_tensors(tensors(directory), expected)

    def test_after_a_kill_a_graph_goes_on_with_the_same_bits(self):
        if gpus() is None:
            self.skipTest("this build computes on the host, where there are no graphs")
        for ranks in (None, 2):
            with self.subTest(ranks=ranks):
                self.check_after_a_kill(f"graph on {ranks}", "precision.compute=bf16", "train.graph=true", ranks=ranks)

    def test_a_kill_while_a_checkpoint_is_written(self):
        heavy = ("model.d_model=192", "model.num_layers=4", "model.d_ff=768", "train.batch_size=2", "train.steps=24",
                 "train.validate_every=0", "checkpoint.every=2")
        whole = self.train("whole", *heavy, ranks=2)
        directory, hits, resume = self.folder / "killed", {"off": 0, "on": 0}, ()
        for attempt in range(16):
            background = ("on", "off")[attempt % 2]
            job = self.start(TINY, f"job.directory={directory}", *heavy, f"checkpoint.background={background}", *resume, ranks=2)
            half_written = lambda: any((directory / "checkpoints").glob(".tmp*"))
            end = time.monotonic() + 60
            while not half_written() and job.process.poll() is None and time.monotonic() < end:
                pass
            if job.process.poll() is not None:
                self.assertEqual(job.wait().code, FINISHED)
                break
            time.sleep(0.004 * (attempt % 4))  # at the start, in the middle, near the end of the writing
            self.kill(job)
            hits[background] += half_written()
            if latest_step(directory):
                resume = ("--resume", "auto")
            elif directory.exists():  # killed inside its first checkpoint: nothing to resume, nothing to lose
                resume = ("job.overwrite=true",)
            if min(hits.values()) >= 2:
                break
        self.assertGreaterEqual(min(hits.values()), 1, f"no kill fell inside the writing of a checkpoint: {hits}")
        self.run_deck(TINY, f"job.directory={directory}", *heavy, *resume, ranks=2)
        self.assertFalse(list((directory / "checkpoints").glob(".tmp*")), "a killed checkpoint was left behind")
        self.assert_same_bits(directory, whole)

    def test_steps_may_grow(self):
        directory = self.train("run", "train.steps=10")
        self.run_deck(TINY, f"job.directory={directory}", "train.steps=15", "--resume", "auto")
        self.assertEqual(list(column(directory, "step")), list(range(1, 16)))

    def test_a_run_that_is_at_its_last_step_says_so_and_touches_nothing(self):
        directory = self.train("run", "train.steps=20")
        before = snapshot(directory)
        for ranks in (None, 2):
            for steps in (20, 10):
                with self.subTest(ranks=ranks, steps=steps):
                    result = self.run_deck(TINY, f"job.directory={directory}", f"train.steps={steps}", "train.sample_tokens=5",
                                           "--resume", "auto", ranks=ranks)
                    self.assertIn(f"already at step 20 of train.steps = {steps}: nothing to train", result.out)
                    self.assertNotIn("0 steps in", result.out)
                    self.assertNotIn("generated", result.out)
                    self.assertEqual(snapshot(directory), before)

    def test_without_a_checkpoint_no_row_is_lost(self):
        none = ("checkpoint.every=0", "checkpoint.at_end=false")
        directory = self.train("run", "train.steps=20", *none)
        before = snapshot(directory)
        for ranks in (None, 2):
            self.run_deck(TINY, f"job.directory={directory}", "train.steps=20", *none, "--resume", "auto", ranks=ranks,
                          says="finished at step 20 already")
            self.assertEqual(snapshot(directory), before)
        self.run_deck(TINY, f"job.directory={directory}", "train.steps=25", *none, "--resume", "auto", says="a copy of run.h5, with 20 steps, is in")
        self.assertEqual(len(column(directory, "step")), 25)
        copy, = (directory / "checkpoints").glob("abandoned_*")
        self.assertEqual(list(column(copy, "step")), list(range(1, 21)))
        self.run_deck(TINY, f"job.directory={directory}", "train.steps=5", "job.overwrite=true")
        self.assertFalse(copy.exists())

    def test_a_status_that_no_run_wrote_is_not_replaced(self):
        directory = self.folder / "run"
        directory.mkdir()
        (directory / "status").write_text("notes of three weeks")
        for way in ("--resume", "auto"), ("job.overwrite=true",):
            self.run_deck(TINY, f"job.directory={directory}", *way, code=FILES, says="is not the status of a run")

    def test_a_larger_validation_part_is_named(self):
        directory = self.train("run", "train.steps=5", "data.validation_fraction=0.1")
        larger = "the validation part is larger"
        for fraction, words in (("0.05", ()), ("0.2", larger)):
            result = self.run_deck(TINY, f"job.directory={self.folder / fraction}", "train.steps=10", f"data.validation_fraction={fraction}",
                                   "--resume", directory, says=words)
            self.assertEqual(larger in result.out, bool(words))

    def test_another_training_without_a_step_left_is_refused(self):
        directory = self.train("run", "train.steps=10")
        before = snapshot(directory)
        for ranks in (None, 2):
            result = self.run_deck(TINY, f"job.directory={directory}", "train.steps=10", "optimizer.learning_rate=0.5",
                                   "precision.compute=bf16", "parallel.timeout_s=60", "--resume", "auto", ranks=ranks, code=USAGE,
                                   says=["already at step 10", "optimizer.learning_rate: ", "precision.compute: ", "job.directory"])
            self.assertNotIn("timeout_s", result.err)
            self.assertEqual(snapshot(directory), before)
        self.run_deck(TINY, f"job.directory={self.folder / 'other'}", "train.steps=10", "--resume", directory, code=USAGE,
                      says=[f"{directory} is at step 10 already: raise train.steps"])
        more = self.run_deck(TINY, f"job.directory={directory}", "train.steps=12", "optimizer.learning_rate=0.5", "--resume", "auto")
        self.assertIn("changed optimizer.learning_rate", more.out)

    def test_data_that_moved_are_the_same_training(self):
        text = self.folder / "text.txt"
        text.write_text("In the beginning " * 500)
        data = ("data.source=text", "model.vocab_size=257", "train.steps=4")
        directory = self.train("run", *data, f"data.path={text}")
        moved = text.rename(self.folder / "moved.txt")
        self.run_deck(TINY, f"job.directory={directory}", *data, f"data.path={moved}", "--resume", "auto", says="nothing to train")

    def test_a_latest_that_names_an_older_checkpoint_loses_no_step(self):
        keys = ("train.steps=30", "checkpoint.every=10", "checkpoint.keep=9")
        whole = self.train("whole", *keys)
        directory = self.train("run", *keys)
        shutil.rmtree(directory / "checkpoints/step_00000030")
        (directory / "checkpoints/latest").write_text("step_00000010\n")
        self.run_deck(TINY, f"job.directory={directory}", *keys, "--resume", "auto",
                      says=["names step_00000010, but step_00000020 is newer", "--resume "])
        self.assert_same_bits(directory, whole)
        self.assertFalse(list((directory / "checkpoints").glob("abandoned*")))
        # without a step left, too, the run goes on from the newest, and says so
        (directory / "checkpoints/latest").write_text("step_00000020\n")
        self.run_deck(TINY, f"job.directory={directory}", *keys, "--resume", "auto",
                      says=["step_00000030 is newer", "nothing to train"])

    def test_a_latest_that_is_no_file_is_named_with_what_helps(self):
        directory = self.train("run", "train.steps=10")
        latest = directory / "checkpoints/latest"
        for kind, make in (("a folder", latest.mkdir), ("a FIFO", lambda: os.mkfifo(latest))):
            with self.subTest(kind=kind):
                latest.unlink()
                make()
                for how in (("--resume", "auto"), ("job.overwrite=true",), ()):
                    self.run_deck(TINY, f"job.directory={directory}", "train.steps=20", *how, code=FILES,
                                  says=[f"latest: it is {kind}", "Move it: "])
                latest.rmdir() if kind == "a folder" else latest.unlink()
                latest.write_text("step_00000010\n")
        latest.unlink()
        self.run_deck(TINY, f"job.directory={directory}", "train.steps=20", "--resume", "auto")  # as the message says

    def test_another_model_is_told_what_to_type(self):
        directory = self.train("run", "train.steps=5", "model.d_ff=40", "model.num_heads=1")
        arguments = (TINY, f"job.directory={directory}", "train.steps=6", "--resume", "auto")
        result = self.run_deck(*arguments, code=USAGE, says="job.directory")
        typed = re.findall(r"model\.\w+=\S+", result.err.replace(";", " "))
        self.assertEqual(typed, ["model.num_heads=1", "model.d_ff=40"], str(result))
        self.run_deck(*arguments, *typed)
        self.assertEqual(latest_step(directory), 6)

    def test_another_optimizer_is_told_what_to_type(self):
        directory = self.train("run", "train.steps=5", "optimizer.kind=lion")
        arguments = (TINY, f"job.directory={directory}", "train.steps=6", "--resume", "auto")
        for ranks in (None, 2):
            self.run_deck(*arguments, ranks=ranks, code=USAGE, says=['"lion"', '"adamw"', "add optimizer.kind=lion", "job.directory"])
        self.run_deck(*arguments, "optimizer.kind=lion")
        self.assertEqual(latest_step(directory), 6)

    def test_a_damaged_run_h5_is_moved_away_as_the_message_says(self):
        directory = self.train("run", "train.steps=5")
        run_h5 = directory / "run.h5"
        run_h5.write_bytes(run_h5.read_bytes()[:-1000])
        arguments = (TINY, f"job.directory={directory}", "train.steps=10", "--resume", "auto")
        result = self.run_deck(*arguments, code=FILES, says=["run.h5", "mv "])
        subprocess.run(["bash", "-c", re.search(r"mv .*", result.err)[0]], check=True)
        self.run_deck(*arguments)
        self.assertEqual(list(column(directory, "step")), list(range(6, 11)))
        self.assertTrue((directory / "run.h5.old").exists())

    def test_a_start_without_the_launcher_of_before_names_the_remedy(self):
        if not re.search(r"^BLAS .*OpenBLAS.*DYNAMIC_ARCH", configuration(), re.M):
            self.skipTest("the BLAS is no OpenBLAS that chooses kernels by processor")
        directory = self.train("run", "train.steps=5", env={"OPENBLAS_CORETYPE": "Haswell"})

        def said(steps, core):
            return self.run_deck(TINY, f"job.directory={directory}", f"train.steps={steps}", "--resume", "auto",
                                 env={"OPENBLAS_CORETYPE": core}).out

        self.assertNotIn("last bits", said(6, "Haswell"))
        self.assertIn("OPENBLAS_CORETYPE=Haswell", said(7, "Prescott"))

    def test_ranks_take_the_lowest_level_of_the_processor_and_a_resume_at_another_says_so(self):
        if not re.search(r"^CPU level +v4", configuration(), re.M):
            self.skipTest("no AVX-512, or a build without levels")
        lower = self.folder / "lower"  # rank 0's processor has AVX-512, rank 1's has not
        write_script(lower, '[ "$OMPI_COMM_WORLD_RANK" = 0 ] || export TESSERA_CPU_LEVEL=v3\nexec "$@"')

        def train(name, **more):
            directory = self.train(name, "train.steps=5", ranks=2, **more)
            with h5py.File(directory / "run.h5") as file:
                return directory, list(column(directory, "loss")), "kernels v4" in file["info"].attrs["build"]

        _, v3, names_v4 = train("v3", env={"TESSERA_CPU_LEVEL": "v3"})
        self.assertFalse(names_v4)
        mixed, losses, names_v4 = train("mixed", wrapper=[lower])
        self.assertFalse(names_v4)
        self.assertEqual(losses, v3)
        directory, v4, names_v4 = train("v4", env={"TESSERA_CPU_LEVEL": "v4"})
        self.assertTrue(names_v4)
        self.assertNotEqual(v4, v3)  # in last bits: else this test shows nothing
        more = (TINY, f"job.directory={directory}", "train.steps=6", "--resume", "auto")
        self.assertIn("the last bits may differ", self.run_deck(*more, env={"TESSERA_CPU_LEVEL": "v3"}).out)

    def test_rows_after_the_resumed_step_are_cut(self):
        directory = self.train("run", "train.steps=25")
        self.run_deck(TINY, f"job.directory={directory}", "train.steps=25", "--resume", directory / "checkpoints/step_00000020")
        self.assertEqual(list(column(directory, "step")), list(range(1, 26)))

    def start_killed_before_a_checkpoint(self, directory, *arguments, after, ranks):
        """Starts a run that writes no checkpoint by itself and kills it once it has trained past the step `after`."""
        job = self.start(TINY, f"job.directory={directory}", "train.steps=100000", "train.validate_every=0",
                         "checkpoint.every=0", "trace.flush_s=3600", "trace.every_steps=1", "job.progress='line'",
                         *arguments, ranks=ranks)
        self.wait_until(lambda: re.search(rf"^ +{after + 2} ", job.printed(), re.M), f"step {after + 2}", job)
        self.kill(job)

    def test_a_rewind_that_is_killed_before_its_first_checkpoint_holds(self):
        keep = ("train.steps=30", "train.validate_every=0", "checkpoint.every=10", "checkpoint.keep=9")
        slower = ("optimizer.learning_rate=1e-4", "optimizer.min_learning_rate=1e-5")
        for ranks in (None, 2):
            with self.subTest(ranks=ranks):
                directory = self.train(f"killed on {ranks}", *keep, ranks=ranks)
                whole, moved = self.folder / f"whole on {ranks}", self.folder / f"moved on {ranks}"
                shutil.copytree(directory, whole)
                self.run_deck(TINY, f"job.directory={whole}", *keep, *slower, "--resume",
                              whole / "checkpoints/step_00000010", ranks=ranks)
                before = snapshot(directory)
                self.start_killed_before_a_checkpoint(directory, *slower, "--resume",
                                                      directory / "checkpoints/step_00000010", after=10, ranks=ranks)
                self.assertEqual(latest_step(directory), 10)
                self.assertEqual(list(column(directory, "step")), list(range(1, 11)))
                abandoned, kept = directory / "checkpoints/abandoned_01", {}
                for path, content in before.items():  # what a rewind leaves behind is moved, never lost
                    kept[path if path.parts[0] != "checkpoints" else path.relative_to("checkpoints")] = content
                for path, content in snapshot(abandoned).items():
                    self.assertEqual(content, kept[path], path)
                self.assertEqual(sorted(path.name for path in abandoned.iterdir()),
                                 ["run.h5", "step_00000020", "step_00000030"])
                shutil.copytree(abandoned / "step_00000030", moved / "checkpoints/step_00000030")
                self.assertEqual(len(tensors(moved, 30)), len(tensors(whole, 30)), "an abandoned checkpoint opens")
                with self.subTest("its run's directory does not take an abandoned one, whatever it may overwrite"):
                    before = snapshot(directory)
                    self.run_deck(TINY, f"job.directory={directory}", "job.overwrite=true", "--resume",
                                  abandoned / "step_00000020", ranks=ranks, code=FILES, says="another job.directory")
                    self.assertEqual(snapshot(directory), before)
                self.run_deck(TINY, f"job.directory={directory}", *keep, *slower, "--resume", "auto", ranks=ranks)
                self.assert_same_bits(directory, whole)

    def test_a_start_from_another_runs_checkpoint_is_not_forgotten_by_a_kill(self):
        other = self.train("other", "train.steps=10")
        for ranks in (None, 2):
            with self.subTest(ranks=ranks):
                directory = self.folder / f"run on {ranks}"
                self.start_killed_before_a_checkpoint(directory, "--resume", other, after=10, ranks=ranks)
                self.run_deck(TINY, f"job.directory={directory}", "train.steps=15", "--resume", "auto", ranks=ranks)
                self.assertEqual(list(column(directory, "step")), list(range(11, 16)))

    def test_a_start_from_another_runs_checkpoint_counts_its_events_on_from_there(self):
        other = self.train("other", "train.steps=10")
        directory = self.train("run", "train.steps=12", "--resume", other, ranks=2)
        with h5py.File(directory / "run.h5") as file:
            for table in ("memory/events", "events", "comm"):
                self.assertEqual(int(file[table]["step"][()].min()), 11, table)

    def test_a_run_that_is_about_to_end_is_waited_for(self):
        directory = self.train("run", "train.steps=10")
        arguments = (TINY, f"job.directory={directory}", "train.steps=15", "--resume", "auto")
        with open(directory / ".lock") as lock:  # as ranks do whose mpirun was killed
            fcntl.flock(lock, fcntl.LOCK_EX)
            job = self.start(*arguments)
            self.wait_until(lambda: "waiting" in job.printed(), "that it waits", job)
            self.assertEqual(latest_step(directory), 10)
        result = job.wait()
        self.assertEqual(result.code, FINISHED, str(result))
        self.assertEqual(latest_step(directory), 15)
        with open(directory / ".lock") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self.run_deck(*arguments[:2], "train.steps=20", "--resume", "auto", code=FILES, says="another run is working")

    def test_after_mpirun_is_killed_a_resume_goes_on(self):
        directory = self.folder / "run"
        job = self.start(TINY, f"job.directory={directory}", *LONG, ranks=2)
        self.wait_until(lambda: latest_step(directory) >= 20, "step 20", job)
        job.process.kill()
        job.process.wait()
        self.run_deck(TINY, f"job.directory={directory}", *LONG, "--resume", "auto", ranks=2)
        self.assertEqual(list(column(directory, "step")), list(range(1, STEPS + 1)))

    def test_another_runs_checkpoint_does_not_enter_a_directory_that_holds_a_run(self):
        other, own = self.train("other", "train.steps=10"), self.train("own", "train.steps=20", "job.seed=2", "checkpoint.keep=9")
        theirs, before = other / "checkpoints/step_00000010", snapshot(own)
        for ranks in (None, 2):
            with self.subTest(ranks=ranks):
                result = self.run_deck(TINY, f"job.directory={own}", "--resume", theirs, ranks=ranks, code=FILES, says="job.directory")
                self.assertEqual(result.err.count("tessera:"), 1, str(result))
                self.assertEqual(snapshot(own), before)
        with self.subTest("an empty directory takes it"):
            empty = self.folder / "empty"
            empty.mkdir()
            self.run_deck(TINY, f"job.directory={empty}", "--resume", theirs)
            self.assertEqual(list(column(empty, "step")), list(range(11, 31)))
        for spelling in ("other/../own/checkpoints/./step_00000010", "own/checkpoints/step_00000010/", "own/"):
            with self.subTest("the own one is one by any spelling", spelling=spelling):
                self.run_deck(TINY, f"job.directory={own}", "job.seed=2", "checkpoint.keep=9", "--resume", spelling)
                self.assertEqual(list(column(own, "step")), list(range(1, 31)))
        self.assertEqual(latest_step(other), 10)

    def test_only_training_resumes(self):
        kinds = ("generate", "verify.attention", "verify.model", "bench.step", "bench.attention", "bench.kernels", "bench.decode", "bench.generate",
                 "bench.accumulation")
        for kind in kinds:
            with self.subTest(kind=kind):
                deck = self.deck(f'[job]\nkind = "{kind}"\n[bench]\nlength = 16\nrows = 16\nwidth = 16\n')
                given = [] if kind.startswith("bench.") else [f"job.input={self.folder}"]
                self.run_deck(deck, *given, f"job.directory={self.folder / 'run'}", "--resume", "auto",
                              code=USAGE, says=["--resume", "job.kind"])
        self.assertFalse((self.folder / "run").exists())

    def loss_scales(self, directory):
        return dict(zip(column(directory, "step"), column(directory, "loss_scale")))

    def test_fp16_starts_at_the_initial_loss_scale_and_keeps_its_own(self):
        directory = self.folder / "run"

        def go_on(steps, compute, *scale):
            self.run_deck(TINY, f"job.directory={directory}", f"train.steps={steps}", f"precision.compute={compute}",
                          *(f"precision.initial_loss_scale={first}" for first in scale), "--resume", "auto")
            return [self.loss_scales(directory)[step] for step in range(steps - 4, steps + 1)]

        # Scales so small that no gradient overflows: nothing but the start may change them in 5 steps.
        np.testing.assert_array_equal(go_on(5, "fp32"), [np.nan] * 5)
        np.testing.assert_array_equal(go_on(10, "fp16", 512), [512] * 5, "fp32 -> fp16")
        np.testing.assert_array_equal(go_on(15, "fp16", 64), [512] * 5, "fp16 -> fp16")
        np.testing.assert_array_equal(go_on(20, "bf16"), [np.nan] * 5)
        np.testing.assert_array_equal(go_on(25, "fp16", 128), [128] * 5, "bf16 -> fp16")

    def test_the_kernel_table_counts_every_start(self):
        def kernels(directory):
            with h5py.File(directory / "run.h5", "r") as file:
                table = file["kernels"]
                return {label.decode(): (calls, total) for label, calls, total in
                        zip(table["label"][()], table["calls"][()], table["total"][()])}

        steps = ("train.steps=10", "trace.profile_steps=[3,8]")
        once = kernels(self.train("once", *steps))
        directory = self.train("twice", "train.steps=5", "trace.profile_steps=[3]")
        first = kernels(directory)
        self.run_deck(TINY, f"job.directory={directory}", *steps, "--resume", "auto")
        both = kernels(directory)
        self.assertTrue(first)
        self.assertEqual({label: calls for label, (calls, _) in both.items()}, {label: calls for label, (calls, _) in once.items()})
        for label, (calls, total) in first.items():
            self.assertEqual(both[label][0], 2 * calls, label)  # a step launches what any other one does
            self.assertGreater(both[label][1], total, label)

    def test_a_profile_without_new_steps_is_kept(self):
        directory = self.train("run", "train.steps=5", "trace.profile_steps=[3]")
        with h5py.File(directory / "run.h5", "r") as file:
            before = file["kernels/calls"][()]
        self.run_deck(TINY, f"job.directory={directory}", "train.steps=10", "trace.profile_steps=[3]", "--resume", "auto")
        with h5py.File(directory / "run.h5", "r") as file:
            np.testing.assert_array_equal(file["kernels/calls"][()], before)

    def test_data_of_another_size_is_named(self):
        path = self.folder / "tokens.bin"
        arguments = ("data.source=tokens", f"data.path={path}", f"job.directory={self.folder / 'run'}", "--resume", "auto")

        def go_on(steps, count):
            """What the start says of the data when the file has `count` tokens."""
            np.random.default_rng(count).integers(0, 64, count).astype(np.uint16).tofile(path)
            out = self.run_deck(TINY, f"train.steps={steps}", *arguments).out
            return [line for line in out.splitlines() if line.startswith("resume") and "tokens" in line]

        self.assertEqual(go_on(5, 5000), [])
        said = go_on(10, 6000)
        self.assertEqual(len(said), 1, said)
        self.assertIn("5000", said[0])
        self.assertIn("6000", said[0])
        self.assertEqual(go_on(15, 6000), [])


class EarlierVersions(RunTest):
    """Checkpoints of golden/checkpoint_v1, which an earlier program wrote on one rank and on two."""

    GOLDEN = SOURCE / "tests/golden/checkpoint_v1"

    def setUp(self):
        super().setUp()
        self.EXPECTED = json.loads((self.GOLDEN / "expected.json").read_text())["ranks"]

    def deck_of_today(self):
        return self.GOLDEN / "deck.toml"

    def arguments(self, writers, directory, *more):
        return (self.deck_of_today(), f"job.directory={directory}", *more,
                "--resume", self.GOLDEN / f"ranks_{writers}/step_00000004")

    def test_are_restored_bit_for_bit(self):
        for writers in self.EXPECTED:
            with h5py.File(self.GOLDEN / f"ranks_{writers}/step_00000004/index.h5", "r") as file:
                state = {name: file.attrs[name] for name in ("step", "sample_index", "seed", "loss_scale", "good_steps",
                                                             "optimizer_steps", "corpus_fingerprint", "tokenisation")}
                expected = tensors_of(file)
            self.assertEqual(state["step"], 4)
            self.assertTrue(all(np.any(value) for value in expected.values()), "a tensor of zeros shows nothing")
            for ranks in (None, 2):
                with self.subTest(writers=writers, ranks=ranks):
                    directory = self.folder / f"{writers} to {ranks}"
                    # over before the first step: the run writes the state that it read
                    result = self.run_deck(*self.arguments(writers, directory, "train.time_limit_s=1e-9"), ranks=ranks,
                                           code=STOPPED, says="after step 4")
                    self.assertIn(f"step 4, written by {writers} rank", result.out)
                    self.assertEqual(list(column(directory, "step")), [])
                    with index_of(directory, 4) as file:
                        self.assertEqual({name: file.attrs[name] for name in state}, state)
                    self.assert_same_tensors(tensors(directory, 4), expected)

    def test_are_adamws(self):
        for writers in self.EXPECTED:
            self.run_deck(*self.arguments(writers, self.folder / "run", "optimizer.kind=lion", "optimizer.eps=1e-8"), code=USAGE,
                          says=['trained with optimizer.kind = "adamw"', "add optimizer.kind=adamw"])

    def test_go_on_with_the_losses_of_then(self):
        for writers, expected in self.EXPECTED.items():
            for ranks in (None, 2):
                with self.subTest(writers=writers, ranks=ranks):
                    directory = self.folder / f"{writers} to {ranks}"
                    self.run_deck(*self.arguments(writers, directory, "checkpoint.at_end=true"), ranks=ranks)
                    self.assertEqual(list(column(directory, "step")), expected["step"])
                    np.testing.assert_allclose(column(directory, "loss"), expected["loss"], rtol=LOSS_BOUND, atol=0)
                    self.assertEqual(latest_step(directory), 6)


class OldKeys(EarlierVersions):
    """The same of golden/old_keys, whose decks have keys that decks no longer have."""

    GOLDEN = SOURCE / "tests/golden/old_keys"

    def deck_of_today(self):
        """The golden's deck without the lines that are refused, with those that the refusals name instead."""
        old = re.sub(r"\[bench\]\n(.+\n)*", "", (self.GOLDEN / "deck.toml").read_text())  # no training depends on it
        refusal = self.run_deck(self.deck(old, "old.toml"), "--check", code=USAGE, says="is an old spelling").err
        new = dict(re.findall(r"toml:(\d+):.*?is an old spelling.*?  legal: (.+)$", refusal, re.M))
        for key in re.findall(r"is an old spelling, with (.*?)  legal", refusal):
            for leaf in re.findall(r"\.(\w+)", key):
                old = re.sub(rf"^{leaf} = .*$", "", old, flags=re.M)
        lines = old.splitlines()
        for line, spelling in new.items():
            lines[int(line) - 1] = re.sub(r"^(attention|parallel)\.", "", spelling)
        return self.deck("\n".join(lines) + "\n", "today.toml")

    def test_a_run_goes_on_in_its_directory(self):
        directory = self.folder / "run"
        shutil.copytree(self.GOLDEN / "ranks_1/step_00000004", directory / "checkpoints/step_00000004")
        (directory / "checkpoints/latest").write_text("step_00000004\n")
        shutil.copy(self.GOLDEN / "ranks_1/run.h5", directory)
        before = column(directory, "loss")[:4]
        result = self.run_deck(self.deck_of_today(), f"job.directory={directory}", "--resume", "auto")
        self.assertNotIn("changed attention.", result.out)
        self.assertNotIn("changed parallel.", result.out)
        self.assertEqual(list(column(directory, "step")), [1, 2, 3, 4, 5, 6])
        np.testing.assert_array_equal(column(directory, "loss")[:4], before)
        np.testing.assert_allclose(column(directory, "loss")[4:], self.EXPECTED["1"]["loss"], rtol=LOSS_BOUND, atol=0)

    def test_a_run_is_compared_with_its_plan(self):
        directory = self.folder / "run"
        self.run_deck(*self.arguments(1, directory, "train.steps=14"))  # the version of then did not write what --compare needs
        self.assertIn("predicted", self.run_deck("--plan", "--compare", directory / "run.h5").out)
        self.run_deck("--plan", "--compare", self.GOLDEN / "ranks_1/run.h5", code=FILES, says="an older version wrote this")
        self.run_deck("--plan", "--compare", directory / "run.h5", "attention.tuned=false", code=USAGE,
                          says='attention.kernel = "flash2"')

    def test_rows_of_an_experiment_are_recognised(self):
        deck = self.deck((self.GOLDEN / "experiment.toml").read_text().partition("[experiment.rows.attention]")[0]
                         .replace('attention.tuned = "auto"\n', "").replace("attention.implementation", "attention.kernel")
                         .replace("all_reduce", "transfers"))
        directory = self.folder / "experiment"
        directory.mkdir()
        shutil.copy(self.GOLDEN / "experiment.h5", directory)
        arguments = (deck, f"job.directory={directory}", "--resume", "auto")
        self.run_deck(*arguments, code=FILES, says="attention. --resume auto would lose what ran")
        kept = self.run_deck(*arguments, "job.overwrite=true").out
        for name in ("train_standard", "train_flash1"):
            self.assertIn(f"{name} has run", kept)


class Stopping(RunTest):
    def stopped(self, how, ranks=2):
        """Starts an endless run, calls how(job), expects 75 and a checkpoint of the last step; returns the folder."""
        directory = self.folder / "run"
        job = self.start(TINY, f"job.directory={directory}", "train.steps=1000000", "train.validate_every=0", ranks=ranks)
        self.wait_until(lambda: latest_step(directory) >= 10, "a checkpoint", job)
        self.assertEqual(len(job.ranks()), ranks or 1)
        how(job)
        result = job.wait()
        self.assertEqual(result.code, STOPPED, str(result))
        self.assertIn("--resume", result.out + result.err)
        self.assertEqual(column(directory, "step")[-1], latest_step(directory))
        return directory

    def test_sigusr1_to_mpirun(self):
        directory = self.stopped(lambda job: os.kill(job.process.pid, signal.SIGUSR1))
        steps = latest_step(directory)
        self.run_deck(TINY, f"job.directory={directory}", f"train.steps={steps + 5}", "train.validate_every=0", "--resume", "auto", ranks=2)
        self.assertEqual(latest_step(directory), steps + 5)

    def test_a_signal_to_one_rank_stops_all(self):
        for how in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
            with self.subTest(signal=how.name):
                directory = self.stopped(lambda job: os.kill(job.ranks()[-1], how))
                for path in sorted(directory.rglob("*"), reverse=True):
                    path.rmdir() if path.is_dir() else path.unlink()

    def test_a_signal_without_mpirun(self):
        self.stopped(lambda job: os.kill(job.process.pid, signal.SIGTERM), ranks=None)

    # Enough weights that making them takes a while: the signal comes long before the first step.
    SLOW_START = ("model.d_model=256", "model.d_ff=1024", "model.num_layers=3", "train.steps=2", "optimizer.warmup_steps=1",
                  "train.validate_every=0", "train.batch_size=4", "trace.profile_steps=[]")

    def test_a_signal_during_set_up(self):
        whole = self.train("whole", *self.SLOW_START)
        starts = {"alone": (None, lambda job: job.process.pid), "mpirun": (2, lambda job: job.process.pid),
                  "one rank of two": (2, lambda job: job.ranks()[-1])}
        for name, (ranks, victim) in starts.items():
            with self.subTest(start=name):
                directory = self.folder / name
                job = self.start(TINY, f"job.directory={directory}", *self.SLOW_START, ranks=ranks)
                self.wait_until(lambda: "checkpoint " in job.printed(), "the end of the plan", job)
                os.kill(victim(job), signal.SIGUSR1)
                result = job.wait()
                self.assertEqual(result.code, STOPPED, str(result))
                self.assertIn("--resume", result.out + result.err)
                self.assertIn("step_00000000", (directory / "checkpoints/latest").read_text(), str(result))
                self.run_deck(TINY, f"job.directory={directory}", *self.SLOW_START, "--resume", "auto", ranks=ranks)
                self.assertEqual(list(column(directory, "step")), [1, 2])
                if ranks is None:
                    self.assert_same_tensors(tensors(directory), tensors(whole))

    def test_the_time_limit(self):
        directory = self.folder / "run"
        self.run_deck(TINY, f"job.directory={directory}", "train.steps=1000000", "train.validate_every=0",
                      "train.time_limit_s=1", ranks=2, code=STOPPED, says="--resume")
        self.assertEqual(column(directory, "step")[-1], latest_step(directory))

    def test_ctrl_c_on_mpirun_keeps_the_published_checkpoint(self):
        directory = self.folder / "run"
        job = self.start(TINY, f"job.directory={directory}", "train.steps=1000000", "train.validate_every=0", ranks=2)
        self.wait_until(lambda: latest_step(directory) >= 10, "a checkpoint", job)
        ranks = job.ranks()
        os.kill(job.process.pid, signal.SIGINT)
        self.assertNotIn(job.wait().code, (0, "none: it hung"))
        self.assertTrue(wait_for_end(ranks), "a rank lives on")
        steps = latest_step(directory)
        self.run_deck(TINY, f"job.directory={directory}", f"train.steps={steps + 5}", "--resume", "auto", ranks=2)
        self.assertEqual(column(directory, "step")[-1], steps + 5)

    def test_stopped_and_resumed_equals_uninterrupted(self):
        whole = self.train("whole", *LONG, ranks=2)
        directory = self.folder / "run"
        job = self.start(TINY, f"job.directory={directory}", *LONG, ranks=2)
        self.wait_until(lambda: latest_step(directory) >= 20, "step 20", job)
        end_all(job.ranks()[:1], signal.SIGUSR1)
        self.assertEqual(job.wait().code, STOPPED)
        self.run_deck(TINY, f"job.directory={directory}", *LONG, "--resume", "auto", ranks=2)
        self.assert_same_tensors(tensors(directory), tensors(whole))


class FailureDuringCheckpoint(Shimmed, RunTest):
    """Of one rank alone: its main thread lacks memory, once, when a checkpoint in the background reaches the disk."""
    SHIM = r"""
    #define _GNU_SOURCE
    #include <dlfcn.h>
    #include <unistd.h>
    void _ZSt17__throw_bad_allocv(void);
    static volatile int is_due = 0;
    int fsync(int file) {
      static int is_first = 1;
      if (gettid() != getpid() && is_first) {
        is_first = 0;
        is_due = 1;
        usleep(500000);
      }
      return fdatasync(file);
    }
    void* _Znwm(unsigned long bytes) {  /* operator new */
      static void* (*real)(unsigned long) = 0;
      if (!real) real = (void* (*)(unsigned long))dlsym(RTLD_NEXT, "_Znwm");
      if (is_due && gettid() == getpid()) {
        is_due = 0;
        _ZSt17__throw_bad_allocv();
      }
      return real(bytes);
    }
    """

    def test_a_rank_without_others_completes_it(self):
        directory = self.folder / "run"
        self.run_deck(TINY, f"job.directory={directory}", "train.steps=1000000", "train.validate_every=0", "checkpoint.every=2",
                      "checkpoint.background=on", code=OUT_OF_MEMORY, **self.preload())
        self.assertEqual(latest_step(directory), 2)


class CheckpointThatFails(Shimmed, RunTest):
    """In the background, long after it began, and a step goes wrong meanwhile."""
    SHIM = r"""
    #define _GNU_SOURCE
    #include <errno.h>
    #include <unistd.h>
    int fsync(int file) {
      if (gettid() == getpid()) return fdatasync(file);
      sleep(5);
      errno = EIO;
      return -1;
    }
    """

    def test_is_told_and_not_recommended(self):
        wild = ("optimizer.learning_rate=100", "optimizer.min_learning_rate=100", "optimizer.clip_norm=0", "optimizer.warmup_steps=0",
                "trace.profile_steps=[]", "train.validate_every=0")
        run = self.run_deck(TINY, *wild, code=NUMBERS)
        bad = int(re.search(r"step (\d+): loss", run.err).group(1))
        result = self.run_deck(TINY, *wild, "job.overwrite=true", f"checkpoint.every={bad - 1}", "checkpoint.background=on",
                               code=NUMBERS, **self.preload())
        self.assertRegex(result.out, "the checkpoint under way was not completed: .*Input/output error")
        self.assertNotIn("--resume", result.err)


if __name__ == "__main__":
    unittest.main(verbosity=2)  # so that a test that skips itself says so
