#!/usr/bin/env python3
"""Orders of gradients and stages of sharding (parallel.gradient_sync, parallel.shard) as whole runs on 1 to 8 ranks."""
import itertools
import os
import re
import signal
import time
import unittest
from pathlib import Path

import h5py
import numpy as np

from harness import (FINISHED, HANG, LOSS_BOUND, NUMBERS, SHARED_GPUS, STEADY, STOPPED, TINY, USAGE, WEIGHT_BOUND, RunTest, Shimmed,
                     column, index_of, latest_step, tensors, wait_for_end)

ORDERS = {
    "per parameter": ("parallel.gradient_sync=per_parameter",),
    "flat": ("parallel.gradient_sync=flat",),
    "overlap": ("parallel.gradient_sync=overlap",),
    "bucket": ("parallel.bucket_mbyte=0.02",),
}
STAGES = {stage: (f"parallel.shard={stage}",) for stage in ("none", "optimizer", "gradients", "parameters")}
SHARDED = {stage: keys for stage, keys in STAGES.items() if stage != "none"}
VARIANTS = {
    "nothing ahead": (*STAGES["parameters"], "parallel.prefetch_blocks=0"),
    "everything ahead": (*STAGES["parameters"], "parallel.prefetch_blocks=100"),
    "kept for backward": (*STAGES["parameters"], "parallel.reshard_after_forward=false"),
    "shards of one rank": (*STAGES["parameters"], "parallel.shard_ranks=1"),
}
# A state of 2 bytes a number: weights without a master and both moments. Its gradients allow one micro-step.
NARROW = ("precision.compute=bf16", "precision.master=none", "precision.moments=bf16", "precision.gradients=bf16",
          "precision.reduce=bf16")
SHORT = ("train.steps=6", "train.validate_every=3", "optimizer.warmup_steps=2", "trace.profile_steps=[]")
ENDLESS = ("train.steps=1000000", "train.validate_every=0", "trace.profile_steps=[]")

# A 16-bit path rounds each activation and each gradient once: a loss differs by the unit roundoff of bfloat16.
LOSS_BOUND_BF16 = 2.0**-8


def rounded_to_bf16(label, values):
    """To nearest, still float32; ties of weights go away from zero (kernels/master_weights.hpp), those of moments to even."""
    bits = values.view(np.uint32)
    half = 0x8000 if label.startswith("params/") else 0x7FFF + (bits >> 16 & 1)
    return ((bits + half) & 0xFFFF0000).astype(np.uint32).view(np.float32)


def sampled(out):
    """The tokens of the sample that a run printed."""
    return out.rpartition("->")[2].split()


class SharedSteps(RunTest):
    def assert_same_bits(self, directory, expected, what):
        """Losses, validation losses and every tensor of the last checkpoint."""
        for name in ("step", "loss", "validation_loss", "loss_scale"):
            np.testing.assert_array_equal(column(directory, name), column(expected, name), f"{what}: {name}")
        self.assert_same_tensors(tensors(directory), tensors(expected), what)


