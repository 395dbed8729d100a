#!/usr/bin/env python3
"""verify.attention and verify.model through the program, against float64 goldens made by plain PyTorch arithmetic."""
import shutil
import subprocess
import sys
import unittest

import h5py
import numpy as np

from harness import EPS32, FILES, NUMBERS, PROGRAM, SOURCE, TINY, USAGE, RunTest, example, gpus, latest_step, tensors

GOLDEN = SOURCE / "tests/golden"
UNIT_ROUNDOFF = {"fp32": EPS32, "bf16": 2.0**-8, "fp16": 2.0**-11}


def largest_score(case):
    q, k = (case[key][()].astype(np.float64) for key in ("q", "k"))
    return np.abs(q @ k.swapaxes(-1, -2)).max() / np.sqrt(q.shape[-1])


def as_bf16(x):
    """Rounded to the nearest bfloat16 (ties away), in float32: inputs that cost no rounding."""
    bits = np.asarray(x, np.float32).view(np.uint32) + np.uint32(0x8000)
    return (bits & np.uint32(0xFFFF0000)).view(np.float32)


class Exact(dict):
    """A random case with its results in float64, straight from the definition; bottom-right causal."""

    def __init__(self, seed, D, Tq, Tk, causal, B=2, H=3):
        random = np.random.default_rng(seed)
        q, d_out = (as_bf16(random.standard_normal((B, H, Tq, D))) for _ in range(2))
        k, v = (as_bf16(random.standard_normal((B, H, Tk, D))) for _ in range(2))
        self.attrs = {"causal": np.int64(causal)}
        exact_q, exact_k, exact_v, exact_d = (x.astype(np.float64) for x in (q, k, v, d_out))
        scores = exact_q @ exact_k.swapaxes(-1, -2) / np.sqrt(D)
        if causal:
            scores = np.where(np.arange(Tk)[None, :] <= np.arange(Tq)[:, None] + Tk - Tq, scores, -np.inf)
        largest = np.max(scores, -1, keepdims=True)
        weights = np.exp(scores - np.where(np.isfinite(largest), largest, 0))
        total = weights.sum(-1, keepdims=True)
        with np.errstate(divide="ignore"):
            lse = (np.log(total) + np.where(np.isfinite(largest), largest, 0))[..., 0]
        p = weights / np.where(total > 0, total, 1)
        out = p @ exact_v
        d_scores = p * (exact_d @ exact_v.swapaxes(-1, -2) - (exact_d * out).sum(-1, keepdims=True)) / np.sqrt(D)
        super().__init__({key: np.asarray(value)[...] for key, value in {
            "q": q, "k": k, "v": v, "d_out": d_out, "out": out, "lse": lse, "d_q": d_scores @ exact_k,
            "d_k": d_scores.swapaxes(-1, -2) @ exact_q, "d_v": p.swapaxes(-1, -2) @ exact_d}.items()})


class FrontPage(RunTest):
    def test_its_example_runs_as_it_stands_there(self):
        (self.folder / "build/cpu").mkdir(parents=True)
        (self.folder / "build/cpu/tessera").symlink_to(PROGRAM)
        (self.folder / "input").symlink_to(SOURCE / "input")
        answer = subprocess.run([sys.executable, "-c", example("README.md", "verify.attention")], cwd=self.folder, text=True, capture_output=True)
        self.assertEqual(answer.returncode, 0, answer.stderr)
        self.assertLess(float(answer.stdout.splitlines()[-1]), 64 * EPS32)


