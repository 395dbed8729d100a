#!/usr/bin/env python3
"""What bench.* measure: every case is a row, whatever becomes of it, and derived columns follow from measured ones."""
import itertools
import math
import sys
import unittest

import h5py
import numpy as np

from harness import ENVIRONMENT, FILES, TINY, USAGE, BenchTest, configuration, gpus

ATTENTION = """
[job]
kind = "bench.attention"

[bench]
length = 48
head_width = 8
tokens = 96
channels = 16
warmup = 0
repeats = 3
"""


def kernel(name, **more):
    """The overrides that name an attention kernel."""
    return [f"attention.kernel={name}", *(f"attention.{key}={value}" for key, value in more.items())]


class Bench(BenchTest):
    def row(self, *arguments, **more):
        row, = self.rows(*arguments, **more)
        return row

    def test_a_result_that_appears_meanwhile_is_not_replaced(self):
        deck = self.deck(TINY.read_text().replace('"train"', '"bench.kernels"') + "\n[bench]\nrows = 64\nwidth = 64\nrepeats = 100\n")
        result = self.folder / "kernels.h5"
        job = self.start(deck, f"job.output={result}", "bench.rest_ms=20")
        self.wait_until(lambda: "copy" in job.printed(), "the first row", job)
        result.write_text("another job's")
        end = job.wait()
        self.assertEqual(end.code, FILES, str(end))
        self.assertIn("kernels.h5 exists: name another job.output", end.err)
        self.assertEqual(result.read_text(), "another job's")

    def test_attention_is_timed_and_its_memory_counted(self):
        deck = self.deck(ATTENTION)
        for causal, T in itertools.product(("false", "true"), (16, 48)):
            standard, flash2 = (self.row(deck, *kernel(name), f"bench.causal={causal}", f"bench.length={T}") for name in ("standard", "flash2"))
            self.assertEqual([(row["causal"], row["T"]) for row in (standard, flash2)], [({"false": "no", "true": "yes"}[causal], T)] * 2)
            self.assertEqual([row["implementation"] for row in (standard, flash2)], ["standard", "flash2"])
            B, H, T, D = (standard[key] for key in "BHTD")
            self.assertEqual((B, H), (96 // T, 16 // 8))
            for row in (standard, flash2):
                self.assertEqual(row["outcome"], "ok")
                self.assertEqual([row[f"{each}_repeats"] for each in ("forward", "backward", "both")], [3, 3, 3])
                for direction in ("forward", "backward", "both"):
                    self.assertGreater(row[f"{direction}_ms"], 0)
                    self.assertGreaterEqual(row[f"{direction}_std_ms"], 0)
                flop = 4 * B * H * T * T * D * (0.5 if row["causal"] == "yes" else 1)
                self.assertAlmostEqual(row["forward_gflop_per_s"] * row["forward_ms"] * 1e6 / flop, 1, places=6)
            bytes_kept = 4 * (4 * B * H * T * D + B * H * T)  # q, k, v, out and lse in fp32; each begins on a multiple of 256
            self.assertAlmostEqual(flash2["memory_mib"], bytes_kept / 2**20, delta=6 * 256 / 2**20)

            for row in (standard, flash2):
                parts = [value for name, value in row.items() if name.endswith("_mib") and name not in ("memory_mib", "peak_mib", "taken_mib")]
                self.assertAlmostEqual(sum(parts), row["peak_mib"], delta=len(parts) * 256 / 2**20)
                self.assertEqual(row["d_q_mib"], 4 * B * H * T * D / 2**20)
                self.assertEqual(row["d_scores_mib"], 4 * B * H * T * T / 2**20 if row is standard else 0)

    def test_rows_of_one_process_count_no_arena_twice(self):
        """On a GPU in `taken_mib`; a host shows it in the process's memory, which four rows must not raise above one's."""
        deck = self.deck("""
            [job]
            kind = "experiment"
            [experiment]
            job = "bench.attention"
            [experiment.product]
            bench.causal = [true, false]
            [bench]
            length = 64
            head_width = 32
            tokens = 32768
            channels = 64
            warmup = 0
            repeats = 1
            """)
        measure = "import resource, subprocess, sys; code = subprocess.call(sys.argv[1:]); " \
                  "print('KiB', resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss); sys.exit(code)"

        def run(name, override):
            folder = self.folder / name
            answer = self.run_deck(deck, f"job.directory={folder}", override, wrapper=[sys.executable, "-c", measure])
            with h5py.File(folder / "experiment.h5", "r") as file:
                columns = [file[f"record/{name}_mib"][...].ravel() for name in ("taken", "peak", "pads")]
            return columns, int(answer.out.split()[-1]) / 1024

        (taken, peak, pads), together = run("four", "experiment.rounds=2")
        _, alone = run("one", "bench.causal=true")
        arena = peak[0] - pads[0]
        self.assertGreater(arena, 60)
        self.assertEqual(len(taken), 4)
        if gpus() is None:
            self.assertTrue(np.isnan(taken).all(), taken)
            if "-fsanitize" not in configuration():  # a sanitizer keeps freed memory for a while
                self.assertLess(together - alone, arena / 2)
        else:
            np.testing.assert_allclose(taken, arena, rtol=0, atol=2)  # the driver counts in pieces of 2 MiB

    def test_sums_are_to_the_bit_those_of_numpy(self):
        def bf16(x):  # round to nearest, ties to even
            word = int(np.float32(x).view(np.uint32))
            return np.uint32((word + 0x7FFF + (word >> 16 & 1)) & 0xFFFF0000).view(np.float32)

        def total(first, addend, narrow, terms):
            for _ in range(terms):
                first = narrow(first + addend)
            return float(first)

        rounding = {"fp32": np.float32, "fp16": np.float16, "bf16": bf16}
        deck = self.deck('[job]\nkind = "bench.accumulation"\n')
        rows = [row for terms in (1, 1000, 3000) for row in self.rows(deck, f"bench.terms={terms}")]
        self.assertEqual([(row["accumulator"], row["addend"]) for row in rows[:7]],
                         [("fp32", "fp32"), ("fp16", "fp16"), ("fp32", "fp16"), ("fp32", "float(fp16)"),
                          ("bf16", "bf16"), ("fp32", "bf16"), ("fp32", "float(bf16)")])
        for row in rows:
            narrow, addend = rounding[row["accumulator"]], rounding[row["addend"].removeprefix("float(").rstrip(")")](0.01)
            self.assertEqual(row["value"], float(addend))
            self.assertEqual(row["sum"], total(narrow(0), addend, narrow, int(row["terms"])), row)
        printed = [f"{row['sum']:.4f}" for row in rows if row["terms"] == 1000]
        self.assertEqual(printed[:4], ["10.0001", "9.9531", "10.0021", "10.0021"])

    def test_attention_runs_in_the_kernel_that_is_named(self):
        deck, rows = self.deck(ATTENTION), {}
        for engine, arguments in {"-": kernel("tiled"), "0 steps": kernel("flash1"), "4 steps": kernel("flash1/4"),
                                  "portable": kernel("flash2"), "3 steps": kernel("flash2/3")}.items():
            rows[engine] = self.row(deck, *arguments, "attention.key_tile=16")
            self.assertEqual((rows[engine]["engine"], rows[engine]["outcome"]), (engine, "ok"))
        self.assertGreater(rows["-"]["peak_mib"], rows["portable"]["peak_mib"])  # its workspace
        self.assertEqual(len({row["memory_mib"] for row in rows.values()}), 1)

    def test_fp32_runs_on_tensor_cores_where_there_are_some(self):
        if gpus() is None:
            self.skipTest("needs a CUDA build")
        row, by_mma = (self.row(self.deck(ATTENTION), *kernel(name)) for name in ("auto", "mma"))
        self.assertEqual((row["engine"], row["outcome"]), ("mma" if by_mma["outcome"] == "ok" else "portable", "ok"))
        self.assertGreater(min(row["forward_ms"], row["backward_ms"]), 0)

    def test_pads_grow_with_the_tiles_and_are_none_where_the_tiles_lie_in_a_workspace(self):
        deck = self.deck(ATTENTION)
        for name in ("tiled", "flash1", "flash2"):
            few, many = (self.row(deck, *kernel(name, query_tile=tile, key_tile=tile), "bench.pass=forward")["pad_kib"] for tile in (16, 32))
            self.assertEqual(few, 0) if name == "tiled" else self.assertGreater(many, few)

    def test_a_case_above_the_memory_limit_is_a_row_without_times(self):
        for name, outcome in (("standard", "out of memory"), ("flash2", "ok")):
            row = self.row(self.deck(ATTENTION), *kernel(name), "bench.length=96", "bench.memory_limit_gib=1.6e-4")  # 168 KiB
            self.assertEqual(row["outcome"], outcome)
            self.assertEqual(math.isnan(row["both_ms"]), outcome != "ok")
            self.assertGreater(row["memory_mib"], 0)

    def test_only_the_passes_that_the_deck_asks_for_are_timed(self):
        row = self.row(self.deck(ATTENTION), "bench.pass=backward")
        self.assertEqual(row["outcome"], "ok")
        self.assertGreater(row["backward_ms"], 0)
        self.assertTrue(math.isnan(row["forward_ms"]) and math.isnan(row["both_ms"]))

    def test_a_slow_row_is_repeated_less_often(self):
        row = self.row(self.deck(ATTENTION), "bench.row_limit_s=1e-9")
        self.assertEqual({row[f"{each}_repeats"] for each in ("forward", "backward", "both")}, {1})

    def test_the_parts_of_a_step_add_up(self):
        deck = self.deck(TINY.read_text().replace('"train"', '"bench.step"') + "\n[bench]\nwarmup = 1\nrepeats = 2\n")
        row = self.row(deck)
        self.assertEqual(row["variant"], "fused")
        self.assertGreater(row["forward_ms"], 0)
        for part in ("forward", "forward_backward", "optimizer", "step"):  # two repeats: the median is the mean, and the mean is between them
            self.assertAlmostEqual(row[f"{part}_ms"], row[f"{part}_mean_ms"], places=9)
            self.assertGreaterEqual(row[f"{part}_std_ms"], 0)
        self.assertAlmostEqual(row["forward_backward_ms"], row["forward_phase_ms"] + row["backward_phase_ms"], places=9)
        self.assertEqual(row["cold_steps"], 0)
        self.assertAlmostEqual(row["tokens_per_s"], 1e3 * row["tokens"] / row["step_ms"], delta=1e-6 * row["tokens_per_s"])
        if gpus() is None:  # on a GPU, phases of so small a model are gaps between launches, which vary from step to step
            self.assertGreaterEqual(1.05 * row["step_ms"], row["forward_backward_ms"])

    def test_forward_passes_alone_take_the_memory_of_inference(self):
        deck = self.deck(TINY.read_text().replace('"train"', '"bench.step"') + "\n[bench]\nwarmup = 1\nrepeats = 2\n")
        step, = self.rows(deck)
        forward, = self.rows(deck, "bench.phase=forward")
        self.assertEqual((step["phase"], forward["phase"]), ("step", "forward"))
        self.assertGreater(forward["forward_ms"], 0)
        self.assertLess(forward["planned_mib"], step["planned_mib"] / 3)
        for column in ("step_ms", "forward_backward_ms", "optimizer_ms", "tokens_per_s"):
            self.assertTrue(math.isnan(forward[column]), column)
        planned = self.run_deck(deck, "bench.phase=forward", "--plan").out
        self.assertIn("parameters : gradients : optimizer = 1 : 0.00 : 0.00", planned)
        self.run_deck(deck, "bench.phase=forward", "data.validation_fraction=0", code=USAGE, says=["data.validation_fraction"])

    def test_without_a_warm_up_the_first_step_counts_and_a_column_says_so(self):
        deck = self.deck(TINY.read_text().replace('"train"', '"bench.step"') + "\n[bench]\nwarmup = 0\nrepeats = 6\n")
        for graph, cold_steps in (("false", 1), ("true", 4)):  # the first step; two sets, each run and recorded
            if graph == "true" and gpus() is None:
                continue
            row = self.row(deck, f"train.graph={graph}")
            self.assertEqual(row["cold_steps"], cold_steps)
            self.assertGreater(6 * row["step_mean_ms"], row["step_first_ms"])
            self.assertGreaterEqual(row["step_std_ms"] * (1 + 1e-9), abs(row["step_first_ms"] - row["step_mean_ms"]) / math.sqrt(5))
        if gpus() is not None:
            self.assertEqual(self.row(deck, "train.graph=true", "bench.warmup=4")["cold_steps"], 0)

    def test_a_graph_over_mpi_is_refused_before_anything_is_measured(self):
        if gpus() is None:
            self.skipTest("this build has no graphs")
        deck = self.deck(TINY.read_text().replace('"train"', '"bench.step"') )
        result = self.run_deck(deck, f"job.output={self.folder / 'result.h5'}", "parallel.collectives=mpi", "train.graph=true",
                               ranks=2, code=ENVIRONMENT, says=["NCCL", "train.graph"])
        self.assertNotIn("step_ms", result.out)

    def test_what_only_a_gpu_has_is_refused_by_a_cpu_build(self):
        if gpus() is not None:
            self.skipTest("this build has CUDA")
        deck = self.deck(ATTENTION)
        self.run_deck(deck, *kernel("wgmma"), code=ENVIRONMENT, says=["attention.kernel", "CUDA"])
        self.run_deck(deck, *kernel("flash1/5"), code=ENVIRONMENT, says=["attention.kernel", "CUDA"])


if __name__ == "__main__":
    unittest.main(verbosity=2)  # so that a test that skips itself says so
