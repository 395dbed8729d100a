#!/usr/bin/env python3
"""Result files of verify.* and bench.*: written whole, never over an existing file unless job.overwrite says so."""
import unittest
from pathlib import Path

import h5py
import numpy as np

from harness import FILES, TINY, USAGE, RunTest, snapshot

SMALL_BENCH = """
[bench]
warmup = 0
repeats = 1
length = 16
head_width = 8
batch = 1
heads = 1
rows = 16
width = 16
"""


class Results(RunTest):
    def kinds(self):
        """{job.kind: (deck, its overrides)} of every kind that writes a result, made small."""
        tensors, model = self.folder / "tensors.h5", self.folder / "model.h5"
        with h5py.File(tensors, "w") as file:
            for name in ("q", "k", "v", "d_out"):
                file[name] = np.ones((1, 1, 3, 8), np.float32)
            file.attrs["causal"] = 1
        trained = self.train("trained", "train.steps=1", "optimizer.warmup_steps=1", "trace.profile_steps=[]")
        with h5py.File(model, "w") as file:
            file["tokens"] = np.zeros((1, 5), np.int32)
            file.attrs["checkpoint"] = str(trained / "checkpoints/step_00000001")
        inputs = {"verify.attention": tensors, "verify.model": model}
        for kind in ("verify.attention", "verify.model", "bench.attention", "bench.kernels", "bench.step"):
            deck = self.deck(TINY.read_text().replace('"train"', f'"{kind}"') + SMALL_BENCH, f"{kind}.toml")
            yield kind, deck, [f"job.input={inputs[kind]}"] if kind in inputs else []

    def test_an_existing_result_is_kept_unless_told_otherwise(self):
        for kind, deck, arguments in self.kinds():
            folder = self.folder / f"of {kind}"
            folder.mkdir()
            result = folder / "result.h5"
            arguments = [f"job.output={result}", f"job.directory={self.folder / 'unused'}", *arguments]
            with self.subTest(kind=kind):
                result.write_text("years of work")
                refused = self.run_deck(deck, *arguments, code=FILES, says=["result.h5", "job.output", "job.overwrite"])
                self.assertEqual(result.read_text(), "years of work")
                self.assertEqual(refused.err.count("tessera:"), 1, str(refused))
                with self.subTest(ranks=2):
                    self.run_deck(deck, *arguments, ranks=2, code=FILES, says="job.overwrite")
                self.assertEqual(result.read_text(), "years of work")

                self.run_deck(deck, *arguments, "job.overwrite=true")
                with h5py.File(result, "r") as file:
                    self.assertTrue(list(file))
                self.assertEqual([path.name for path in folder.iterdir()], ["result.h5"], "only the result is left")

    def test_a_job_does_not_replace_what_it_reads(self):
        for kind, deck, arguments in self.kinds():
            with self.subTest(kind=kind):
                read = Path(arguments[0].split("=", 1)[1]) if arguments else deck
                before = read.read_bytes()
                link = self.folder / f"link of {kind}"
                link.symlink_to(read)
                for path in (read, link):
                    self.run_deck(deck, *arguments, f"job.output={path}", "job.overwrite=true", code=USAGE,
                                  says=["would replace what it reads", "job.output"])
                self.assertEqual(read.read_bytes(), before)

    def test_a_path_that_cannot_be_written_is_refused_before_the_work(self):
        """/proc: where not even root can make a file."""
        for kind, deck, arguments in self.kinds():
            for key, places in (("job.output", ("/proc/result.h5", self.folder)), ("job.directory", ("/proc",))):
                for place in places:
                    with self.subTest(kind=kind, place=str(place)):
                        result = self.run_deck(deck, *arguments, f"{key}={place}", "job.overwrite=true", code=FILES,
                                               says=["cannot be written", f"Set {key} "])
                        self.assertEqual((result.out, result.err.count("tessera:")), ("", 1), str(result))

    def test_a_result_without_a_name_is_kept_as_well(self):
        for kind, deck, arguments in self.kinds():
            directory = self.folder / f"of {kind}"
            arguments = [f"job.directory={directory}", *arguments]
            with self.subTest(kind=kind):
                self.run_deck(deck, *arguments)
                before = snapshot(directory)
                self.assertEqual(len(before), 1)
                self.run_deck(deck, *arguments, code=FILES, says="job.overwrite")
                self.assertEqual(snapshot(directory), before)

    def test_a_job_that_fails_leaves_no_result(self):
        """The check comes first, the file last: under job.overwrite the old file survives a faulty input."""
        result = self.folder / "result.h5"
        result.write_text("years of work")
        deck = self.deck('[job]\nkind = "verify.attention"\n')
        self.run_deck(deck, f"job.input={self.folder / 'nowhere.h5'}", f"job.output={result}", "job.overwrite=true", code=FILES)
        self.assertEqual(result.read_text(), "years of work")
        self.assertEqual(sorted(path.name for path in self.folder.iterdir()), ["deck.toml", "result.h5"])


if __name__ == "__main__":
    unittest.main(verbosity=2)  # so that a test that skips itself says so
