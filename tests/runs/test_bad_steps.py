#!/usr/bin/env python3
"""train.on_bad_step: which steps are bad, what follows, and the same bits on every start."""
import shutil
import signal
import subprocess
import time
import unittest

import h5py
import numpy as np

from harness import FILES, NUMBERS, STOPPED, TINY, USAGE, RunTest, column, index_of, latest_step, tensors

WINDOW, DEVIATIONS = 6, 2.0
SPIKES = ("train.steps=60", "train.validate_every=0", "trace.profile_steps=[]", f"train.spike_window={WINDOW}",
          f"train.spike_deviations={DEVIATIONS}", "train.bad_steps_limit=40", "checkpoint.every=12", "checkpoint.keep=9")
BATCH = 12
HOT = ("optimizer.learning_rate=100", "optimizer.min_learning_rate=100", "optimizer.clip_norm=0", "optimizer.warmup_steps=0")


class BadSteps(RunTest):
    def ranges(self, directory):
        """Samples left out, as the last checkpoint has them."""
        with index_of(directory) as index:
            numbers = [int(word) for word in index.attrs.get("left_out", "").split()]
        return list(zip(numbers[::2], numbers[1::2]))

    def assert_same_state(self, directory, other):
        self.assert_same_tensors(tensors(directory), tensors(other))
        self.assertEqual(self.ranges(directory), self.ranges(other))

    def test_a_spike_is_skipped_and_its_samples_are_kept_in_checkpoints(self):
        run = self.train("run", *SPIKES, "train.on_bad_step=skip")
        norms, bad, first = (column(run, name) for name in ("grad_norm", "bad", "first_sample"))
        good = []
        for step, norm in enumerate(norms):
            recent = np.array(good[-WINDOW:])
            is_spike = len(recent) == WINDOW and norm > recent.mean() + DEVIATIONS * recent.std()
            self.assertEqual(bad[step], 2 if is_spike else 0, f"step {step + 1}: {norm} after {recent}")
            if not is_spike:
                good.append(norm)
        self.assertGreater((bad == 2).sum(), 2)
        np.testing.assert_array_equal(first, np.arange(60) * BATCH)
        left_out = {sample for begin, end in self.ranges(run) for sample in range(begin, end)}
        self.assertEqual(left_out, {int(s) + i for s in first[bad == 2] for i in range(BATCH)})
        with index_of(run) as index:
            self.assertEqual(index.attrs["optimizer_steps"], 60 - (bad == 2).sum())
            self.assertEqual(index.attrs["bad_steps"], (bad == 2).sum())
        tokens = column(run, "tokens")
        np.testing.assert_array_equal(tokens, np.cumsum(bad == 0) * tokens[0])

    def test_the_bits_are_the_same_on_every_start(self):
        for how in ("skip", "rewind"):
            for more in ((), ("precision.compute=bf16", "parallel.offload=optimizer", "optimizer.clip_norm=0")):
                keys = (*SPIKES, f"train.on_bad_step={how}", "checkpoint.background=on", *more)
                with self.subTest(how=how, more=more):
                    whole = self.train(f"{how} {len(more)}", *keys)
                    resumed = self.folder / f"{how} {len(more)} resumed"
                    self.run_deck(TINY, f"job.directory={resumed}", *keys, "--resume", whole / "checkpoints/step_00000024")
                    for name in ("loss", "grad_norm", "first_sample"):
                        np.testing.assert_array_equal(column(resumed, name), column(whole, name)[24:], name)
                    self.assert_same_state(resumed, whole)

    def test_a_run_that_goes_on_from_its_own_checkpoint_rewinds_to_it(self):
        keys = (*SPIKES, "train.on_bad_step=rewind")
        whole = self.train("whole", *keys)
        again = shutil.copytree(whole, self.folder / "again")
        result = self.start(TINY, f"job.directory={again}", *keys, "--resume", again / "checkpoints/step_00000036").wait()
        self.assertEqual(result.code, 0, str(result))
        self.assertIn("back to step 36", result.out)
        self.assertNotIn("back to step 0", result.out)
        self.assert_same_state(again, whole)

    def test_a_rewound_run_leaves_the_samples_out_on_any_ranks(self):
        result = self.start(TINY, f"job.directory={self.folder / 'run'}", *SPIKES, "train.on_bad_step=rewind").wait()
        self.assertEqual(result.code, 0, str(result))
        self.assertIn("back to step", result.out)
        run = self.folder / "run"
        left_out = {sample for begin, end in self.ranges(run) for sample in range(begin, end)}
        self.assertGreater(len(left_out), BATCH)
        expected = [sample for sample in range(2000) if sample not in left_out]
        np.testing.assert_array_equal(column(run, "step"), np.arange(1, 61))
        np.testing.assert_array_equal(column(run, "first_sample"), expected[::BATCH][:60])
        self.assertEqual(column(run, "bad").sum(), 0)
        on_two = self.folder / "on two"
        self.run_deck(TINY, f"job.directory={on_two}", *SPIKES, "train.on_bad_step=rewind", "--resume",
                      run / "checkpoints/step_00000024", ranks=2)
        np.testing.assert_array_equal(column(on_two, "first_sample"), column(run, "first_sample")[24:])
        np.testing.assert_allclose(column(on_two, "loss"), column(run, "loss")[24:], rtol=1e-4)
        self.assertEqual(self.ranges(on_two), self.ranges(run))

    def test_a_stop_on_the_way_back_keeps_the_samples(self):
        """The newest checkpoint is of the step that the run is back at, and knows of no bad one."""
        for attempt in range(5):  # the signal may come after the last step
            run = self.folder / f"run_{attempt}"
            job = self.start(TINY, f"job.directory={run}", *SPIKES, "train.on_bad_step=rewind", stdout=subprocess.PIPE)
            with job.process.stdout as lines:
                for line in lines:
                    if line.startswith(b"bad step"):
                        job.process.send_signal(signal.SIGUSR1)
            result = job.wait()
            if result.code == STOPPED:
                break
        self.assertEqual(result.code, STOPPED, str(result))
        with index_of(run) as index:
            self.assertGreater(index.attrs["bad_steps"], 0)
        left_out = {sample for begin, end in self.ranges(run) for sample in range(begin, end)}
        self.run_deck(TINY, f"job.directory={run}", *SPIKES, "train.on_bad_step=rewind", "--resume", "auto", ranks=2)
        self.assertEqual(left_out & {int(first) for first in column(run, "first_sample")}, set())

    def test_a_way_back_to_a_checkpoint_that_is_gone_says_so(self):
        for attempt in range(5):  # the last bad step may have come before the checkpoint has gone
            run = self.folder / f"run_{attempt}"
            job = self.start(TINY, f"job.directory={run}", *SPIKES, "train.on_bad_step=rewind", "checkpoint.every=36")
            while job.process.poll() is None and latest_step(run) < 36:
                time.sleep(0.001)
            job.process.send_signal(signal.SIGSTOP)  # of one that has ended: nothing
            (run / "checkpoints/latest").unlink()  # the folder stays: the write of step 36 may have to prune it yet
            shutil.rmtree(run / "checkpoints/step_00000036")
            job.process.send_signal(signal.SIGCONT)
            result = job.wait()
            if result.code == FILES:
                break
        self.assertEqual(result.code, FILES, str(result))
        self.assertIn("the last of step 36, is gone", result.err)

    def test_a_profiled_step_that_is_repeated_counts_once(self):
        def recorded(how):
            run = self.train(how, *SPIKES, "train.steps=44", "trace.memory=false", "trace.profile_steps=[39]", f"train.on_bad_step={how}", ranks=2)
            with h5py.File(run / "run.h5", "r") as file:
                self.assertEqual(set(file["events/step"][()]), {39})
                return {name: file[name].size for name in ("events/step", "comm/step")}, file["kernels/calls"][()].sum()

        self.assertEqual(recorded("rewind"), recorded("skip"))

    def test_weights_that_diverge_are_seen_by_a_validation(self):
        """The numbers of the last step, of other samples, do not tell."""
        run = self.folder / "run"
        self.run_deck(TINY, f"job.directory={run}", "train.steps=40", *HOT, "train.validate_every=1", code=NUMBERS,
                      says=["the validation loss is nan", "the weights have diverged"])
        self.assertEqual((run / "status").read_text().split()[0], "failed")
        self.assertTrue(np.isfinite(column(run, "loss")).all(), "no step was bad")
        self.assertLess(latest_step(run), column(run, "step")[-1], "no checkpoint has these weights")

    def test_checkpoints_from_before_bad_steps_are_kept(self):
        run = self.folder / "run"
        self.run_deck(TINY, f"job.directory={run}", "train.steps=40", *HOT, "train.on_bad_step=skip", "train.bad_steps_limit=6",
                      "train.validate_every=0", "checkpoint.every=1", "checkpoint.keep=2", code=NUMBERS)
        last_good = int(column(run, "step")[column(run, "bad") == 0][-1])
        self.assertEqual((column(run, "bad") > 0).sum(), 7)
        kept = sorted(int(path.name.removeprefix("step_")) for path in (run / "checkpoints").glob("step_*"))
        self.assertEqual(kept[:2], [last_good - 1, last_good])

    def test_one_bad_step_too_many_ends_the_run(self):
        hot = (*HOT, "train.bad_steps_limit=3", "train.validate_every=0")
        for how in ("skip", "rewind"):  # weights that have become infinite give bad steps only; a way back repeats them
            with self.subTest(how=how):
                self.run_deck(TINY, f"job.directory={self.folder / how}", *hot, f"train.on_bad_step={how}", code=NUMBERS,
                              says=["one bad step more than train.bad_steps_limit", "raise train.bad_steps_limit"])
        fp16 = self.folder / "fp16"  # a scale above 1: gradients that are not finite are no bad step, a loss is
        self.run_deck(TINY, f"job.directory={fp16}", *hot, "train.on_bad_step=skip", "precision.compute=fp16", code=NUMBERS)
        np.testing.assert_array_equal(column(fp16, "bad") > 0, ~np.isfinite(column(fp16, "loss")))
        self.assertEqual((column(fp16, "bad") == 1).sum(), 4)
        self.run_deck(TINY, f"job.directory={self.folder / 'stop'}", "train.bad_steps_limit=3", code=USAGE, says="train.on_bad_step")
        self.run_deck(TINY, f"job.directory={self.folder / 'spike'}", f"train.spike_window={WINDOW}",
                      f"train.spike_deviations={DEVIATIONS}", "train.steps=60", code=NUMBERS,
                      says=["are a spike", "train.on_bad_step=skip leaves"])


if __name__ == "__main__":
    unittest.main(verbosity=2)
