#!/usr/bin/env python3
"""run.h5 of a real run opens in h5py and xarray as it is, and scripts/plot_run draws it."""
import subprocess
import unittest

import h5py
import xarray

from harness import FILES, SOURCE, RunTest


class RunFile(RunTest):
    def plot(self, *arguments, code, says=""):
        answer = subprocess.run([SOURCE / "scripts/plot_run", *arguments], text=True, capture_output=True)
        self.assertEqual(answer.returncode, code, answer.stderr)
        self.assertIn(says, answer.stdout + answer.stderr)
        self.assertNotIn("Traceback", answer.stderr)

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


if __name__ == "__main__":
    unittest.main(verbosity=2)  # so that a test that skips itself says so
