#!/usr/bin/env python3
"""Data parallel on 1 to 4 ranks trains the same model, and resumes from one count to another."""
import os
import re
import signal
import time
import unittest
from pathlib import Path

import h5py
import numpy as np

from harness import (ENVIRONMENT, HANG, LOSS_BOUND, SHARED_GPUS, STEADY, STOPPED, TINY, WEIGHT_BOUND, RunTest, Shimmed, column,
                     descendants, end_all, gpus, has_nccl, latest_step, tensors, wait_for_end)

STEADY = (*STEADY, "checkpoint.keep=10")
MEANS = r"\[(mpi|nccl|copy_engine)\]"  # what carries a transfer out


class Ranks(RunTest):
    def assert_same_training(self, a, b):
        self.assert_close(column(a, "loss"), column(b, "loss"), LOSS_BOUND, "loss")
        self.assert_close(column(a, "grad_norm"), column(b, "grad_norm"), LOSS_BOUND, "grad_norm")
        made, expected = tensors(a), tensors(b)
        self.assertEqual(sorted(made), sorted(expected))
        for label in expected:
            if label.startswith("params/"):
                self.assert_close(made[label], expected[label], WEIGHT_BOUND, label)

    def test_several_ranks_equal_one(self):
        one = self.train("one", *STEADY)
        for ranks in (2, 3, 4):
            with self.subTest(ranks=ranks):
                many = self.train(f"of {ranks}", *STEADY, ranks=ranks)
                self.assert_same_training(many, one)
                files = sorted(path.name for path in (many / "checkpoints/step_00000030").glob("rank_*.h5"))
                self.assertEqual(files, [f"rank_{r:05d}.h5" for r in range(ranks)])
        with self.subTest("accumulation and small buckets on two ranks"):
            self.assert_same_training(
                self.train("accumulated", *STEADY, "train.micro_batch_size=2", "parallel.bucket_mbyte=0.02", ranks=2), one)

    def test_a_batch_that_does_not_divide_counts_every_token_once(self):
        one = self.train("one", *STEADY, "train.batch_size=7")
        self.assert_same_training(self.train("uneven", *STEADY, "train.batch_size=7", "parallel.allow_uneven=true", ranks=2), one)

    def test_mpirun_over_the_nodes_of_a_slurm_job(self):
        """On every node but the first, mpirun's daemon is the only task of a step, whose variables its ranks inherit."""
        self.train("run", "train.steps=2", "optimizer.warmup_steps=1", "trace.profile_steps=[]", ranks=2,
                   wrapper=("env", "SLURM_JOB_ID=17", "SLURM_STEP_ID=3", "SLURM_PROCID=0", "SLURM_LOCALID=0", "SLURM_NTASKS=1", "SLURM_STEP_NUM_TASKS=1"))

    def test_a_plan_in_an_allocation_is_for_the_ranks_that_were_started(self):
        self.run_deck(TINY, "--plan", wrapper=("env", "SLURM_JOB_ID=17", "SLURM_NTASKS=4"), says="plan       for 1 rank (as started")

    def test_the_same_ranks_give_the_same_bits(self):
        self.assert_same_tensors(*(tensors(self.train(name, ranks=2)) for name in ("a", "b")))

    def test_another_count_resumes_within_bounds(self):
        whole = self.train("whole", *STEADY, ranks=2)
        for ranks in (1, 3, 4):
            directory = self.folder / f"to {ranks}"
            with self.subTest(ranks=ranks):
                self.run_deck(TINY, f"job.directory={directory}", *STEADY, "--resume", whole / "checkpoints/step_00000010", ranks=ranks)
                self.assertEqual(latest_step(directory), 30)
                made = dict(zip(column(directory, "step"), column(directory, "loss")))
                expected = dict(zip(column(whole, "step"), column(whole, "loss")))
                self.assert_close([made[s] for s in range(11, 31)], [expected[s] for s in range(11, 31)], LOSS_BOUND, "loss")
                a, b = tensors(directory), tensors(whole)
                for label in b:
                    if label.startswith("params/"):
                        self.assert_close(a[label], b[label], WEIGHT_BOUND, label)

    def test_gradients_travel_while_backward_runs(self):
        directory = self.train("overlap", "parallel.bucket_mbyte=0.02", "trace.profile_steps=[3]", ranks=2)
        with h5py.File(directory / "run.h5", "r") as file:
            comm, events = ({name: column[()] for name, column in file[group].items()} for group in ("comm", "events"))
        reductions = (comm["step"] == 3) & np.char.startswith(comm["operation"].astype(str), "all_reduce")
        backward = (events["step"] == 3) & (events["label"].astype(str) == "backward")
        self.assertEqual(backward.sum(), 1, "one micro-step has one backward")
        start, end = comm["start"][reductions], comm["end"][reductions]
        self.assertGreater(len(start), 1, "a single bucket cannot overlap")
        self.assertTrue((end >= start).all())
        self.assertLess(start.min(), events["end"][backward][0], "no bucket left before backward was over")
        self.assertGreater(start.min(), events["start"][backward][0], "a bucket left before its gradients were made")


