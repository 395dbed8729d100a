#!/usr/bin/env python3
"""Disks that are full or read-only: exit 6, one message, all ranks end, and nothing that existed is lost."""
import fcntl
import re
import resource
import shlex
import shutil
import unittest

from harness import FILES, FINISHED, TINY, USAGE, RunTest, gpus, latest_step, snapshot, tensors

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
        self.assert_same_tensors(tensors(directory, 10), before)
        self.run_deck(TINY, f"job.directory={directory}", *HEAVY, "--resume", "auto", ranks=2)
        self.assertEqual(latest_step(directory), 20)

    def test_a_directory_that_cannot_be_made(self):
        (self.folder / "file").write_text("in the way")
        for name in (self.folder / "file" / "run", "/proc/tessera"):
            with self.subTest(directory=str(name)):
                self.run_deck(TINY, f"job.directory={name}", code=FILES, says=str(name))
        with self.subTest(ranks=2):
            self.run_deck(TINY, f"job.directory={self.folder / 'file' / 'run'}", ranks=2, code=FILES)
        self.run_deck(TINY, f"job.directory={self.folder / 'file' / 'further' / 'run'}", code=FILES, says="Not a directory")

    def test_two_runs_of_one_directory_do_not_mix(self):
        arguments = (f"job.directory={self.folder / 'run'}", "train.steps=100")
        jobs = [self.start(TINY, *arguments) for _ in range(2)]
        codes = sorted(job.wait().code for job in jobs)
        self.assertEqual(codes[0], FINISHED, codes)
        self.assertIn(codes[1], (USAGE, FILES), codes)
        self.assertEqual(latest_step(self.folder / "run"), 100)


class Deleted(RunTest):
    def test_a_run_whose_directory_another_may_take_ends(self):
        """Its files would come back without the lock: run.h5 is published as a whole, checkpoints make their folders."""
        directory = self.folder / "run"
        job = self.start(TINY, f"job.directory={directory}", "train.steps=1000000000", "train.validate_every=0", ranks=2)
        self.wait_until(lambda: latest_step(directory) >= 10, "a checkpoint", job)
        (directory / ".lock").unlink()
        result = job.wait()
        self.assertEqual(result.code, FILES, str(result))
        self.assertIn(f"{directory}: was deleted, moved or replaced while the run wrote there (its .lock is gone)", result.err)
        self.run_deck(TINY, f"job.directory={directory}", f"train.steps={latest_step(directory) + 1}", "--resume", "auto", ranks=2)

    def test_a_run_that_was_moved_writes_nothing_into_the_next_one(self):
        """Not after its step, however long that takes, nor while it ends."""
        directory = self.folder / "run"
        job = self.start(TINY, f"job.directory={directory}", "train.steps=1000000", "train.validate_every=0", "checkpoint.every=1",
                         "train.batch_size=2400", "train.micro_batch_size=12", "trace.flush_s=0")
        status = directory / "status"
        self.wait_until(lambda: status.exists() and re.search(" step +[1-9]", status.read_text()), "the next step under way, after a checkpoint", job)
        directory.rename(self.folder / "moved")
        self.train("run", "train.steps=3", "job.seed=7")
        before = snapshot(directory)
        result = job.wait()
        self.assertEqual(result.code, FILES, str(result))
        after = snapshot(directory)
        self.assertEqual([str(path) for path in before | after if before.get(path) != after.get(path)], [])


class Status(RunTest):
    def test_a_file_of_that_name_that_is_no_runs_status_is_not_replaced(self):
        (self.folder / "run").mkdir()
        notes = self.folder / "run/status"
        notes.write_text("my own notes\n")
        self.run_deck(TINY, f"job.directory={self.folder / 'run'}", "job.overwrite=true", code=FILES, says="is not the status of a run")
        self.assertEqual(notes.read_text(), "my own notes\n")
        notes.unlink()
        for _ in range(2):
            self.run_deck(TINY, f"job.directory={self.folder / 'run'}", "train.steps=1", "job.overwrite=true")


