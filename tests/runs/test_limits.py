#!/usr/bin/env python3
"""Limits of the shell or scheduler (ulimit) that leave MPI, BLAS or HDF5 too little: the job ends before they start, with
4 or 3 and the command that raises the limit. It never hangs, and never says that a file is damaged."""
import resource
import unittest

from harness import ENVIRONMENT, FINISHED, LIMIT_S, OUT_OF_MEMORY, TINY, RunTest, configuration, gpus

KIB = 1024
PATIENCE_S = LIMIT_S / 12  # 10 s for an optimised build


def at_most(limit, value):
    """A process's `limit`, for subprocess: its children, so all ranks, inherit it."""
    return lambda: resource.setrlimit(limit, (value, value))


class Limits(RunTest):
    def refuse(self, limit, value, code, says, ranks=None):
        """Refused within 10 s, before the job begins."""
        self.expect(code, says, ranks, preexec_fn=at_most(limit, value))

    def expect(self, code, says, ranks, **how):
        result = self.start(TINY, f"job.directory={self.folder / 'run'}", "train.steps=3", ranks=ranks, **how).wait(PATIENCE_S)
        self.assertEqual(result.code, code, str(result))
        for words in says:
            self.assertIn(words, result.err, str(result))
        self.assertFalse((self.folder / "run").exists(), "refused after the job had begun")

    @unittest.skipIf("-fsanitize" in configuration(), "sanitizers take terabytes of address space")
    def test_too_little_address_space_is_4_with_advice(self):
        for kib in (100_000, 130_000, 140_000, 160_000, 200_000, 250_000, 300_000, 400_000):
            for ranks in (None, 2):
                with self.subTest(kib=kib, ranks=ranks):
                    self.refuse(resource.RLIMIT_AS, kib * KIB, OUT_OF_MEMORY, (f"ulimit -v {kib}", "ulimit -v unlimited"), ranks)

    @unittest.skipIf("-fsanitize" in configuration(), "sanitizers take terabytes of address space")
    def test_too_small_a_data_segment_is_4_with_advice(self):
        self.refuse(resource.RLIMIT_DATA, 200_000 * KIB, OUT_OF_MEMORY, ("ulimit -d 200000", "ulimit -d unlimited"))

    @unittest.skipIf("-fsanitize" in configuration() or gpus() is not None, "sanitizers and CUDA take terabytes of address space")
    def test_enough_address_space_trains_or_refuses_a_deck_that_is_too_large(self):
        four_gb = {"preexec_fn": at_most(resource.RLIMIT_AS, 4_000_000 * KIB)}
        large = ("model.d_model=1024", "model.num_heads=16", "model.d_ff=4096", "model.num_layers=24", "model.context_length=512")
        for ranks in (None, 2):
            with self.subTest(ranks=ranks):
                self.train(f"fits {ranks}", "train.steps=3", ranks=ranks, **four_gb)
                self.run_deck(TINY, f"job.directory={self.folder / 'large'}", *large, ranks=ranks, code=OUT_OF_MEMORY,
                              says="what would fit", **four_gb)

    @unittest.skipIf("-fsanitize" in configuration() or gpus() is not None, "sanitizers and CUDA take terabytes of address space")
    def test_no_limit_between_too_little_and_enough_hangs(self):
        for kib in range(420_000, 600_000, 20_000):
            with self.subTest(kib=kib):
                result = self.start(TINY, f"job.directory={self.folder / 'run'}", "train.steps=3", "job.overwrite=true",
                                    preexec_fn=at_most(resource.RLIMIT_AS, kib * KIB)).wait(3 * PATIENCE_S)
                self.assertIn(result.code, (FINISHED, OUT_OF_MEMORY), str(result))

    def test_too_few_open_files_are_3_with_advice(self):
        for files in (12, 20, 40):
            with self.subTest(files=files):
                self.refuse(resource.RLIMIT_NOFILE, files, ENVIRONMENT, (f"ulimit -n {files}", "ulimit -n 1024"))
        with self.subTest("mpirun's own"):
            self.refuse(resource.RLIMIT_NOFILE, 28, ENVIRONMENT, ("ulimit -n 28", "ulimit -n 1024"), ranks=2)
        with self.subTest("the ranks' alone"):
            few = ("bash", "-c", 'ulimit -n 16; exec "$@"', "bash")
            self.expect(ENVIRONMENT, ("ulimit -n 16", "ulimit -n 1024"), ranks=2, wrapper=few)

    def test_files_too_small_for_mpi_are_3_with_advice(self):
        for kib in (100, 300, 4000):
            for ranks in (None, 2):
                with self.subTest(kib=kib, ranks=ranks):
                    self.refuse(resource.RLIMIT_FSIZE, kib * KIB, ENVIRONMENT, (f"ulimit -f {kib}", "ulimit -f unlimited"), ranks)

    def test_questions_are_answered_under_any_limit(self):
        for limit, value in ((resource.RLIMIT_AS, 130_000 * KIB), (resource.RLIMIT_NOFILE, 12), (resource.RLIMIT_FSIZE, 100 * KIB)):
            if "-fsanitize" in configuration() and limit == resource.RLIMIT_AS:
                continue
            with self.subTest(limit=limit):
                self.run_deck(TINY, "--plan", says="per rank", preexec_fn=at_most(limit, value))


if __name__ == "__main__":
    unittest.main(verbosity=2)  # so that a test that skips itself says so