class Equality(SharedSteps):
    def test_two_ranks_give_the_same_bits_in_every_order_and_stage(self):
        """A sum of two terms does not depend on its order: one micro-step, no clipping."""
        cases = {
            "fp32": (),
            "bf16": ("precision.compute=bf16", "precision.reduce=bf16"),
            "fp16, whose first step overflows": ("precision.compute=fp16", "precision.initial_loss_scale=16777216"),
            "bf16 gradients": ("precision.compute=bf16", "precision.reduce=bf16", "precision.gradients=bf16",
                               "train.checkpoint_activations=1"),
        }
        for case, precision in cases.items():
            arguments = (*SHORT, "optimizer.clip_norm=0", "train.sample_tokens=8", *precision)
            whole = self.folder / case
            sample = sampled(self.run_deck(TINY, f"job.directory={whole}", *arguments, ranks=2).out)
            self.assertEqual(len(sample), 8)
            ways = {**ORDERS, **SHARDED, **VARIANTS} if case == "fp32" else SHARDED
            for name, keys in ways.items():
                with self.subTest(case=case, way=name):
                    directory = self.folder / f"{case}, {name}"
                    result = self.run_deck(TINY, f"job.directory={directory}", *arguments, *keys, ranks=2)
                    self.assert_same_bits(directory, whole, name)
                    self.assertEqual(sampled(result.out), sample)
                    self.check_memory(directory, result.out)
                    self.check_network(directory, result.out)

    def check_memory(self, directory, out):
        """What the plan's table says against what lived during the first step, as the trace saw it on rank 0."""
        units = {"B": 1, "KiB": 2**10, "MiB": 2**20}
        rows = re.findall(r"^  (parameters|gradients|optimizer|activations|workspace) +\d+ .* ([\d.]+) (B|KiB|MiB)$", out, re.M)
        self.assertEqual(len(rows), 5, out)
        with h5py.File(directory / "run.h5", "r") as file:
            categories = [name.decode() for name in file["memory/category"][()]]
            peaks = dict(zip(categories, file["memory/peaks"][()].max(axis=0)))
            arena = file["steps/peak_bytes"][0]
        for name, number, unit in rows:
            printed = float(number) * units[unit]
            self.assertLessEqual(abs(peaks[name] - printed), 0.05 * units[unit] + 1e-9, f"{name}: {peaks}")
        live = peaks[categories[0]]  # the sum of the others, at its largest
        self.assertLessEqual(live, arena)
        self.assertGreater(live, 0.98 * arena, "the arena is as large as what lives at once, but for alignment")

    def check_network(self, directory, out):
        """What the plan says that crosses the network against what the first step sent and gathered."""
        line, = re.findall(r"^network +(.*)", out, re.M)
        planned = {"gradients": re.search(r"([\d.]+) KiB of gradients", line), "weights": re.search(r"([\d.]+) KiB of weights", line)}
        with h5py.File(directory / "run.h5", "r") as file:
            comm = {name: file[f"comm/{name}"][()] for name in ("step", "operation", "label", "bytes")}
        first = comm["step"] == 1
        is_gather = np.char.startswith(comm["operation"].astype(str), "all_gather")
        is_scalar = comm["label"].astype(str) == "norm_squared"
        moved = {"gradients": comm["bytes"][first & ~is_gather & ~is_scalar].sum(), "weights": comm["bytes"][first & is_gather].sum()}
        for what, found in planned.items():
            self.assertAlmostEqual(moved[what] / 1024, float(found[1]) if found else 0, delta=0.051, msg=f"{what}: {line}")

    def peak_memory(self, *arguments):
        """Bytes of the larger of two ranks, as the kernel counts them."""
        job = self.start(TINY, *arguments, "parallel.timeout_s=60", ranks=2)
        peak = 0
        while job.process.poll() is None:
            for rank in job.ranks():
                try:
                    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{rank}/status").read_text())
                except OSError:
                    continue
                peak = max(peak, int(found[1]) * 1024 if found else 0)
            time.sleep(0.01)
        result = job.wait()
        self.assertEqual(result.code, FINISHED, str(result))
        return peak

    def test_more_micro_steps_take_no_memory(self):
        """Sums that cross the network in every micro-step have one place for all of them."""
        peaks = [self.peak_memory(f"job.directory={self.folder / str(micro)}", *STAGES["gradients"], "train.steps=1",
                                  "optimizer.warmup_steps=1", "train.validate_every=0", "trace.profile_steps=[]",
                                  "checkpoint.every=0", "data.validation_fraction=0", "train.batch_size=48",
                                  "model.d_model=256", "model.d_ff=1024", "model.num_layers=4",  # 8 MiB of a rank's sums
                                  f"train.micro_batch_size={micro}") for micro in (2, 1)]
        self.assertGreater(min(peaks), 8 * 2**20, "the sums of a rank alone")
        self.assertLess(peaks[1], peaks[0] + 16 * 2**20, f"12 micro-steps and 24 take {peaks}")

    def test_three_ranks_train_as_one_does(self):
        cases = {
            "accumulated": ((*STEADY, "train.micro_batch_size=2", "train.checkpoint_activations=1"), LOSS_BOUND),
            "uneven": ((*STEADY, "train.batch_size=2", "parallel.allow_uneven=true", "train.validation_sequences=2"), LOSS_BOUND),
            "bf16": ((*STEADY, "precision.compute=bf16", "precision.reduce=bf16", "train.micro_batch_size=2",
                      "train.checkpoint_activations=2"), LOSS_BOUND_BF16),
        }
        for case, (keys, bound) in cases.items():
            one = self.train(case, *SHORT, *keys)
            ways = {"none": (), **SHARDED, "kept for backward": VARIANTS["kept for backward"]}
            for name, way in ways.items():
                with self.subTest(case=case, way=name):
                    three = self.train(f"{case}, {name}", *SHORT, *keys, *way, ranks=3)
                    for quantity in ("loss", "validation_loss", "grad_norm"):
                        # the norm is that of gradients, each of which is rounded several times on its way
                        of_norm = 8 if quantity == "grad_norm" and bound == LOSS_BOUND_BF16 else 1
                        self.assert_close(column(three, quantity), column(one, quantity), of_norm * bound, quantity)

    def test_four_ranks_in_pairs(self):
        """Pairs sum what they hold twice in the memory in which gradients cross the network in 16 bits, too."""
        cases = {
            "fp32": ((*STEADY, "train.micro_batch_size=1"), LOSS_BOUND),
            "bf16": ((*STEADY, "model.num_layers=4", "precision.compute=bf16", "precision.reduce=bf16"), LOSS_BOUND_BF16),
        }
        for case, (keys, bound) in cases.items():
            one = self.train(case, *SHORT, *keys)
            for name, way in SHARDED.items():
                with self.subTest(case=case, way=name):
                    four = self.train(f"{case}, {name}", *SHORT, *keys, *way, "parallel.shard_ranks=2", ranks=4)
                    self.assert_close(column(four, "loss"), column(one, "loss"), bound, "loss")
                    self.assert_close(column(four, "grad_norm"), column(one, "grad_norm"), 8 * bound, "grad_norm")
                    files = sorted(path.name for path in (four / "checkpoints/step_00000006").glob("rank_*.h5"))
                    self.assertEqual(files, [f"rank_{rank:05d}.h5" for rank in range(4)])
                    three = self.folder / f"{case}, {name} on three"
                    self.run_deck(TINY, f"job.directory={three}", *SHORT, "train.steps=8", *keys, *way, "train.time_limit_s=1e-9",
                                  "--resume", four / "checkpoints/step_00000006", ranks=3, code=STOPPED)
                    self.assert_same_tensors(tensors(three), tensors(four), name)