def ways_to_sum():
    """The values of parallel.transfers that cover every all-reduce algorithm of two ranks here."""
    return ("ring", "copy_engine") if (gpus() or 0) >= 2 and has_nccl() else ("auto",)


class BrokenDevice(Shimmed, RunTest):
    """The products of one rank are wrong in one sum: those of the BLAS on a host, those of cuBLASLt on a GPU."""
    SHIM = r"""
    #define _GNU_SOURCE
    #include <dlfcn.h>
    #include <stdlib.h>
    typedef const void* In;
    static int is_broken(void) { return atoi(getenv("OMPI_COMM_WORLD_RANK")) == atoi(getenv("BROKEN")); }
    void sgemm_(In op_a, In op_b, const int* m, const int* n, In k, In factor, In a, In lda, In b, In ldb, In beta, float* c, In ldc) {
      void (*real)() = (void (*)())dlsym(RTLD_NEXT, "sgemm_");
      real(op_a, op_b, m, n, k, factor, a, lda, b, ldb, beta, c, ldc, 1L, 1L);
      if (is_broken()) c[3] += 1;
    }
    int cublasLtMatmul(In handle, In kind, In alpha, In a, In a_kind, In b, In b_kind, In beta, In c, In c_kind, void* d, In d_kind, In algo,
                       In space, size_t bytes, In stream) {
      int (*real)() = (int (*)())dlsym(RTLD_NEXT, "cublasLtMatmul");
      int (*set)(void*, unsigned char, size_t, In) =
          (int (*)(void*, unsigned char, size_t, In))dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuMemsetD8Async");
      const int status = real(handle, kind, alpha, a, a_kind, b, b_kind, beta, c, c_kind, d, d_kind, algo, space, bytes, stream);
      if (is_broken() && status == 0) set((char*)d + 4 * 3 + 2, 0x55, 1, stream);
      return status;
    }
    """

    def test_is_named_before_anything_is_written(self):
        for broken in (0, 1):
            with self.subTest(broken=broken):
                result = self.run_deck(TINY, f"job.directory={self.folder / 'run'}", *SHARED_GPUS, ranks=2,
                                       code=ENVIRONMENT, says=[f"rank {broken}'s, computes wrongly: gemm of bf16: ", os.uname().nodename,
                                                               "sums are wrong, the first at [0,3]: "], **self.preload(BROKEN=broken))
                self.assertEqual(result.err.count("computes wrongly"), 1, str(result))
                self.assertEqual("GPU-" in result.err, gpus() is not None, str(result))
                self.assertFalse((self.folder / "run").exists())


class SlowStatus(Shimmed, RunTest):
    """The file system stands still when rank 0 writes the run's status."""
    SHIM = r"""
    #define _GNU_SOURCE
    #include <dlfcn.h>
    #include <string.h>
    #include <unistd.h>
    int rename(const char* from, const char* to) {
      static int is_late;
      const size_t length = strlen(to);
      if (length > 7 && !strcmp(to + length - 7, "/status") && !is_late++) sleep(8);
      return ((int (*)(const char*, const char*))dlsym(RTLD_NEXT, "rename"))(from, to);
    }
    """

    def test_is_waited_for(self):
        result = self.run_deck(TINY, "parallel.timeout_s=1", *SHARED_GPUS, ranks=2, **self.preload())
        self.assertRegex(result.out, r"\n\d+ steps in (8|9|\d\d)\.\d s")


