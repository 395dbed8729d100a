#!/usr/bin/env python3
"""run.h5 and index.h5 of a real run open in h5py and xarray as they are; scripts/plot_run and plot_bench draw what is there."""
import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import h5py
import numpy as np
import xarray

from harness import FILES, SOURCE, TINY, USAGE, RunTest, index_of

sys.path.insert(0, str(SOURCE / "scripts"))
import plotting  # noqa: E402  (after the path to it)

ATTENTION = """
[job]
kind = "experiment"
[experiment]
job = "bench.attention"
baseline = "standard"
[experiment.product]
bench.length = [16, 64]
bench.head_width = [8, 16]
bench.causal = [true, false]
[experiment.rows.standard]
attention.kernel = "standard"
[experiment.rows.flash2]
attention.kernel = "flash2"
[bench]
heads = 1
warmup = 0
repeats = 1
"""


class Plots(RunTest):
    def plot(self, *arguments, code, says="", script="plot_run"):
        answer = subprocess.run([SOURCE / "scripts" / script, *arguments], text=True, capture_output=True)
        self.assertEqual(answer.returncode, code, answer.stderr)
        self.assertIn(says, answer.stdout + answer.stderr)
        self.assertNotIn("Traceback", answer.stderr)

    def words(self, *arguments, **more):
        """Every text in the picture: an SVG file names each one in a comment."""
        picture = self.folder / "words.svg"
        self.plot(*arguments, "-o", picture, code=0, **more)
        return [text.strip() for text in re.findall(r"<!--(.*?)-->", picture.read_text())]


