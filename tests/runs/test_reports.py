#!/usr/bin/env python3
"""scripts/collect makes one table of runs, scripts/report one page of a run; xarray opens every file that the program writes."""
import csv
import os
import re
import shutil
import subprocess
import unittest

import h5py
import numpy as np
import xarray

from harness import FILES, SOURCE, TINY, USAGE, RunTest
from test_results import SMALL_BENCH

SHORT = ("train.steps=8", "train.validate_every=4")
EXPERIMENT = """
[experiment]
job = "bench.kernels"
[experiment.product]
bench.width = [16, 32]
"""


class Scripts(RunTest):
    def call(self, script, *arguments, code=0, says=()):
        answer = subprocess.run([SOURCE / "scripts" / script, *map(str, arguments)], text=True, capture_output=True, cwd=self.folder)
        self.assertEqual(answer.returncode, code, answer.stdout + answer.stderr)
        for words in [says] if isinstance(says, str) else says:
            self.assertIn(words, answer.stdout + answer.stderr)
        self.assertNotIn("Traceback", answer.stderr)
        return answer


class Collect(Scripts):
    def test_runs_become_rows_with_the_decks_keys_as_columns(self):
        slow = self.train("sweep/slow", *SHORT, "optimizer.learning_rate=1e-3")
        self.train("sweep/fast", *SHORT, "optimizer.kind='lion'", "trace.profile_steps=[]", ranks=2)
        self.call("collect", "sweep", "-o", "table", says=["2 runs", "table.csv"])
        with xarray.open_dataset(self.folder / "table.h5", engine="h5netcdf") as data:
            data.load()
            self.assertEqual([name.split("/")[-2] for name in data["path"].values], ["fast", "slow"])
            self.assertEqual(data["optimizer.learning_rate"].values.tolist(), [1e-2, 1e-3])
            self.assertEqual(data["optimizer.kind"].values.tolist(), ["lion", "adamw"])
            self.assertEqual(data["trace.profile_steps"].values.tolist(), ["[]", "[3]"])
            self.assertEqual(data["ranks"].values.tolist(), [2, 1])
            self.assertEqual(data["ended"].values.tolist(), ["finished"] * 2)
            self.assertEqual((data["loss"].dims, data["loss"].attrs["units"]), (("run",), "nat"))
            with h5py.File(slow / "run.h5", "r") as run:
                self.assertEqual(float(data["loss"][1]), run["steps/loss"][-1])
                self.assertEqual(float(data["step_time"][1]), np.median(run["steps/step_time"][5:]))
            with open(self.folder / "table.csv") as file:
                lines = list(csv.DictReader(file))
            self.assertEqual({*lines[0]}, {*data.data_vars})
            self.assertEqual([float(line["loss"]) for line in lines], data["loss"].values.tolist())
        with h5py.File(self.folder / "table.h5", "r") as table:
            for name, column in table.items():
                if name not in ("info", "run"):
                    self.assertEqual(column.dims[0][0].name, "/run", name)
        self.call("collect", slow, "sweep/fast/run.h5", "-o", "table.csv", "--varied", says="2 runs")
        with open(self.folder / "table.csv") as file:
            keys = {name for name in next(csv.reader(file)) if "." in name}
        self.assertEqual(keys, {"job.directory", "optimizer.kind", "optimizer.learning_rate", "trace.profile_steps"})

    def test_a_rewinds_copy_is_no_run(self):
        self.train("a", "train.steps=6", "checkpoint.every=2", "checkpoint.keep=9")
        self.train("a", "train.steps=6", "checkpoint.keep=9", "--resume", self.folder / "a/checkpoints/step_00000002")
        self.assertTrue((self.folder / "a/checkpoints/abandoned_01/run.h5").exists())
        self.call("collect", ".", "-o", "table", says="1 run")

    def test_of_a_run_that_diverged_the_loss_is_none(self):
        self.train("bad", *SHORT, "optimizer.learning_rate=100", "optimizer.min_learning_rate=100", "optimizer.clip_norm=0",
                   "optimizer.warmup_steps=0", "train.steps=60", "train.validate_every=0", code=5)
        self.call("collect", "bad", "-o", "table", says="1 run")
        with h5py.File(self.folder / "bad/run.h5", "r") as run, h5py.File(self.folder / "table.h5", "r") as table:
            self.assertTrue(np.isnan(run["steps/loss"][-1]) and np.isnan(table["loss"][0]))

    def test_a_table_is_replaced_whole_or_not_at_all(self):
        run = self.train("run", *SHORT, 'generate.prompt="a\\u0000b"')
        self.call("collect", run, "-o", "table")
        before = (self.folder / "table.h5").read_bytes()
        with h5py.File(self.folder / "table.h5", "r") as table:
            self.assertEqual(table["generate.prompt"].asstr()[0], "a\\0b")
        (self.folder / "table.csv.tmp").mkdir()
        self.call("collect", run, "-o", "table", code=FILES, says="table.csv")
        self.assertEqual((self.folder / "table.h5").read_bytes(), before)
        self.assertFalse((self.folder / "table.h5.tmp").exists())

    def test_names_that_are_no_utf8_are_shown(self):
        name = os.fsdecode(b"d\xe4x.toml")
        shutil.copy(TINY, self.folder / name)
        run = self.folder / "run"
        self.run_deck(self.folder / name, f"job.directory={run}", *SHORT)
        self.call("report", run)
        with h5py.File(run / "run.h5", "r") as file:
            self.assertIn("d\\xe4x.toml", file["info"].attrs["command"])

    def test_says_what_it_cannot_read_and_replaces_nothing_else(self):
        self.call("collect", code=USAGE)
        self.call("collect", "nowhere.h5", code=FILES, says="nowhere.h5")
        (self.folder / "empty").mkdir()
        self.call("collect", "empty", code=FILES, says="no run.h5")
        run = self.train("run", *SHORT) / "run.h5"
        other = self.folder / "other.h5"
        shutil.copy(run, other)
        self.call("collect", run, "-o", "other", code=FILES, says="other.h5 is there")
        self.assertEqual(other.read_bytes(), run.read_bytes())
        notes = self.folder / "notes.csv"
        notes.write_text("mine")
        self.call("collect", run, "-o", notes, code=FILES, says="notes.csv is there")
        self.assertEqual(notes.read_text(), "mine")
        with h5py.File(other, "r+") as file:
            file["info"].attrs["format"] = "of another program"
        self.call("collect", other, code=FILES, says="no training run wrote it")