class LostRank(RunTest):
    def test_a_killed_rank_ends_the_job(self):
        for way in ways_to_sum():
            with self.subTest(way=way):
                job = self.start(TINY, f"job.directory={self.folder / way}", "train.steps=1000000", "train.validate_every=0",
                                 f"parallel.transfers={way}", ranks=2)
                self.wait_until(lambda: latest_step(self.folder / way) >= 10, "a checkpoint", job)
                ranks = job.ranks()
                self.assertEqual(len(ranks), 2)
                os.kill(ranks[1], signal.SIGKILL)
                result = job.wait()
                self.assertNotIn(result.code, (0, STOPPED, "none: it hung"), str(result))
                self.assertTrue(wait_for_end(ranks), "a rank lives on")

    def test_a_rank_that_hangs_is_noticed_by_the_others(self):
        """Nobody tells the others: the launcher sees a live process. They exit with 7 and say what they waited for."""
        for way in ways_to_sum():
            with self.subTest(way=way):
                job = self.start(TINY, f"job.directory={self.folder / way}", "train.steps=1000000", "train.validate_every=0",
                                 "checkpoint.every=0", "trace.every_steps=1", "job.progress=line", "parallel.timeout_s=2",
                                 f"parallel.transfers={way}", ranks=2)
                self.wait_until(lambda: job.printed().count("\n") > 40, "some steps", job)
                ranks = job.ranks()
                self.assertEqual(len(ranks), 2)
                os.kill(ranks[1], signal.SIGSTOP)
                self.assert_noticed(job, ranks)

    def test_a_job_that_is_suspended_as_a_whole_goes_on(self):
        job = self.start(TINY, f"job.directory={self.folder / 'run'}", "train.steps=1000000", "train.validate_every=0",
                         "checkpoint.every=0", "trace.every_steps=1", "job.progress=line", "parallel.timeout_s=1", ranks=2)
        self.wait_until(lambda: job.printed().count("\n") > 40, "some steps", job)
        ranks = job.ranks()
        end_all(ranks, signal.SIGSTOP)
        time.sleep(6)
        end_all(ranks, signal.SIGCONT)
        printed = job.printed().count("\n")
        self.wait_until(lambda: job.printed().count("\n") > printed + 40, "further steps", job)
        end_all(ranks, signal.SIGTERM)
        result = job.wait()
        self.assertEqual(result.code, STOPPED, str(result))

    def assert_noticed(self, job, ranks):
        result = job.wait()
        self.assertEqual(result.code, HANG, str(result))
        self.assertRegex(result.err, r"tessera: rank \d: no progress for [\d.]+ s.*, under way: ")
        self.assertRegex(result.err, rf"(sum|max|all_reduce){MEANS} of [\w. ]+ started")
        self.assertIn("--resume auto", result.err)
        self.assertTrue(wait_for_end(ranks), "a rank lives on")

    def test_a_rank_that_hangs_in_a_benchmark_is_noticed_too(self):
        deck = self.deck(TINY.read_text().replace('"train"', '"experiment"') + """
[experiment]
job = "bench.step"
[experiment.rows.short]
bench.repeats = 1
[experiment.rows.endless]
bench.repeats = 1000000
""")
        job = self.start(deck, "parallel.timeout_s=2", ranks=2)
        self.wait_until(lambda: re.search(r"(?m)^.*\bshort\b.*\n(.*\n)*.*\bendless\b", job.printed()), "the second row", job)
        time.sleep(1)  # a row is printed at its end: nothing shows that its steps have begun
        ranks = job.ranks()
        self.assertEqual(len(ranks), 2)
        os.kill(ranks[1], signal.SIGSTOP)
        self.assert_noticed(job, ranks)


class Start(RunTest):
    """MPI's start waits for every rank for ever: after ten times the limit those that wait end, and say for whom."""

    def start_two(self, stopped):
        """The rank `stopped` stops before the program begins."""
        script = self.deck('[ "${OMPI_COMM_WORLD_RANK:-$PMI_RANK}" != ' + f'{stopped} ] || kill -STOP $$; exec "$@"', "wrapper.sh")
        return self.start(TINY, f"job.directory={self.folder / 'run'}", "parallel.timeout_s=0.5", ranks=2,
                          wrapper=["/bin/sh", script])

    def test_a_rank_that_never_comes_is_named(self):
        result = self.start_two(stopped=1).wait(60)
        self.assertEqual(result.code, HANG, str(result))
        self.assertRegex(result.err, r"tessera: rank 0: the 2 ranks have not started within 5 s: ")
        self.assertRegex(result.err, r"tessera: rank 0: ranks that have reached the start on this host: 0\n")
        self.assertRegex(result.err, r"tessera: rank 0: ranks not seen: 1; ")
        self.assertRegex(result.err, r"leaves with exit code 7; start again. parallel.timeout_s sets ")

    def test_a_rank_that_is_stopped_while_mpi_starts_is_named(self):
        job = self.start_two(stopped=0)
        name_of = lambda pid: rf"@tessera-start-[0-9a-f]+-1-{pid}$"
        waiting = lambda: [pid for pid in job.ranks() if re.search(name_of(pid), Path("/proc/net/unix").read_text(), re.M)]
        self.wait_until(waiting, "rank 1 in MPI's start", job)
        stopped = waiting()
        end_all(stopped, signal.SIGSTOP)
        others = [pid for pid in descendants(job.process.pid) if pid not in stopped]
        end_all(others, signal.SIGCONT)
        result = job.wait()
        self.assertEqual(result.code, HANG, str(result))
        self.assertRegex(result.err, rf"tessera: rank 0: rank 1 has reached the start, and is stopped: process {stopped[0]}\n")
        self.assertRegex(result.err, r"tessera: rank 0: ranks that have reached the start on this host: 0, 1\n")
        self.assertNotIn("not seen", result.err)


