#!/usr/bin/env python3
"""A program built without the laboratory (TESSERA_ENABLE_LAB=OFF) trains, resumes, generates, verifies and plans as ever.

TESSERA_PROGRAM is such a program, TESSERA_WITH_LAB the whole one, if there is one.
"""
import os
import subprocess
import unittest

import h5py
import numpy as np

from harness import ENVIRONMENT, FINISHED, SOURCE, TINY, USAGE, RunTest, column

WITH_LAB = os.environ.get("TESSERA_WITH_LAB", "")
OPTION = "TESSERA_ENABLE_LAB=ON"


class WithoutLab(RunTest):
    def both(self, *arguments):
        """The answer of this program, which must be that of the whole one."""
        answer = self.run_deck(*arguments).out
        if WITH_LAB:
            whole = subprocess.run([WITH_LAB, *map(str, arguments)], cwd=self.folder, capture_output=True, text=True, check=True)
            self.assertEqual(answer, whole.stdout)
        return answer

    def test_trains_and_resumes_what_the_whole_program_has_begun(self):
        once, resumed = self.folder / "once", self.folder / "resumed"
        whole = [TINY, f"job.directory={once}", "checkpoint.every=10", "checkpoint.keep=9"]
        subprocess.run([WITH_LAB, *whole], cwd=self.folder, check=True, capture_output=True) if WITH_LAB else self.run_deck(*whole)
        self.run_deck(TINY, f"job.directory={resumed}", "--resume", once / "checkpoints/step_00000010", says="resume")
        np.testing.assert_array_equal(column(resumed, "loss"), column(once, "loss")[10:])
        self.assertEqual(len(column(resumed, "loss")), 20)

    def test_generates_from_a_checkpoint(self):
        keys = ("data.source=text", f"data.path={SOURCE / 'README.md'}", "model.vocab_size=257", "train.steps=2")
        directory = self.train("text", *keys)
        deck = self.deck('[job]\nkind = "generate"\n[generate]\nmax_tokens = 4\n')
        self.run_deck(deck, f"job.input={directory}", f"job.directory={self.folder / 'other'}")

    def test_verifies(self):
        source, result = self.folder / "in.h5", self.folder / "out.h5"
        with h5py.File(source, "w") as file:
            for name in ("q", "k", "v", "d_out"):
                file[name] = np.ones((1, 1, 3, 8), np.float32)
            file.attrs["causal"] = 1
        self.run_deck(self.deck('[job]\nkind = "verify.attention"\n'), f"job.input={source}", f"job.output={result}")
        with h5py.File(result) as file:
            np.testing.assert_allclose(file["out"], 1, rtol=1e-6)

    def test_plans_as_the_whole_program_does(self):
        self.assertIn("per rank", self.both(TINY, "--plan", "parallel.ranks=2"))
        self.assertIn("no faults", self.both(TINY, "--check"))

    def test_refuses_what_is_the_laboratorys_and_names_the_option(self):
        for arguments in ([SOURCE / "input/bench/step.toml"], [TINY, "job.kind=bench.step"], [TINY, "bench.warmup=1"],
                          [SOURCE / "input/experiments/accumulation/deck.toml", "--check"], ["--explain", "bench.warmup"],
                          ["--plan", "--compare", "run.h5"]):
            self.run_deck(*arguments, code=USAGE, says=["laboratory", OPTION])
        for kernel in ("tiled", "flash1", "flash2/3"):
            self.run_deck(TINY, f"attention.kernel={kernel}", code=ENVIRONMENT, says=["laboratory", OPTION, 'attention.kernel = "auto"'])
        self.assertNotIn("bench.warmup", self.run_deck("--explain", "all", code=FINISHED).out)


if __name__ == "__main__":
    unittest.main()