class Links(RunTest):
    """`checkpoints` as a link to another file system, as sites with a scratch disk have it."""

    def linked(self, name, target):
        directory = self.folder / name
        directory.mkdir()
        (directory / "checkpoints").symlink_to(target)
        return directory

    def test_overwrite_keeps_another_runs_checkpoints_behind_a_link(self):
        other = self.train("a", "train.steps=4")
        before = snapshot(other)
        directory = self.linked("b", "../a/checkpoints")
        for ranks in (None, 2):
            self.run_deck(TINY, f"job.directory={directory}", "train.steps=2", "job.overwrite=true", ranks=ranks, code=FILES,
                          says=["is a link", "step_00000004", "--resume auto", "job.directory=", "delete it yourself"])
        # a run.h5 that is a link is no proof either
        (directory / "run.h5").symlink_to("../a/run.h5")
        self.run_deck(TINY, f"job.directory={directory}", "train.steps=2", "job.overwrite=true", code=FILES, says="is a link")
        self.assertEqual(snapshot(other), before)
        self.assertEqual(str((directory / "checkpoints").readlink()), "../a/checkpoints")

    def test_a_run_behind_a_link_trains_resumes_goes_back_and_is_overwritten(self):
        scratch = self.folder / "scratch"
        scratch.mkdir()
        directory = self.linked("run", scratch)
        steps = ("train.steps=6", "checkpoint.every=2", "checkpoint.keep=9")
        here = f"job.directory={directory}"
        self.run_deck(TINY, here, *steps, "job.overwrite=true")
        self.run_deck(TINY, here, *steps, "train.steps=8", "--resume", "auto")
        whole = tensors(directory, 8)
        back = self.run_deck(TINY, here, *steps, "train.steps=8", "--resume", directory / "checkpoints/step_00000004")
        self.assertIn("abandoned_01", back.out)
        self.assert_same_tensors(tensors(directory, 8), whole)
        self.run_deck(TINY, here, *steps, "--resume", directory / "checkpoints/abandoned_01/step_00000006", "job.overwrite=true",
                      code=FILES, says="lies in job.directory")
        self.run_deck(TINY, here, "train.steps=3", "job.overwrite=true")
        self.assertTrue((directory / "checkpoints").is_symlink())
        self.assertEqual(sorted(path.name for path in scratch.iterdir()), [".lock", "latest", "step_00000003"])
        self.run_deck(TINY, here, "train.steps=2", "job.overwrite=true")  # the new run's checkpoints carry its id, too
        self.assertEqual(sorted(path.name for path in scratch.iterdir()), [".lock", "latest", "step_00000002"])

    def test_a_copy_of_a_directory_does_not_own_what_its_link_leads_to(self):
        scratch = self.folder / "scratch"
        scratch.mkdir()
        here = self.linked("a", scratch)
        self.run_deck(TINY, f"job.directory={here}", "train.steps=4", "job.overwrite=true")
        shutil.copytree(here, self.folder / "b", symlinks=True)
        before = snapshot(scratch)
        self.run_deck(TINY, f"job.directory={self.folder / 'b'}", "train.steps=2", "job.overwrite=true", code=FILES, says="is a link")
        self.assertEqual(snapshot(scratch), before)
        with open(scratch / ".lock") as lock:  # a run of another directory is working there
            fcntl.flock(lock, fcntl.LOCK_EX)
            self.run_deck(TINY, f"job.directory={here}", "train.steps=6", "--resume", "auto", code=FILES,
                          says=["checkpoints: another run is working"])

    def test_checkpoints_that_were_moved_away_and_linked_are_not_deleted(self):
        archive = self.folder / "archive"
        archive.mkdir()
        directory = self.train("run", "train.steps=6", "checkpoint.every=2", "checkpoint.keep=9")
        checkpoints = directory / "checkpoints"
        self.run_deck(TINY, f"job.directory={directory}", "train.steps=6", "checkpoint.keep=9", "--resume", checkpoints / "step_00000004")
        for name in ("step_00000002", "abandoned_01"):
            (checkpoints / name).rename(archive / name)
            (checkpoints / name).symlink_to(archive / name)
        before = snapshot(archive)
        self.run_deck(TINY, f"job.directory={directory}", "train.steps=9", "checkpoint.every=1", "checkpoint.keep=1", "--resume", "auto")
        self.assertEqual(snapshot(archive), before, "pruned")
        (checkpoints / "step_00000002").symlink_to(archive / "step_00000002")
        self.run_deck(TINY, f"job.directory={directory}", "train.steps=1", "job.overwrite=true")
        self.assertEqual(snapshot(archive), before, "overwritten")
        self.assertEqual(sorted(path.name for path in checkpoints.iterdir()), ["latest", "step_00000001"])

    def test_the_one_before_a_damaged_checkpoint_may_be_a_link(self):
        directory = self.train("my run", "train.steps=6", "checkpoint.every=2", "checkpoint.keep=9")
        checkpoints = directory / "checkpoints"
        (checkpoints / "step_00000004").rename(self.folder / "archived")
        (checkpoints / "step_00000004").symlink_to(self.folder / "archived")
        damaged = checkpoints / "step_00000006/rank_00000.h5"
        data = bytearray(damaged.read_bytes())
        data[len(data) // 2] ^= 1
        damaged.write_bytes(data)
        (checkpoints / "best").symlink_to("step_00000006")
        for name in ("best", "step_00000006"):
            self.run_deck("--verify-checkpoint", checkpoints / name, code=FILES,
                          says=f"Use the one before: --verify-checkpoint '{checkpoints}/step_00000004'\n")
        here = (f"job.directory={directory}", "train.steps=7")
        refused = self.run_deck(TINY, *here, "--resume", "auto", code=FILES)
        advice = re.search(r"Use the one before: (--resume .*)\n", refused.err).group(1)
        self.run_deck(TINY, *here, *shlex.split(advice), says="abandoned_01")
        self.assertEqual(latest_step(directory), 7)

    def test_another_runs_checkpoint_is_not_taken_for_this_ones(self):
        other = self.train("other", "train.steps=8", "job.seed=2")
        directory = self.train("run", "train.steps=4")
        (other / "checkpoints/step_00000008").rename(directory / "checkpoints/step_00000008")
        result = self.run_deck(TINY, f"job.directory={directory}", "train.steps=6", "--resume", "auto", says="abandoned_01")
        self.assertIn("(step 4, written by 1 rank)", result.out)
        self.assertEqual(latest_step(directory), 6)
        self.assertTrue((directory / "checkpoints/abandoned_01/step_00000008/index.h5").exists())

    def test_checkpoints_behind_a_link_without_a_run_are_kept(self):
        directory = self.train("run", "train.steps=4")
        scratch = (directory / "checkpoints").rename(self.folder / "scratch")
        (directory / "checkpoints").symlink_to(scratch)
        (directory / "run.h5").unlink()
        before = snapshot(scratch)
        self.run_deck(TINY, f"job.directory={directory}", "job.overwrite=true", code=FILES, says="is a link")
        self.assertEqual(snapshot(scratch), before)

    def test_a_link_that_leads_nowhere_is_told_before_the_first_step(self):
        directory = self.linked("run", self.folder / "gone")
        result = self.run_deck(TINY, f"job.directory={directory}", "job.overwrite=true", code=FILES, says=["gone", "make that folder"])
        self.assertNotIn("step", result.out)

    def test_checkpoints_that_cannot_be_seen_are_not_none(self):
        directory = self.train("run", "train.steps=4")
        checkpoints = (directory / "checkpoints").rename(self.folder / "scratch")
        before = (directory / "run.h5").read_bytes()
        for name, place, says in (("a link", lambda path: path.symlink_to(self.folder / "gone"), ["gone", "make that folder"]),
                                  ("a file", lambda path: path.write_text(""), ["looking for checkpoints"])):
            with self.subTest(checkpoints=name):
                place(directory / "checkpoints")
                self.run_deck(TINY, f"job.directory={directory}", "--resume", "auto", code=FILES, says=says)
                self.assertEqual((directory / "run.h5").read_bytes(), before)
                (directory / "checkpoints").unlink()
        (directory / "checkpoints").symlink_to(checkpoints)
        self.run_deck(TINY, f"job.directory={directory}", "train.steps=5", "--resume", "auto", says="step_00000004")

    def test_a_rank_file_that_another_program_locks_is_not_read_as_zeros(self):
        checkpoint = self.train("run", "train.steps=4") / "checkpoints/step_00000004"
        with open(checkpoint / "rank_00000.h5", "r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # as a program does that opened it to write
            self.run_deck(TINY, f"job.directory={self.folder / 'next'}", "train.steps=8", "--resume", checkpoint, code=FILES,
                          says=["rank_00000.h5", "HDF5_USE_FILE_LOCKING"], env={"HDF5_USE_FILE_LOCKING": "TRUE"})

    def test_a_path_that_speaks_of_locks_gives_no_advice_on_locks(self):
        directory = self.train("lock files", "train.steps=2")
        (directory / "run.h5.tmp").mkdir()
        result = self.run_deck(TINY, f"job.directory={directory}", "train.steps=3", "--resume", "auto", code=FILES, says="Is a directory")
        self.assertNotIn("HDF5_USE_FILE_LOCKING", result.err)

    def test_files_beside_those_of_a_checkpoint_stay(self):
        directory = self.train("run", "train.steps=4", "checkpoint.every=2", "checkpoint.keep=9")
        checkpoints = directory / "checkpoints"
        self.run_deck(TINY, f"job.directory={directory}", "train.steps=4", "--resume", checkpoints / "step_00000002")
        notes = [checkpoints / "step_00000002/notes.txt", checkpoints / "step_00000004/plots", checkpoints / "abandoned_01/why.txt",
                 checkpoints / "abandoned_01/step_00000004/notes.txt"]
        notes[1].mkdir()
        for path in notes:
            (path / "loss.png" if path.is_dir() else path).write_text("mine")
        result = self.run_deck(TINY, f"job.directory={directory}", "train.steps=4", "job.overwrite=true")
        for path in notes:
            self.assertIn(str(path), result.out)
        files = [path / "loss.png" if path.is_dir() else path for path in notes]
        for path in files:
            self.assertEqual(path.read_text(), "mine")
        self.assertEqual(latest_step(directory), 4)
        # They are no checkpoint, stay where a new checkpoint of that step is published, and where it is pruned.
        self.run_deck(TINY, f"job.directory={directory}", "train.steps=9", "checkpoint.every=1", "checkpoint.keep=1", "--resume", "auto")
        for path in files:
            self.assertEqual(path.read_text(), "mine")
        self.assertEqual([path.name for path in checkpoints.glob(".tmp*")], [])
        self.assertEqual(sorted(path.parent.name for path in checkpoints.glob("step_*/index.h5")), ["step_00000009"])


if __name__ == "__main__":
    unittest.main(verbosity=2)  # so that a test that skips itself says so