SHARDS = ("none", "optimizer", "gradients", "parameters")
RANK_2 = r"rank 2 (is behind: it has started \d+ transfers|has given no sign of life)"
TRANSFER = rf"waiting for it: \w+{MEANS} of [\w. ]+ \([\d.]+ \w+\), for [\d.]+ s"


class FlightRecorder(RunTest):
    """On a hang the ranks tell which one is behind, however the training is shared; nothing is left of what they share."""

    def start_three(self, shard, *arguments):
        before = self.shared_files()
        job = self.start(TINY, f"job.directory={self.folder / shard}", "train.steps=1000000", "train.validate_every=0",
                         "train.batch_size=6", "checkpoint.every=0", "job.progress=line", "parallel.timeout_s=3",
                         f"parallel.shard={shard}", *arguments, ranks=3)
        self.wait_until(lambda: job.printed().count("\n") > 40, "some steps", job)
        self.assertEqual(self.shared_files() - before, set(), "what the ranks share has a name")
        ranks = {self.rank_of(pid): pid for pid in job.ranks()}
        self.assertEqual(sorted(ranks), [0, 1, 2])
        return job, ranks

    @staticmethod
    def rank_of(pid):
        with open(f"/proc/{pid}/environ", "rb") as file:
            return int(re.search(rb"(?:OMPI_COMM_WORLD_RANK|PMI_RANK)=(\d+)", file.read()).group(1))

    @staticmethod
    def shared_files():
        return {path.name for path in Path("/dev/shm").glob("*tessera*") if "_segment" not in path.name}  # those of MPI have the host's name

    def test_the_rank_that_sleeps_is_named(self):
        for shard in SHARDS:
            with self.subTest(shard=shard):
                job, ranks = self.start_three(shard)
                os.kill(ranks[2], signal.SIGSTOP)
                result = job.wait()
                self.assertEqual(result.code, HANG, str(result))
                self.assertRegex(result.err, r"tessera: rank [01]: no progress for ")
                self.assertRegex(result.err, rf"tessera: rank [01]: {RANK_2}.*; {TRANSFER}")
                self.assertRegex(result.err, rf"tessera: rank [01]:   #\d+  \w+{MEANS} of ")
                self.assertIn("--resume auto", result.err)
                self.assertTrue(wait_for_end(ranks.values()), "a rank lives on")

    def test_the_rank_that_sleeps_while_a_checkpoint_is_written_is_named_as_soon(self):
        """Ranks wait ten times as long for files, but not for a rank of their host that is stopped."""
        job, ranks = self.start_three("none", "checkpoint.every=1", "checkpoint.keep=1", "checkpoint.background=off")
        folder = self.folder / "none/checkpoints"
        half_written = lambda: any(folder.glob(".tmp_step*"))

        def written():
            """What the others still change: the names and sizes of all files, and which checkpoint is the latest."""
            sizes = {path: path.stat().st_size for path in folder.rglob("*") if path.exists()}
            return sizes, latest_step(self.folder / "none")

        def comes_to_rest():
            """Whether the others wait in a checkpoint that none of them completes."""
            before, since_s = written(), time.monotonic()
            while time.monotonic() - since_s < 1:
                time.sleep(0.05)
                try:
                    now = written()
                except FileNotFoundError:  # removed in between
                    now = None
                if now != before:
                    before, since_s = now, time.monotonic()
                if not half_written():
                    return False
            return True

        def stopped_in_a_checkpoint():
            os.kill(ranks[2], signal.SIGSTOP)
            try:
                if comes_to_rest():
                    return True
            except FileNotFoundError:
                pass
            os.kill(ranks[2], signal.SIGCONT)  # it came too late for this one
            return False

        self.wait_until(lambda: half_written() and stopped_in_a_checkpoint(), "a checkpoint", job)
        begin_s = time.monotonic()
        result = job.wait()
        self.assertEqual(result.code, HANG, str(result))
        self.assertLess(time.monotonic() - begin_s, 20)  # ten times the limit: 30 s
        self.assertRegex(result.err, r"rank [01]: no progress for .*, under way: a checkpoint\n")
        self.assertRegex(result.err, r"tessera: rank [01]: rank 2 has given no sign of life for ")
        self.assertNotIn("no rank of this host is behind", result.err)
        self.assertTrue(wait_for_end(ranks.values()), "a rank lives on")

    def test_a_killed_rank_ends_the_launch(self):
        for shard in SHARDS:
            with self.subTest(shard=shard):
                job, ranks = self.start_three(shard)
                os.kill(ranks[2], signal.SIGKILL)
                result = job.wait()
                self.assertNotIn(result.code, (0, STOPPED, "none: it hung"), str(result))
                self.assertTrue(wait_for_end(ranks.values()), "a rank lives on")


if __name__ == "__main__":
    unittest.main(verbosity=2)  # so that a test that skips itself says so
