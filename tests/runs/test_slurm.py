#!/usr/bin/env python3
"""Jobs on a Slurm of two nodes, submitted as on a cluster: launches over both, requeues, chains, arrays, ends.

Skipped (exit code 77) where there can be no such Slurm: not as root, or without Slurm (scripts/setup --slurm), or on a GPU build.
"""
import os
import re
import subprocess
import sys
import tempfile
import time
import unittest
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import h5py
import numpy as np

from harness import (ENVIRONMENT, FILES, LOSS_BOUND, NUMBERS, PATIENCE, PRELOADING, PROGRAM, SOURCE, STEADY, STOPPED, TINY, RunTest, column,
                     gpus, latest_step, tensors)

for room in ("support", "drills"):
    sys.path.insert(0, str(SOURCE / "tests" / room))
import drills  # noqa: E402
import slurm_lab  # noqa: E402

SKIPPED = 77
END_S = 90 * PATIENCE  # a job that takes longer hangs
LONG = ("train.steps=100000", "train.validate_every=0")  # until something ends it
UNUSABLE = ("precision.compute=fp16", "precision.initial_loss_scale=1", "optimizer.learning_rate=100", "optimizer.clip_norm=0",
            "optimizer.warmup_steps=0")  # numbers of the first steps
SLOW_START = """  /* on rank 0, where Open MPI's start could not take a message yet; it crashes on one */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdbool.h>
#include <stdlib.h>
#include <time.h>
void opal_progress(void);
int mca_pml_base_bsend_init(bool threads) {
  int (*const real)(bool) = dlsym(RTLD_NEXT, "mca_pml_base_bsend_init");
  for (time_t end = time(NULL) + 3; atoi(getenv("SLURM_PROCID")) == 0 && time(NULL) < end;) opal_progress();
  return real(threads);
}
"""
lab = None


class Cluster(RunTest):
    def submit(self, *words, name="run", deck=TINY, code=0, env=None):
        """The number of the job, or those of a chain; its directory is `name` in the test's folder."""
        answer = subprocess.run([SOURCE / "scripts/slurm/submit", deck, f"job.directory={self.folder / name}", *map(str, words)],
                                env={**os.environ, **lab.environment, "TESSERA_PROGRAM": str(PROGRAM), **(env or {})}, capture_output=True,
                                text=True, cwd=self.folder, timeout=60)
        self.assertEqual(answer.returncode, code, answer.stdout + answer.stderr)
        numbers = answer.stdout.split()
        return answer.stderr if code != 0 else numbers if "--chain" in words else numbers[-1]

    def text(self, job, name="run"):
        path = self.folder / name / f"slurm/{job}.out"
        return path.read_text(errors="replace") if path.exists() else ""

    def until(self, condition, what, job, name="run"):
        end = time.monotonic() + END_S
        while not condition():
            self.assertLess(time.monotonic(), end, f"never saw {what}: {lab.command('squeue')}{self.text(job, name)[-3000:]}")
            time.sleep(0.2)

    def until_steps(self, job, name="run", many=1):
        """Until the job, started for the `many`th time, has printed a line of a step."""
        lines = r"(?m)^ +\d+ +\d+ +\d+ +\d"
        self.until(lambda: len(self.text(job, name).split("\nresume ")) > many
                   and re.search(lines, self.text(job, name).split("\nresume ")[many]), "a step", job, name)

    def until_state(self, job, *states, name="run"):
        self.until(lambda: lab.shown(job, "JobState") in states, " or ".join(states), job, name)

    def release(self, job, name="run"):
        self.until_state(job, "PENDING", name=name)
        self.until(lambda: not lab.steps_of(job), "the end of the first start", job, name)
        lab.release(job)

    def finish(self, job, code=0, name="run"):
        self.until_state(job, "COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", name=name)
        self.assertEqual(lab.shown(job, "ExitCode"), f"{code}:0", self.text(job, name)[-3000:])
        return self.text(job, name)

    def assert_same_run(self, one, other):
        mine, theirs = (tensors(self.folder / name) for name in (one, other))
        self.assertEqual(mine.keys(), theirs.keys())
        for path, values in mine.items():
            np.testing.assert_array_equal(values, theirs[path], path)
        for name in ("step", "loss", "grad_norm"):
            np.testing.assert_array_equal(column(self.folder / one, name), column(self.folder / other, name), name)


