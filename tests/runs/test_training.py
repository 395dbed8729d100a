#!/usr/bin/env python3
"""One rank trains: the loss falls, the files say what happened, and ways of computing the same step agree."""
import unittest

import h5py
import numpy as np

from harness import FINISHED, NUMBERS, OUT_OF_MEMORY, SOURCE, TINY, USAGE, RunTest, column, latest_step, tensors

# Adam's first step is a sign: with a large eps a rounding stays a rounding.
STEADY = ("optimizer.eps=1e-3",)


class Training(RunTest):
    def assert_same_training(self, a, b, bound):
        self.assert_close(column(a, "loss"), column(b, "loss"), bound, "loss")
        for label, value in tensors(b).items():
            if label.startswith("params/"):
                self.assert_close(tensors(a)[label], value, 10 * bound, label)

    def test_the_loss_falls_and_run_h5_says_so(self):
        directory = self.train("tiny")
        loss, validation = column(directory, "loss"), column(directory, "validation_loss")
        self.assertEqual(list(column(directory, "step")), list(range(1, 31)))
        self.assertAlmostEqual(loss[0], np.log(64), delta=1.0)
        self.assertLess(loss[-1], loss[0] - 0.5)
        self.assertEqual(np.flatnonzero(np.isfinite(validation)).tolist(), [9, 19, 29])
        self.assertLess(validation[29], validation[9])
        self.assertAlmostEqual(column(directory, "learning_rate").max(), 1e-2, delta=1e-9)
        times = np.delete(column(directory, "step_time"), 2)  # step 3 is profiled: its times enter no average
        self.assertTrue((times > 0).all())
        parts = sum(np.delete(column(directory, name), 2) for name in ("forward", "backward", "exposed_comm", "optimizer"))
        self.assertTrue((parts <= 1.05 * times).all(), "the parts of a step exceed the step")
        self.assertEqual(latest_step(directory), 30)
        with h5py.File(directory / "run.h5", "r") as file:
            self.assertIn("[model]", file["info"].attrs["deck"])
            labels = [text.decode() for text in file["kernels/label"][()]]
        self.assertTrue(labels and all(label.startswith(("tessera::", "Kokkos")) for label in labels), labels)

    def test_the_same_deck_gives_the_same_bits(self):
        a, b = tensors(self.train("a")), tensors(self.train("b"))
        for label in a:
            np.testing.assert_array_equal(a[label], b[label], label)

    def test_another_seed_gives_another_model(self):
        a, b = tensors(self.train("a", "train.steps=5")), tensors(self.train("b", "train.steps=5", "job.seed=2"))
        self.assertFalse(np.array_equal(a["params/head.weight"], b["params/head.weight"]))

    def test_the_resolved_deck_repeats_the_run(self):
        a = self.train("a", "train.steps=5")
        with h5py.File(a / "run.h5", "r") as file:
            deck = self.deck(file["info"].attrs["deck"], "resolved.toml")
        b = self.train("b", deck=deck)
        np.testing.assert_array_equal(tensors(a)["params/head.weight"], tensors(b)["params/head.weight"])

    def test_accumulation_equals_none(self):
        self.assert_same_training(self.train("whole", *STEADY), self.train("parts", "train.micro_batch_size=3", *STEADY), 2e-5)

    def test_recomputed_activations_equal_kept_ones(self):
        kept, recomputed = (self.train(f"every{n}", f"train.checkpoint_activations={n}", *STEADY) for n in (0, 1))
        self.assert_same_training(kept, recomputed, 2e-5)
        self.assert_same_training(kept, self.train("every2", "train.checkpoint_activations=2", *STEADY), 2e-5)

    def test_standard_attention_trains_like_flash2(self):
        self.assert_same_training(self.train("flash2", *STEADY),
                                  self.train("standard", "attention.implementation=standard", *STEADY), 2e-5)

    def test_sixteen_bits_train_nearly_like_float(self):
        single = column(self.train("fp32", *STEADY), "loss")
        for precision in ("bf16", "fp16"):
            with self.subTest(precision=precision):
                half = column(self.train(precision, f"precision.compute={precision}", *STEADY), "loss")
                self.assert_close(half, single, 0.05, precision)

    def test_text_is_bytes_and_a_sample_is_printed(self):
        text = self.folder / "text.bin"
        text.write_bytes(bytes(range(256)) * 40)  # not UTF-8, and every byte
        arguments = ("model.vocab_size=257", "data.source=text", f"data.path={text}", "train.sample_tokens=40", "train.steps=5")
        self.train("text", *arguments)

    def test_generation_repeats_with_its_seed(self):
        text = self.folder / "text.txt"
        text.write_text("the quick brown fox jumps over the lazy dog. " * 400)
        directory = self.train("text", "model.vocab_size=257", "data.source=text", f"data.path={text}")
        checkpoint = directory / f"checkpoints/step_{latest_step(directory):08d}"
        deck = self.deck(TINY.read_text().replace('"train"', '"generate"').replace("vocab_size = 64", "vocab_size = 257"))

        def generate(name, seed):
            return self.run_deck(deck, f"job.input={checkpoint}", f"job.directory={self.folder / name}", f"job.seed={seed}",
                                 "generate.prompt=the ", "generate.max_tokens=60", "generate.temperature=2.0").out

        once, again, other = generate("one", 3), generate("two", 3), generate("three", 4)
        self.assertEqual(once.replace("one", ""), again.replace("two", ""))
        self.assertNotEqual(once, other)

    def test_divergence_is_exit_5(self):
        self.train("diverged", "optimizer.learning_rate=100", "optimizer.min_learning_rate=100", "optimizer.clip_norm=0",
                   "optimizer.warmup_steps=0", code=NUMBERS, says="step")

    def test_a_model_that_cannot_fit_is_exit_4_with_the_table(self):
        result = self.run_deck(SOURCE / "input/sizes/8b.toml", "model.num_layers=4000", code=OUT_OF_MEMORY)
        self.assertIn("optimizer", result.out + result.err)

    def test_every_size_passes_check_and_plan(self):
        for deck in sorted((SOURCE / "input/sizes").glob("*.toml")):
            with self.subTest(deck=deck.name):
                self.run_deck(deck, "--check")
                self.run_deck(deck, "--plan")
                printed = self.run_deck(deck, "--print").out
                self.run_deck(self.deck(printed, "printed.toml"), "--check")

    def test_a_directory_that_is_not_empty_is_refused_and_kept(self):
        directory = self.train("once", "train.steps=5")
        before = (directory / "run.h5").read_bytes()
        result = self.start(TINY, f"job.directory={directory}").wait()
        self.assertIn(result.code, (USAGE, 6), str(result))
        for way_out in ("--resume", "job.directory", "job.overwrite"):
            self.assertIn(way_out, result.err)
        self.assertEqual((directory / "run.h5").read_bytes(), before)
        self.train("once", "train.steps=6", "job.overwrite=true", code=FINISHED)
        self.assertEqual(len(column(directory, "step")), 6)


if __name__ == "__main__":
    unittest.main()