class Checkpoints(SharedSteps):
    @staticmethod
    def all_transitions(words):
        """A sequence in which each word follows each, itself included."""
        edges, sequence = set(itertools.product(words, words)), []
        stack = [words[0]]
        while stack:  # Hierholzer's walk over the complete graph
            onward = next((edge for edge in sorted(edges) if edge[0] == stack[-1]), None)
            if onward:
                edges.remove(onward)
                stack.append(onward[1])
            else:
                sequence.append(stack.pop())
        return sequence[::-1]

    def test_every_stage_and_count_reads_what_every_other_wrote(self):
        """Each start resumes, is over before its first step, and so writes what it read: each stage after each, each count
        after each, in 12 of their 16 pairs. unit.train.checkpoints reads what every pair wrote as every other."""
        stages = self.all_transitions(list(STAGES))
        counts = self.all_transitions([3, 4, 1, 2])  # another order than the stages', or a stage would keep its count
        self.assertEqual((len(stages), len(counts)), (17, 17))
        self.assertEqual(len(set(zip(stages, counts))), 12)
        source = self.train("0", *SHORT, *STAGES[stages[0]], ranks=counts[0])
        expected = tensors(source)
        self.assertTrue(all(np.any(value) for value in expected.values()), "a tensor of zeros shows nothing")
        for number, (stage, ranks) in enumerate(zip(stages[1:], counts[1:]), 1):
            directory = self.folder / str(number)
            with self.subTest(source=(stages[number - 1], counts[number - 1]), to=(stage, ranks)):
                self.run_deck(TINY, f"job.directory={directory}", *SHORT, "train.steps=8", *STAGES[stage],
                              "train.time_limit_s=1e-9", "--resume", source / "checkpoints/step_00000006",
                              ranks=ranks, code=STOPPED, says=f"written by {counts[number - 1]} rank")
                self.assert_same_tensors(tensors(directory), expected, f"{stage} on {ranks}")
                with index_of(directory) as file:
                    self.assertEqual((file.attrs["step"], file.attrs["shard"]), (6, stage))
            source = directory

    def test_four_ranks_go_on_as_two_and_as_eight_and_eight_as_four(self):
        """A checkpoint is read bit by bit; the training that follows is the same within bounds. Eight may share GPUs."""
        for shard in ("none", "parameters"):
            keys = (*SHORT, *STEADY, *STAGES[shard], "train.batch_size=8")
            whole = self.train(f"{shard} whole", *keys, "train.steps=8", "checkpoint.every=6", ranks=4)
            for ranks, more in ((2, ()), (8, SHARED_GPUS)):
                with self.subTest(shard=shard, ranks=ranks):
                    onward = self.folder / f"{shard} {ranks}"
                    self.run_deck(TINY, f"job.directory={onward}", *keys, *more, "train.steps=8", "--resume",
                                  whole / "checkpoints/step_00000006", ranks=ranks, says="written by 4 ranks")
                    self.assert_close(column(onward, "loss"), column(whole, "loss")[6:], LOSS_BOUND, "loss")
                    made = tensors(onward)
                    for label, expected in tensors(whole).items():
                        self.assert_close(made[label], expected, WEIGHT_BOUND, label)
                    back = self.folder / f"{shard} {ranks} back"
                    self.run_deck(TINY, f"job.directory={back}", *keys, "train.steps=10", "train.time_limit_s=1e-9", "--resume",
                                  onward / "checkpoints/step_00000008", ranks=4, code=STOPPED, says=f"written by {ranks} ranks")
                    self.assert_same_tensors(tensors(back), made, f"{shard}, {ranks} to 4")

    def test_five_ranks_go_on_as_seven(self):
        """Neither divides batch, windows or tensors, and of the embedding the last ranks own nothing. They may share GPUs."""
        keys = (*SHORT, *STEADY, "train.steps=8", "checkpoint.every=4", "model.vocab_size=8")
        shared = (*keys, *STAGES["parameters"], "parallel.allow_uneven=true", *SHARED_GPUS)
        one = self.train("one", *keys)
        five = self.train("five", *shared, ranks=5)
        seven = self.folder / "seven"
        self.run_deck(TINY, f"job.directory={seven}", *shared, "--resume", five / "checkpoints/step_00000004", ranks=7,
                      says="written by 5 ranks, each its part of the parameters")
        for directory, first in ((five, 0), (seven, 4)):
            with self.subTest(run=directory.name):
                for quantity in ("loss", "validation_loss", "grad_norm"):
                    self.assert_close(column(directory, quantity), column(one, quantity)[first:], LOSS_BOUND, quantity)
                made = tensors(directory)
                for label, expected in tensors(one).items():
                    self.assert_close(made[label], expected, WEIGHT_BOUND, label)
                with index_of(directory) as file:
                    owners = {source.file_name for source in file["params/embedding.weight"].virtual_sources()}
                self.assertEqual(len(owners), 4, "the other ranks own nothing of the embedding")

    def test_a_resumed_run_goes_on_with_the_same_bits(self):
        long = (*SHORT, "train.steps=8", "checkpoint.every=4", "train.micro_batch_size=2")
        recomputed = ("train.checkpoint_activations=1", "train.recompute=all_but_attention", "train.micro_batch_size=0")
        narrow = {f"{name} in 16 bits": (*STAGES[name], *NARROW, *recomputed) for name in ("none", "parameters")}
        for name, keys in {**SHARDED, **narrow}.items():
            with self.subTest(stage=name):
                whole = self.train(name, *long, *keys, ranks=3)
                resumed = self.folder / f"{name} resumed"
                self.run_deck(TINY, f"job.directory={resumed}", *long, *keys, "--resume", whole / "checkpoints/step_00000004", ranks=3)
                self.assertEqual(list(column(resumed, "step")), [5, 6, 7, 8])
                np.testing.assert_array_equal(column(resumed, "loss"), column(whole, "loss")[4:])
                self.assert_same_tensors(tensors(resumed), tensors(whole), name)

    def test_a_run_goes_on_with_its_state_in_another_place(self):
        """Weights and optimizer state on the device or on the host: the same bits, resumed from each to each."""
        places = {"none": (), "optimizer": ("parallel.offload=optimizer",), "parameters": ("parallel.offload=parameters",),
                  "seven slots": ("parallel.offload=optimizer", "parallel.offload_slots=7")}
        for ranks, clip_norm in ((1, 0), (1, 1), (2, 0)):
            long = (*SHORT, "train.steps=8", "checkpoint.every=4", f"optimizer.clip_norm={clip_norm}", *STAGES["parameters"])
            runs = {}
            for name, keys in places.items():
                with self.subTest(ranks=ranks, clip_norm=clip_norm, offload=name):
                    runs[name] = self.train(f"{name} {ranks} {clip_norm}", *long, *keys, ranks=ranks)
                    self.assert_same_bits(runs[name], runs["none"], name)
            for source, target in (("none", "parameters"), ("parameters", "seven slots"), ("optimizer", "none"),
                                   ("seven slots", "optimizer")):
                with self.subTest(ranks=ranks, clip_norm=clip_norm, source=source, to=target):
                    resumed = self.folder / f"{source} to {target} {ranks} {clip_norm}"
                    self.run_deck(TINY, f"job.directory={resumed}", *long, *places[target], "--resume",
                                  runs[source] / "checkpoints/step_00000004", ranks=ranks)
                    self.assert_same_tensors(tensors(resumed), tensors(runs["none"]), f"{source} to {target}")

    def test_a_state_changes_its_precision_its_place_and_its_ranks(self):
        """Each start resumes, is over before its first step, and so writes what it read: to nearest if in fewer bits."""
        precisions = {"fp32": (), "16 bits": NARROW}
        places = ("none", "optimizer", "parameters")  # parallel.offload

        def resumed(source, precision, place, ranks):
            directory = self.folder / f"{source.name} to {precision}, {place}"
            self.run_deck(TINY, f"job.directory={directory}", *SHORT, "train.steps=8", *STAGES["parameters"],
                          *precisions[precision], f"parallel.offload={place}", "train.time_limit_s=1e-9", "--resume",
                          source / "checkpoints/step_00000006", ranks=ranks, code=STOPPED, says="written by")
            return directory

        for precision, other in (("fp32", "16 bits"), ("16 bits", "fp32")):
            source = self.train(precision, *SHORT, *STAGES["parameters"], *precisions[precision], ranks=2)
            wide = tensors(source)
            expected = {label: rounded_to_bf16(label, value) for label, value in wide.items()}
            is_narrow = all(np.array_equal(value, expected[label]) for label, value in wide.items())
            self.assertEqual(is_narrow, precision == "16 bits")
            for place, back in zip(places, ("parameters", "none", "optimizer")):
                with self.subTest(source=precision, to=(other, place)):
                    onward = resumed(source, other, place, 3)
                    self.assert_same_tensors(tensors(onward), expected, f"{precision} to {other}, {place}")
                    home = resumed(onward, precision, back, None)
                    self.assert_same_tensors(tensors(home), expected, f"{other}, {place} to {precision}, {back}")

    def test_a_kill_while_a_checkpoint_of_parts_is_written(self):
        heavy = ("model.d_model=192", "model.num_layers=4", "model.d_ff=768", "train.batch_size=2", "train.steps=12",
                 "train.validate_every=0", "checkpoint.every=2", *STAGES["parameters"])
        whole = self.train("whole", *heavy, ranks=2)
        directory, hits, resume = self.folder / "killed", 0, ()
        for attempt in range(6):
            job = self.start(TINY, f"job.directory={directory}", *heavy, *resume, ranks=2)
            half_written = lambda: any((directory / "checkpoints").glob(".tmp*"))
            end = time.monotonic() + 60
            while not half_written() and job.process.poll() is None and time.monotonic() < end:
                pass
            if job.process.poll() is not None:
                self.assertEqual(job.wait().code, FINISHED)
                break
            time.sleep(0.006 * (attempt % 3))
            pids = [*job.ranks(), job.process.pid]
            job.kill_everything()
            self.assertTrue(wait_for_end(pids), "a killed process lives on")
            hits += half_written()
            resume = ("--resume", "auto") if latest_step(directory) else ("job.overwrite=true",)
            if hits >= 2:
                break
        self.assertGreaterEqual(hits, 1, "no kill fell inside the writing of a checkpoint")
        self.run_deck(TINY, f"job.directory={directory}", *heavy, *resume, ranks=2)
        self.assertFalse(list((directory / "checkpoints").glob(".tmp*")), "a killed checkpoint was left behind")
        self.assert_same_bits(directory, whole, "resumed after kills")