class ByTheCluster(Cluster):
    """What ends jobs whose runs could go on for ever: a sample of the drills."""

    def drill(self, kind):
        self.folder.chmod(0o755)
        drill = drills.Drill(lab, self.folder, kind, 1, 1)
        drill.run()
        return drill

    def test_a_killed_rank_and_the_chains_next_job_give_the_same_bits(self):
        drill = self.drill("rank")
        drills.require_same(drill, drills.undisturbed(lab, self.folder, drill.steps))

    def test_a_time_limit_with_a_signal_requeues(self):
        self.drill("limit")

    def test_a_time_limit_without_a_signal_does_not(self):
        self.drill("limit_without_signal")

    def test_a_more_urgent_job_requeues(self):
        self.drill("preemption")


class Launches(Cluster):
    def test_srun_with_pmix_over_both_nodes_trains(self):
        said = self.finish(self.submit("-N", 2, "-n", 4))
        self.assertRegex(said, r"(?m)^hosts +n1: 2 ranks, n2: 2 ranks$")
        self.assertEqual(latest_step(self.folder / "run"), 30)
        with h5py.File(self.folder / "run/run.h5", "r") as file:
            self.assertEqual(file["info"].attrs["host_count"], 2)

    def test_a_directory_that_the_hosts_do_not_share_is_refused(self):
        program = self.folder / "apart.sh"
        program.write_text(f"""#!/bin/sh
[ "$SLURM_NODEID" = 1 ] || exec '{PROGRAM}' "$@"
exec unshare -m sh -c 'mkdir -p "$0"; mount -t tmpfs none "$0"; exec "$@"' '{self.folder / "run"}' '{PROGRAM}' "$@"
""")
        program.chmod(0o755)
        said = self.finish(self.submit("-N", 2, "-n", 2, env={"TESSERA_PROGRAM": str(program)}), FILES)
        self.assertRegex(said, r"rank 1: .*/run: this host \(n2\) does not see what rank 0 writes there: use a directory that all hosts share")
        self.assertEqual(latest_step(self.folder / "run"), 0)

    def test_no_rank_leaves_mpi_init_before_the_others(self):
        library = lab.folder / "slow_start.so"  # LD_PRELOAD takes no path with spaces
        subprocess.run(["mpicc", "-shared", "-fPIC", "-o", library, "-x", "c", "-"], input=SLOW_START, text=True, check=True)
        self.finish(self.submit("-N", 2, "-n", 2, env={"LD_PRELOAD": str(library), **PRELOADING}))

    def test_requeued_by_the_signal_ends_bit_for_bit_as_without_one(self):
        steps = ("train.steps=400", "train.batch_size=48", "-N", 2, "-n", 2)  # the signals come in the middle of them
        whole = self.submit(*steps, name="whole")
        jobs = {launcher: self.submit(*steps, "--requeue", "--launcher", launcher, name=launcher) for launcher in ("srun", "mpirun")}
        for launcher, job in jobs.items():
            self.until_steps(job, launcher)
            # as --signal sends it: to the steps, or with B: to the script
            lab.command("scancel", "--signal=USR1", *(["--batch"] if launcher == "mpirun" else []), job)
        for launcher, job in jobs.items():
            self.until(lambda: "stopped by SIGUSR1" in self.text(job, launcher), "the checkpoint", job, launcher)
            self.release(job, launcher)
        self.finish(whole, name="whole")
        for launcher, job in jobs.items():
            self.finish(job, name=launcher)
            self.assertEqual(lab.shown(job, "Restarts"), "1")
            self.assertRegex(self.text(job, launcher), r"resume +.+/checkpoints/step_\d+ \(step \d+, written by 2 ranks\)")
            self.assert_same_run(launcher, "whole")

    def test_shards_within_a_node_train_as_shards_of_all_ranks(self):
        jobs = {name: self.submit(*STEADY, "parallel.shard=parameters", f"parallel.shard_ranks={ranks}", "-N", 2, "-n", 4, name=name)
                for name, ranks in (("all", 0), ("node", 2))}
        for name, job in jobs.items():
            self.assertRegex(self.finish(job, name=name), r"(?m)^hosts +n1: 2 ranks, n2: 2 ranks$")
        self.assert_close(*(column(self.folder / name, "loss") for name in jobs), 2 * LOSS_BOUND, "losses")  # both from the exact ones