class Report(Scripts):
    def test_one_page_says_it_all(self):
        more = ('generate.prompt="x  # y"', f"trace.profile_steps={[*range(100, 145)]}")
        directory = self.train("run", *SHORT, *more, ranks=2)
        self.train("run", "train.steps=9", "train.validate_every=4", *more, "--resume", "auto", ranks=2)
        self.call("report", directory, says="report.html")
        page = (directory / "report.html").read_text()
        for part in ("training", "ranks", "memory", "events", "attempts", "deck"):
            self.assertIn(f'<h2 id="{part}">', page)
        self.assertEqual(len(re.findall(r'<img alt="\w+" src="data:image/svg\+xml;base64,', page)), 7)
        self.assertEqual(re.findall(r'(?:src|href)="(?!data:)[^"]*"', page), [], "it loads nothing")
        self.assertEqual(page.count("<td>finished</td>"), 2)
        given = {key: (value, by) for key, value, by in re.findall("<tr><td>([a-z_]+[.][a-z_]+)</td><td>(.*?)</td><td>(.*?)</td></tr>", page)}
        self.assertEqual(given["generate.prompt"], ("&quot;x  # y&quot;", "command line"))
        self.assertEqual(given["trace.profile_steps"], (str([*range(100, 145)]), "command line"))
        self.assertEqual(given["train.steps"], ("9", "command line"))
        self.assertEqual(given["model.d_model"][1], "deck")
        self.assertEqual(page.count("<tr class=slowest>"), 1)
        self.assertIn("<td>train.steps</td><td>9</td><td>command line</td>", page)
        self.assertNotIn("<td>optimizer.beta1</td>", page, "a default")

    def test_chromium_shows_it(self):
        """Headless: the pictures are drawn, and no part of the page is wider than the window."""
        chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
        if not chromium:
            self.skipTest("no Chromium to look at the page with (Debian: apt-get install chromium)")
        directory, picture = self.train("run", *SHORT, ranks=2), self.folder / "page.png"
        self.call("report", directory)
        answer = subprocess.run([chromium, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--window-size=1240,2600",
                                 f"--user-data-dir={self.folder / 'profile'}", f"--screenshot={picture}", (directory / "report.html").as_uri()],
                                capture_output=True, text=True, timeout=120)
        self.assertTrue(picture.exists(), answer.stderr)
        import matplotlib.image
        pixels = (matplotlib.image.imread(picture)[:, :, :3] * 255).round().astype(int)
        self.assertEqual(pixels.shape, (2600, 1240, 3))
        shows = lambda colour: (pixels == [int(colour[i:i + 2], 16) for i in (1, 3, 5)]).all(axis=2).sum()
        for what, colour in (("losses", "#0072B2"), ("validation", "#D55E00"), ("the forward pass", "#56B4E9"), ("a slowest rank", "#fdebdf")):
            self.assertGreater(shows(colour), 100, f"{what} cannot be seen")
        self.assertTrue((pixels[:, -4:] == 255).all(), "something is wider than the window")

    def test_a_run_without_traces_of_ranks_is_shown_as_far_as_it_goes(self):
        directory = self.train("run", *SHORT, "trace.profile_steps=[]", "trace.memory=false")
        with h5py.File(directory / "run.h5", "r+") as file:  # as in older files
            for name in ("ranks", "attempts", "steps/by_rank", "steps/wall_time"):
                del file[name]
        self.call("report", directory, "-o", "page.html")
        self.assertEqual((self.folder / "page.html").read_text().count("a file of an older version"), 2)

    def test_says_what_it_cannot_read(self):
        self.call("report", code=USAGE)
        self.call("report", "nowhere", code=FILES, says="nowhere")
        (self.folder / "text.h5").write_text("text")
        self.call("report", "text.h5", code=FILES, says="text.h5")