class Ends(SharedSteps):
    def endless(self, name, *keys):
        directory = self.folder / name
        job = self.start(TINY, f"job.directory={directory}", *ENDLESS, *keys, ranks=2)
        self.wait_until(lambda: latest_step(directory) >= 10, "a checkpoint", job)
        ranks = job.ranks()
        self.assertEqual(len(ranks), 2)
        return directory, job, ranks

    def test_a_signal_to_one_rank_stops_all_and_the_run_goes_on(self):
        for name, keys in SHARDED.items():
            with self.subTest(stage=name):
                directory, job, ranks = self.endless(name, *keys)
                os.kill(ranks[-1], signal.SIGTERM)
                result = job.wait()
                self.assertEqual(result.code, STOPPED, str(result))
                steps = latest_step(directory)
                self.assertEqual(column(directory, "step")[-1], steps)
                self.run_deck(TINY, f"job.directory={directory}", *ENDLESS, *keys, f"train.steps={steps + 2}", "--resume", "auto", ranks=2)
                self.assertEqual(latest_step(directory), steps + 2)

    def test_a_signal_cuts_the_sample_short(self):
        for name, keys in SHARDED.items():
            with self.subTest(stage=name):
                job = self.start(TINY, f"job.directory={self.folder / name}", *SHORT, *keys, "train.sample_tokens=10000000", ranks=2)
                self.wait_until(lambda: "6 steps in" in job.printed(), "the end of training", job)
                time.sleep(0.1)
                os.kill(job.ranks()[-1], signal.SIGTERM)
                result = job.wait()
                self.assertEqual(result.code, FINISHED, str(result))
                self.assertRegex(result.out, r"--- \d+ tokens? generated from the trained model, then .*the run is finished")

    def test_a_sample_that_is_cut_before_its_first_token(self):
        """A signal during the last validation: the weights that the sample would read are never read."""
        slow = ("train.steps=2", "optimizer.warmup_steps=1", "train.validate_every=0", "model.d_model=96", "model.num_layers=4",
                "model.d_ff=384", "train.validation_sequences=4000", "trace.profile_steps=[]", "trace.every_steps=1",
                "job.progress=line", "train.sample_tokens=8")
        for name, keys in SHARDED.items():
            with self.subTest(stage=name):
                for attempt in range(10):
                    job = self.start(TINY, f"job.directory={self.folder / name} {attempt}", *slow, *keys, ranks=2)
                    self.wait_until(lambda: re.search(r"^ +1 ", job.printed(), re.M), "step 1", job)
                    time.sleep(0.2 * (attempt + 1))  # until the last step, too, is over
                    os.kill(job.ranks()[-1], signal.SIGUSR1)
                    result = job.wait()
                    if result.code != STOPPED:  # the signal came before the last step
                        break
                self.assertEqual(result.code, FINISHED, str(result))
                self.assertIn("--- 0 tokens generated from the trained model, then", result.out)
                self.assertNotIn("rror", result.err)

    def test_a_killed_rank_ends_the_job(self):
        for name, keys in SHARDED.items():
            with self.subTest(stage=name):
                _, job, ranks = self.endless(name, *keys)
                os.kill(ranks[1], signal.SIGKILL)
                result = job.wait()
                self.assertNotIn(result.code, (FINISHED, STOPPED, "none: it hung"), str(result))
                self.assertTrue(wait_for_end(ranks), "a rank lives on")

    def test_a_rank_that_hangs_is_noticed_in_every_stage(self):
        for name, keys in {"overlap": ORDERS["overlap"], **SHARDED}.items():
            with self.subTest(way=name):
                _, job, ranks = self.endless(name, *keys, "parallel.timeout_s=2")
                os.kill(ranks[1], signal.SIGSTOP)
                result = job.wait()
                self.assertEqual(result.code, HANG, str(result))
                self.assertRegex(result.err, r"tessera: rank \d: no progress for [\d.]+ s.*, under way: ")
                self.assertIn("--resume auto", result.err)
                self.assertTrue(wait_for_end(ranks), "a rank lives on")

    def test_ranks_that_are_started_otherwise_end_at_once(self):
        """No transfer notices: two ranks in different stages can train on, each with sums of something else."""
        starts = [(stage, f"parallel.shard={other}", f'parallel.shard: "{stage}" -> "{other}"')
                  for stage, other in zip(STAGES, ["gradients", "none", "parameters", "optimizer"])]
        starts += [("parameters", "parallel.prefetch_blocks=0", "parallel.prefetch_blocks: 1 -> 0"),
                   ("parameters", "parallel.ranks=2", "parallel.ranks: 0 -> 2"),
                   ("parameters", "--resume auto", "--resume")]
        for stage, other, said in starts:
            with self.subTest(stage=stage, other=other):
                wrapper = ("sh", "-c", f'[ "$OMPI_COMM_WORLD_RANK" = 1 ] && set -- "$@" {other}; exec "$@"', "sh")
                self.run_deck(TINY, f"job.directory={self.folder / 'run'}", *SHORT, *STAGES[stage], ranks=2,
                              wrapper=wrapper, code=USAGE, says=["rank 1: was started differently from rank 0", said])
                self.assertFalse((self.folder / "run").exists())

    def test_numbers_that_are_not_usable_end_every_rank(self):
        for name, keys in SHARDED.items():
            with self.subTest(stage=name):
                self.run_deck(TINY, f"job.directory={self.folder / name}", *keys, "precision.compute=fp16",
                              "precision.initial_loss_scale=1", "optimizer.learning_rate=100", "optimizer.warmup_steps=0",
                              "optimizer.clip_norm=0", ranks=2, code=NUMBERS, says="are unusable")