class RunFile(Plots):
    def test_opens_everywhere_and_plots(self):
        directory = self.train("run", ranks=2)
        groups, scales = ["/"], {}

        def visit(name, item):
            if isinstance(item, h5py.Group):
                groups.append("/" + name)
                return
            for key in ("units", "description"):
                self.assertIn(key, item.attrs, f"{name} has no {key}")
            for axis in item.dims:
                scales[name] = len(axis) > 0 or h5py.h5ds.is_scale(item.id)
                self.assertTrue(scales[name], f"{name}: axis without a scale")

        with h5py.File(directory / "run.h5", "r") as file:
            file.visititems(visit)
            for key in ("format", "version", "git_hash", "build", "hosts", "command", "deck"):
                self.assertIn(key, file["info"].attrs)
        self.assertGreaterEqual(set(groups), {"/info", "/steps", "/kernels", "/events", "/memory/events", "/comm"})
        self.assertIn("memory/peaks", scales)
        for group in groups:
            with self.subTest(group=group), xarray.open_dataset(directory / "run.h5", engine="h5netcdf", group=group) as data:
                data.load()
        with xarray.open_dataset(directory / "run.h5", engine="h5netcdf", group="/steps") as steps:
            self.assertEqual(steps["loss"].dims, ("step",))
            self.assertLess(float(steps["loss"][-1]), float(steps["loss"][0]))

        picture = self.folder / "loss.png"
        self.plot(directory / "run.h5", "-o", picture, code=0)
        self.assertEqual(picture.read_bytes()[:8], b"\x89PNG\r\n\x1a\n")
        self.assertGreater(picture.stat().st_size, 20_000)
        self.plot(directory, code=0, says="run.png")  # the run's folder
        self.assertGreater((directory / "run.png").stat().st_size, 20_000)

        # There is a colour for every category that the layout writes, and for nothing else.
        with h5py.File(directory / "run.h5", "r") as file:
            self.assertEqual({*file["memory/category"].asstr()[...]} - {"total"}, {*plotting.CATEGORIES})
            memory, regions = file["memory/events"], file["events"]
            is_update = regions["label"].asstr()[...] == "optimizer"
            needed = (memory["label"].asstr()[...] == "norm2.partial") & (memory["begin"][...] == 1)
            for step in {*memory["step"][...]}:
                first, last = (regions[edge][is_update & (regions["step"][...] == step)][0] for edge in ("start", "end"))
                begun = memory["time"][needed & (memory["step"][...] == step)][0]
                self.assertTrue(begun <= first <= last, "what the update needs is live before the update, and not behind it")
        words = self.words(directory)
        self.assertIn("optimizer", words)
        self.assertTrue(any(re.fullmatch(r"activations  [\d.]+ [KM]iB", word) for word in words), words)
        self.assertTrue(any(re.fullmatch(r"backward  [\d.]+ [mµ]?s, \d+ %", word) for word in words), words)
        self.assertIn("30", words)  # the last step
        self.assertNotIn("resumed", words)

    def test_a_category_without_a_colour_of_its_own_gets_one(self):
        colours = plotting.colours_of(["parameters", "experts", "routers"], plotting.CATEGORIES)
        self.assertEqual(colours["parameters"], plotting.CATEGORIES["parameters"])
        self.assertEqual(len({*colours.values()} - {*plotting.CATEGORIES.values()}), 2)

    def test_a_resume_is_marked(self):
        directory = self.train("run", "train.steps=17", "checkpoint.every=10")
        self.train("run", "train.steps=23", "--resume", "auto")
        with h5py.File(directory / "run.h5", "r") as file:
            self.assertEqual(file["steps/attempt"][...].tolist(), [0] * 17 + [1] * 6)
        words = self.words(directory)
        self.assertEqual(words.count("resumed"), 2)  # of losses and of times
        self.assertIn("23", words)
        self.assertEqual(self.words(directory, "--only", "loss").count("resumed"), 1)
        with h5py.File(directory / "run.h5", "r+") as file:
            del file["steps/attempt"]  # as in older files
        self.assertNotIn("resumed", self.words(directory))

    def test_tensors_of_a_checkpoint_have_named_axes_with_scales(self):
        directory = self.train("run", ranks=2)
        with index_of(directory) as file:
            for group in ("params", "moments/m", "moments/v"):
                for name, tensor in file[group].items():
                    for axis in tensor.dims:
                        self.assertEqual(len(axis), 1, name)
                        self.assertEqual(axis.label, axis[0].name.lstrip("/"))
                    self.assertEqual(tensor.shape, tuple(len(axis[0]) for axis in tensor.dims))
            labels = lambda name: [axis.label for axis in file["params"][name].dims]
            self.assertEqual(labels("embedding.weight"), ["vocabulary", "channel"])
            self.assertEqual(labels("block.00.mlp.down.weight"), ["channel", "mlp_channel"])
            path, weight = file.filename, file["params/block.01.attn.out.weight"][...]
        with xarray.open_dataset(path, engine="h5netcdf", group="params") as params:
            tensor = params["block.01.attn.out.weight"]
            self.assertEqual(tensor.dims, ("channel", "attention_channel"))
            np.testing.assert_array_equal(tensor.values, weight)
            self.assertEqual(params["head.weight"].isel(vocabulary=0).dims, ("channel",))

    def test_plot_run_says_what_it_cannot_read(self):
        self.plot(self.folder / "nowhere.h5", code=FILES, says="nowhere.h5")
        self.plot(self.folder, code=FILES, says=f"there is no {self.folder / 'run.h5'}")
        other = self.folder / "other.h5"
        other.write_text("text")
        self.plot(other, code=FILES, says="other.h5")
        with h5py.File(other, "w") as file:
            file["something"] = 1
        self.plot(other, code=FILES, says="no run wrote this")
        self.assertFalse((self.folder / "other.png").exists())
        self.plot(other, "--only", "nothing", code=USAGE, says="--only")


