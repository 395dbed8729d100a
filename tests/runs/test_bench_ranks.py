#!/usr/bin/env python3
"""What bench.comm and bench.strategies measure on two ranks: columns, the rules between them, and what is refused."""
import itertools
import math
import unittest

import h5py

from harness import OUT_OF_MEMORY, TINY, USAGE, BenchTest

COMM = """
[job]
kind = "bench.comm"

[bench]
mbyte = 3
warmup = 1
repeats = 3
"""
OPERATIONS = ["all_reduce", "reduce_scatter", "all_gather", "broadcast"]
STRATEGIES = ["per_parameter", "flat", "overlap", "bucket", "optimizer", "gradients", "parameters"]
CATEGORIES = ["parameters", "gradients", "optimizer", "activations", "workspace", "data"]
STEPS = TINY.read_text().replace('"train"', '"bench.strategies"') + "\n[bench]\nwarmup = 1\nrepeats = 2\n"


class Comm(BenchTest):
    def test_bandwidths_follow_from_the_time(self):
        deck = self.deck(COMM)
        for operation, dtype, mbyte in itertools.product(OPERATIONS, ("fp32", "bf16"), (1, 3)):
            row, = self.rows(deck, f"bench.operation={operation}", f"bench.dtype={dtype}", f"bench.mbyte={mbyte}", ranks=2)
            self.assertEqual((row["operation"], row["dtype"], row["bytes"]), (operation, dtype, 1e6 * mbyte))
            self.assertEqual((row["outcome"], row["ranks"], row["repeats"]), ("ok", 2, 3))
            self.assertLessEqual(0, row["std_ms"])
            self.assertTrue(0 < row["min_ms"] <= row["median_ms"] <= 3 * row["mean_ms"], row)
            self.assertLessEqual(row["min_ms"], row["mean_ms"] * (1 + 1e-9))
            algorithm = 1e-9 * row["bytes"] / (1e-3 * row["mean_ms"])
            self.assertAlmostEqual(row["algorithm_gbyte_per_s"] / algorithm, 1, places=9)
            factor = 0.5 if row["operation"] in ("reduce_scatter", "all_gather") else 1  # of two ranks
            self.assertAlmostEqual(row["bus_gbyte_per_s"] / (factor * algorithm), 1, places=9)
            self.assertLess(row["bus_gbyte_per_s"], 10_000)  # no memory is so fast

    def test_on_three_ranks_parts_are_of_whole_16_bytes(self):
        for operation, size, factor in zip(OPERATIONS, (1e6, 3 * 333_328, 3 * 333_328, 1e6), (4 / 3, 2 / 3, 2 / 3, 1)):
            row, = self.rows(self.deck(COMM), f"bench.operation={operation}", "bench.mbyte=1", "bench.repeats=1", "bench.warmup=0", ranks=3)
            self.assertEqual(row["bytes"], size)
            self.assertAlmostEqual(row["bus_gbyte_per_s"] / row["algorithm_gbyte_per_s"], factor, places=9)

    def test_the_file_says_what_joined_the_ranks(self):
        result = self.folder / "comm.h5"
        self.run_deck(self.deck(COMM), f"job.output={result}", "bench.mbyte=1", "bench.operation=broadcast", ranks=2,
                      says="transport")
        with h5py.File(result, "r") as file:
            self.assertTrue(file["info"].attrs["transport"])
            self.assertEqual((file["info"].attrs["ranks"], file["info"].attrs["host_count"], file["info"].attrs["ranks_per_host"]), (2, 1, 2))
            self.assertTrue(file["info"].attrs["device"].startswith(file["info"].attrs["device_name"] + ", "))
            self.assertGreater(file["info"].attrs["device_bytes"], 2**20)
            self.assertEqual(file["bus_gbyte_per_s"].attrs["units"], "GB/s")
            self.assertEqual(file["bytes"].attrs["units"], "B")

    def test_a_size_above_the_memory_limit_is_a_row_without_times(self):
        for operation, (mbyte, outcome) in itertools.product(("broadcast", "all_gather"), ((1000, "out of memory"), (1, "ok"))):
            row, = self.rows(self.deck(COMM), "bench.memory_limit_gib=0.0038", f"bench.operation={operation}", f"bench.mbyte={mbyte}", ranks=2)
            self.assertEqual(row["outcome"], outcome)
            self.assertEqual(math.isnan(row["mean_ms"]), outcome != "ok")
            self.assertEqual(math.isnan(row["bus_gbyte_per_s"]), outcome != "ok")
            self.assertGreaterEqual(row["needed_mib"], row["bytes"] / 2**20)

    def test_a_slow_row_is_repeated_less_often_and_by_all_ranks(self):
        for warmup in (0, 1):
            rows = self.rows(self.deck(COMM), "bench.row_limit_s=1e-9", "bench.repeats=1000", f"bench.warmup={warmup}", ranks=2)
            self.assertEqual({row["repeats"] for row in rows}, {1})
        rows = self.rows(self.deck(COMM), "bench.warmup=0", "bench.warmup_ms=20", ranks=2)
        self.assertEqual({row["repeats"] for row in rows}, {3})

    def test_one_rank_is_told_to_start_more(self):
        for deck in (COMM, STEPS):
            result = self.run_deck(self.deck(deck), f"job.output={self.folder / 'none.h5'}", code=USAGE,
                                   says=["one rank alone", "scripts/run -n 2"])
            self.assertEqual(result.out, "")
        self.assertFalse((self.folder / "none.h5").exists())


