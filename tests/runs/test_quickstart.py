#!/usr/bin/env python3
"""The quickstart's deck gives a CPU's stored losses wherever it runs: rounding differs, training does not."""
import hashlib
import json
import subprocess
import unittest
from pathlib import Path

import numpy as np

from harness import LIMIT_S, SOURCE, RunTest, column, gpus

GOLDEN = json.loads((SOURCE / "tests/golden/quickstart_losses.json").read_text())
BOUND = 1e-3  # relative; above what another order of rounding comes to after a hundred steps of AdamW


class Quickstart(RunTest):
    def losses(self, name, *arguments):
        fetched = subprocess.run([SOURCE / "scripts/fetch_text"], text=True, capture_output=True)
        if fetched.returncode != 0:
            self.skipTest(fetched.stderr)
        text = Path(fetched.stdout.strip())
        if hashlib.sha256(text.read_bytes()).hexdigest() != GOLDEN["text_sha256"]:
            self.skipTest(f"{text} is another text than the golden's")
        directory = self.train(name, f"data.path={text}", "train.steps=100", "train.validate_every=0", "train.sample_tokens=0",
                               "checkpoint.every=0", *arguments, deck=SOURCE / "input/quickstart.toml", limit_s=12 * LIMIT_S)
        return column(directory, "loss")

    def assert_close_to_golden(self, losses, bound):
        expected = np.array(GOLDEN["losses"])
        self.assertEqual(losses.shape, expected.shape)
        off = np.abs(losses - expected) / expected
        print(f"losses of {len(losses)} steps: at most {off.max():.2g} off, relative; bound {bound}")
        self.assertLessEqual(off.max(), bound, f"step {off.argmax() + 1}: {losses[off.argmax()]}, on a CPU {expected[off.argmax()]}")

    def test_losses_are_those_of_a_cpu(self):
        self.assert_close_to_golden(self.losses("fp32"), BOUND)

    def test_tensor_cores_and_graphs_learn_as_fast(self):
        if gpus() is None:
            self.skipTest("this build computes on the host")
        # bf16 keeps 8 bits: a loss is off by a few roundings (2^-8 = 0.4 %), and such weights still learn alike.
        launches = self.losses("bf16", 'precision.compute="bf16"')
        self.assert_close_to_golden(launches, 2e-2)
        np.testing.assert_array_equal(self.losses("graph", 'precision.compute="bf16"', "train.graph=true"), launches)
        self.assert_close_to_golden(self.losses("narrow", 'precision.compute="bf16"', 'precision.gradients="bf16"',
                                                'precision.reduce="bf16"', "train.graph=true"), 2e-2)


if __name__ == "__main__":
    unittest.main(verbosity=2)  # so that a test that skips itself says so
