#!/usr/bin/env python3
"""Every fault of a user gives its exit code and one clear message, and all ranks end."""
import os
import shlex
import struct
import time
import unittest

import h5py
import numpy as np

from harness import ENVIRONMENT, FILES, FINISHED, SOURCE, TINY, USAGE, RunTest, gpus, has_nccl, latest_step


class Decks(RunTest):
    def refuse(self, deck, *arguments, says, code=USAGE, ranks=None):
        return self.run_deck(deck, *arguments, code=code, says=says, ranks=ranks)

    def test_a_deck_that_is_missing_on_one_host_is_told_there(self):
        """By that host's first rank; later, unless the launch has ended by then, by the others."""
        for local_rank, least_s in (("0", 1), ("1", 3)):
            begin_s = time.monotonic()
            result = self.start("missing.toml", env={"OMPI_COMM_WORLD_RANK": "4", "OMPI_COMM_WORLD_LOCAL_RANK": local_rank}).wait()
            self.assertEqual(result.code, USAGE)
            self.assertTrue(result.err.startswith("tessera: rank 4: missing.toml"), str(result))
            self.assertGreaterEqual(time.monotonic() - begin_s, least_s)

    def test_faulty_decks(self):
        faults = {
            "unknown key": ("[model]\nnum_layer = 2\n", ["deck.toml:2", "num_layers"]),
            "unknown section": ("[modle]\nd_model = 2\n", ["modle", "model"]),
            "wrong type": ("[train]\nsteps = \"many\"\n", ["deck.toml:2", "train.steps"]),
            "out of range": ("[train]\nsteps = -1\n", ["train.steps"]),
            "step 0": ("[trace]\nprofile_steps = [0]\n", ["deck.toml:2", "trace.profile_steps"]),
            "a file of synthetic data": ("[data]\nsource = \"synthetic\"\npath = \"a\"\n", ["deck.toml:3", "data.path", "synthetic"]),
            "contradiction": ("[model]\nd_model = 30\nnum_heads = 4\n", ["model.d_model", "model.num_heads"]),
            "not TOML": ("this is no deck\n", ["deck.toml:1"]),
            "empty": ("", ["deck.toml", "no key"]),
            "binary": (b"\x7fELF\x00\x01\x02" * 50, ["deck.toml"]),
        }
        for name, (text, says) in faults.items():
            with self.subTest(fault=name):
                self.refuse(self.deck(text), says=says)

    def test_all_faults_at_once(self):
        self.refuse(self.deck("[train]\nsteps = -1\nstep = 3\n[model]\nd_model = true\n"), says=["train.steps", "train.step ", "model.d_model"])

    def test_missing_deck(self):
        self.refuse(self.folder / "nowhere.toml", says="nowhere.toml")

    def test_command_line(self):
        self.refuse(TINY, "--chek", says="--chek")
        self.refuse(TINY, "train.stepz=3", says="train.steps")

    def test_batch_that_ranks_do_not_divide(self):
        result = self.run_deck(TINY, f"job.directory={self.folder / 'run'}", "train.batch_size=7", ranks=2, code=USAGE,
                               says="train.batch_size")
        self.assertEqual(result.err.count("train.batch_size = 7") + result.err.count("train.batch_size=7"), 1, str(result))

    def test_what_this_build_cannot_do(self):
        wishes = {"train.graph=true": gpus() is not None, "parallel.collectives=nccl": has_nccl()}
        for number, (wish, can) in enumerate(wishes.items()):
            with self.subTest(wish=wish, can=can):
                self.run_deck(TINY, wish, f"job.directory={self.folder / str(number)}", code=FINISHED if can else ENVIRONMENT,
                              says=() if can else wish.partition("=")[0])

    def test_a_plan_is_refused_as_the_run_is(self):
        deck, here = SOURCE / "input/bench/gpt2_124m.toml", gpus() is not None
        plan = self.run_deck(deck, "--plan", code=FINISHED if here else ENVIRONMENT)
        if here:
            self.assertRegex(plan.out, r"attention +flash2 \(.*mma")
        else:
            run = self.run_deck(deck, code=ENVIRONMENT, says="train.graph")
            self.assertEqual((plan.out, plan.err), (run.out, run.err))
            advised = ("train.graph=false",)
            self.assertIn("flash2 (portable)", self.run_deck(deck, *advised, "--plan", says="no CUDA").out)

    def test_a_plan_for_a_named_gpu_needs_none(self):
        plan = self.run_deck(SOURCE / "input/bench/step_gpu/deck.toml", "plan.device=h200", "--plan").out
        self.assertEqual(plan.count("flash2 (wgmma)"), 15, plan)
        self.assertEqual(plan.count("fits, an H200 has"), 15, plan)

    def test_only_what_trains_has_a_plan(self):
        for name in ("kernels.toml", "attention.toml", "attention_gpu/deck.toml", "ladder.toml"):
            with self.subTest(deck=name):
                self.refuse(SOURCE / "input/bench" / name, "--plan", says=["job.kind", "has no plan"])
        plan = self.run_deck(SOURCE / "input/bench/step.toml", "--plan").out
        self.assertIn("flop per step", plan)
        self.assertNotIn("in all", plan)

    def test_a_plan_is_for_the_ranks_that_are_started(self):
        for ranks, overrides, says in ((None, (), "for 1 rank (as started"), (2, (), "for 2 ranks (as started"),
                                       (2, ("parallel.ranks=4",), "for 4 ranks (parallel.ranks)")):
            with self.subTest(ranks=ranks, overrides=overrides):
                plan = self.run_deck(TINY, *overrides, "--plan", ranks=ranks).out
                self.assertEqual(plan.count(says), 1, plan)
                self.assertEqual(plan.count("network "), 0 if ranks is None else 1, plan)

    def test_a_run_on_other_ranks_than_the_deck_names(self):
        directory = f"job.directory={self.folder / 'run'}"
        for ranks, named in ((None, 2), (2, 1)):
            with self.subTest(ranks=ranks, named=named):
                result = self.refuse(TINY, directory, f"parallel.ranks={named}", ranks=ranks,
                                     says=[f"parallel.ranks = {named}", f"number of ranks is {ranks or 1}", f"-n {named}"])
                self.assertEqual(result.err.count("parallel.ranks ="), 1, str(result))
        self.assertFalse((self.folder / "run").exists())
        if gpus() is None or gpus() >= 2:
            self.run_deck(TINY, directory, "parallel.ranks=2", ranks=2)

    def test_check_and_plan_answer_both(self):
        both = self.run_deck(TINY, "--check", "--plan").out
        self.assertIn("tiny.toml: no faults\n", both)
        self.assertIn("flop per step", both)
        printed = self.run_deck(TINY, "--check", "--print").out
        self.assertIn("no faults", printed)
        self.run_deck(self.deck(printed, "printed.toml"), "--check")

    def test_offloaded_parameters_want_their_shard(self):
        self.refuse(TINY, "parallel.offload=parameters", says='parallel.shard = "parameters" beside it')
        self.run_deck(TINY, "parallel.offload=parameters", "parallel.shard=parameters", "--check")

    def test_more_slots_than_chunks_name_how_many_there_are(self):
        self.refuse(TINY, "parallel.offload=optimizer", "parallel.offload_slots=1000", "--plan",
                    says="parallel.offload_slots = 1000 exceeds the")
        self.refuse(TINY, "parallel.offload_slots=7", says="parallel.offload is \"none\"")
        plan = self.run_deck(TINY, "parallel.offload=optimizer", "parallel.offload_slots=7", "--plan").out
        self.assertRegex(plan, r"in \d+ chunks of .* at most, of which 7 are on the device at a time")

    def test_questions_are_answered_without_training(self):
        self.run_deck(TINY, "--check")
        for flag in ("--version", "--show-config"):
            self.run_deck(flag)
        self.assertIn("OpenBLAS" if gpus() is None else "cuBLASLt", self.run_deck("--show-config").out)
        self.assertIn("job.kind", self.run_deck("--explain", "job.kind").out)
        self.assertEqual(sorted(path.name for path in self.folder.iterdir()), [])


