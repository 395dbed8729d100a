#!/usr/bin/env python3
"""A sample of the drills of tests/drills on one host."""
import shutil
import sys
import unittest
from unittest import mock

from harness import SOURCE, RunTest, gpus

sys.path.insert(0, str(SOURCE / "tests/drills"))
import host_drills  # noqa: E402

SEED = 36


class Drills(RunTest):
    def sample(self, kind, count, least=None):
        """Every one ends as it must, and there are `least`, by default `count`."""
        rows = list(host_drills.drill(kind, count, SEED, self.folder / "drills"))
        self.assertEqual([row for row in rows if row["fault"]], [])
        self.assertGreaterEqual(len(rows), least or count)
        return rows

    def setUp(self):
        super().setUp()
        if gpus() is not None:
            self.skipTest("the strategies of two ranks on the host are compared; a GPU would need two")
        self.folder = self.folder.rename(self.folder.with_name(self.folder.name.replace(" ", "_")))  # LD_PRELOAD is split at spaces
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

    def test_wrong_decks(self):
        self.sample("deck", 36)

    def test_damaged_checkpoints(self):
        self.sample("checkpoint", 3)

    def test_damaged_data_files(self):
        self.sample("data", 8)

    def test_single_writes_to_a_full_disk(self):
        self.sample("write", 4)

    def test_disks_that_fail_in_four_ways(self):
        self.sample("disk", 4)

    def test_a_clock_that_jumps(self):
        self.sample("clock", 1)

    def test_a_directory_that_is_deleted(self):
        self.sample("deleted", 1)

    def test_a_soak_of_three_strategies(self):
        with mock.patch.object(host_drills, "STOPS_EVERY_S", 3):
            self.sample("soak", 0.2, least=3)

    def test_a_kill_in_two_strategies(self):
        self.sample("kill", 2)

    def test_a_harness_that_sees_nothing_would_fail(self):
        """The drills' own judgement: another run's bits are told from a run's own."""
        one = self.train("one", "train.steps=2", "optimizer.warmup_steps=1")
        other = self.train("other", "train.steps=2", "optimizer.warmup_steps=1", "job.seed=2")
        host_drills.require_same(one, one)
        with self.assertRaises(host_drills.Failed):
            host_drills.require_same(one, other)


if __name__ == "__main__":
    unittest.main(verbosity=2)
