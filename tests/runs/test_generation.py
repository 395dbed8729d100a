#!/usr/bin/env python3
"""Text from a checkpoint, for one prompt or several, and what bench.decode and bench.generate measure of it."""
import itertools
import tomllib
import unittest

from harness import ENVIRONMENT, SOURCE, TINY, USAGE, BenchTest, gpus, latest_step

DECODE = """
[job]
kind = "bench.decode"

[bench]
batch = 2
heads = 3
warmup = 1
repeats = 3
"""


class Generation(BenchTest):
    def checkpoint(self):
        """Of a model trained on a few words; and the deck that generates from it."""
        text = self.folder / "text.txt"
        text.write_text("the quick brown fox jumps over the lazy dog. " * 400)
        directory = self.train("text", "model.vocab_size=257", "data.source=text", f"data.path={text}")
        self.generate = self.deck(TINY.read_text().replace('"train"', '"generate"').replace("vocab_size = 64", "vocab_size = 257"))
        return directory / f"checkpoints/step_{latest_step(directory):08d}"

    def test_several_prompts_are_continued_as_each_alone(self):
        checkpoint = self.checkpoint()

        def text(*arguments):
            return self.run_deck(self.generate, f"job.input={checkpoint}", f"job.directory={self.folder / 'unused'}",
                                 "job.overwrite=true", "generate.max_tokens=70", *arguments).out

        prompts = ["the ", "quick brown fox jumps over the lazy", "d"]
        alone = [text(f"generate.prompt={prompt}", "generate.temperature=0") for prompt in prompts]
        together = text('generate.prompts=["the ", "quick brown fox jumps over the lazy", "d"]', "generate.temperature=0")
        self.assertEqual(together, "".join(f"--- {i + 1} of 3 ---\n{one}" for i, one in enumerate(alone)))
        for prompt, one in zip(prompts, alone):
            self.assertTrue(one.startswith(prompt), one)
            self.assertGreater(len(one), len(prompt) + 10)
        greedy = text("generate.prompt=the ", "generate.temperature=5", "generate.top_k=1")
        self.assertEqual(greedy, alone[0], "top 1 is greedy whatever the temperature")
        self.assertEqual(text("generate.prompt=the ", "generate.temperature=0", "attention.decode_parts=3"), alone[0])
        drawn = text('generate.prompts=["the ", "the "]', "generate.temperature=2.0")
        self.assertEqual(drawn, text('generate.prompts=["the ", "the "]', "generate.temperature=2.0"))
        first, second = drawn.split("--- 2 of 2 ---\n")
        self.assertNotEqual(first.split("\n", 1)[1], second, "sequences draw numbers of their own")
        if gpus() is not None:
            for chained in ("true", "false"):
                graph = ("generate.graph=true", f"generate.chained={chained}")
                self.assertEqual(text("generate.prompt=the ", "generate.temperature=0", *graph), alone[0], f"chained: {chained}")

    def test_keys_that_would_be_ignored_or_that_the_build_lacks_are_refused(self):
        deck = self.deck(TINY.read_text().replace('"train"', '"generate"'))
        both = ("job.input=somewhere", "generate.prompt=a", 'generate.prompts=["b"]')
        self.run_deck(deck, *both, code=USAGE, says=["generate.prompt", "one of the two"])
        one = self.deck(deck.read_text() + '[generate]\nprompt = "a"\n', "one.toml")
        printed = self.run_deck(one, "job.input=somewhere", 'generate.prompts=["b"]', "--print").out
        self.assertEqual(tomllib.loads(printed)["generate"]["prompts"], ["b"], "the command line wins")
        self.run_deck(self.deck(printed, "printed.toml"), "--check")
        self.run_deck(TINY, "train.sample_tokens=4", "generate.prompt=a", code=USAGE, says=["generate.prompt", "data.source is not"])
        self.run_deck(TINY, 'generate.prompts=["b"]', code=USAGE, says=["generate.prompts", "would be ignored"])
        self.run_deck(TINY, "attention.decode_parts=1025", code=USAGE, says=["attention.decode_parts"])
        if gpus() is None:
            self.run_deck(deck, "job.input=somewhere", "generate.graph=true", code=ENVIRONMENT, says=["generate.graph", "CUDA"])

    def test_decode_measures_every_case_beside_a_copy(self):
        deck = self.deck(DECODE)
        for dtype, T, D, parts in itertools.product(("fp32", "bf16"), (1, 100), (8, 24), (0, 3)):
            keys = (f"bench.dtype={dtype}", f"bench.length={T}", f"bench.head_width={D}")
            row, = self.rows(deck, *keys, f"attention.decode_parts={parts}")
            self.assertEqual((row["dtype"], row["T"], row["D"]), (dtype, T, D))
            self.assertEqual(row["parts"], parts) if parts else self.assertGreaterEqual(row["parts"], 1)
            self.assertEqual((row["outcome"], row["B"], row["H"], row["repeats"]), ("ok", 2, 3, 3))
            read = 2 * 2 * 3 * row["T"] * row["D"] * (4 if row["dtype"] == "fp32" else 2)
            self.assertAlmostEqual(row["gbyte_per_s"] * row["median_ms"] * 1e6 / read, 1, places=6)
            self.assertAlmostEqual(row["of_copy"] * row["copy_gbyte_per_s"] / row["gbyte_per_s"], 1, places=6)
        self.assertEqual(self.rows(deck, "bench.length=100", "bench.memory_limit_gib=1e-6")[0]["outcome"], "out of memory")

    def test_generate_measures_tokens_beside_the_bound_of_the_weights(self):
        deck = (SOURCE / "input/bench/generate.toml").read_text().replace("repeats = 50", "repeats = 5")
        deck = deck.replace('"experiment"', '"bench.generate"').replace(deck[deck.index("[experiment]"):deck.index("[model]")], "")
        for batch in (1, 3):
            for prompt in (1, 20):
                row, = self.rows(self.deck(deck), f"bench.batch={batch}", f"bench.length={prompt}")
                self.assertEqual(row["prompt"], prompt)
                self.assertEqual((row["outcome"], row["B"], row["repeats"]), ("ok", batch, 5))
                read = row["parameters"] - 257 * 128 + batch * 128  # of the embedding, the rows of the tokens
                self.assertAlmostEqual(row["weights_mib"], 4 * read / 2**20, places=6)
                self.assertAlmostEqual(row["cache_mib"], 2 * 4 * 4 * 128 * batch * (row["prompt"] + 1 + 4 + 2.5) / 2**20, places=6)
                self.assertAlmostEqual(row["tokens_per_s"] * row["token_ms"] / (1e3 * batch), 1, places=6)
                self.assertAlmostEqual(row["bound_ms"], row["weights_mib"] * 2**20 / row["copy_gbyte_per_s"] * 1e-6, places=6)
                self.assertAlmostEqual(row["of_bound"], row["bound_ms"] / row["token_ms"], places=6)

    def test_generate_is_planned_for_a_gpu_without_one(self):
        plan = self.run_deck(SOURCE / "input/bench/generate_gpu/deck.toml", "--plan", "plan.device=h200", "bench.length=[1024, 16384]",
                             says=["H200"]).out
        self.assertEqual(plan.count("fits"), 2, plan)
        self.assertEqual(plan.count("8b, "), 2, plan)
        weights = 8_125_698_048 * 2  # bf16
        per_rank = [int(line.split("(")[1].split()[0]) for line in plan.splitlines() if line.startswith("per rank")]
        caches = [2 * 34 * 4096 * 2 * (prompt + 110) for prompt in (1024, 16384)]  # keys and values, 2 + 8 + 100 tokens more
        for total, cache in zip(per_rank, caches):
            self.assertGreater(total, weights + cache)
            self.assertLess(total, weights + cache + (6 << 30))


if __name__ == "__main__":
    unittest.main()