class Pictures(Plots):
    def setUp(self):
        super().setUp()
        self.file = self.folder / "run.h5"
        with h5py.File(self.file, "w") as file:
            file["steps/step"], file["steps/loss"] = [1, 2], [3.0, 2.5]

    def draw(self, picture, **more):
        self.plot(self.file, "--only", "loss", "-o", picture, **more)

    def test_a_name_without_a_suffix_gets_one(self):
        self.draw(self.folder / "pic", code=0, says=f"wrote {self.folder / 'pic.png'}\n")
        self.assertEqual({path.name for path in self.folder.iterdir()}, {"run.h5", "pic.png"})
        self.draw(self.folder / "pic.PDF", code=0, says=f"wrote {self.folder / 'pic.PDF'}\n")
        self.assertTrue((self.folder / "pic.PDF").read_bytes().startswith(b"%PDF"))

    def test_what_cannot_become_a_picture_is_refused(self):
        os.mkfifo(self.folder / "pipe")
        (self.folder / "full.png").symlink_to("/dev/full")
        (self.folder / "sub").mkdir()
        before = sorted(self.folder.iterdir())
        for name in ("pipe", "full.png", "sub"):
            self.draw(self.folder / name, code=FILES, says=f"{name} is no regular file")
        self.draw(self.folder / "absent/pic.png", code=FILES, says="absent/pic.png")
        self.draw(self.folder / "pic.h5", code=USAGE, says="name a .png, .pdf or .svg file")
        self.assertEqual(sorted(self.folder.iterdir()), before)

    def test_pictures_are_written_in_one_place(self):
        scripts = [path for path in (SOURCE / "scripts").rglob("*") if path.is_file() and path.suffix in ("", ".py")]
        self.assertEqual([path.name for path in scripts if "savefig(" in path.read_text()], ["plotting.py"])

    def test_columns_that_are_none_are_refused(self):
        text = h5py.string_dtype()
        for columns, words in (({"loss": ["a", "b"]}, "/steps/loss is no column of numbers"), ({"loss": 1.0}, "/steps/loss is no column"),
                               ({"loss": [[1.0], [2.0]]}, "/steps/loss is no column"), ({"loss": h5py.Empty("f8")}, "/steps/loss is no column"),
                               ({"loss": np.array([1, 2], complex)}, "/steps/loss is no column"),
                               ({"label": [1, 2]}, "/steps/label is no column of text"),
                               ({"label": np.array([b"a", b"\xff"], text)}, "/steps: .* decode"),
                               ({"loss": [3.0, 2.0], "step": [1]}, "columns of /steps differ in length")):
            with self.subTest(columns=columns), h5py.File(self.file, "w") as file:
                for name, values in columns.items():
                    file[f"steps/{name}"] = values
                with self.assertRaisesRegex(OSError, words):
                    plotting.columns(file["steps"])

    def test_files_without_such_columns_are_refused(self):
        picture = self.folder / "pic.png"
        with h5py.File(self.file, "w") as file:
            file["steps"] = [1, 2]
        self.draw(picture, code=FILES, says="/steps is no group of columns")
        with h5py.File(self.file, "w") as file:
            file["steps/loss"] = [3.0, 2.5]
        self.draw(picture, code=FILES, says="'step'")
        whole = self.file.read_bytes()
        node = whole.rindex(b"SNOD")  # the names of the columns
        self.file.write_bytes(whole[:node] + b"DONS" + whole[node + 4:])
        self.draw(picture, code=FILES, says="run.h5")
        for times, words in ((1.0, "/step_ms is no column"), ([], "its table is empty")):
            with h5py.File(self.file, "w") as file:
                file.attrs["format"] = "tessera-bench"
                file["size"], file["step_ms"] = np.array([], h5py.string_dtype()), times
            self.plot(self.file, "-o", picture, script="plot_bench", code=FILES, says=words)
        self.assertFalse(picture.exists())


def sweep(job, tables, base):
    """An experiment over `job`: its tables, and the deck whose job.kind is not yet of it."""
    base = re.sub(r'kind = "[\w.]+"', 'kind = "experiment"', base)
    return base.replace("[job]", f'[experiment]\njob = "{job}"\n{tables}\n[job]', 1)