class Data(RunTest):
    def refuse(self, path, says, *more, source="tokens", ranks=None):
        return self.run_deck(TINY, f"job.directory={self.folder / 'run'}", f"data.source={source}", f"data.path={path}", *more,
                             ranks=ranks, code=FILES, says=says)

    def file(self, name, content):
        (self.folder / name).write_bytes(content)
        return self.folder / name

    def test_faulty_data(self):
        header = lambda count: struct.pack("<256i", 20240520, 1, count, *[0] * 253)
        array = self.folder / "array.h5"
        with h5py.File(array, "w") as file:
            file["tokens"] = np.full(5000, 64, np.uint16)
        faults = {
            "missing": (self.folder / "nowhere.bin", "nowhere.bin"),
            "a folder": (self.folder, self.folder.name),
            "empty": (self.file("empty.bin", b""), "empty"),
            "shorter than a context": (self.file("short.bin", np.zeros(20, np.uint16).tobytes()), "short.bin"),
            "above the vocabulary": (self.file("above.bin", np.array([1] * 4000 + [64], np.uint16).tobytes()), "64"),
            "half a token": (self.file("odd.bin", b"\x01" * 4001), "odd.bin"),
            "truncated header": (self.file("header.bin", header(100)[:600]), "header.bin"),
            "header longer than the file": (self.file("count.bin", header(5000) + bytes(2000)), "count.bin"),
            "HDF5 above the vocabulary": (array, "64"),
            "HDF5 without the dataset": (f"{array}:/nothing", "nothing"),
        }
        for name, (path, says) in faults.items():
            with self.subTest(fault=name):
                self.refuse(path, says)

    def test_two_ranks_say_it_once(self):
        result = self.refuse(self.folder / "nowhere.bin", "nowhere.bin", ranks=2)
        self.assertEqual(result.err.count("nowhere.bin"), 1, str(result))


