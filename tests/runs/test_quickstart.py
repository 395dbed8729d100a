#!/usr/bin/env python3
"""The quickstart's deck gives the losses that it gave on a CPU, wherever it runs: rounding differs, training does not."""
import hashlib
import json
import subprocess
import unittest
from pathlib import Path

import numpy as np

from harness import SOURCE, RunTest, column

GOLDEN = json.loads((SOURCE / "tests/golden/quickstart_losses.json").read_text())
BOUND = 1e-3  # relative: what rounding in another order, amplified by a hundred steps of AdamW, stays below


class Quickstart(RunTest):
    def test_losses_are_those_of_a_cpu(self):
        fetched = subprocess.run([SOURCE / "scripts/fetch_text"], text=True, capture_output=True)
        if fetched.returncode != 0:
            self.skipTest(fetched.stderr)
        text = Path(fetched.stdout.strip())
        if hashlib.sha256(text.read_bytes()).hexdigest() != GOLDEN["text_sha256"]:
            self.skipTest(f"{text} is another text than the golden's")
        directory = self.train("quickstart", f"data.path={text}", "train.steps=100", "train.validate_every=0",
                               "train.sample_tokens=0", "checkpoint.every=0", deck=SOURCE / "input/quickstart.toml")
        losses, expected = column(directory, "loss"), np.array(GOLDEN["losses"])
        self.assertEqual(losses.shape, expected.shape)
        off = np.abs(losses - expected) / expected
        print(f"losses of {len(losses)} steps: at most {off.max():.2g} off, relative; bound {BOUND}")
        self.assertLessEqual(off.max(), BOUND, f"step {off.argmax() + 1}: {losses[off.argmax()]}, on a CPU {expected[off.argmax()]}")


if __name__ == "__main__":
    unittest.main()