class BenchFile(Plots):
    def bench(self, text, *arguments, ranks=None):
        directory = Path(tempfile.mkdtemp(dir=self.folder)) / "bench"
        self.run_deck(self.deck(text), f"job.directory={directory}", *arguments, ranks=ranks)
        return directory

    def drawn(self, result):
        return self.words(result, script="plot_bench")

    def test_attention_has_a_panel_for_each_width(self):
        result = self.bench(ATTENTION)
        words = self.drawn(result)
        for text in ("head width 8", "head width 16", "forward", "backward", "standard", "flash2, portable", "causal", "full", "tokens T"):
            self.assertIn(text, words)
        self.assertEqual(words.count("64"), 2)  # T, once below each column
        self.assertNotIn("out of memory", words)
        self.plot(result, code=0, says="experiment.png", script="plot_bench")
        self.assertGreater((result / "experiment.png").stat().st_size, 20_000)

    def test_the_table_has_the_swept_keys_and_what_relates_to_the_baseline(self):
        result = self.bench(ATTENTION, "bench.head_width=8", "bench.causal=true", "experiment.rounds=3")
        answer = subprocess.run([SOURCE / "scripts/plot_bench", result], text=True, capture_output=True)
        lines = [re.split("  +", line) for line in answer.stdout.splitlines()]
        self.assertNotIn("B", lines[0], "what no comparison needs stays in the file")
        for column in ("bench.length", "engine", "forward_ms", "both_ms speed-up", "memory_mib saved"):
            self.assertIn(column, lines[0])
        self.assertEqual([line[lines[0].index("implementation")] for line in lines[1:5]], ["standard"] * 2 + ["flash2"] * 2)
        with h5py.File(result / "experiment.h5", "r") as file:
            rounds = file["record/both_ms"][...]
        self.assertEqual(rounds.shape, (4, 3))
        self.assertAlmostEqual(float(lines[1][lines[0].index("both_ms")]) / np.median(rounds[0]), 1, delta=0.01)

    def test_a_reader_that_leaves_early_costs_no_picture(self):
        result = self.bench(ATTENTION, "bench.head_width=8", "bench.causal=true")
        answer = subprocess.run(["bash", "-o", "pipefail", "-c", f"'{SOURCE}/scripts/plot_bench' '{result}' | :"], text=True, capture_output=True)
        self.assertEqual((answer.returncode, answer.stderr), (0, ""))
        self.assertGreater((result / "experiment.png").stat().st_size, 20_000)

    def test_attention_of_one_kernel_mask_and_pass(self):
        words = self.drawn(self.bench('[job]\nkind = "bench.attention"\n[bench]\nheads = 1\nlength = 16\nhead_width = 8\nwarmup = 0\nrepeats = 1\n',
                                      "attention.kernel=flash2", "bench.pass=both"))
        for text in ("forward + backward", "flash2, portable", "head width 8"):
            self.assertIn(text, words)
        for text in ("standard", "causal", "full", "forward"):
            self.assertNotIn(text, words)

    def test_attention_out_of_memory_is_marked(self):
        limit = "bench.memory_limit_gib=2e-5"  # 21 KiB: less than the scores of T = 64, and more than all of T = 16
        self.assertIn("out of memory", self.drawn(self.bench(ATTENTION, limit)))
        self.assertIn("out of memory", self.drawn(self.bench(ATTENTION, "bench.memory_limit_gib=1e-6")))  # nothing fits

    def test_steps_and_kernels(self):
        deck = TINY.read_text() + "\n[bench]\nwarmup = 0\nrepeats = 2\n"
        step = deck.replace('"train"', '"bench.step"')
        result = self.bench(step)
        words = self.drawn(result)
        for text in ("custom, fused", "backward", "planned"):
            self.assertIn(text, words)
        self.assertEqual(sum("tokens/s" in word for word in words), 1)
        with h5py.File(result / "bench.h5", "r+") as file:  # as if a step had been held up
            file["step_ms"][0], file["step_std_ms"][0] = 15.42, 11.8
        self.assertIn("15.4 ± 11.8 ms", self.drawn(result))
        models = "[experiment.rows.small]\n[experiment.rows.huge]\nmodel.d_model = 65536\nmodel.num_heads = 1024\nmodel.num_layers = 1000\n"
        words = self.drawn(self.bench(sweep("bench.step", models, deck)))
        self.assertIn("out of memory", words)
        self.assertIn("huge", words)
        self.assertEqual(sum("tokens/s" in word for word in words), 1)
        words = self.drawn(self.bench('[job]\nkind = "bench.kernels"\n[bench]\nrows = 16\nwidth = 64\nwarmup = 0\nrepeats = 1\n'))
        self.assertIn("rmsnorm", words)
        self.assertTrue(any("GB/s" in word for word in words))

    def test_collective_operations(self):
        comm = sweep("bench.comm", """[experiment.product]
bench.dtype = ["fp32"]
bench.operation = ["all_reduce", "reduce_scatter", "all_gather", "broadcast"]
bench.mbyte = [1, 2]
""", '[job]\nkind = ""\n[bench]\nwarmup = 0\nrepeats = 1\n'.replace('""', '"train"'))
        words = self.drawn(self.bench(comm, ranks=2))
        for text in ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "1 MB", "2 MB"):
            self.assertIn(text, words)
        self.assertTrue(any("2 ranks" in word for word in words), words)
        for text in ("out of memory", "fp32"):
            self.assertNotIn(text, words)
        words = self.drawn(self.bench(comm, "bench.memory_limit_gib=0.0025", 'bench.dtype=["fp32", "bf16"]', ranks=2))  # 2.7 MB
        for text in ("out of memory", "fp32", "bf16"):
            self.assertIn(text, words)

    def test_decoding_has_a_panel_for_each_format_and_width(self):
        decode = sweep("bench.decode", """[experiment.product]
bench.dtype = ["fp32", "bf16"]
bench.length = [32, 64]
bench.head_width = [8, 16]
attention.decode_parts = [1, 4]
""", '[job]\nkind = "train"\n[bench]\nheads = 2\nwarmup = 0\nrepeats = 2\n')
        words = self.drawn(self.bench(decode))
        for text in ("fp32, head width 8", "bf16, head width 16", "1 part", "4 parts", "a copy", "cached keys T"):
            self.assertIn(text, words)
        self.assertEqual(words.count("64"), 4)  # T, once below each column
        self.assertNotIn("out of memory", words)
        self.assertIn("out of memory", self.drawn(self.bench(decode, "bench.memory_limit_gib=1.5e-5")))  # 16 KiB: not the longest in fp32
        self.assertIn("out of memory", self.drawn(self.bench(decode, "bench.memory_limit_gib=1e-6")))  # nothing fits

    def test_generation_stands_beside_what_reading_the_weights_takes(self):
        generate = sweep("bench.generate", "[experiment.product]\nbench.length = [8, 16]\n", TINY.read_text() + "\n[bench]\nwarmup = 1\nrepeats = 3\n")
        words = self.drawn(self.bench(generate))
        for text in ("custom", "reading the weights at a copy's rate", "weights and cache", "Tokens per second", "fp32, 1 prompt", "16"):
            self.assertIn(text, words)
        self.assertTrue(any(re.fullmatch("Time of a token, (µs|ms)", word) for word in words), words)
        self.assertNotIn("out of memory", words)
        self.assertIn("out of memory", self.drawn(self.bench(generate, "bench.memory_limit_gib=1e-6")))

    def test_ways_to_share_a_step(self):
        ways = '[experiment.rows.flat]\nparallel.gradient_sync = "flat"\n[experiment.rows.sharded]\nproduct.parallel.shard = ["parameters", "optimizer"]\n'
        deck = sweep("bench.strategies", ways, TINY.read_text() + "\n[bench]\nwarmup = 0\nrepeats = 2\n")
        words = self.drawn(self.bench(deck, ranks=2))
        for text in ("flat", "parameters", "optimizer", "activations", "only waiting for communication"):
            self.assertIn(text, words)
        for text in ("after initialisation, ", "forward and backward, ", "update, "):
            self.assertEqual(sum(word.startswith(text) for word in words), 3, words)
        self.assertEqual(sum("exposed" in word for word in words), 3, words)
        words = self.drawn(self.bench(deck.replace("parallel.shard", "parallel.shard_ranks = [3]\nproduct.parallel.shard"), ranks=2))
        self.assertTrue(any("parallel.shard_ranks" in word for word in words), words)

    def test_plot_bench_says_what_it_cannot_read(self):
        plot = lambda *arguments, **more: self.plot(*arguments, script="plot_bench", **more)
        plot(self.folder / "nowhere.h5", code=FILES, says="nowhere.h5")
        other = self.folder / "other.h5"
        other.write_text("text")
        plot(other, code=FILES, says="other.h5")
        with h5py.File(other, "w") as file:
            file.create_group("steps")
        plot(other, code=FILES, says="scripts/plot_run draws a run.h5")
        with h5py.File(other, "w") as file:
            file.attrs["format"] = "tessera-bench"
            file["row"] = []
        plot(other, code=FILES, says="its table is empty")
        self.assertFalse((self.folder / "other.png").exists())
        plot(code=USAGE, says="FILE.h5")


if __name__ == "__main__":
    unittest.main(verbosity=2)  # so that a test that skips itself says so