class Refusals(RunTest):
    def refuse(self, *arguments, says, ranks=None):
        return self.run_deck(TINY, f"job.directory={self.folder / 'run'}", *arguments, ranks=ranks, code=USAGE, says=says)

    def test_what_would_be_ignored_is_refused_with_the_way_out(self):
        for key in ("parallel.prefetch_blocks=2", "parallel.reshard_after_forward=false"):
            for stage in ("none", "optimizer", "gradients"):
                self.refuse(f"parallel.shard={stage}", key, "--check", says=[key.partition("=")[0], 'parallel.shard = "parameters"'])
        self.refuse("parallel.shard_ranks=2", says=["parallel.shard_ranks", 'parallel.shard = "optimizer", "gradients" or "parameters"'])
        for stage in SHARDED:
            for order in ("per_parameter", "flat", "overlap"):
                self.refuse(f"parallel.shard={stage}", f"parallel.gradient_sync={order}", "--check",
                            says=["parallel.gradient_sync", 'parallel.shard = "none"'])
            self.refuse(f"parallel.shard={stage}", "parallel.bucket_mbyte=5", "--check", says=["parallel.bucket_mbyte", "no buckets"])
        self.refuse("parallel.gradient_sync=flat", "parallel.bucket_mbyte=5", "--check", says=["parallel.bucket_mbyte", "no buckets"])
        self.assertFalse((self.folder / "run").exists())

    def test_shards_that_do_not_divide_the_ranks(self):
        says = ["parallel.shard_ranks = 3 does not divide", "0 for all ranks"]
        for stage in SHARDED:
            self.refuse(f"parallel.shard={stage}", "parallel.shard_ranks=3", "parallel.ranks=4", "--plan", says=says)
        self.refuse("parallel.shard=gradients", "parallel.shard_ranks=3", says=says, ranks=2)
        self.refuse("parallel.shard=gradients", "parallel.shard_ranks=3", says=says)
        self.assertFalse((self.folder / "run").exists())

    def test_gradients_of_16_bits_are_not_accumulated(self):
        narrow = ("precision.compute=bf16", "precision.reduce=bf16", "precision.gradients=bf16", "train.micro_batch_size=3")
        for stage in STAGES:
            self.refuse(*narrow, f"parallel.shard={stage}", "parallel.ranks=2", "--plan", says="precision.gradients")
        self.refuse(*narrow, "parallel.shard=parameters", says=["precision.gradients", "train.micro_batch_size"], ranks=2)

    def test_questions(self):
        for name, keys in {**STAGES, **ORDERS, **VARIANTS}.items():
            with self.subTest(way=name):
                keys = tuple(key for key in keys if "shard_ranks" not in key)
                self.run_deck(TINY, *keys, "--check", says="no faults")
                printed = self.run_deck(TINY, *keys, "--print").out
                again = self.run_deck(self.deck(printed, "printed.toml"), "--print").out
                strip = lambda text: [line.partition("#")[0].rstrip() for line in text.splitlines()]
                self.assertEqual(strip(again), strip(printed))
                for key in keys:
                    name_of, _, value = key.partition("=")
                    word = name_of.rpartition(".")[2]
                    self.assertRegex(printed, rf'(?m)^\s*{word} = "?{re.escape(value)}"?')

    def test_the_plan_of_absent_ranks_shrinks_with_every_stage(self):
        sizes = {}
        for stage, keys in STAGES.items():
            out = self.run_deck(TINY, *keys, "model.num_layers=16", "parallel.ranks=6", "--plan").out
            rank, = re.findall(r"^per rank .*\((\d+) bytes\)", out, re.M)
            sizes[stage] = int(rank)
            self.assertEqual(f'sharing    {stage} in 6 parts' in out, stage != "none", out)
            self.assertNotIn("note       parallel.shard", out)
            alone = self.run_deck(TINY, *keys, "--plan").out
            self.assertEqual("note       parallel.shard shards nothing: this is one rank alone" in alone, stage != "none", alone)
        out = self.run_deck(TINY, *VARIANTS["shards of one rank"], "parallel.ranks=6", "--plan").out
        self.assertIn("note       parallel.shard_ranks = 1: each rank keeps everything", out)
        self.assertEqual(list(sizes.values()), sorted(sizes.values(), reverse=True), sizes)
        self.assertEqual(len(set(sizes.values())), 4, sizes)