class Checkpoints(RunTest):
    def setUp(self):
        super().setUp()
        self.directory = self.train("run", "train.steps=20")
        self.newest = self.directory / "checkpoints/step_00000020"
        self.assertEqual(latest_step(self.directory), 20)

    def resume(self, *more, code=FILES, says=(), ranks=None):
        return self.run_deck(TINY, f"job.directory={self.directory}", "--resume", "auto", *more, code=code, says=says, ranks=ranks)

    def test_truncated_rank_file_names_it_and_the_one_before(self):
        victim = self.newest / "rank_00000.h5"
        victim.write_bytes(victim.read_bytes()[:-100])
        self.resume(says=["rank_00000.h5", "step_00000010"])
        self.run_deck(TINY, f"job.directory={self.directory}", "--resume", self.directory / "checkpoints/step_00000010")

    def test_flipped_byte(self):
        victim = self.newest / "rank_00000.h5"
        self.run_deck("--verify-checkpoint", self.directory, says=[str(self.newest), "verified: step 20, written by 1 rank"])
        content = bytearray(victim.read_bytes())
        content[len(content) // 2] ^= 1
        victim.write_bytes(content)
        self.run_deck("--verify-checkpoint", self.directory, code=FILES,
                      says=["rank_00000.h5", "--verify-checkpoint " + shlex.quote(str(self.newest.with_name("step_00000010")))])
        self.resume(says="rank_00000.h5")

    def test_missing_rank_file(self):
        (self.newest / "rank_00000.h5").unlink()
        self.resume(says="rank_00000.h5", ranks=2)

    def test_damaged_index(self):
        (self.newest / "index.h5").write_bytes(b"not HDF5")
        self.resume(says="index.h5")

    def test_an_index_that_is_no_file(self):
        index = self.newest / "index.h5"
        index.unlink()
        kinds = {"a loop of links": lambda: index.symlink_to(index.name), "a FIFO": lambda: os.mkfifo(index)}
        for kind, make in kinds.items():
            make()
            for folder in ("auto", self.newest):
                for ranks in (None, 2):
                    with self.subTest(kind, resume=folder, ranks=ranks):
                        self.run_deck(TINY, f"job.directory={self.directory}", "--resume", folder, ranks=ranks, code=FILES,
                                      says=[str(index), "step_00000010"])
            with self.subTest(kind, job="generate"):
                self.run_deck(TINY, "job.kind=generate", f"job.input={self.newest}", code=FILES, says=[str(index), "step_00000010"])
            index.unlink()

    def test_another_model_is_refused_by_name(self):
        self.resume("model.d_ff=100", code=USAGE, says="model.d_ff")

    def test_other_tokens_are_refused(self):
        tokens = self.folder / "tokens.bin"
        np.random.default_rng(1).integers(0, 64, 5000).astype(np.uint16).tofile(tokens)
        self.resume("data.source=tokens", f"data.path={tokens}", code=USAGE, says="uint16")

    def test_a_folder_without_a_checkpoint(self):
        self.run_deck(TINY, f"job.directory={self.directory}", "--resume", self.folder / "nowhere", code=FILES, says="nowhere")


if __name__ == "__main__":
    unittest.main(verbosity=2)  # so that a test that skips itself says so
