#!/usr/bin/env python3
"""What run.h5 says of every rank, of where it ran and of every start of the run."""
import os
import re
import signal
import subprocess
import sys
import time
import unittest

import h5py
import numpy as np
import xarray

from harness import NUMBERS, SOURCE, STOPPED, TINY, USAGE, RunTest, Shimmed, end_all, example, latest_step

TIMES = ("step_time", "compute_time", "exposed_comm", "data_time")


def group_of(directory, name):
    with xarray.open_dataset(directory / "run.h5", group=name, engine="h5netcdf") as data:
        return data.load()


class ByRank(RunTest):
    def test_every_rank_reports_every_step(self):
        for ranks in (1, 2):
            with self.subTest(ranks=ranks):
                before = time.time()
                directory = self.train(f"run{ranks}", "trace.flush_s=0", ranks=ranks)
                data, steps = group_of(directory, "steps/by_rank"), group_of(directory, "steps")
                self.assertEqual(dict(data.sizes), {"step": 30, "rank": ranks})
                np.testing.assert_array_equal(data["step"], steps["step"])
                is_profiled = steps["step"].values == 3
                for name in TIMES:
                    self.assertEqual(data[name].dtype, np.float32)
                    self.assertEqual(data[name].dims, ("step", "rank"))
                    np.testing.assert_array_equal(np.isnan(data[name].values), np.tile(is_profiled[:, None], ranks), name)
                self.assertTrue((data["resident_bytes"] > 1e6).all())
                np.testing.assert_allclose(data["step_time"][:, 0], steps["step_time"], rtol=1e-6)
                np.testing.assert_allclose(data["compute_time"][:, 0], steps["forward"] + steps["backward"] + steps["optimizer"], rtol=1e-5)
                self.assertTrue((data["compute_time"] + data["exposed_comm"] <= data["step_time"] * 1.01 + 1e-4).values[~is_profiled].all())
                wall = steps["wall_time"].values.astype("datetime64[ns]").astype(float) / 1e9
                self.assertTrue((np.diff(wall) > 0).all() and before < wall[0] and wall[-1] < time.time())

    def test_the_page_finds_the_straggler(self):
        """The example of input/README.md, as it stands there, on a run whose times are made up: hosts of tests are too noisy."""
        (self.folder / "runs").mkdir()
        directory = self.train("runs/tiny", ranks=2)
        with h5py.File(directory / "run.h5", "r+") as file:
            times = file["steps/by_rank/compute_time"]
            made_up = np.tile(np.float32([0.2, 0.3]), (len(times), 1))
            made_up[4] = 60, 0.3                                   # one long step of the other rank
            made_up[np.isnan(times[:])] = np.nan                   # profiled steps have no times
            times[:] = made_up
        answer = subprocess.run([sys.executable, "-c", example("input/README.md", "idxmax")], cwd=self.folder, text=True, capture_output=True)
        self.assertEqual((answer.returncode, answer.stdout), (0, "1\n"), answer.stderr)

    def test_another_number_of_ranks_widens_the_table(self):
        directory = self.train("run", "train.steps=4", "trace.profile_steps=[]", ranks=2)
        for steps, ranks in ((6, 1), (8, 3)):
            self.train("run", f"train.steps={steps}", "trace.profile_steps=[]", "--resume", "auto", ranks=ranks)
        data = group_of(directory, "steps/by_rank")
        self.assertEqual(dict(data.sizes), {"step": 8, "rank": 3})
        measured = np.isfinite(data["compute_time"].values).sum(axis=1)
        self.assertEqual(measured.tolist(), [2] * 4 + [1] * 2 + [3] * 2)
        self.assertEqual(group_of(directory, "ranks").sizes["rank"], 3, "of the latest start")
        self.assertEqual(group_of(directory, "attempts")["ranks"].values.tolist(), [2, 1, 3])

    def test_of_more_than_16_ranks_the_spread_is_kept(self):
        directory = self.train("run", "train.steps=2", "trace.profile_steps=[]", "train.batch_size=17", "train.validate_every=0", ranks=17)
        data = group_of(directory, "steps/over_ranks")
        self.assertEqual(dict(data.sizes), {"step": 2, "statistic": 3})
        least, mean, most = data["compute_time"].values.T
        self.assertTrue((least <= mean).all() and (mean <= most).all() and (least > 0).all())
        self.assertTrue(((0 <= data["slowest_rank"]) & (data["slowest_rank"] < 17)).all())
        with h5py.File(directory / "run.h5", "r") as file:
            self.assertNotIn("by_rank", file["steps"])
            self.assertEqual(file["info"].attrs["ranks"], 17)
        subprocess.run([SOURCE / "scripts/report", directory], check=True, stdout=subprocess.DEVNULL)
        self.assertRegex((directory / "report.html").read_text(), r"Rank \d+ computed longest in \d of \d steps")


