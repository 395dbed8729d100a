#!/usr/bin/env python3
"""Every experiment of input/experiments, in its quick variant: it runs, prints its table and draws its picture."""
import os
import re
import subprocess
import sys
import unittest
from types import SimpleNamespace

from harness import LIMIT_S, PROGRAM, SOURCE, RunTest

sys.path.insert(0, str(SOURCE / "scripts"))
from experiments import hbm, ncu  # noqa: E402  (after the path to it)

SCRIPT = SOURCE / "scripts/experiment"
NAMES = sorted(path.stem for path in (SOURCE / "input/experiments").glob("*.toml"))


class Experiments(RunTest):
    def script(self, *arguments, code=0):
        environment = {**os.environ, "TESSERA_PROGRAM": str(PROGRAM)}
        result = subprocess.run([sys.executable, SCRIPT, *map(str, arguments)], cwd=self.folder, env=environment, capture_output=True,
                                text=True, errors="replace", timeout=5 * LIMIT_S)
        self.assertEqual(result.returncode, code, result.stdout[-3000:] + result.stderr[-3000:])
        return result

    def test_quick(self):
        for name in NAMES:
            with self.subTest(experiment=name):
                result = self.script(name, "--quick")
                output = self.folder / f"runs/experiments/{name}-quick"
                self.assertGreater(len(result.stdout.splitlines()), 1, "a heading and rows")
                self.assertNotIn("exit ", result.stdout)
                self.assertEqual((output / f"{name}.png").read_bytes()[:4], b"\x89PNG")
                self.assertGreater((output / f"{name}.png").stat().st_size, 10000)

    def test_formats_are_those_of_the_step(self):
        lines = [re.split(r"  +", line) for line in self.script("dtypes", "--quick").stdout.splitlines()]
        found = {line[0]: line[2:] for line in lines if len(line) == 6}
        self.assertEqual(found["tensor"], ["fp32", "bf16", "fp16", "autocast to 16 bits"])
        self.assertEqual(found["master weights"], ["-", "bf16 low halves", "fp32", "fp32, the parameters"])
        self.assertEqual(found["norm output"], ["fp32", "bf16", "fp16", "fp32"])
        self.assertEqual(found["logits"], ["fp32", "bf16", "fp16", "16-bit"])
        for tensor in ("loss", "norm statistics", "gradients of parameters", "AdamW's m", "AdamW's v"):
            self.assertEqual(found[tensor], ["fp32"] * 4, tensor)

    def test_predicted_memory_is_what_is_laid_out(self):
        lines = [re.split(r"  +", line) for line in self.script("memory_accounting", "--quick").stdout.splitlines()]
        self.assertEqual(lines[0][0], "T 2048, out of memory")
        terms = {line[0]: line[2:] for line in lines if line[0] in ("q", "lse", "probabilities", "d_scores")}
        self.assertEqual(len(terms), 4)
        for name, (standard, laid_out, flash2, laid_out_flash2) in terms.items():
            self.assertEqual((standard, flash2), (laid_out, laid_out_flash2), name)
        self.assertEqual(terms["probabilities"], ["16.0000", "16.0000", "0.0000", "0.0000"])

    def test_a_table_is_aligned_or_markdown_and_can_be_drawn_again(self):
        plain = self.script("step", "--quick").stdout.splitlines()
        again = self.script("step", "--quick", "--redraw").stdout.splitlines()
        self.assertEqual(plain, again)
        markdown = self.script("step", "--quick", "--redraw", "--markdown").stdout.splitlines()
        self.assertRegex(markdown[1], r"^\|( :?-+:? \|)+$")
        self.assertEqual(len(markdown), len(plain) + 1)

    def test_the_list_has_every_question(self):
        lines = self.script("--list").stdout.splitlines()
        self.assertEqual([line.split()[0] for line in lines], NAMES)
        for line in lines:
            self.assertRegex(line, r"\?$")

    def test_what_cannot_be_run_is_refused_by_name(self):
        self.assertIn("there is no experiment steps; one of:", self.script("steps", code=2).stderr)
        self.assertIn("this machine has", self.script("comm", "--quick", "--ranks", "4096", code=3).stderr)
        self.assertIn("nearest: model.d_model", self.script("step", "--quick", "model.d_modl=3", code=2).stderr)

    def test_every_experiment_has_a_section_and_a_module(self):
        page = (SOURCE / "input/experiments/README.md").read_text()
        for name in NAMES:
            self.assertIn(f"\n## {name}\n", page)
            self.assertTrue((SOURCE / f"scripts/experiments/{name}.py").exists())

    def test_bytes_that_ncu_counts_are_summed_by_kernel(self):
        table = """==PROF== Connected to process 7
"ID","Process ID","Kernel Name","Metric Name","Metric Unit","Metric Value"
"0","7","void launch<tessera::bench::FillRandom<float>>()","dram__bytes_read.sum","Mbyte","5"
"1","7","void launch<tessera::kernels::HeadProduct<Cuda, float>>()","dram__bytes_read.sum","Mbyte","1,000.5"
"1","7","void launch<tessera::kernels::HeadProduct<Cuda, float>>()","dram__bytes_write.sum","Kbyte","500"
"2","7","void launch<tessera::kernels::SoftmaxRows<Cuda, float>>()","dram__bytes_write.sum","byte","24"
"3","7","void launch<tessera::kernels::Flash2Forward<Cuda, float>>()","dram__bytes_read.sum","Gbyte","1.5"
"4","7","void launch<tessera::kernels::Flash2Ladder<Cuda, float, 3>>()","dram__bytes_read.sum","Mbyte","2"
"""
        self.assertEqual(ncu.bytes_of(table, hbm.GROUPS), {"standard": 1001000024.0, "flash2, portable": 1.5e9, "flash2, 3 steps": 2e6})
        with self.assertRaisesRegex(ValueError, "no table: .*ERR_NVGPUCTRPERM"):
            ncu.bytes_of("==ERROR== ERR_NVGPUCTRPERM", hbm.GROUPS)

    def test_versions_of_flash2_are_told_apart_by_their_engines(self):
        groups = [hbm.group_of("flash2", engine) for engine in ("portable", "3 steps", "mma", "wgmma", "wgmma+mma")]
        self.assertEqual(groups, ["flash2, portable", "flash2, 3 steps"] + 3 * ["flash2, tensor cores"])
        self.assertEqual(hbm.group_of("standard", "-"), "standard")

    def test_a_gpu_has_the_roof_of_its_own_name(self):
        roofs = {name: hbm.roof_of(SimpleNamespace(info={"devices": name})) for name in ("NVIDIA H100 PCIe", "NVIDIA H100 80GB HBM3", "")}
        self.assertEqual([(roof.name, is_here) for roof, is_here in roofs.values()], [("H100 PCIe", True), ("H100", True), ("H200", False)])
        h200 = roofs[""][0]
        self.assertEqual((round(h200.ridge(False)), round(h200.ridge(True))), (14, 206))


if __name__ == "__main__":
    unittest.main()