class VerifyAttention(RunTest):
    def verify(self, name, case, *overrides):
        source, result = self.folder / f"{name}.h5", self.folder / f"{name}.out.h5"
        with h5py.File(source, "w") as file:
            for key in ("q", "k", "v", "d_out"):
                file[key] = case[key][()]
            file.attrs["causal"] = case.attrs["causal"]
        deck = self.deck('[job]\nkind = "verify.attention"\n')
        self.run_deck(deck, f"job.input={source}", f"job.output={result}", f"job.directory={self.folder / (name + ' run')}",
                      "job.overwrite=true", *overrides)
        return h5py.File(result, "r")

    def compare(self, implementation, precision, *overrides):
        with h5py.File(GOLDEN / "attention.h5", "r") as golden:
            for name, case in golden.items():
                # A rounding error in a score of size s changes exp(s) by s * eps; the sums over T and D add some more.
                bound = UNIT_ROUNDOFF[precision] * (32 + 8 * largest_score(case))
                with self.subTest(case=name), self.verify(
                        name, case, f"attention.kernel={implementation}", f"precision.compute={precision}", *overrides) as made:
                    for key in ("out", "lse", "d_q", "d_k", "d_v"):
                        self.assert_close(made[key][()], case[key][()], bound, f"{name} {key}")

    def test_flash2_equals_the_golden(self):
        self.compare("flash2", "fp32")

    def test_standard_equals_the_golden(self):
        self.compare("standard", "fp32")

    def test_flash1_equals_the_golden_plain_and_with_four_steps(self):
        self.compare("flash1", "fp32")
        self.compare("flash1/4", "fp32", "attention.query_tile=16", "attention.key_tile=32")

    def test_flash2_on_the_ladder_equals_the_golden(self):
        self.compare("flash2/3", "fp32")

    def test_tiled_equals_the_golden(self):
        self.compare("tiled", "fp32", "attention.key_tile=16")

    def test_flash2_in_bf16_stays_within_its_rounding(self):
        with h5py.File(GOLDEN / "attention.h5", "r") as golden, self.verify(
                "bf16", golden["square_causal"], "precision.compute=bf16") as made:
            # Sums are in float. q and k rounded move a score s by 2 eps s; v, d_out, probabilities and result round once.
            bound = UNIT_ROUNDOFF["bf16"] * (4 + 2 * largest_score(golden["square_causal"]))
            for key in ("out", "d_q", "d_k", "d_v"):
                self.assert_close(made[key][()], golden["square_causal"][key][()], bound, key)

    def test_tensor_cores_stay_within_their_rounding(self):
        if gpus() is None:
            self.skipTest("needs a CUDA build")
        cases = [(64, 200, 200), (64, 65, 300), (128, 333, 333), (128, 300, 65), (80, 130, 130), (256, 190, 190)]
        for number, (D, Tq, Tk) in enumerate(cases):
            for causal in (0, 1):
                case = Exact(number, D, Tq, Tk, causal)
                for engine in ("mma", "wgmma", "auto"):
                    with self.subTest(D=D, Tq=Tq, Tk=Tk, causal=causal, engine=engine):
                        try:
                            made = self.verify("tensor_cores", case, "precision.compute=bf16", f"attention.kernel={engine}")
                        except AssertionError as refusal:
                            if engine == "wgmma" and "this build has no such kernel" in str(refusal):
                                continue  # no build for sm_90a, or no kernel of this width: auto takes another
                            raise
                        with made:
                            # As above; probabilities and the gradients of scores round to bf16 on their way into products.
                            bound = UNIT_ROUNDOFF["bf16"] * (6 + 2 * largest_score(case))
                            for key in ("out", "d_q", "d_k", "d_v"):
                                self.assert_close(made[key][()], case[key][()], bound, key)
                            self.assert_close(made["lse"][()], case["lse"][()], UNIT_ROUNDOFF["fp32"] * 64, "lse")

    def test_flash1_on_tensor_cores_stays_within_its_rounding(self):
        if gpus() is None:
            self.skipTest("needs a CUDA build")
        for number, (D, Tq, Tk) in enumerate([(64, 200, 200), (128, 65, 300), (40, 300, 65), (256, 190, 190)]):
            for precision in ("bf16", "fp16"):
                case = Exact(number, D, Tq, Tk, 1)
                with self.subTest(D=D, Tq=Tq, Tk=Tk, precision=precision), self.verify(
                        "flash1", case, f"precision.compute={precision}", "attention.kernel=flash1/5") as made:
                    # Only q k^T is on tensor cores, whose sums are in float: as test_flash2_in_bf16.
                    bound = UNIT_ROUNDOFF[precision] * (4 + 2 * largest_score(case))
                    for key in ("out", "d_q", "d_k", "d_v"):
                        self.assert_close(made[key][()], case[key][()], bound, key)

    def test_refuses_tensors_that_do_not_fit_together(self):
        source = self.folder / "in.h5"
        with h5py.File(source, "w") as file:
            file["q"], file["d_out"] = np.zeros((1, 2, 5, 8), np.float32), np.zeros((1, 2, 5, 8), np.float32)
            file["k"], file["v"] = np.zeros((1, 2, 5, 16), np.float32), np.zeros((1, 2, 5, 16), np.float32)
            file.attrs["causal"] = 1
        deck = self.deck('[job]\nkind = "verify.attention"\n')
        self.run_deck(deck, f"job.input={source}", code=FILES, says="k")

    def test_refuses_a_mask_that_there_is_not(self):
        source = self.folder / "in.h5"
        deck = self.deck('[job]\nkind = "verify.attention"\n')
        for causal in (2, -1):
            with h5py.File(source, "w") as file:
                for name in ("q", "k", "v", "d_out"):
                    file[name] = np.ones((1, 1, 3, 8), np.float32)
                file.attrs["causal"] = causal
            output = self.folder / "out.h5"
            self.run_deck(deck, f"job.input={source}", f"job.output={output}", code=FILES, says=["in.h5", f"causal is {causal}"])
            self.assertFalse(output.exists())

    def test_refuses_a_file_without_the_tensors(self):
        source = self.folder / "in.h5"
        h5py.File(source, "w").close()
        self.run_deck(self.deck('[job]\nkind = "verify.attention"\n'), f"job.input={source}", code=FILES, says="in.h5")


