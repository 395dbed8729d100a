#!/usr/bin/env python3
"""Stopping and going on: signals, limits and kills, and the bits afterwards."""
import os
import signal
import time
import unittest

import numpy as np

from harness import FINISHED, STOPPED, TINY, RunTest, column, end_all, latest_step, tensors, wait_for_end

STEPS = 240
LONG = (f"train.steps={STEPS}", "train.validate_every=0", "checkpoint.every=20", "trace.flush_s=0.01")


class Resume(RunTest):
    def assert_same_bits(self, a, b):
        made, expected = tensors(a), tensors(b)
        self.assertEqual(sorted(made), sorted(expected))
        for label in expected:
            np.testing.assert_array_equal(made[label], expected[label], label)
        np.testing.assert_array_equal(column(a, "step"), column(b, "step"))
        np.testing.assert_array_equal(column(a, "loss"), column(b, "loss"))

    def kill(self, job):
        """Power cut: every process of the job at once."""
        pids = [*job.ranks(), job.process.pid]
        job.kill_everything()
        self.assertTrue(wait_for_end(pids), "a killed process lives on")

    def test_after_a_kill_the_bits_are_those_of_no_interruption(self):
        for name, more in {"fp32": (), "fp16": ("precision.compute=fp16",)}.items():
            with self.subTest(precision=name):
                whole = self.train(f"{name} whole", *LONG, *more, ranks=2)
                directory = self.folder / f"{name} killed"
                job = self.start(TINY, f"job.directory={directory}", *LONG, *more, ranks=2)
                self.wait_until(lambda: latest_step(directory) >= 40, "step 40", job)
                self.kill(job)
                self.assertLess(latest_step(directory), STEPS, "finished before the kill; make the run longer")
                self.run_deck(TINY, f"job.directory={directory}", *LONG, *more, "--resume", "auto", ranks=2)
                self.assert_same_bits(directory, whole)

    def test_a_kill_while_a_checkpoint_is_written(self):
        heavy = ("model.d_model=192", "model.num_layers=4", "model.d_ff=768", "train.batch_size=2", "train.steps=24",
                 "train.validate_every=0", "checkpoint.every=2")
        whole = self.train("whole", *heavy, ranks=2)
        directory, hits, resume = self.folder / "killed", 0, ()
        for attempt in range(12):
            job = self.start(TINY, f"job.directory={directory}", *heavy, *resume, ranks=2)
            half_written = lambda: any((directory / "checkpoints").glob(".tmp*"))
            end = time.monotonic() + 60
            while not half_written() and job.process.poll() is None and time.monotonic() < end:
                pass
            if job.process.poll() is not None:
                self.assertEqual(job.wait().code, FINISHED)
                break
            time.sleep(0.004 * (attempt % 4))  # at the start, in the middle, near the end of the writing
            self.kill(job)
            hits += half_written()
            if latest_step(directory):
                resume = ("--resume", "auto")
            elif directory.exists():  # killed inside its first checkpoint: nothing to resume, nothing to lose
                resume = ("job.overwrite=true",)
            if hits >= 3:
                break
        self.assertGreaterEqual(hits, 1, "no kill fell inside the writing of a checkpoint")
        self.run_deck(TINY, f"job.directory={directory}", *heavy, *resume, ranks=2)
        self.assertFalse(list((directory / "checkpoints").glob(".tmp*")), "a killed checkpoint was left behind")
        self.assert_same_bits(directory, whole)

    def test_steps_may_grow(self):
        directory = self.train("run", "train.steps=10")
        self.run_deck(TINY, f"job.directory={directory}", "train.steps=15", "--resume", "auto")
        self.assertEqual(list(column(directory, "step")), list(range(1, 16)))

    def test_rows_after_the_resumed_step_are_cut(self):
        directory = self.train("run", "train.steps=25")
        self.run_deck(TINY, f"job.directory={directory}", "train.steps=25", "--resume", directory / "checkpoints/step_00000020")
        self.assertEqual(list(column(directory, "step")), list(range(1, 26)))


class Stopping(RunTest):
    def stopped(self, how, ranks=2):
        """Starts an endless run, calls how(job), expects 75 and a checkpoint of the last step; returns the folder."""
        directory = self.folder / "run"
        job = self.start(TINY, f"job.directory={directory}", "train.steps=1000000", "train.validate_every=0", ranks=ranks)
        self.wait_until(lambda: latest_step(directory) >= 10, "a checkpoint", job)
        self.assertEqual(len(job.ranks()), ranks or 1)
        how(job)
        result = job.wait(60)
        self.assertEqual(result.code, STOPPED, str(result))
        self.assertIn("--resume", result.out + result.err)
        self.assertEqual(column(directory, "step")[-1], latest_step(directory))
        return directory

    def test_sigusr1_to_mpirun(self):
        directory = self.stopped(lambda job: os.kill(job.process.pid, signal.SIGUSR1))
        steps = latest_step(directory)
        arguments = ("train.steps=1000000", "train.validate_every=0", "train.time_limit_s=0.5")
        self.run_deck(TINY, f"job.directory={directory}", *arguments, "--resume", "auto", ranks=2, code=STOPPED)
        self.assertGreater(latest_step(directory), steps)

    def test_a_signal_to_one_rank_stops_all(self):
        for how in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
            with self.subTest(signal=how.name):
                directory = self.stopped(lambda job: os.kill(job.ranks()[-1], how))
                for path in sorted(directory.rglob("*"), reverse=True):
                    path.rmdir() if path.is_dir() else path.unlink()

    def test_a_signal_without_mpirun(self):
        self.stopped(lambda job: os.kill(job.process.pid, signal.SIGTERM), ranks=None)

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
        self.assertNotIn(job.wait(60).code, (0, "none: it hung"))
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
        for label, value in tensors(whole).items():
            np.testing.assert_array_equal(tensors(directory)[label], value, label)


if __name__ == "__main__":
    unittest.main()