class Series(Cluster):
    def test_scaling_and_experiment_submit_themselves_and_use_their_allocation(self):
        def script(name, *words):
            command = [SOURCE / "scripts" / name, *words, "--output", self.folder / f"runs/{name}", "--submit", "-N 2 -n 4 --ntasks-per-node=2"]
            answer = subprocess.run([sys.executable, *map(str, command)], capture_output=True, text=True, cwd=self.folder, timeout=60,
                                    env={**os.environ, **lab.environment, "TESSERA_PROGRAM": str(PROGRAM)})
            self.assertEqual(answer.returncode, 0, answer.stderr)
            return answer.stdout.strip()

        jobs = {"scaling": script("scaling", SOURCE / "input/scaling/tiny.toml", "--ranks", "1,2,4", "bench.repeats=3"),
                "experiment": script("experiment", "sharding", "--quick", "--ranks", "4", 'experiment.only=["stage_custom_none", "stage_custom_parameters"]')}
        said = {}
        for name, job in jobs.items():
            self.until_state(job, "COMPLETED", "FAILED", name="runs")
            said[name] = (self.folder / f"runs/{name}.{job}.out").read_text()
            self.assertEqual(lab.shown(job, "ExitCode"), "0:0", said[name])
        rows = re.findall(r"(?m)^\| (\d+) \| (\d+) \| .* \| (measured|predicted) \|", said["scaling"])
        self.assertEqual(rows, [("1", "1", "measured"), ("2", "1", "measured"), ("4", "2", "measured")])
        self.assertRegex(said["experiment"], r"(?m)^ +4  custom  ZeRO-3 .* ok$")
        with h5py.File(self.folder / "runs/experiment/ranks_0004/experiment.h5", "r") as file:
            self.assertEqual(file["info"].attrs["host_count"], 2)


class Ends(Cluster):
    def test_a_failure_is_the_jobs_code_and_is_not_requeued(self):
        for launcher in ("srun", "mpirun"):
            with self.subTest(launcher=launcher):
                job = self.submit(*UNUSABLE, "-N", 2, "-n", 2, "--requeue", "--launcher", launcher, name=launcher)
                self.assertIn("are unusable", self.finish(job, NUMBERS, name=launcher))
                self.assertEqual(lab.shown(job, "Restarts"), "0")

    def test_without_a_requeue_a_stop_is_the_jobs_code(self):
        job = self.submit(*LONG, "-N", 2, "-n", 2)
        self.until_steps(job)
        lab.command("scancel", "--signal=USR1", "--batch", job)  # to the script
        self.assertIn("stopped by SIGUSR1", self.finish(job, STOPPED))

    def test_scancel_ends_a_job_that_requeues(self):
        job = self.submit(*LONG, "-N", 2, "-n", 2, "--requeue")
        self.until_steps(job)
        lab.command("scancel", job)
        self.until_state(job, "CANCELLED")
        self.until(lambda: not lab.command("squeue", "-h", "-j", job), "the end of all its steps", job)
        self.assertEqual(lab.shown(job, "Restarts"), "0")
        self.assertGreater(latest_step(self.folder / "run"), 0, self.text(job))  # SIGTERM leaves time for a checkpoint

    def test_a_chain_goes_on_after_a_stop_and_ends_when_the_run_has_finished(self):
        first, second, last = self.submit("train.steps=80", "train.batch_size=48", "-N", 2, "-n", 2, "--chain", 3)
        self.until_steps(first)
        lab.command("scancel", "--signal=USR1", first)
        self.finish(last)
        self.assertEqual([lab.shown(job, "ExitCode") for job in (first, second)], [f"{STOPPED}:0", "0:0"])
        self.assertIn("nothing to train", self.text(last))
        self.assertEqual(latest_step(self.folder / "run"), 80)

    def test_two_starts_without_progress_end_a_chain(self):
        first, second, last = self.submit(*UNUSABLE, "-N", 1, "-n", 1, "--chain", 3)
        self.assertIn("the last 2 starts of this submission began at step 0", self.finish(last, ENVIRONMENT))
        self.assertEqual([lab.shown(job, "ExitCode") for job in (first, second)], [f"{NUMBERS}:0"] * 2)