class EveryFile(Scripts):
    def files(self):
        """A file of every kind that the program and collect write."""
        run = self.train("run", *SHORT, ranks=2)
        yield run / "run.h5"
        yield from sorted((run / "checkpoints/step_00000008").glob("*.h5"))
        bench = TINY.read_text().replace('"train"', '"bench.kernels"') + SMALL_BENCH
        self.run_deck(self.deck(bench), f"job.output={self.folder / 'bench.h5'}")
        yield self.folder / "bench.h5"
        self.run_deck(self.deck(bench.replace('"bench.kernels"', '"experiment"') + EXPERIMENT), f"job.directory={self.folder / 'sweep'}")
        yield self.folder / "sweep/experiment.h5"
        tensors = self.folder / "tensors.h5"
        with h5py.File(tensors, "w") as file:
            for name in ("q", "k", "v", "d_out"):
                file[name] = np.ones((1, 1, 3, 8), np.float32)
            file.attrs["causal"] = 1
        self.run_deck(self.deck('[job]\nkind = "verify.attention"\n'), f"job.input={tensors}", f"job.output={self.folder / 'attention.h5'}")
        yield self.folder / "attention.h5"
        self.call("collect", run)
        yield self.folder / "runs.h5"

    def test_opens_as_a_tree(self):
        """Every group, and the whole as one tree where this xarray has open_datatree (2024.10). In files of measurements, every
        axis has a name; tensors in checkpoints and results have none, for which xarray makes some up."""
        for path in self.files():
            with self.subTest(file=path.name):
                groups = ["/"]
                with h5py.File(path, "r") as file:
                    file.visititems(lambda name, item: groups.append("/" + name) if isinstance(item, h5py.Group) else None)
                    made_up = {"phony_dims": "sort"}
                    if path.name in ("run.h5", "bench.h5", "experiment.h5", "runs.h5"):
                        made_up, kind = {}, {"runs": "table"}.get(path.stem, path.stem)
                        self.assertEqual(file["info"].attrs["format"], f"tessera {kind}")
                        self.assertEqual(list(file.attrs), [], "attributes stand in /info")
                for group in groups:
                    with xarray.open_dataset(path, group=group, engine="h5netcdf", **made_up) as data:
                        data.load()
                if hasattr(xarray, "open_datatree"):
                    with xarray.open_datatree(path, engine="h5netcdf", **made_up) as tree:
                        tree.load()
                        self.assertEqual({*tree.groups}, {group for group in groups})


if __name__ == "__main__":
    unittest.main(verbosity=2)
