#!/usr/bin/env python3
"""One rank trains: the loss falls, the files record the run, and ways of computing the same step agree."""
import re
import shlex
import unittest

import h5py
import numpy as np

from harness import (EPS32, FILES, FINISHED, LOSS_BOUND, NUMBERS, OUT_OF_MEMORY, SOURCE, STEADY, TINY, WEIGHT_BOUND, RunTest,
                     column, gpus, latest_step, tensors)


def gib(text):
    """The number behind "1.5 GiB", as --plan and messages print sizes."""
    number, unit = text.split()
    return float(number) * 2.0**(10 * ["B", "KiB", "MiB", "GiB", "TiB", "PiB"].index(unit) - 30)


class Training(RunTest):
    def assert_same_training(self, a, b):
        self.assert_close(column(a, "loss"), column(b, "loss"), LOSS_BOUND, "loss")
        for label, value in tensors(b).items():
            if label.startswith("params/"):
                self.assert_close(tensors(a)[label], value, WEIGHT_BOUND, label)

    def test_the_loss_falls_and_run_h5_says_so(self):
        directory = self.train("tiny")
        loss, validation = column(directory, "loss"), column(directory, "validation_loss")
        self.assertEqual(list(column(directory, "step")), list(range(1, 31)))
        # That it learns, not how well: an untrained model's loss is that of guessing among 64 tokens.
        self.assertAlmostEqual(loss[0], np.log(64), delta=1.0)
        self.assertLess(loss[-1], loss[0] - 0.5)
        self.assertEqual(np.flatnonzero(np.isfinite(validation)).tolist(), [9, 19, 29])
        self.assertLess(validation[29], validation[9])
        self.assertAlmostEqual(column(directory, "learning_rate").max(), 1e-2, delta=1e-2 * EPS32)  # kept in double or float
        times = np.delete(column(directory, "step_time"), 2)  # step 3 is profiled: its times enter no average
        self.assertTrue((times > 0).all())
        parts = sum(np.delete(column(directory, name), 2) for name in ("forward", "backward", "exposed_comm", "optimizer"))
        slack = 1e-12 * times if gpus() is None else 5e-6  # sums of doubles; five intervals between marks that are good to 0.5 us
        self.assertTrue((parts <= times + slack).all(), f"the parts of a step exceed the step: {parts - times}")
        self.assertEqual(latest_step(directory), 30)
        with h5py.File(directory / "run.h5", "r") as file:
            self.assertIn("[model]", file["info"].attrs["deck"])
            labels = [text.decode() for text in file["kernels/label"][()]]
        self.assertTrue(labels and all(label.startswith(("tessera::", "Kokkos")) for label in labels), labels)

    def test_a_profile_is_of_its_step_and_not_of_what_follows(self):
        def calls(name, *overrides):
            directory = self.train(name, "train.steps=20", "trace.profile_steps=[10]", *overrides)
            with h5py.File(directory / "run.h5", "r") as file:
                return dict(zip(file["kernels/label"][()], file["kernels/calls"][()])), max(file["events/step"][()])

        alone = calls("alone", "train.validate_every=0", "checkpoint.every=0")
        self.assertEqual(calls("followed", "train.validate_every=10", "checkpoint.every=10"), alone)

    def test_the_same_deck_gives_the_same_bits(self):
        self.assert_same_tensors(*(tensors(self.train(name)) for name in ("a", "b")))

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
        self.assert_same_training(self.train("whole", *STEADY), self.train("parts", "train.micro_batch_size=3", *STEADY))

    def test_recomputed_activations_equal_kept_ones(self):
        kept, recomputed = (self.train(f"every{n}", f"train.checkpoint_activations={n}", *STEADY) for n in (0, 1))
        self.assert_same_training(kept, recomputed)
        self.assert_same_training(kept, self.train("every2", "train.checkpoint_activations=2", *STEADY))

    def test_standard_attention_trains_like_flash2(self):
        self.assert_same_training(self.train("flash2", *STEADY),
                                  self.train("standard", "attention.kernel=standard", *STEADY))

    def test_flash1_and_tiled_attention_train_like_flash2(self):
        usual = self.train("flash2", *STEADY)
        self.assert_same_training(usual, self.train("tiled", "attention.kernel=tiled", *STEADY))
        self.assert_same_training(usual, self.train("flash1", "attention.kernel=flash1/4",
                                                    "train.checkpoint_activations=1", *STEADY))

    def test_sixteen_bits_train_nearly_like_float(self):
        # About 20 tensors between tokens and loss are stored in 16 bits; roundings of either sign add up to sqrt(20) of one.
        bounds = {"bf16": 20**0.5 * 2.0**-8, "fp16": 20**0.5 * 2.0**-11}
        single = column(self.train("fp32", *STEADY), "loss")
        for precision, bound in bounds.items():
            with self.subTest(precision=precision):
                half = column(self.train(precision, f"precision.compute={precision}", *STEADY), "loss")
                self.assert_close(half, single, bound, precision)

    def sample(self, name, tokens, *arguments):
        """The text below the header of the printed sample."""
        out = self.run_deck(TINY, f"job.directory={self.folder / name}", f"train.sample_tokens={tokens}", *arguments).out
        _, header, sample = out.partition(f"\n--- {tokens} tokens generated from the trained model ---\n")
        self.assertTrue(header, out)
        return sample.removesuffix("\n")

    def test_text_is_bytes_and_a_sample_is_printed(self):
        text = self.folder / "text.bin"
        text.write_bytes(bytes(range(256)) * 40)  # not UTF-8, and every byte
        arguments = ("model.vocab_size=257", "data.source=text", f"data.path={text}")
        sample = self.sample("bytes", 40, *arguments, "train.steps=5", "generate.prompt=abc")
        self.assertTrue(sample.startswith("abc"), sample)
        length = len(re.sub(r"\\x[0-9a-f]{2}", "?", sample))  # control characters are written so
        self.assertTrue(1 <= length - 3 <= 40, sample)  # end-of-text may come early, and bytes may join to characters

        text.write_bytes(b"abcdefgh" * 2000)  # a stream whose continuation is predictable
        sample = self.sample("letters", 20, *arguments, "generate.prompt=fgh", "generate.temperature=0")
        self.assertEqual(sample, "fgh" + ("abcdefgh" * 3)[:20])

    def test_a_sample_of_tokens_is_their_ids(self):
        prompt, arrow, sample = self.sample("tokens", 12, "train.steps=5").partition(" -> ")
        self.assertTrue(arrow)
        self.assertEqual((len(prompt.split()), len(sample.split())), (8, 12))
        self.assertTrue(all(0 <= int(token) < 64 for token in prompt.split() + sample.split()))
        with h5py.File(self.folder / "tokens/run.h5") as run:
            tokens, is_prompt = run["sample/token"][...], run["sample/is_prompt"][...]
        self.assertEqual(" ".join(map(str, tokens)), f"{prompt} {sample}".strip())
        self.assertEqual(is_prompt.tolist(), [1] * 8 + [0] * 12)

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

    def test_generate_from_a_damaged_checkpoint_names_the_one_before_as_it_is_typed(self):
        text = self.folder / "text.txt"
        text.write_text("the quick brown fox jumps over the lazy dog. " * 400)
        directory = self.train("run", "model.vocab_size=257", "data.source=text", f"data.path={text}", "train.steps=20")
        victim = directory / "checkpoints/step_00000020/rank_00000.h5"
        victim.write_bytes(victim.read_bytes()[:-1])
        deck = self.deck(TINY.read_text().replace('"train"', '"generate"'))
        result = self.run_deck(deck, f"job.input={directory}", code=FILES, says="rank_00000.h5")
        self.assertNotIn("--resume", result.err)
        typed = re.search(r"job\.input=.*step_00000010.*", result.err)
        self.assertTrue(typed, str(result))
        self.run_deck(deck, *shlex.split(typed[0]), "generate.max_tokens=3")

    def test_divergence_is_exit_5(self):
        directory = self.folder / "diverged"
        said = self.run_deck(TINY, f"job.directory={directory}", "optimizer.learning_rate=100", "optimizer.min_learning_rate=100",
                             "optimizer.clip_norm=0", "optimizer.warmup_steps=0", code=NUMBERS, says=["step", "nan"])
        self.assertNotIn("-nan", said.err)
        last = [column(directory, name)[-1] for name in ("loss", "grad_norm")]
        self.assertFalse(np.isfinite(last).all(), f"run.h5 lacks the row that ended the run: {last}")

    def test_a_run_may_end_within_its_warm_up(self):
        said = self.run_deck(TINY, f"job.directory={self.folder / 'run'}", "train.steps=2", "optimizer.warmup_steps=5").out
        self.assertEqual(re.findall(r"(?m)^note .*", said),
                         ["note       the run ends within its warm-up: train.steps = 2, optimizer.warmup_steps = 5",
                          "note       the run ends before step 3 of trace.profile_steps: train.steps = 2"])
        rates = column(self.folder / "run", "learning_rate")  # linear from 0 to 1e-2, which step 5 would have
        np.testing.assert_allclose(rates, [2e-3, 4e-3], rtol=EPS32)
        self.assertNotIn("note ", self.run_deck(TINY, f"job.directory={self.folder / 'whole'}", "train.steps=5").out)
        for steps in (1, 30):  # what scripts/quickstart train.steps=30 runs
            self.run_deck(SOURCE / "input/quickstart.toml", f"train.steps={steps}", "--check")

    def test_a_model_that_cannot_fit_is_exit_4_with_the_table(self):
        result = self.run_deck(SOURCE / "input/sizes/8b.toml", "model.num_layers=1000", code=OUT_OF_MEMORY)
        self.assertIn("optimizer", result.out + result.err)

    def advice(self, *overrides, ranks=None):
        """What would fit according to the out-of-memory message, as overrides, and the GiB available: to all ranks of a
        host, or to each on its GPU."""
        result = self.run_deck(TINY, f"job.directory={self.folder / 'run'}", *overrides, ranks=ranks, code=OUT_OF_MEMORY)
        available = gib(re.search(r"but ([\d.]+ \w*B) are available", result.err)[1])
        keys = re.findall(r"[a-z_]+\.[a-z_]+=\w+", result.err.partition("would fit:")[2])
        self.assertTrue(keys, str(result))
        plan = self.run_deck(TINY, *overrides, *keys, f"parallel.ranks={ranks or 1}", "--plan").out
        sharing = 1 if gpus() is not None else ranks or 1
        planned = sharing * gib(re.search(r"\n  arena +\d+ +([\d.]+ \w*B)", plan)[1])
        self.assertLess(planned, available + 0.1, plan)  # GiB are printed with one decimal
        return keys, available

    def test_the_advice_of_the_out_of_memory_message_is_a_deck(self):
        batches = {None: 2**24 - 3,      # a prime number: only single sequences divide it
                   2: 2 * (2**23 - 15)}  # each rank's share is one
        for ranks, batch in batches.items():
            with self.subTest(batch=batch, ranks=ranks):
                overrides = (f"train.batch_size={batch}", "train.validate_every=0")
                keys, _ = self.advice(*overrides, ranks=ranks)
                job = self.start(TINY, f"job.directory={self.folder / f'of {batch}'}", *overrides, *keys, ranks=ranks)
                # The memory check has passed; a step of so many sequences would take minutes.
                self.wait_until(lambda: "\ndata  " in job.printed(), "the corpus", job)
                job.kill_everything()
        for name, overrides in {"divisors": ("train.batch_size=12582912",),
                                "uneven": ("train.batch_size=16777213", "parallel.allow_uneven=true")}.items():
            with self.subTest(batch=name):
                self.advice(*overrides, ranks=2)

    def test_what_fits_only_recomputed_is_advised_so(self):
        _, available = self.advice("train.batch_size=16777213")
        # One sequence of 500 layers: 67 GiB kept, 4.2 GiB recomputed at 2^16 tokens. Four times, a quarter of what is here.
        tokens = int(2**16 * 4 * available / 67)
        keys, _ = self.advice("model.num_layers=500", f"model.context_length={tokens}", "train.batch_size=4")
        self.assertIn("train.checkpoint_activations=1", keys)

    def test_what_fits_only_shared_is_advised_so(self):
        _, available = self.advice("train.batch_size=16777214", ranks=2)
        sharing = 1 if gpus() is not None else 2
        # 16 bytes of a parameter on each of two ranks, or 8 if all of them are sharded; a layer has 67e6 parameters.
        layers = int(available * 2**30 / sharing / 11 / 67e6)
        self.assertGreater(layers, 1, "too little memory to tell")
        keys, _ = self.advice("model.d_model=2048", "model.num_heads=16", "model.d_ff=8192", f"model.num_layers={layers}",
                              "train.batch_size=2", ranks=2)
        self.assertRegex(" ".join(keys), r"parallel\.shard=(optimizer|gradients|parameters)")

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
        for ranks in (None, 2):
            result = self.run_deck(TINY, f"job.directory={directory}", ranks=ranks, code=FILES,
                                   says=["--resume", "job.directory", "job.overwrite"])
            self.assertEqual(result.err.count("tessera:"), 1, str(result))
            self.assertNotIn("data  ", result.out, "the refusal comes before anything else")
            self.assertNotIn("arena", result.out)
        self.assertEqual((directory / "run.h5").read_bytes(), before)
        self.train("once", "train.steps=6", "job.overwrite=true", code=FINISHED)
        self.assertEqual(len(column(directory, "step")), 6)

    def test_a_directory_of_something_else_keeps_it_whatever_is_answered(self):
        directory = self.folder / "thesis"
        directory.mkdir()
        (directory / "chapter1.txt").write_text("years of work")
        result = self.run_deck(TINY, f"job.directory={directory}", code=FILES, says=["job.directory", "job.overwrite"])
        self.assertNotIn("--resume", result.err, "there is nothing to resume")
        self.train("thesis", "train.steps=5", "job.overwrite=true")
        self.assertEqual((directory / "chapter1.txt").read_text(), "years of work")
        self.assertEqual(latest_step(directory), 5)

    def test_overwrite_deletes_checkpoints_of_this_program_only(self):
        directory = self.train("mixed", "train.steps=4", "checkpoint.every=2", "checkpoint.keep=2")
        foreign = [directory / "checkpoints" / name for name in ("model.pt", "step_4", ".tmp_mine", "abandoned")]
        for path in foreign:
            path.write_text("years of work")
        (directory / "checkpoints/.tmp_step_00000003").mkdir()
        self.run_deck(TINY, f"job.directory={directory}", "train.steps=6", "checkpoint.every=6", "--resume", "auto")
        self.assertFalse((directory / "checkpoints/.tmp_step_00000003").exists())
        self.train("mixed", "train.steps=1", "job.overwrite=true")
        self.assertEqual(sorted(path.name for path in (directory / "checkpoints").iterdir()),
                         sorted([path.name for path in foreign] + ["latest", "step_00000001"]))
        (directory / "run.h5").write_text("years of work")
        self.run_deck(TINY, f"job.directory={directory}", "job.overwrite=true", code=FILES, says=["run.h5 is not", "move it away"])
        self.assertEqual((directory / "run.h5").read_text(), "years of work")
        self.assertTrue((directory / "checkpoints/step_00000001").exists())


if __name__ == "__main__":
    unittest.main(verbosity=2)  # so that a test that skips itself says so