class Directories(Cluster):
    def test_of_an_array_each_job_has_its_own(self):
        table = self.folder / "table"
        table.write_text("train.steps optimizer.beta2\n8 0.9\n9 0.95\n")
        array = self.submit("-N", 1, "-n", 2, "--array", table)
        for task, steps in ((1, 8), (2, 9)):
            self.assertIn("hosts      n", self.finish(f"{array}_{task}"))
            self.assertEqual(latest_step(self.folder / f"run/{task}"), steps)
            self.assertRegex((self.folder / f"run/{task}/status").read_text(), rf"^finished  step {steps}/{steps} .* job {array}_{task}\n$")
            with h5py.File(self.folder / f"run/{task}/run.h5", "r") as file:
                self.assertIn(f"/run/{task}\"", file["info"].attrs["deck"])

    def test_a_job_that_waits_for_its_requeue_keeps_its_own(self):
        owner = self.submit(*LONG, "-N", 1, "-n", 1, "--requeue")
        self.until_steps(owner)
        running = self.submit(*LONG, "-N", 1, "-n", 1)
        self.assertIn(f"job {owner} of Slurm works here (RUNNING)", self.finish(running, FILES))
        lab.command("scancel", "--signal=USR1", owner)
        self.until_state(owner, "PENDING")
        lab.command("scontrol", "update", f"JobId={owner}", "StartTime=now+600")  # it begins again after 15 s otherwise
        held = f"job {owner} of Slurm works here (PENDING)"
        self.assertIn(held, self.finish(self.submit(*LONG, "-N", 1, "-n", 1), FILES))
        before = latest_step(self.folder / "run")
        words = (f"job.directory={self.folder / 'run'}", f"train.steps={before + 1}", "train.validate_every=0", "--resume", "auto")
        self.run_deck(TINY, *words, code=FILES, says=held, env=lab.environment)  # by hand
        lab.command("scancel", owner)
        self.run_deck(TINY, *words, env=lab.environment)
        self.assertEqual(latest_step(self.folder / "run"), before + 1)


class Together(unittest.TestSuite):
    """Runs its tests three at a time: they wait more than they compute."""

    def run(self, result, debug=False):
        with ThreadPoolExecutor(3) as together:
            list(together.map(lambda test: test.run(result), flat(self)))
        return result


def flat(tests):
    return [one for test in tests for one in (flat(test) if isinstance(test, unittest.TestSuite) else [test])]


class Lines(unittest.TextTestResult):
    """Tells of a test once it has ended."""

    def startTest(self, test):
        unittest.TestResult.startTest(self, test)


def main():
    global lab
    if gpus() is not None:
        print("skipped: the two nodes would share this machine's GPUs")
        return SKIPPED
    try:
        slurm_lab.require()
    except slurm_lab.Missing as why:
        print(f"skipped: {why}")
        return SKIPPED
    folder = Path(tempfile.mkdtemp(prefix="tessera_slurm_"))
    folder.chmod(0o755)
    try:
        lab = slurm_lab.Lab(folder / "lab").up()
        unittest.TestLoader.suiteClass = Together
        tests = unittest.main(exit=False, testRunner=unittest.TextTestRunner(resultclass=Lines, verbosity=2))
        return 0 if tests.result.wasSuccessful() else 1
    finally:
        if lab:
            lab.down()
        subprocess.run(["rm", "-rf", str(folder)])


if __name__ == "__main__":
    sys.exit(main())
