#!/usr/bin/env python3
"""Every experiment of input/experiments, in its quick variant: it runs, prints its table and draws its picture."""
import contextlib
import io
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
import unittest
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import h5py
import numpy as np

from harness import LIMIT_S, PROGRAM, SOURCE, RunTest, write_script

sys.path.insert(0, str(SOURCE / "scripts"))
from experiments import every, flash_grid, flash_ladder, hbm, launch, memory_2p7b, ncu, profile, scaling, sharding, step, table  # noqa: E402  (after the path to it)
from experiments.homes import all_of, homes, module_of  # noqa: E402
from compare import beside, steps  # noqa: E402
from compare.sides import Failed, Torch  # noqa: E402
import launching  # noqa: E402
import plotting  # noqa: E402
from launching import STOPPED, Refusal  # noqa: E402
from results import FINISHED, OUT_OF_MEMORY, STORED, Results, Row, overrides_of  # noqa: E402
import places  # noqa: E402
import published  # noqa: E402

SCRIPT = SOURCE / "scripts/experiment"
NAMES = sorted(path.parent.name for path in (SOURCE / "input/experiments").glob("*/deck.toml"))


class Experiments(RunTest):
    @classmethod
    def setUpClass(cls):
        cls.place, cls.ran = tempfile.TemporaryDirectory(), {}
        cls.addClassCleanup(cls.place.cleanup)

    def quick(self, name):
        """Standard output and folder of the quick variant, which all tests share; it is run once."""
        if name not in self.ran:
            self.ran[name] = self.script(name, "--quick", folder=self.place.name).stdout
        return self.ran[name], Path(self.place.name) / f"runs/experiments/{name}-quick"

    def script(self, *arguments, code=0, folder=None):
        environment = {**os.environ, "TESSERA_PROGRAM": str(PROGRAM)}
        result = subprocess.run([sys.executable, SCRIPT, *map(str, arguments)], cwd=folder or self.folder, env=environment, capture_output=True,
                                text=True, errors="replace", timeout=5 * LIMIT_S)
        self.assertEqual(result.returncode, code, result.stdout[-3000:] + result.stderr[-3000:])
        return result

    def test_quick(self):
        for name in NAMES:
            with self.subTest(experiment=name):
                printed, output = self.quick(name)
                self.assertGreater(len(printed.splitlines()), 1, "a heading and rows")
                self.assertNotIn("exit ", printed)
                self.assertEqual((output / f"{name}.png").read_bytes()[:4], b"\x89PNG")
                self.assertGreater((output / f"{name}.png").stat().st_size, 10000)
                self.assert_what_is_stored_has_the_same_tables(name, Results(output))

    def assert_what_is_stored_has_the_same_tables(self, name, results):
        folder = self.folder / "stored" / name
        folder.mkdir(parents=True)
        (folder / "torch.json").write_text('{"pytorch": "of the run before"}')
        self.assertEqual(results.lacks, [])
        published.store(results, name, folder)
        self.assertEqual((folder / "torch.json").exists(), (results.output / "torch.json").exists())
        stored, module = Results(folder), module_of(name)
        results.is_redraw = True
        text = lambda found: [table.text(columns, rows, True) for columns, rows in module.tables(found)]
        self.assertEqual(text(stored), text(results))
        stored.is_quick = True
        self.assertEqual(stored.heading(), results.heading())
        self.assertNotIn(self.place.name, (folder / "results.toml").read_text())
        launch.draw(module.draw, stored, folder / f"{name}.png")
        self.assertEqual((folder / f"{name}.png").read_bytes(), (results.output / f"{name}.png").read_bytes())

    def test_a_benchmark_with_a_page_runs_under_its_folders_name(self):
        small = ("bench.length=[64]", "bench.head_width=[64]", "bench.tokens=64", "bench.channels=64", "bench.repeats=2", "bench.rest_ms=0",
                 "bench.warmup_ms=0", "bench.dtype=fp32", 'experiment.only=["standard_true_64_64", "flash2_true_64_64"]')
        forward, line = [text for text in self.script("bench/attention_gpu", *small).stdout.splitlines() if text][:2]
        self.assertEqual(re.split("  +", forward.strip()), ["forward, TFLOP/s: D", "mask", "T", "scores stored", "portable flash2"])
        self.assertEqual(line.split()[:3], ["64", "causal", "64"])
        self.assertTrue((self.folder / "runs/experiments/bench/attention_gpu/attention_gpu.png").exists())

    def test_what_is_no_whole_run_is_not_published(self):
        for words, says in ((["--publish", self.folder / "none"], "holds no rows"), (["--publish"], "runs/experiments/accumulation holds no rows")):
            self.assertIn(says, self.script("accumulation", *words, code=6).stderr)
        quick = self.quick("accumulation")[1]
        self.assertIn("is a --quick run", self.script("accumulation", "--publish", quick, code=6).stderr)
        self.assertIn("is a --quick run", self.script("accumulation", "--output", quick, "--publish", code=6).stderr)
        for words in (("--output", quick, "--publish", quick), ("--publish", quick, "--quick"), ("--publish", quick, "bench.terms=1")):
            self.assertIn("--publish takes a run as it is", self.script("accumulation", *words, code=2).stderr)
        self.assertNotIn("quick = true", (homes()["accumulation"] / "results.toml").read_text())

    def test_launches_of_other_keys_are_told_apart(self):
        run = self.folder / "run"
        for ranks in ("1", "2"):
            said = self.script("scaling", "--quick", "--share-cores", "--ranks", ranks, "--output", run, f"bench.repeats={ranks}").stderr
        self.assertIn("rows differ in what made them: ranks_0001 by tessera ", said)
        self.assertIn("bench.repeats=1", said)
        self.assertEqual(len(Results(run).other_builds), 1)

    def test_rows_none_of_which_ran_are_told_with_their_code(self):
        said = self.script("sharding", "--quick", "--ranks", "1", code=2).stderr
        self.assertIn("ended with exit code 2: ", said)
        self.assertNotIn("Traceback", said)
        self.assertIn("out of memory", self.script("comm", "--quick", "--ranks", "2", "--share-cores", "bench.memory_limit_gib=0.00001").stdout)

    def test_a_stage_without_memory_is_a_row_of_the_course_s_set_up(self):
        chapter, results = module_of("ddp_course"), Results(homes()["ddp_course"])
        failed = next(row for row in results.rows if row.name == "stage_2.7b_none")
        for key in list(failed):
            failed[key] = failed[key] if key in ("parallel.shard", "model.size") else "" if isinstance(failed[key], str) else np.nan
        failed.exit_code = 4
        times, stages = list(chapter.tables(results))[:2]
        self.assertEqual([line[-1] for line in times[1]].count("out of memory"), 1)
        self.assertEqual(len(stages[1]), 8)
        self.assertEqual(len(chapter.draw(results).axes), 2)

    def test_some_rows_make_a_table_and_a_picture_too(self):
        """Also where they are compared with a row that was left out."""
        for name, rows in (("checkpointing", ("large_0", "large_4")), ("attention_sweep", ("course_fp32_16_128", "kernels_auto_bf16_16_128")),
                           ("compiled", ("attention_fp32_16_128_standard", "attention_fp32_16_128_auto")),
                           ("memory_accounting", ("standard_16_128", "flash2_16_128"))):
            for row in rows:
                with self.subTest(experiment=name, row=row):
                    result = self.script(name, "--quick", "--output", self.folder / name / row, f'experiment.only=["{row}"]')
                    self.assertGreater(len(result.stdout.splitlines()), 1, "a heading and a row")
                    self.assertNotIn("No artists", result.stderr)
                    self.assertTrue((self.folder / name / row / f"{name}.png").exists())
                    self.assertRegex(" ".join(Results(self.folder / name / row).lacks), r"^\d+ of \d+ rows in ranks_0001$", "is not published")

    def test_pytorchs_columns_stand_beside_ours_and_are_stored(self):
        output = shutil.copytree(self.quick("flash_grid")[1], self.folder / "grid")
        asked, chapter = [], SimpleNamespace(PEERS={"fp32": ("EAGER", "STORED", "EFFICIENT"), "bf16": ("EAGER",)})

        class Worker:
            def __init__(self, **_):
                pass

            def ask(self, **request):
                asked.append(request)
                if request["cases"][0]["T"] == 2048 and "EFFICIENT" in request["backends"]:
                    raise Failed("PyTorch's process ended with -9")
                return [{backend: {name: 1000.0 * number for number, name in enumerate(request["passes"], 1)} for backend in request["backends"]}]

            def stop(self):
                pass

        with mock.patch.object(beside, "Torch", Worker):
            for _ in range(2):
                self.assertEqual(beside.measure(Results(output), chapter, beside.Python("a python", "2.11", "a GPU")), [])
            again = [("fp32", 1, 1, 2048, D, True) for D in (16, 64)]  # whose process died
            self.assertEqual([tuple(case[key] for key in beside.SHAPE) for request in asked for case in request["cases"]],
                             [("fp32", 1, 1, T, D, True) for D in (16, 64) for T in (128, 512, 2048)] + again, "in our formats")
            self.assertEqual(asked[0]["timing"]["repeats"], 2, "of the deck")
            asked.clear()
            chapter.PEERS["fp32"] = (*chapter.PEERS["fp32"], "FLASH")
            beside.measure(Results(output), chapter, beside.Python("a python", "2.11", "a GPU"))
            self.assertEqual([request["backends"] for request in asked],
                             2 * [["FLASH"], ["FLASH"], ["EAGER", "STORED", "EFFICIENT", "FLASH"]], "only what was not measured")
            with self.assertRaisesRegex(Refusal, "delete it to measure again"):
                beside.measure(Results(output), chapter, beside.Python("a python", "2.12", "a GPU"))
        lines = [re.split("  +", line) for line in self.script("flash_grid", "--quick", "--output", output, "--redraw").stdout.splitlines() if line]
        first = dict(zip(lines[0], lines[1]))
        self.assertEqual([first[f"PyTorch, {name}: both, ms"] for name in ("stored scores", "compiled", "fused")], ["3000"] * 3)
        self.assertNotIn("PyTorch, memory-efficient: both, ms", first, "in bf16 alone")
        last = dict(zip(lines[0], lines[3]))
        self.assertEqual([last[f"PyTorch, {name}: both, ms"] for name in ("compiled", "fused")], ["-", "-"], "a process died: any might be the fastest")
        self.assert_what_is_stored_has_the_same_tables("flash_grid", Results(output))
        self.assertIn("nothing of comm has a peer", self.script("comm", "--quick", "--torch", code=2).stderr)
        with mock.patch.dict(os.environ, TESSERA_PYTHON="/usr/bin/false"):
            self.assertIn("has no PyTorch; name a Python", self.script("flash_grid", "--torch", code=3).stderr)

    def test_pytorchs_whole_steps_stand_beside_ours_size_by_size(self):
        output = shutil.copytree(self.quick("step")[1], self.folder / "step")
        asked = []

        class Worker:
            """Medium does not run; small loses its process in its second mode."""

            process = True

            def __init__(self, **_):
                pass

            def send(self, **request):
                asked.append(request)
                self.size = request["size"]

            def receive(self):
                if self.size == "medium":
                    raise Failed("CUDA out of memory")
                return {"faults": []}

            def ask(self, **request):
                if request.get("mode") == "default":
                    self.process = None
                    raise Failed("PyTorch's process ended with -9")
                return {"step": 1e6, "forward_backward": 2.0, "forward": 1.0, "peak_mib": 3.0}

            def stop(self):
                pass

        with mock.patch.object(beside, "Torch", Worker), contextlib.redirect_stderr(io.StringIO()) as told:
            for _ in range(2):
                beside.measure(Results(output), SimpleNamespace(MODES=tuple(beside.STEPS)), beside.Python("a python", "2.11", "a GPU"))
        self.assertEqual([(request["size"], request["dtype"], request["modes"]) for request in asked],
                         [(size, dtype, list(beside.STEPS)) for dtype in ("fp32", "bf16") for size in ("small", "medium")]
                         + [("small", dtype, ["default", "reduce-overhead"]) for dtype in ("fp32", "bf16")], "what failed, and may run another time")
        first = asked[0]
        self.assertEqual({key: first[key] for key in "VTBCFLH"}, {"V": 257, "T": 32, "B": 4, "C": 64, "F": 192, "L": 12, "H": 4})
        self.assertIn("medium in bf16: CUDA out of memory", told.getvalue())
        results = Results(output)
        (columns, rows), = beside.step_tables(results)
        small = {(row[1], row[2]): dict(zip(columns, row)) for row in rows if row[0] == "small"}
        self.assertEqual({key: row["outcome"] for key, row in small.items() if key[0] == "fp32"},
                         {("fp32", "eager"): "ok", ("fp32", "compiled"): "PyTorch's process ended with -9", ("fp32", "compiled, graphs"): "its process had ended"})
        ours = results.one(model__size="small", precision__compute="fp32")["step_ms"]
        self.assertEqual(small["fp32", "eager"]["PyTorch / ours"], 1e6 / ours)
        self.assertEqual({row[-1] for row in rows if row[0] == "medium"}, {"CUDA out of memory"})
        self.assert_what_is_stored_has_the_same_tables("step", results)
        course = [(size, steps.course_model(size, "fp32")) for size in steps.SIZES]
        self.assertEqual([list(batch) for batch in beside.batches(dict(course), 80e9)], [["small", "2.7b"], ["medium", "large", "xl"]])
        self.assertEqual([list(batch) for batch in beside.batches(dict(course), 1e9)], [[name] for name in reversed(steps.SIZES)], "none is left out")

    def test_a_signal_ends_pytorchs_processes_and_what_was_measured_stays(self):
        output = shutil.copytree(self.quick("flash_grid")[1], self.folder / "stopped")
        python, chapter = beside.Python("a python", "2.11", "a GPU"), SimpleNamespace(PEERS={"fp32": ("EAGER",)})
        processes = []
        answers = """read line; echo '{"answer": [{"EAGER": {"both": 1}}]}'; """

        def worker(script, **methods):
            torch = Torch()
            vars(torch).update(methods)
            torch.process = subprocess.Popen(["sh", "-c", script], text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            processes.append(torch.process)
            return torch

        stops = "read line; kill -TERM $PPID; exec sleep 600"
        with mock.patch.object(beside, "Torch", lambda **_: worker(answers + stops)), self.assertRaises(Refusal) as stopped:
            beside.measure(Results(output), chapter, python)
        self.assertEqual((stopped.exception.code, str(stopped.exception)), (STOPPED, "stopped by SIGTERM: the same command continues after what has been measured"))
        self.assertEqual([each["EAGER"] for each in beside.found(Results(output))["shapes"]], [{"both": 1}])
        ready = """read line; echo '{"answer": {"faults": []}}'; cat > /dev/null; kill -TERM $PPID; sleep 1"""  # a second signal
        works = worker("read line; exec sleep 600", receive=lambda: os.kill(os.getpid(), signal.SIGTERM))
        workers = iter((worker(ready), works))
        with self.assertRaises(Refusal), launching.stops_at_signals(""):
            steps.compiled_side_by_side({name: {"size": name, "dtype": "fp32"} for name in ("small", "large")}, make_worker=lambda: next(workers))
        self.assertEqual([each.returncode for each in processes], [-signal.SIGKILL, -signal.SIGKILL, 0])

    def test_what_pytorch_lacks_on_a_cpu_is_left_out_and_told(self):
        python = beside.Python("a python", "2.11", "CPU")
        self.assertEqual(beside.environment(False)["CUDA_VISIBLE_DEVICES"], "")
        with mock.patch.object(beside, "measure_attention") as attention, mock.patch.object(beside, "measure_steps") as whole:
            results = Results(self.quick("compiled")[1])
            self.assertEqual(beside.measure(results, module_of("compiled"), python), ["tf32", "EFFICIENT", "reduce-overhead"])
        self.assertEqual(attention.call_args.args[1], {"fp32": ["EAGER", "STORED", "FLASH"]})
        self.assertEqual(whole.call_args.args[1:3], (["fp32", "bf16"], ["eager", "default"]))

    def test_kernels_have_the_phase_in_which_they_ran(self):
        rows = Results(self.quick("profile")[1]).rows
        for row in rows:
            step = profile.Step(row)
            calls = {phase: {label: count for label, (count, _) in step.of(phase).items()} for phase in profile.PHASES}
            products = [label for label in calls["forward"] if label.startswith("gemm::")]
            self.assertEqual(sum(calls["forward"][label] for label in products), 4 * 2, "four of each block; the head's is of backward")
            self.assertEqual([label for label in calls["optimizer"] if label.startswith("adamw")], [label for label in step.of() if label.startswith("adamw")])
            self.assertEqual(sum(count for phase in calls.values() for count in phase.values()) + sum(phase == "" for phase in step.phases), len(step.labels))
            self.assertEqual("attention::standard::softmax" in calls["forward"], row[profile.KERNEL] == "standard")
            self.assertAlmostEqual(sum(profile.percent(step.of(), kind) for kind in profile.KINDS), 100)

    def test_a_blocks_backward_frees_what_its_forward_kept(self):
        for row in memory_2p7b.steps_of(Results(self.quick("memory_2p7b")[1]).rows):
            line, (C, F) = memory_2p7b.Timeline(row), (64, 256)
            self.assertEqual(sum(nbytes for _, nbytes in line.kept_by(1)), line.falls_in_backward(1))
            self.assertEqual(line.gradients_of(1), 4 * (4 * C * C + 3 * C * F + 2 * C))
            largest = next(label for label, _ in line.forward_activations() if label.startswith("block"))
            self.assertEqual(largest.split(".")[-1], "gate_up")

    def test_a_step_of_sharded_weights_is_told_by_block(self):
        row, = sharding.rows_of_blocks(Results(self.quick("sharding")[1]).rows)
        blocks = sharding.Blocks(row)
        self.assertEqual(blocks.units, ["embedding", *(f"block.{i:02d}" for i in range(8)), "head"])
        self.assertEqual({name for name, *_ in blocks.passes}, {"forward", "backward"})
        self.assertEqual({name for name, *_ in blocks.transfers}, set(sharding.TRANSFERS))
        blocks.passes = [("forward", unit, start, start + 2) for start, unit in zip((0, 3, 6), ("embedding", "block.00", "head"))] + [("backward", "head", 8, 9)]
        self.assertEqual((blocks.between("forward"), blocks.between("backward"), blocks.took("recompute")), (2, 0, "-"))

    def test_memory_by_category_is_what_sharding_promises(self):
        columns, rows = sharding.by_category(Results(self.quick("sharding")[1]).rows)
        self.assertEqual(len(rows), 4)
        for row in rows:
            weights, gradients, optimizer = (dict(zip(("found", "expected"), row[i:i + 2])) for i in (3, 5, 7))
            for part in (gradients, optimizer):
                self.assertLess(abs(part["found"] / part["expected"] - 1), 0.01, row)
            self.assertGreater(weights["found"] / weights["expected"], 0.999 if row[2] == "ZeRO-3" else 0.99, "gathered blocks come on top")

    def test_a_signal_to_all_reaches_the_one_that_runs(self):
        script = self.folder / "slow.py"
        script.write_text("""import os, pathlib, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit("experiment: stopped by SIGTERM: the same command continues"))
here, first, lanes = pathlib.Path(__file__).parent, os.environ["FIRST"], int(os.environ["LANES"])
(here / f"{sys.argv[1]}.handles").touch()
if sys.argv[1] == first:
    while len(list(here.glob("*.handles"))) < lanes:
        time.sleep(0.01)
    os.kill(os.getppid(), signal.SIGTERM)
time.sleep(600)
""")
        for gpus, names in (((), ["comm", "step"]), (["0", "1"], ["hbm", "notebook", "step", "comm"])):
            lanes = max(1, len(gpus))
            for left in self.folder.glob("*.handles"):
                left.unlink()
            with contextlib.redirect_stdout(io.StringIO()) as printed, contextlib.redirect_stderr(io.StringIO()), \
                    mock.patch.dict(os.environ, FIRST=names[0], LANES=str(lanes)):
                self.assertEqual(every.run_all(script, names, [], self.folder, False, gpus=gpus), STOPPED)
            for name in names[:lanes]:
                self.assertRegex(printed.getvalue(), f"{name} +exit 75: stopped by SIGTERM: the same command continues")
            self.assertRegex(printed.getvalue(), f"{names[-1]} +not begun")

    def test_all_runs_benchmarks_on_gpus_alone(self):
        self.assertEqual(set(all_of(True)), set(homes()))
        self.assertEqual(set(all_of(True)) - set(all_of(False)), {name for name in homes() if name.startswith("bench/")})
        self.assertIn("bench/step_gpu", all_of(True))

    def test_all_goes_on_after_one_that_a_fault_ended(self):
        script = self.folder / "script.py"
        script.write_text("")

        def lacks(folder, _):
            if folder.name == "hbm":
                raise OSError("no such file")
            return []

        for gpus in ((), ["0", "1"]):
            with contextlib.redirect_stdout(io.StringIO()) as printed, mock.patch.object(every, "lacks", lacks):
                self.assertEqual(every.run_all(script, ["hbm", "step", "comm"], [], self.folder, True, gpus=gpus), every.FAULT)
            self.assertRegex(printed.getvalue(), "hbm +OSError: no such file +[0-9]+\nstep +published +[0-9]+\ncomm +published")

    def test_all_does_not_wait_for_what_an_ended_one_left_running(self):
        script = self.folder / "script.py"
        script.write_text("import os, subprocess\nsubprocess.Popen(['sleep', '60'])\nprint('a table', flush=True)\nos.kill(os.getpid(), 9)\n")
        begin = time.monotonic()
        with contextlib.redirect_stdout(io.StringIO()) as printed, mock.patch.object(every, "SOON_S", 0.2):
            self.assertEqual(every.run_all(script, ["hbm"], [], self.folder, False), 128 + signal.SIGKILL)
        self.assertLess(time.monotonic() - begin, 30)
        self.assertRegex(printed.getvalue(), "^a table\n(.|\n)*hbm +exit 137: ended by SIGKILL")

    def test_all_on_several_gpus_gives_each_experiment_of_one_rank_its_own(self):
        script = self.folder / "script.py"
        script.write_text("""import os, sys, time
name, gpu = sys.argv[1], os.environ.get("CUDA_VISIBLE_DEVICES", "all")
begin = time.monotonic()
time.sleep(0.5)
print(name, gpu, begin, time.monotonic())
sys.exit(7 if name == "step" else 0)
""")
        names = ["accumulation", "ddp", "dtypes", "hbm", "step"]
        with contextlib.redirect_stdout(io.StringIO()) as printed, contextlib.redirect_stderr(io.StringIO()), mock.patch.dict(os.environ):
            os.environ.pop("CUDA_VISIBLE_DEVICES", None)
            self.assertEqual(every.run_all(script, names, [], self.folder, False, gpus=["2", "5"]), 7)
        ran = {line[0]: (line[1], float(line[2]), float(line[3])) for line in map(str.split, printed.getvalue().splitlines()) if len(line) == 4 and line[1] in ("2", "5", "all")}
        self.assertEqual(set(ran), set(names), printed.getvalue())
        self.assertEqual({gpu for gpu, *_ in (ran[name] for name in names if name != "ddp")}, {"2", "5"})
        self.assertEqual(ran["ddp"][0], "all", "it has several ranks")
        self.assertGreaterEqual(ran["ddp"][1], max(end for name, (_, _, end) in ran.items() if name != "ddp"), "and runs alone")
        for gpu in "25":
            spans = sorted(span for name, (own, *span) in ran.items() if own == gpu)
            self.assertTrue(all(before[1] <= after[0] for before, after in zip(spans, spans[1:])), spans)

    def test_all_gives_pytorch_the_whole_host(self):
        """After ours, which have shared it, and on their GPU; and what is to run alone runs alone."""
        script = self.folder / "script.py"
        script.write_text("import os, sys\nprint(os.environ.get('CUDA_VISIBLE_DEVICES', 'all'), sys.argv[1], '--torch' in sys.argv, '--publish' in sys.argv)\n")
        with contextlib.redirect_stdout(io.StringIO()) as printed, mock.patch.object(every, "lacks", lambda *_: []), mock.patch.dict(os.environ), \
                mock.patch.object(beside, "python_with_torch"):
            os.environ.pop("CUDA_VISIBLE_DEVICES", None)
            self.assertEqual(every.run_all(script, ["background", "hbm", "attention_sweep"], [], self.folder, True, True, gpus=["2", "5"]), FINISHED)
        ran = [line.split() for line in printed.getvalue().splitlines() if line.endswith(("True", "False"))]
        calls = lambda name: [(gpu if gpu == "all" else "one", torch, publishes) for gpu, each, torch, publishes in ran if each == name]
        self.assertEqual(calls("hbm"), [("one", "False", "False"), ("one", "False", "True")])
        self.assertEqual(calls("attention_sweep"), [("one", "False", "False"), ("one", "True", "False"), ("one", "False", "True")])
        self.assertEqual(len({gpu for gpu, each, *_ in ran if each == "attention_sweep"}), 1, "on the GPU of ours")
        self.assertEqual(calls("background"), [("all", "False", "False"), ("all", "False", "True")])
        self.assertRegex(printed.getvalue(), "background +published .*\nhbm +published .*\nattention_sweep +published ")

    def test_all_publishes_with_the_words_of_the_run(self):
        script = self.folder / "script.py"
        script.write_text("import sys\nprint(*sys.argv[1:])\n")
        with contextlib.redirect_stdout(io.StringIO()) as printed, mock.patch.object(every, "lacks", lambda *_: []):
            self.assertEqual(every.run_all(script, ["hbm"], ["--preset", "cuda"], self.folder, True), FINISHED)
        self.assertEqual(printed.getvalue().splitlines()[:2], [f"hbm --output {self.folder}/hbm --preset cuda", f"hbm --publish {self.folder}/hbm --preset cuda"])
        self.assertRegex(printed.getvalue(), "hbm +published")

    def test_all_says_what_ran_what_was_left_out_and_why(self):
        script = self.folder / "script.py"
        script.write_text("""import os, sys
name = sys.argv[1]
if name == "ddp":
    os.kill(os.getpid(), 15)
print("experiment: " + {"comm": "there is no room for 8 ranks", "dtypes": "a row failed"}.get(name, "wrote it"), file=sys.stderr)
sys.exit({"comm": 3, "dtypes": 7, "hbm": 75}.get(name, 0))
""")
        for names, code in ((["accumulation", "comm", "dtypes", "hbm", "step"], 7), (["accumulation", "comm"], 0), (["hbm", "step"], 75), (["ddp", "comm"], 143)):
            with contextlib.redirect_stdout(io.StringIO()) as printed, contextlib.redirect_stderr(io.StringIO()):
                self.assertEqual(every.run_all(script, names, [], self.folder, False), code)
            lines = {line[0]: line[1:] for line in (re.split("  +", text) for text in printed.getvalue().splitlines()) if len(line) > 1}
            expected = {"accumulation": "ran", "comm": "left out: there is no room for 8 ranks", "dtypes": "exit 7: a row failed", "hbm": "exit 75: ",
                        "ddp": "exit 143: ended by SIGTERM",
                        "step": "not begun"}
            for name in names:
                self.assertEqual(lines[name][0].strip(), expected[name].strip(), printed.getvalue())
            self.assertRegex(lines["all"][-1], r"^\d+$")
        self.assertEqual(every.lacks(homes()["comm"], homes()["comm"]), [])
        self.assertEqual(every.lacks(homes()["comm"], homes()["step"]), [2, 4])
        self.assertIn("--all goes with", self.script("comm", "--all", code=2).stderr)
        self.assertIn("are not published", self.script("--all", "--quick", "--publish", code=2).stderr)

    def test_a_damaged_file_is_named(self):
        output = self.folder / "damaged"
        self.script("checkpointing", "--quick", "--output", output, 'experiment.only=["large_0"]')
        file = output / "ranks_0001/experiment.h5"
        file.write_bytes(file.read_bytes()[:4000])
        self.assertIn(f"{file}: ", self.script("checkpointing", "--quick", "--output", output, "--redraw", code=6).stderr)

    def test_formats_are_those_of_the_step(self):
        lines = [re.split(r"  +", line) for line in self.quick("dtypes")[0].splitlines()]
        found = {line[0]: line[2:] for line in lines if len(line) == 6}
        self.assertEqual(found["tensor"], ["fp32", "bf16", "fp16", "autocast to 16 bits"])
        self.assertEqual(found["master weights"], ["-", "bf16 low halves", "fp32", "fp32, the parameters"])
        self.assertEqual(found["norm output"], ["fp32", "bf16", "fp16", "fp32"])
        self.assertEqual(found["logits"], ["fp32", "bf16", "fp16", "16-bit"])
        for tensor in ("loss", "norm statistics", "gradients of parameters", "AdamW's m", "AdamW's v"):
            self.assertEqual(found[tensor], ["fp32"] * 4, tensor)

    def test_predicted_memory_is_what_is_laid_out(self):
        lines = [re.split(r"  +", line) for line in self.quick("memory_accounting")[0].splitlines()]
        self.assertEqual(lines[0][0], "T 2048, out of memory")
        terms = {line[0]: line[2:] for line in lines if line[0] in ("q", "lse", "probabilities", "d_scores")}
        self.assertEqual(len(terms), 4)
        for name, (standard, laid_out, flash2, laid_out_flash2) in terms.items():
            self.assertEqual((standard, flash2), (laid_out, laid_out_flash2), name)
        self.assertEqual(terms["probabilities"], ["16.0000", "16.0000", "0.0000", "0.0000"])

    def test_each_chosen_row_of_fresh_processes_has_its_own(self):
        result = self.script("warmup", "--quick", 'experiment.only=["false_2", "false_5"]')
        self.assertEqual([result.stderr.count(f": false_{row}\n") for row in (0, 1, 2, 5)], [0, 0, 1, 1])
        self.assertNotIn(" has run", result.stderr)

    def test_a_table_is_aligned_or_markdown_and_can_be_drawn_again(self):
        printed, output = self.quick("step")
        plain, copy = printed.splitlines(), shutil.copytree(output, self.folder / "step")
        redraw = ("step", "--quick", "--output", copy, "--redraw")
        self.assertEqual(self.script(*redraw).stdout.splitlines(), plain)
        markdown = self.script(*redraw, "--markdown").stdout.splitlines()
        self.assertRegex(markdown[1], r"^\|( :?-+:? \|)+$")
        self.assertEqual(len(markdown), len(plain) + 1)
        with h5py.File(copy / "ranks_0001/experiment.h5", "a") as file:
            del file["info"].attrs["gpu_models"]
        self.assertIn("an older version", self.script(*redraw, code=6).stderr)

    def test_the_list_has_every_question(self):
        lines = self.script("--list").stdout.splitlines()
        self.assertEqual([line.split()[0] for line in lines], list(homes()))
        for line in lines:
            self.assertRegex(line, r"\?$")

    def test_what_cannot_be_run_is_refused_by_name(self):
        self.assertIn("there is no experiment steps; one of:", self.script("steps", code=2).stderr)
        self.assertIn("this machine has", self.script("comm", "--quick", "--ranks", "4096", code=3).stderr)
        self.assertIn("there is no room for 4096 ranks", self.script("comm", "--quick", "--ranks", "1,4096", code=3).stderr)
        self.assertFalse((self.folder / "runs").exists())
        for ranks in ("0", "1,", "two"):
            self.assertIn("whole numbers from 1", self.script("comm", "--quick", "--ranks", ranks, code=2).stderr)
        self.assertIn("nearest: model.d_model", self.script("step", "--quick", "model.d_modl=3", code=2).stderr)

    def test_every_experiment_has_a_page_a_module_and_a_line_of_the_index(self):
        index = (SOURCE / "input/experiments/README.md").read_text()
        for name in NAMES:
            self.assertIn(f"[{name}]({name}/README.md)", index)
            page = (SOURCE / "input/experiments" / name / "README.md").read_text()
            self.assertTrue(page.startswith(f"# {name}\n\n**"), name)
            self.assertIn("?**", page.splitlines()[2])
            self.assertIn("**Answer.**", page)
            self.assertLessEqual(len(page.split("**Answer.**")[1].split("\n\n")[0].split()), 150, name)
            self.assertTrue((SOURCE / f"scripts/experiments/{name}.py").exists())

    def test_bytes_that_ncu_counts_are_summed_by_kernel(self):
        table = """==PROF== Connected to process 7
"ID","Process ID","Kernel Name","Metric Name","Metric Unit","Metric Value"
"0","7","void launch<tessera::bench::FillRandom<float>>()","dram__bytes_read.sum","Mbyte","5"
"1","7","void launch<tessera::kernels::HeadProduct<Cuda, float>>()","dram__bytes_read.sum","Mbyte","1,000.5"
"1","7","void launch<tessera::kernels::HeadProduct<Cuda, float>>()","dram__bytes_write.sum","Kbyte","500"
"2","7","void launch<tessera::kernels::SoftmaxRows<Cuda, float>>()","dram__bytes_write.sum","byte","24"
"3","7","void launch<tessera::kernels::RegisterForwardTeam<Cuda, float>>()","dram__bytes_read.sum","Gbyte","1.5"
"4","7","nvjet_sss_128x256_TNN","dram__bytes_read.sum","Mbyte","2"
"5","7","void launch<detail::TileKernel<tessera::bfloat16, 64, 3>>()","dram__bytes_read.sum","Kbyte","3"
"6","7","void launch<ampere::ForwardTeam<tessera::bfloat16, 64>>()","dram__bytes_write.sum","Kbyte","4"
"""
        self.assertEqual(ncu.bytes_of(table, hbm.GROUPS), {"standard": 1003000024.0, "flash2, portable": 1.5e9, "flash2, tensor cores": 7e3})
        with self.assertRaisesRegex(ValueError, "no table: .*ERR_NVGPUCTRPERM"):
            ncu.bytes_of("==ERROR== ERR_NVGPUCTRPERM", hbm.GROUPS)

    def test_versions_of_flash2_are_told_apart_by_their_engines(self):
        groups = [hbm.group_of("flash2", engine) for engine in ("portable", "mma", "wgmma", "wgmma+mma")]
        self.assertEqual(groups, ["flash2, portable"] + 3 * ["flash2, tensor cores"])
        self.assertEqual(hbm.group_of("standard", "-"), "standard")

    def test_pictures_have_the_programs_peaks(self):
        known = {gpu["name"]: gpu["bf16_tflops"] for gpu in launch.Program("cpu").figures["gpus"]}
        self.assertEqual(plotting.PEAKS, known)
        self.assertEqual([plotting.peak_of([f"NVIDIA {name}"]) for name in known], list(known.values()))
        self.assertTrue(np.isnan(plotting.peak_of(["NVIDIA GH200 480GB"])))

    def test_sharding_expects_16_bytes_of_a_parameter_and_18_in_fp16(self):
        def total(compute):
            row = Row({"parameters": 1, sharding.KEY: "none", "compute": compute})
            row.ranks = 2
            return sum(sharding.expected(row))

        sums = {compute: total(compute) for compute in ("fp32", "tf32", "bf16", "fp16")}
        self.assertEqual(sums, {"fp32": 16, "tf32": 16, "bf16": 16, "fp16": 18})

    def test_a_gpu_has_the_roof_of_its_own_name(self):
        models = {name: {name: 1} if name else {} for name in ("NVIDIA H100 PCIe", "NVIDIA H100 80GB HBM3", "NVIDIA GH200 480GB",
                                                              "NVIDIA H200 MIG 1g.18gb", "NVIDIA A100-SXM4-40GB", "")}
        roofs = {name: hbm.roof_of(SimpleNamespace(preset="cpu", facts={}, gpus=lambda: gpus)) for name, gpus in models.items()}
        self.assertEqual([(roof.name, is_here) for roof, is_here in roofs.values()], [("H100 PCIe", True), ("H100", True)] + 4 * [("H200", False)])
        h200 = roofs[""][0]
        self.assertEqual([round(h200.ridge(unit)) for unit in ("fp32", "three TF32 products", "bf16, tensor cores")], [14, 34, 206])


class Room(RunTest):
    """How many ranks there is room for on GPUs, from an nvidia-smi that lists what the test wants."""

    GPUS = [f"GPU {i}: NVIDIA H200 (UUID: GPU-{i}{i}{i}{i}-ab)" for i in range(4)]
    MIG = ["GPU 0: NVIDIA H200 (UUID: GPU-0000-ab)", "  MIG 1g.18gb     Device  0: (UUID: MIG-0000-ab)", "  MIG 1g.18gb     Device  1: (UUID: MIG-1111-ab)"]

    def room(self, listed, visible=None, settings=None):
        fake = self.folder / "nvidia-smi"
        write_script(fake, "\n".join(["cat <<'END'", *listed, "END"]))
        environment = {"PATH": f"{self.folder}:/usr/bin:/bin", **({} if visible is None else {"CUDA_VISIBLE_DEVICES": visible})}
        with mock.patch.dict(os.environ, environment), mock.patch.object(places, "gpus_of_driver", return_value=None):
            if visible is None:
                os.environ.pop("CUDA_VISIBLE_DEVICES", None)
            return launch.room_of(SimpleNamespace(uses_gpus=True), settings or {})

    def test_gpus_are_those_that_cuda_shows_to_a_rank(self):
        for listed, visible, count in ((self.GPUS, None, 4), ([], None, 0), (self.GPUS, "0,2", 2), (self.GPUS, "", 0), (self.GPUS, "0,1,4,2", 2),
                                       (self.GPUS, "0,-1,1", 1), (self.GPUS, "-1", 0), (self.GPUS, "GPU-2222, GPU-3333-ab", 2),
                                       (self.GPUS, "GPU-9999", 0), (self.MIG, None, 1), (self.MIG, "MIG-1111-ab", 1), (self.MIG, "MIG-2222", 0),
                                       (self.MIG, "MIG-0000-ab,MIG-1111-ab", 1)):
            room = self.room(listed, visible)
            self.assertEqual((room.count, room.what), (count, "GPUs"), (listed, visible))

    def test_the_driver_is_asked_first(self):
        with mock.patch.object(places, "gpus_of_driver", return_value=3), mock.patch.dict(os.environ, {"CUDA_VISIBLE_DEVICES": "0"}):
            self.assertEqual(launch.room_of(SimpleNamespace(uses_gpus=True), {}).count, 3)

    def test_shared_devices_have_room_for_any_number(self):
        settings = {"parallel": {"allow_shared_device": True}}
        self.assertGreater(self.room(self.GPUS[:1], settings=settings).count, 4096)
        self.assertEqual(self.room([], settings=settings).count, 0)
        cores = SimpleNamespace(uses_gpus=False)
        self.assertLess(launch.room_of(cores, settings).count, 4096)
        self.assertGreater(launch.room_of(cores, {}, shares_cores=True).count, 4096)

    def test_numbers_of_the_deck_are_left_out_and_those_asked_for_are_refused(self):
        self.assertEqual(launch.numbers_of_ranks(None, [1, 2, 4, 8], self.room(self.GPUS)), [1, 2, 4])
        self.assertEqual(launch.numbers_of_ranks("4,2", [8], self.room(self.GPUS)), [4, 2])
        for asked, of_deck, absent in (("2,8", [1], "8 ranks"), (None, [8, 16], "8 or 16 ranks")):
            with self.assertRaisesRegex(Refusal, f"no room for {absent}: this machine has 4 GPUs") as caught:
                launch.numbers_of_ranks(asked, of_deck, self.room(self.GPUS))
            self.assertEqual(caught.exception.code, 3)

    def test_a_slurm_job_has_its_tasks_and_fills_a_node_before_the_next(self):
        for written, tasks in (("4", [4]), ("2(x3)", [2, 2, 2]), ("3(x2),1", [3, 3, 1]), ("1,2(x2),5", [1, 2, 2, 5])):
            self.assertEqual(places.tasks_of_job({"SLURM_JOB_ID": "7", "SLURM_TASKS_PER_NODE": written}), tasks)
        self.assertEqual(places.tasks_of_job({"SLURM_TASKS_PER_NODE": "4"}), [])
        job = {"SLURM_JOB_ID": "7", "SLURM_TASKS_PER_NODE": "3(x2),1"}
        with mock.patch.dict(os.environ, job), mock.patch.object(places.shutil, "which", return_value="/usr/bin/srun"):
            for uses_gpus in (False, True):
                room = places.places(uses_gpus)
                self.assertEqual((room.count, str(room)), (7, "Slurm's job 7 has 7 tasks"))
            self.assertEqual([room.nodes(ranks) for ranks in (1, 3, 4, 6, 7)], [1, 1, 2, 2, 3])
            words, environment = room.launcher(4)
            self.assertEqual((words, environment["SLURM_NNODES"], environment["SLURM_JOB_ID"]), (["--launcher", "srun"], "2", "7"))
        with mock.patch.dict(os.environ, job), mock.patch.object(places.shutil, "which", return_value=None):
            room = places.places(False)  # nothing to start a step with
            self.assertEqual((room.what, room.launcher(1)), ("cores", ([], None)))


class Tables(unittest.TestCase):
    def test_numbers_have_three_digits_or_are_whole(self):
        for value, text in ((3.0, "3"), (2.5, "2.50"), (0.0999, "0.0999"), (9.996, "10.0"), (999.7, "1000"), (1999.7, "2000"), (51634.2, "51634"),
                            (1.234e-6, "1.23e-06"), (0, "0"), (float("nan"), "-"), (float("inf"), "-"), (None, "-")):
            self.assertEqual(table.number(value), text)

    def test_a_mean_and_its_deviation_end_at_the_same_place(self):
        for values, text in (((3.0, 0.043), "3.00 ± 0.04"), ((12.9357, 0.0071), "12.936 ± 0.007"), ((617.3, 6.2), "617 ± 6"),
                             ((0.0881, 0.00099), "0.0881 ± 0.0010"), ((121, 271.3), "121 ± 271"), ((5.0, 0.0), "5.00 ± 0.00"),
                             ((float("nan"), 1.0), "-"), ((2.5, float("nan")), "2.50")):
            self.assertEqual(table.spread(*values), text)

    def test_markdown_has_rules_that_are_read_as_rules(self):
        lines = table.text(["B", "kernel", "ms", "parts"], [[1, "standard", "3.00 ± 0.04", "-"], [8, "flash2", "-", "1, chosen"]], True).splitlines()
        self.assertEqual(lines[1].replace(" ", ""), "|--:|--------|----------:|---------|")
        self.assertEqual(len({len(line) for line in lines}), 1)


def results_of(rows):
    """Results without files, of (ranks, {name: value}); rows without values are out of memory."""
    results = Results.__new__(Results)
    results.rows, results.info, results.is_quick = [], {}, False
    for ranks, values in rows:
        row = Row(values)
        row.ranks, row.exit_code = ranks, FINISHED if "outcome" in values else OUT_OF_MEMORY
        results.rows.append(row)
    results.ranks = sorted({row.ranks for row in results.rows})
    return results


class Published(unittest.TestCase):
    def test_keys_of_a_command_may_have_spaces(self):
        command = 'x/tessera deck.toml job.directory=a/b bench.length=[1, 2] model.size=["small", "xl"] job.progress=none bench.rest_ms=0 --resume auto'
        self.assertEqual(overrides_of({"command": command}), ["bench.length=[1, 2]", 'model.size=["small", "xl"]', "bench.rest_ms=0"])

    def test_text_is_read_back_to_the_last_bit(self):
        for value in (1 / 3, -1e-300, 1e22, float("inf"), 7, True, 'a "b"\n\\c\x01', [0.1, [2.5]], {"a b": 1.0, "c": "x"}):
            self.assertEqual(tomllib.loads(f"x = {published.text_of(value)}")["x"], value)

    def test_rounds_and_their_medians_come_back(self):
        with tempfile.TemporaryDirectory() as place:
            results = results_of([(1, {"ms": 2.0, "kernel": "a", "of": np.array([1.0, float("nan")]), "outcome": "ok"}), (2, {"ms": float("nan")})])
            results.info, results.device, results.repeats, results.output = {"ranks": 1, "command": ""}, "", "10 repeats", Path(place)
            for row, values, name in zip(results.rows, ([1.0, 2.0, 4.0], [float("nan")] * 3), "ab"):
                row.rounds, row.name = {"ms": np.array(values)}, name
            published.store(results, "comm", Path(place))
            first, second = Results(Path(place)).rows
        self.assertEqual((first["ms"], list(first.rounds["ms"]), first.spread("ms"), first.outcome, first.ranks), (2.0, [1.0, 2.0, 4.0], 1.5, "ok", 1))
        self.assertEqual((second.outcome, np.isnan(second["ms"]), second.ranks), ("out of memory", True, 2))

    def test_a_page_without_marks_gets_them_above_its_answer_or_is_refused(self):
        with tempfile.TemporaryDirectory() as place:
            (Path(place) / "README.md").write_text("# step\n")
            shutil.copy(homes()["step"] / STORED, place)
            with self.assertRaisesRegex(Refusal, "mark the place"):
                published.rewrite("step", Path(place))
            (Path(place) / "README.md").write_text("# step\n\n**Why?**\n\n**Answer.** So.\n")
            published.rewrite("step", Path(place))
            page = (Path(place) / "README.md").read_text()
        self.assertRegex(page, r"(?s)^# step\n\n\*\*Why\?\*\*\n\n<!-- generated: step -->\nMeasured .*\n<!-- end -->\n\n!\[.*\]\(.*\.png\)\n\n\*\*Answer\.\*\* So\.\n$")


class Pictures(unittest.TestCase):
    def test_the_parts_of_a_step_add_up_and_stay_inside_of_their_panel(self):
        times = lambda ms: {f"{part}_{what}_ms": scale * share * ms for part, share in zip(step.PARTS, (0.3, 0.8, 1))
                            for what, scale in (("mean", 1), ("std", 0.01))}
        rows = [(1, {"model.size": size, "precision.compute": compute, "parameters": 1e8, **times(ms), **({"outcome": "ok"} if ms == ms else {})})
                for size, compute, ms in (("small", "fp32", 40.0), ("small", "bf16", 2.0), ("2.7b", "fp32", float("nan")), ("2.7b", "bf16", 900.0))]
        time, share = step.draw(results_of(rows)).axes
        low, high = time.get_ylim()
        self.assertLess(low, 2.0)
        self.assertGreater(high, 900.0)
        ends = [max(bar.get_x() + bar.get_width() for bar in share.patches if round(bar.get_y() + bar.get_height() / 2) == place) for place in range(4)]
        self.assertEqual([round(end, 6) for end in ends], [100, 100, 0, 100])
        self.assertEqual([text.get_text() for text in share.texts], ["40.0 ± 0.4 ms", "2.00 ± 0.02 ms", "out of memory", "900 ± 9 ms"])
        for text in share.texts:
            self.assertTrue(share.bbox.contains(*text.get_transform().transform(text.get_position())), text.get_text())

    def test_flash_is_the_faster_one_from_a_length_on_if_it_is_at_every_longer_one(self):
        nan = float("nan")
        for shapes, expected in (([(1, 2, 1), (2, 2, 1)], "1"), ([(4, 2, 1), (1, 2, 1), (2, 1, 2)], "4"), ([(1, 2, 1), (2, 1, 1)], "nowhere"),
                                 ([(1, nan, 1), (2, 2, 1), (4, nan, 1)], "2"), ([], "nowhere")):
            self.assertEqual(flash_grid.from_length(shapes), expected, shapes)

    def test_a_row_that_does_not_fit_tells_what_it_needs(self):
        row = Row()
        row.reason = "this deck needs 1.5 GiB of memory on its NVIDIA H100, but 1.0 GiB are available\nmemory per rank"
        self.assertTrue(np.isnan(row.needed_mib), "it has run")
        row.exit_code = OUT_OF_MEMORY
        self.assertEqual(row.needed_mib, 1536)
        row.reason = "another"
        self.assertTrue(np.isnan(row.needed_mib))

    def test_measured_times_show_their_spread(self):
        """Of every published run whose rows have deviations: as bars, or written out."""
        import matplotlib.pyplot as plt
        from matplotlib.container import ErrorbarContainer

        for name, folder in homes().items():
            results = Results(folder) if (folder / STORED).exists() else None
            if results is None or not any(key.endswith("std_ms") and np.nanmax(row[key]) > 0 for row in results.rows for key in row):
                continue
            with self.subTest(name=name):
                every = module_of(name).draw(results).axes
                self.assertTrue(any(isinstance(part, ErrorbarContainer) for axes in every for part in axes.containers)
                                or any("±" in text.get_text() for axes in every for text in axes.texts))
                plt.close("all")

    def test_a_ddp_step_waits_as_long_as_its_table_says(self):
        """Of the published run: one step beside the mean of ten."""
        import matplotlib.pyplot as plt
        from matplotlib.colors import to_rgba

        ddp = module_of("ddp")
        for row in Results(homes()["ddp"]).rows:
            with self.subTest(row=row.name, ranks=row.ranks):
                axes = plt.figure().add_subplot()
                ddp.draw_step(axes, 0, row)
                waits = [bar.get_width() for bar in axes.patches if bar.get_facecolor() == to_rgba(ddp.VERMILION)]
                if row["parallel.gradient_sync"] == "per_parameter":  # elsewhere transfers hide, more in one step than in another
                    self.assertAlmostEqual(sum(waits), row["exposed_ms"], delta=0.1 * row["exposed_ms"])
                self.assertLessEqual(sum(waits), row["step_mean_ms"])
                plt.close("all")

    def test_parts_that_take_the_same_time_have_the_same_rate(self):
        split_kv = module_of("split_kv")
        row = lambda parts, copy: (1, {split_kv.B: 1, split_kv.T: 1024, split_kv.PARTS: parts, "parts": parts, "median_ms": 0.5, "std_ms": 0.0,
                                       "gbyte_per_s": 1000.0, "copy_gbyte_per_s": copy, "of_copy": 1000.0 / copy, "outcome": "ok"})
        found, = split_kv.caches(results_of([row(0, 1500.0), row(1, 1600.0), row(2, 2000.0), row(4, float("nan"))]))
        self.assertEqual([found.of_copy(each) for each in (*found.fixed, found.chosen)], [0.5] * 4)

    def test_speed_up_counts_from_the_first_ranks_that_ran(self):
        nan = float("nan")
        row = lambda ranks, ms: (ranks, {"train.batch_size": 16, "step_mean_ms": ms, "step_std_ms": ms, "exposed_ms": ms, "tokens_per_s": ms,
                                         **({"outcome": "ok"} if ms == ms else {})})
        results = results_of([row(1, nan), row(2, 100.0), row(4, 50.0)])
        strong = [line for line in scaling.tables(results)[0][1] if line[0] == "strong"]
        self.assertEqual([(line[1], table.cell(line[6]), table.cell(line[7]), line[8]) for line in strong],
                         [(1, "-", "-", "out of memory"), (2, "2", "100", "ok"), (4, "4", "100", "ok")])

    def test_the_ladder_has_a_line_for_each_case_and_a_column_for_each_version(self):
        kernels = (("standard", "-", 8.0, 64.0), ("flash1", "0 steps", 4.0, 4.0), ("flash1", "3 steps", 2.0, 4.0), ("flash1", "5 steps", float("nan"), 4.0),
                   ("flash2", "portable", 1.0, 4.0), ("flash2", "wgmma", 0.5, 4.0))
        case = {"bench.dtype": "bf16", "bench.heads": 8, "bench.head_width": 64, "bench.length": 1024}
        rows = [(1, {**case, "implementation": name, "engine": engine, "forward_ms": ms, "forward_std_ms": 0.1, "memory_mib": kept,
                     "outcome": "ok" if ms == ms else "out of memory"}) for name, engine, ms, kept in kernels]
        times, speed_ups, exchange = flash_ladder.tables(results_of(rows))
        self.assertEqual(times[0][4:], ["forward, ms: standard", "flash1, 0 steps", "flash1, 3 steps", "flash1, 5 steps", "flash2, usual",
                                        "flash2, tensor cores"])
        self.assertEqual(times[1], [["bf16", 8, 64, 1024, 8.0, 4.0, 2.0, "out of memory", 1.0, 0.5]])
        self.assertEqual([table.cell(value) for value in speed_ups[1][0][4:]], ["64", "4", "93.8", "2", "4", "-", "8", "16"])
        self.assertEqual(exchange[1][0][8:], ["3 steps", "tensor cores", 4.0])


if __name__ == "__main__":
    unittest.main()