class VerifyModel(RunTest):
    def golden_deck(self, golden):
        keys = ("vocab_size", "context_length", "d_model", "num_heads", "num_layers", "d_ff", "rope_theta", "norm_eps")
        numbers = "\n".join(f"{key} = {golden.attrs[key]}" for key in keys)
        return self.deck(f'[job]\nkind = "verify.model"\n[model]\n{numbers}\n')

    def verify(self, deck, source, name, *overrides, **more):
        result = self.folder / f"{name}.out.h5"
        self.run_deck(deck, f"job.input={source}", f"job.output={result}", f"job.directory={self.folder / (name + ' run')}",
                      *overrides, **more)
        return h5py.File(result, "r")

    def compare(self, bound, name, *overrides):
        with h5py.File(GOLDEN / "model.h5", "r") as golden, self.verify(
                self.golden_deck(golden), GOLDEN / "model.h5", name, *overrides) as made:
            self.assertEqual(sorted(made["grads"]), sorted(golden["grads"]))
            self.assert_close(made["loss"][()], golden["loss"][()], bound, "loss")
            self.assert_close(made["logits"][()], golden["logits"][()], bound, "logits")
            for label in golden["grads"]:
                self.assert_close(made["grads"][label][()], golden["grads"][label][()], bound, label)

    # 23 tensors are stored between tokens and loss (10 per block, 2 blocks, embedding, last norm, logits), and as many in
    # backward. Roundings of either sign grow with the root of their number; cancellation in a gradient costs up to three
    # times that. In fp32 the sums, of up to 96 terms, round as well; in 16 bits they are in float.
    STORED = 3 * 46**0.5
    FP32 = STORED * 96**0.5 * EPS32

    def test_logits_loss_and_every_gradient_equal_the_golden(self):
        self.compare(self.FP32, "flash2")

    def test_standard_attention_too(self):
        self.compare(self.FP32, "standard", "attention.kernel=standard")

    def test_recomputed_activations_too(self):
        self.compare(self.FP32, "recomputed", "train.checkpoint_activations=1")
        self.compare(self.FP32, "recomputed in part", "train.checkpoint_activations=1", "train.recompute=all_but_attention")

    def test_bf16_stays_within_its_rounding(self):
        self.compare(self.STORED * UNIT_ROUNDOFF["bf16"], "bf16", "precision.compute=bf16")

    def test_fp16_stays_within_its_rounding(self):
        for scale in (1024, 65536):
            self.compare(self.STORED * UNIT_ROUNDOFF["fp16"], f"fp16 {scale}", "precision.compute=fp16", f"precision.initial_loss_scale={scale}")

    def test_gradients_that_are_not_as_asked_are_refused(self):
        with h5py.File(GOLDEN / "model.h5", "r") as golden:
            deck = self.golden_deck(golden)
        words = [f"job.input={GOLDEN / 'model.h5'}", f"job.output={self.folder / 'out.h5'}"]
        self.run_deck(deck, *words, "precision.compute=fp16", "precision.initial_loss_scale=16777216", code=NUMBERS, says="precision.initial_loss_scale")
        bf16 = [f"precision.{name}=bf16" for name in ("compute", "gradients", "reduce")]
        self.run_deck(deck, *words, *bf16, code=USAGE, says="precision.gradients")

    def test_weights_that_overflow_fp16_are_refused_at_every_scale(self):
        source = self.folder / "wild.h5"
        shutil.copy(GOLDEN / "model.h5", source)
        with h5py.File(source, "r+") as file:
            deck = self.golden_deck(file)
            file["params/head.weight"][:] *= 1e5
        for scale in (1, 2, 65536):
            self.run_deck(deck, f"job.input={source}", f"job.output={self.folder / 'out.h5'}", "precision.compute=fp16",
                          f"precision.initial_loss_scale={scale}", code=NUMBERS, says="activations overflow in fp16")

    def test_a_checkpoint_gives_the_same_as_its_tensors(self):
        for optimizer in ("adamw", "lion"):
            with self.subTest(optimizer=optimizer):
                self.check_checkpoint(self.train(optimizer, "train.steps=10", f"optimizer.kind={optimizer}"))

    def check_checkpoint(self, directory):
        deck = self.deck(TINY.read_text().replace('"train"', '"verify.model"'))
        tokens = np.random.default_rng(1).integers(0, 64, (2, 33)).astype(np.int32)
        by_path, by_value = directory / "path.h5", directory / "value.h5"
        with h5py.File(by_path, "w") as file:
            file["tokens"] = tokens
            file.attrs["checkpoint"] = str(directory / f"checkpoints/step_{latest_step(directory):08d}")
        with h5py.File(by_value, "w") as file:
            file["tokens"] = tokens
            for label, value in tensors(directory).items():
                if label.startswith("params/"):
                    file[label] = value
        with self.verify(deck, by_path, f"{directory.name} path") as a, self.verify(deck, by_value, f"{directory.name} value") as b:
            np.testing.assert_array_equal(a["logits"][()], b["logits"][()])
            self.assertEqual(a["loss"][()], b["loss"][()])
        for key, value in (("num_heads", 4), ("rope_theta", 5), ("norm_eps", 1e-3)):  # which no shape shows
            self.run_deck(deck, f"job.input={by_path}", f"model.{key}={value}", code=USAGE, says=f"the checkpoint's model is not the deck's: add model.{key}=")
        self.verify(deck, by_path, f"{directory.name} longer", "model.context_length=64").close()

    def test_names_the_parameter_that_is_missing(self):
        with h5py.File(GOLDEN / "model.h5", "r") as golden:
            deck, source = self.golden_deck(golden), self.folder / "in.h5"
            with h5py.File(source, "w") as file:
                golden.copy("tokens", file)
                golden.copy("params", file)
                del file["params/block.01.mlp.down.weight"]
        self.run_deck(deck, f"job.input={source}", code=FILES, says="block.01.mlp.down.weight")

    def test_names_the_parameter_of_another_shape(self):
        with h5py.File(GOLDEN / "model.h5", "r") as golden:
            deck, source = self.golden_deck(golden), self.folder / "in.h5"
            with h5py.File(source, "w") as file:
                golden.copy("tokens", file)
                golden.copy("params", file)
                del file["params/head.weight"]
                file["params/head.weight"] = np.zeros((61, 31), np.float32)
        self.run_deck(deck, f"job.input={source}", code=FILES, says="head.weight")

    def test_refuses_a_token_above_the_vocabulary(self):
        with h5py.File(GOLDEN / "model.h5", "r") as golden:
            deck, source = self.golden_deck(golden), self.folder / "in.h5"
            with h5py.File(source, "w") as file:
                golden.copy("params", file)
                file["tokens"] = np.full((1, 25), 61, np.int32)
        self.run_deck(deck, f"job.input={source}", code=FILES, says="61")


if __name__ == "__main__":
    unittest.main(verbosity=2)  # so that a test that skips itself says so
