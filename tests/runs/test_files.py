#!/usr/bin/env python3
"""Disks that are full or read-only: exit 6, one message, all ranks end, and nothing that existed is lost."""
import resource
import unittest

import numpy as np

from harness import FILES, FINISHED, TINY, USAGE, RunTest, gpus, latest_step, tensors

# 1.5 MB of checkpoint per rank, a few KB of everything else.
HEAVY = ("model.d_model=128", "model.d_ff=512", "train.batch_size=2", "train.steps=20", "train.validate_every=0", "checkpoint.every=10")


# A stand-in for a full disk that needs no privileges: a rank's files cannot grow beyond this. Transports through shared
# memory are off because their segments are files too, NCCL's among them.
SMALL_FILES = {"wrapper": ["bash", "-c", "ulimit -f 400; exec \"$@\"", "bash"],  # blocks of 1 KiB
               "env": {"OMPI_MCA_btl": "self,tcp"}}


class Disk(RunTest):
    def test_a_full_disk_under_the_steps_is_told_once(self):
        for ranks in (None, 2):
            job = self.start(TINY, f"job.directory={self.folder / str(ranks)}", *HEAVY, "train.steps=1000000", "checkpoint.every=0",
                             "trace.flush_s=0.05", ranks=ranks)
            self.wait_until((self.folder / str(ranks) / "run.h5").exists, "run.h5", job)
            first = job.ranks()[0] if ranks else job.process.pid
            resource.prlimit(first, resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
            result = job.wait()
            self.assertEqual(result.code, FILES, str(result))
            self.assertEqual(result.err.count("tessera: "), 1, str(result))
            self.assertIn("run.h5", result.err)

    def test_full_disk_keeps_the_checkpoint_before(self):
        directory = self.train("run", *HEAVY, "train.steps=10", ranks=2)
        before = tensors(directory, 10)
        over_mpi = () if gpus() is None else ("parallel.collectives=mpi",)
        self.run_deck(TINY, f"job.directory={directory}", *HEAVY, *over_mpi, "--resume", "auto", ranks=2, code=FILES,
                      says=str(directory.name), **SMALL_FILES)
        self.assertEqual(latest_step(directory), 10)
        after = tensors(directory, 10)
        for label in before:
            np.testing.assert_array_equal(after[label], before[label], label)
        self.run_deck(TINY, f"job.directory={directory}", *HEAVY, "--resume", "auto", ranks=2)
        self.assertEqual(latest_step(directory), 20)

    def test_a_directory_that_cannot_be_made(self):
        (self.folder / "file").write_text("in the way")
        for name in (self.folder / "file" / "run", "/proc/tessera"):
            with self.subTest(directory=str(name)):
                self.run_deck(TINY, f"job.directory={name}", code=FILES, says=str(name))
        with self.subTest(ranks=2):
            self.run_deck(TINY, f"job.directory={self.folder / 'file' / 'run'}", ranks=2, code=FILES)

    def test_two_runs_of_one_directory_do_not_mix(self):
        arguments = (f"job.directory={self.folder / 'run'}", "train.steps=100")
        jobs = [self.start(TINY, *arguments) for _ in range(2)]
        codes = sorted(job.wait().code for job in jobs)
        self.assertEqual(codes[0], FINISHED, codes)
        self.assertIn(codes[1], (USAGE, FILES), codes)
        self.assertEqual(latest_step(self.folder / "run"), 100)


if __name__ == "__main__":
    unittest.main(verbosity=2)  # so that a test that skips itself says so