class Events(RunTest):
    PROFILE = ("train.steps=8", "trace.profile_steps=[3,5]")

    def rows(self, directory, group):
        return group_of(directory, group)[["rank", "step"]].to_dataframe()

    def test_of_any_rank_and_step_are_kept(self):
        directory = self.train("run", *self.PROFILE, "trace.profile_ranks=[0,2]", "trace.flush_s=0", ranks=3)
        for group, steps in (("events", {1, 3, 5}), ("memory/events", {1, 3, 5}), ("comm", {1, 3, 5})):
            rows = self.rows(directory, group)
            self.assertEqual({*rows["rank"]}, {0, 2}, group)
            for rank in (0, 2):
                self.assertEqual({*rows["step"][rows["rank"] == rank]}, steps, (group, rank))
        events = group_of(directory, "events")
        phases = [events["label"].values[(events["rank"] == rank).values & (events["step"] == 3).values].tolist() for rank in (0, 2)]
        self.assertEqual(*phases, "every rank does the same")
        comm = group_of(directory, "comm")
        first, other = [comm.isel(call=((comm["rank"] == rank) & (comm["step"] == 5)).values) for rank in (0, 2)]
        self.assertTrue((first["end"].values > other["start"].values).all() and (other["end"].values > first["start"].values).all(),
                        "on one clock, calls that need each other overlap")
        self.train("run", "train.steps=11", "trace.profile_steps=[10]", "trace.profile_ranks=[1]", "--resume", "auto", ranks=3)
        rows = self.rows(directory, "memory/events")
        self.assertEqual({*rows["step"][rows["rank"] == 1]}, {9, 10})
        self.assertEqual({*rows["rank"][rows["step"] < 9]}, {0, 2}, "those of the earlier start")

    def test_of_rank_0_alone_are_what_the_others_leave_of_them(self):
        alone, all_ranks = (self.train(name, *self.PROFILE, f"trace.profile_ranks={ranks}", ranks=2) for name, ranks in (("alone", "[0]"), ("all", "[0,1]")))
        for group in ("events", "memory/events", "comm"):
            a, b = (self.rows(directory, group) for directory in (alone, all_ranks))
            self.assertEqual(len(a), (b["rank"] == 0).sum(), group)
            self.assertEqual({*a["rank"]}, {0})
        measured = [re.findall(r"(?m)^.*\d B .*$", self.run_deck("--plan", "--compare", directory / "run.h5").out) for directory in (alone, all_ranks)]
        self.assertEqual(*measured, "a plan is compared with one rank")
        self.assertGreater(len(measured[0]), 3)

    def test_of_no_rank_are_none(self):
        directory = self.train("run", *self.PROFILE, "trace.profile_ranks=[]")
        self.assertEqual(len(self.rows(directory, "events")), 0)

    def test_of_a_rank_that_is_not_there_are_refused(self):
        self.run_deck(TINY, f"job.directory={self.folder / 'run'}", "trace.profile_ranks=[0,2]", ranks=2, code=USAGE,
                      says=["trace.profile_ranks", "no rank 2", "ranks from 0 to 1"])
        self.assertFalse((self.folder / "run/run.h5").exists())


class Places(RunTest):
    def test_ranks_name_their_host_and_cores(self):
        cores = sorted(os.sched_getaffinity(0))
        directory = self.train("run", "train.steps=1", "optimizer.warmup_steps=1", "trace.profile_steps=[]", ranks=2,
                               env={"SLURM_JOB_ID": "4711"})
        ranks = group_of(directory, "ranks")
        self.assertEqual(ranks["local_rank"].values.tolist(), [0, 1])
        self.assertEqual(set(ranks["host"].values), {os.uname().nodename})
        for text in ranks["cores"].values:
            ends = [[int(end) for end in part.split("-")] for part in text.split(",")]
            self.assertTrue({core for part in ends for core in range(part[0], part[-1] + 1)} <= set(cores), text)
        self.assertTrue((ranks["numa_node"] >= -1).all())
        self.assertTrue((ranks["check"] > 0).all())
        self.assertTrue(np.isnan(ranks["memory_rate"]).all(), "of GPUs alone")
        with h5py.File(directory / "run.h5", "r") as file:
            self.assertEqual(file["info"].attrs["job"], "4711")
            self.assertEqual((file["info"].attrs["ranks"], file["info"].attrs["host_count"]), (2, 1))
        self.assertEqual(group_of(directory, "attempts")["job"].values.tolist(), ["4711"])


