#!/usr/bin/env python3
"""Standard output that is full, closed, or loses its reader: a lost answer is an error, training continues."""
import contextlib
import os
import unittest

import h5py
import numpy as np

from harness import FILES, TINY, RunTest, column

CLOSED = ("bash", "-c", 'exec "$@" >&-', "bash")
STEPS = 60


@contextlib.contextmanager
def pipe_without_a_reader():
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as pipe:
        yield pipe


class Answers(RunTest):
    def places(self):
        """{name: how to start a job whose standard output accepts nothing, and what its message says}"""
        with open("/dev/full", "w") as full, pipe_without_a_reader() as pipe:
            yield "full disk", {"stdout": full}, "No space left"
            yield "no reader", {"stdout": pipe}, "Broken pipe"
            yield "closed", {"wrapper": CLOSED}, "Bad file descriptor"

    def refuse(self, *arguments, **where):
        result = self.run_deck(*arguments, code=FILES, **where)
        self.assertEqual(result.err.count("tessera: "), 1, str(result))
        return result

    def test_questions(self):
        for name, where, why in self.places():
            for question in (("--version",), ("--help",), ("--show-config",), ("--explain", "all"), (TINY, "--print"),
                             (TINY, "--check"), (TINY, "--plan")):
                with self.subTest(stdout=name, question=question[-1]):
                    self.refuse(*question, says=["standard output", why], **where)

    def test_a_fault_of_the_deck_goes_before(self):
        for name, where, _ in self.places():
            with self.subTest(stdout=name):
                self.run_deck(TINY, "train.stepz=3", "--print", code=2, says="train.steps", **where)

    def test_generated_text_and_tables(self):
        text = self.folder / "text.txt"
        text.write_text("the quick brown fox jumps over the lazy dog. " * 400)
        trained = self.train("trained", "model.vocab_size=257", "data.source=text", f"data.path={text}", "train.steps=3",
                             "optimizer.warmup_steps=1")
        generate = self.deck(TINY.read_text().replace('"train"', '"generate"'), "generate.toml")
        bench = self.deck(TINY.read_text().replace('"train"', '"bench.kernels"')
                          + "\n[bench]\nwarmup = 0\nrepeats = 1\nrows = 16\nwidth = 16\n", "bench.toml")
        for name, where, why in self.places():
            with self.subTest(stdout=name, job="generate"):
                self.refuse(generate, f"job.input={trained}", "generate.max_tokens=3", says=["standard output", why], **where)
            with self.subTest(stdout=name, job="bench"):
                result = self.folder / f"{name}.h5"
                self.refuse(bench, f"job.output={result}", says=["standard output", why], **where)
                with h5py.File(result, "r") as file:  # the run's other product is whole
                    self.assertTrue(list(file))


class Training(RunTest):
    def check(self, directory):
        self.assertEqual(list(column(directory, "step")), list(range(1, STEPS + 1)))
        self.assertTrue(np.isfinite(column(directory, "loss")).all())

    def test_the_console_may_go(self):
        arguments = (f"train.steps={STEPS}", "trace.every_steps=1", "train.sample_tokens=20")
        with open("/dev/full", "w") as full:
            self.check(self.train("full", *arguments, stdout=full))
        self.check(self.train("closed", *arguments, wrapper=CLOSED))
        with pipe_without_a_reader() as pipe:
            self.check(self.train("pipe", *arguments, stdout=pipe))

    def test_the_reader_may_go(self):
        for ranks in (None, 2):
            with self.subTest(ranks=ranks):
                directory = self.folder / f"of {ranks}"
                reader, writer = os.pipe()
                with open(writer, "w") as pipe:
                    job = self.start(TINY, f"job.directory={directory}", f"train.steps={STEPS}", "trace.every_steps=1",
                                     ranks=ranks, stdout=pipe)
                with open(reader) as lines:
                    self.assertTrue(lines.readline() and lines.readline())
                result = job.wait()
                self.assertEqual((result.code, result.err), (0, ""), str(result))
                self.check(directory)

    def test_a_reader_of_a_launch_gets_all_of_it(self):
        reader, writer = os.pipe()
        with open(writer, "w") as pipe:
            job = self.start(TINY, f"job.directory={self.folder / 'run'}", f"train.steps={STEPS}", "trace.every_steps=1",
                             ranks=2, stdout=pipe)
        with open(reader) as lines:
            text = lines.read()
        self.assertEqual(job.wait().code, 0)
        self.assertIn(f"{STEPS} steps in", text)
        self.assertGreater(len(text.splitlines()), STEPS)


if __name__ == "__main__":
    unittest.main(verbosity=2)  # so that a test that skips itself says so