class Hosts(Shimmed, SharedSteps):
    """Ranks on two hosts, as far as they can tell."""

    SHIM = r"""
    #include <mpi.h>
    #include <stdio.h>
    #include <stdlib.h>

    int MPI_Get_processor_name(char* name, int* length) {
      *length = sprintf(name, "node%c", getenv("HOSTS")[atoi(getenv("OMPI_COMM_WORLD_RANK"))]);
      return MPI_SUCCESS;
    }
    """

    def test_groups_that_span_hosts_without_need_are_noted(self):
        groups = (*SHORT, *STAGES["parameters"], "parallel.shard_ranks=2")
        bench = self.deck(TINY.read_text().replace('"train"', '"bench.strategies"'))
        for hosts, noted in (("0101", True), ("0011", False)):
            with self.subTest(hosts=hosts):
                out = self.run_deck(TINY, f"job.directory={self.folder / hosts}", *groups, ranks=4, says="node0: 2 ranks, node1: 2 ranks",
                                    **self.preload(HOSTS=hosts)).out
                self.assertEqual("note       2 of 2 groups of 2 consecutive ranks" in out, noted, out)
                with h5py.File(self.folder / hosts / "run.h5", "r") as file:
                    info = file["info"].attrs
                    self.assertEqual(info["hosts"], "node0: 2 ranks, node1: 2 ranks")
                    self.assertEqual((info["ranks"], info["host_count"], info["ranks_per_host"]), (4, 2, 2))
        out = self.run_deck(bench, f"job.output={self.folder / 'bench.h5'}", "parallel.shard=optimizer", "bench.warmup=1",
                            "bench.repeats=1", "parallel.shard_ranks=2", ranks=4, **self.preload(HOSTS="0101")).out
        self.assertEqual(out.count("note       2 of 2 groups of 2 consecutive ranks"), 1, out)