class StartUp(Shimmed, RunTest):
    """The table of ranks on the console, and its warnings."""
    ONE_STEP = ("train.steps=1", "optimizer.warmup_steps=1", "trace.profile_steps=[]")
    SHIM = r"""
    #include <errno.h>
    int flock(int file, int operation) { errno = ENOLCK; return -1; }
    """

    def test_shows_where_each_rank_runs(self):
        out = self.run_deck(TINY, f"job.directory={self.folder / 'run'}", *self.ONE_STEP, ranks=2).out
        lines = re.findall(rf"(?m)^([01]) +{re.escape(os.uname().nodename)} +([01]) +(?:\d+|-)  (?:cores \d.*|NVIDIA .*)$", out)
        self.assertEqual(lines, [("0", "0"), ("1", "1")], out)
        self.assertNotIn("does not lock", out)

    def test_warns_of_ranks_that_share_a_core(self):
        cores = os.sched_getaffinity(0)
        self.addCleanup(os.sched_setaffinity, 0, cores)
        os.sched_setaffinity(0, [min(cores)])
        self.run_deck(TINY, f"job.directory={self.folder / 'run'}", *self.ONE_STEP, ranks=2,
                      says=f"warning    ranks 0, 1 on {os.uname().nodename} share 1 core: start no more ranks than cores")

    def test_warns_of_gpus_that_no_rank_uses(self):
        self.run_deck(TINY, f"job.directory={self.folder / 'run'}", *self.ONE_STEP, env={"SLURM_GPUS_ON_NODE": "99"},
                      says=f"warning    {os.uname().nodename} has 99 GPUs, of which its 1 rank use")

    def test_warns_of_a_file_system_that_does_not_lock(self):
        self.run_deck(TINY, f"job.directory={self.folder / 'run'}", *self.ONE_STEP, **self.preload(HDF5_USE_FILE_LOCKING="FALSE"),
                      says=["warning    ", "this file system does not lock (No locks available)", "mount it with locks"])


class Attempts(RunTest):
    def test_every_start_is_kept_with_how_it_ended(self):
        directory = self.folder / "run"
        arguments = (f"job.directory={directory}", "checkpoint.every=5", "checkpoint.keep=100000", "trace.flush_s=0")
        job = self.start(TINY, *arguments, "train.steps=1000000", ranks=2)
        self.wait_until(lambda: latest_step(directory) >= 10, "a checkpoint", job)
        end_all(job.ranks(), signal.SIGUSR1)
        self.assertEqual(job.wait().code, STOPPED)
        job = self.start(TINY, *arguments, "train.steps=1000000", "--resume", "auto", ranks=2)
        reached = latest_step(directory)
        self.wait_until(lambda: latest_step(directory) > reached, "a checkpoint", job)
        job.kill_everything()
        self.run_deck(TINY, *arguments, "train.steps=12", "--resume", directory / "checkpoints/step_00000010", ranks=1)  # a rewind
        starts = group_of(directory, "attempts")
        self.assertEqual(starts["reason"].values.tolist()[1:], ["killed", "finished"])
        self.assertIn("SIGUSR1", starts["reason"].values[0])
        self.assertEqual(starts["ranks"].values.tolist(), [2, 2, 1])
        self.assertEqual(starts["from_step"].values.tolist(), [0, reached, 10])
        self.assertTrue((starts["start"] <= starts["end"]).all())
        self.assertTrue((starts["end"][:-1].values <= starts["start"][1:].values).all())
        steps = group_of(directory, "steps")
        self.assertEqual(steps["step"].values.tolist(), list(range(1, 13)))
        self.assertEqual(steps["attempt"].values.tolist(), [0] * 10 + [2] * 2)
        self.assertEqual(set(starts["commit"].values), {steps_commit(directory)})

    def test_a_failure_is_a_reason(self):
        self.run_deck(TINY, f"job.directory={self.folder / 'run'}", "optimizer.learning_rate=100", "optimizer.min_learning_rate=100",
                      "optimizer.clip_norm=0", "optimizer.warmup_steps=0", ranks=2, code=NUMBERS)
        self.assertEqual(group_of(self.folder / "run", "attempts")["reason"].values.tolist(), ["failed: exit 5"])
        data = group_of(self.folder / "run", "steps/by_rank")
        self.assertTrue(np.isfinite(data["compute_time"].values[-1]).all(), "the last step of all ranks is there")


def steps_commit(directory):
    with h5py.File(directory / "run.h5", "r") as file:
        return file["info"].attrs["git_hash"]


if __name__ == "__main__":
    unittest.main(verbosity=2)