class Strategies(BenchTest):
    def strategy(self, name, *arguments):
        """The row of one way to share a step."""
        key = "shard" if name in STRATEGIES[4:] else "gradient_sync"
        row, = self.rows(self.deck(STEPS), f"parallel.{key}={name}", *["parallel.bucket_mbyte=0.02"] * (name == "bucket"), *arguments, ranks=2)
        self.assertEqual(row["strategy"], name)
        return row

    def test_times_and_memory_of_every_strategy_add_up(self):
        by_name = {name: self.strategy(name) for name in STRATEGIES}
        for row in by_name.values():
            self.assertGreater(row["step_mean_ms"], 0)
            self.assertGreaterEqual(row["step_std_ms"], 0)
            self.assertAlmostEqual(row["tokens_per_s"] * 1e-3 * row["step_mean_ms"] / row["tokens"], 1, places=9)
            self.assertGreater(row["communication_ms"], 0)
            self.assertTrue(0 <= row["exposed_ms"] <= row["under_way_ms"] * (1 + 1e-9), row)
            self.assertLessEqual(row["under_way_ms"], row["communication_ms"] * (1 + 1e-9))
            for moment in ("initial", "before_update", "in_update"):
                total = sum(row[f"{moment}_{category}_bytes"] for category in CATEGORIES)
                self.assertAlmostEqual(row[f"{moment}_mib"], total / 2**20, places=9)
                self.assertLessEqual(total, row["planned_bytes"])
                self.assertGreaterEqual(total, row["initial_mib"] * 2**20)  # what lives for the whole run lives at each
            self.assertEqual(row["initial_activations_bytes"], 0)
            self.assertGreater(row["before_update_activations_bytes"], 0)

        P = by_name["flat"]["parameters"]
        flat = by_name["flat"]["message_bytes"]  # every tensor is padded
        self.assertTrue(4 * P <= flat <= 1.02 * 4 * P, (P, flat))
        for name in STRATEGIES[:4]:  # everything is replicated, in fp32: nothing but the order differs
            row = by_name[name]
            self.assertEqual(row["message_bytes"], flat)
            self.assertEqual(row["before_update_mib"], by_name["flat"]["before_update_mib"])
            self.assertEqual([row[f"initial_{category}_bytes"] for category in CATEGORIES[:3]], [flat, flat, 2 * flat])
        self.assertEqual(by_name["flat"]["transfers"], 1)
        self.assertEqual(by_name["per_parameter"]["transfers"], by_name["overlap"]["transfers"])
        self.assertTrue(1 < by_name["bucket"]["transfers"] < by_name["overlap"]["transfers"])

        # Each stage keeps a half of what it shards; padding and what is on its way come on top.
        half = lambda row, category, whole: self.assertTrue(whole / 2 <= row[f"initial_{category}_bytes"] < 0.6 * whole, row)
        for name in STRATEGIES[4:]:
            half(by_name[name], "optimizer", 2 * flat)
        for name in STRATEGIES[5:]:
            half(by_name[name], "gradients", flat)
        self.assertEqual(by_name["optimizer"]["initial_gradients_bytes"] // flat, 1)

    def test_the_timeline_has_the_passes_by_block_behind_the_gathers_of_their_weights(self):
        for micro_steps, recompute in ((1, 0), (2, 2)):
            self.strategy("parameters", "model.num_layers=4", "train.batch_size=4", f"train.micro_batch_size={2 // micro_steps}",
                          f"train.checkpoint_activations={recompute}", "parallel.reshard_after_forward=true")
            with h5py.File(self.folder / "result.h5", "r") as file:
                columns = [file[f"timeline/{name}"] for name in ("lane", "label", "start_ms", "end_ms")]
                events = list(zip(*(column.asstr()[...] if h5py.check_string_dtype(column.dtype) else column[...] for column in columns)))
            passes = [event[1:] for event in events if event[0] == "unit"]
            units = ["embedding", *(f"block.{i:02d}" for i in range(4)), "head"]
            names = lambda word, every: [f"{word}/{unit}" for unit in every]
            backward = names("backward", units[::-1]) if not recompute else [
                "backward/head", *names("recompute", units[3:5]), *names("backward", units[4:2:-1]), *names("recompute", units[1:3]),
                *names("backward", units[2::-1])]
            self.assertEqual([label for label, _, _ in passes], (names("forward", units) + backward) * micro_steps)
            self.assertTrue(all(0 <= start <= end for _, start, end in passes))
            self.assertTrue(all(end <= start for (_, _, end), (_, start, _) in zip(passes, passes[1:])), passes)
            for unit in units[1:-1]:
                gathered = [end for lane, label, _, end in events if lane == "communication" and label == f"params.{unit}"]
                opened = [start for label, start, _ in passes if label == f"forward/{unit}"]
                self.assertLess(min(gathered), opened[0], f"the first pass reads the weights of {unit}")

    def test_offloaded_state_is_counted_on_the_host(self):
        def memory(offload):
            rows = [self.strategy(name, f"parallel.offload={offload}") for name in ("bucket", "optimizer")]
            return [(row["host_mib"] * 2**20, row["initial_optimizer_bytes"]) for row in rows]

        for (host, state), (host_with, state_with) in zip(memory("none"), memory("optimizer")):
            self.assertLess(state_with, 0.5 * state, "the chunks that lie where the model computes")
            self.assertTrue(state <= host_with - host < 1.01 * state + 1024, (host, host_with, state))

    def test_what_these_ranks_cannot_run_is_refused_and_an_earlier_result_stays(self):
        earlier = self.folder / "earlier.h5"
        earlier.write_bytes(b"a result")
        for arguments, says in ((["parallel.shard=optimizer", "parallel.shard_ranks=3"], "parallel.shard_ranks"),
                                (["train.batch_size=3"], "train.batch_size=3 is not a multiple of 2 ranks")):
            result = self.run_deck(self.deck(STEPS), f"job.output={earlier}", "job.overwrite=true", *arguments, ranks=2, code=USAGE, says=says)
            self.assertEqual(earlier.read_bytes(), b"a result")
            self.assertEqual(result.err.count(says), 1, "said once, not by each rank")

    def test_a_model_that_does_not_fit_ends_with_the_table_of_its_memory(self):
        huge = ("model.d_model=65536", "model.num_heads=1024", "model.d_ff=262144", "model.num_layers=1000")
        self.run_deck(self.deck(STEPS), f"job.output={self.folder / 'none.h5'}", *huge, ranks=2, code=OUT_OF_MEMORY, says="parameters")
        self.assertFalse((self.folder / "none.h5").exists())

    def test_what_the_job_would_not_heed_is_refused(self):
        self.run_deck(self.deck(STEPS), "bench.phase=forward", code=USAGE, says=["bench.phase", "would be ignored"])


if __name__ == "__main__":
    unittest.main(verbosity=2)  # so that a test that skips itself says so