class Delays(Shimmed, SharedSteps):
    """Ranks that are late now and then, in each call that starts, tests or ends a transfer."""

    SHIM = r"""
    #include <mpi.h>
    #include <stdlib.h>
    #include <unistd.h>

    static unsigned next(void) {
      static unsigned state = 0;
      if (state == 0) state = 2 * (1009 * atoi(getenv("DELAY_SEED")) + atoi(getenv("OMPI_COMM_WORLD_RANK"))) + 1;
      return rand_r(&state);
    }
    static void dawdle(void) { if (next() % 4 == 0) usleep(next() % 3000); }

    int MPI_Iallreduce(const void* a, void* b, int n, MPI_Datatype t, MPI_Op op, MPI_Comm c, MPI_Request* r) {
      dawdle();
      return PMPI_Iallreduce(a, b, n, t, op, c, r);
    }
    int MPI_Ireduce_scatter_block(const void* a, void* b, int n, MPI_Datatype t, MPI_Op op, MPI_Comm c, MPI_Request* r) {
      dawdle();
      return PMPI_Ireduce_scatter_block(a, b, n, t, op, c, r);
    }
    int MPI_Iallgather(const void* a, int n, MPI_Datatype t, void* b, int m, MPI_Datatype u, MPI_Comm c, MPI_Request* r) {
      dawdle();
      return PMPI_Iallgather(a, n, t, b, m, u, c, r);
    }
    int MPI_Wait(MPI_Request* r, MPI_Status* s) {
      dawdle();
      int code = PMPI_Wait(r, s);
      dawdle();
      return code;
    }
    int MPI_Test(MPI_Request* r, int* done, MPI_Status* s) {
      *done = 0;  /* often enough it has not arrived yet */
      return next() % 2 ? MPI_SUCCESS : PMPI_Test(r, done, s);
    }
    int MPI_Finalize(void) {
      if (write(2, "dawdled\n", 8) < 0) return 1;
      return PMPI_Finalize();
    }
    """

    def test_no_delay_changes_a_bit(self):
        keys = ("train.steps=4", "optimizer.warmup_steps=2", "train.validate_every=2", "train.checkpoint_activations=1",
                "trace.profile_steps=[]", "train.micro_batch_size=2", "parallel.timeout_s=60")
        pairs = (*STAGES["parameters"], "parallel.shard_ranks=2", "precision.compute=bf16", "precision.reduce=bf16",
                 "train.micro_batch_size=1")
        for name, way in {**ORDERS, **SHARDED, "everything ahead": VARIANTS["everything ahead"], "pairs": pairs}.items():
            ranks = 4 if name == "pairs" else 3
            expected = self.train(name, *keys, *way, ranks=ranks)
            repeats = 1 if name in ("per parameter", "flat") else 2
            for seed in range(1, repeats + 1):
                with self.subTest(way=name, seed=seed):
                    directory = self.folder / f"{name} {seed}"
                    result = self.run_deck(TINY, f"job.directory={directory}", *keys, *way, ranks=ranks,
                                           **self.preload(DELAY_SEED=seed))
                    self.assertEqual(result.err.count("dawdled"), ranks, str(result))
                    self.assert_same_bits(directory, expected, name)


if __name__ == "__main__":
    unittest.main(verbosity=2)  # so that a test that skips itself says so
