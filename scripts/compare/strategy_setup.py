"""What the cases of scripts/compare_torch --only strategies measure with: the runs of both sides."""

from dataclasses import dataclass
from pathlib import Path

from compare import steps
from compare.sides import deck, words
from compare.torch_ranks import TorchRanks, of_slowest

SIZES = {**steps.SIZES, "8b": (4096, 11008, 34, 32), "deck": (128, 352, 4, 4)}  # C, F, L, H


@dataclass
class Setup:
    """What a call measures with."""

    ours: object
    folder: Path  # of PyTorch's logs
    is_gpu: bool  # else two host ranks, the quickstart's model for every size
    mbytes: list
    compiled: list  # how PyTorch's models are compiled: "blocks", "whole"
    warmup: int = 5  # steps before the measured ones
    repeats: int = 20

    def place(self, ranks):
        return f"{ranks} {'GPU' if self.is_gpu else 'rank'}{'' if ranks == 1 else 's'}"

    def group(self, name, ranks):
        return TorchRanks(f"{name} {ranks}", ranks, self.folder, self.is_gpu)

    def times(self):
        return {"warmup": self.warmup, "repeats": self.repeats}

    def our_step(self, size, sequences, ranks, *overrides):
        """The row of bench.step, `sequences` per rank."""
        name, chosen = (
            ("step_gpu", [f"experiment.only={words(f'graph_{size}')}"])
            if self.is_gpu
            else ("step", [])
        )
        return self.ours.run(
            deck(name),
            *chosen,
            f"train.batch_size={sequences * ranks}",
            f"bench.warmup={self.warmup}",
            "bench.warmup_ms=0",  # as theirs
            f"bench.repeats={self.repeats}",
            *overrides,
            *self.ours.step_overrides,
            ranks=ranks,
        )[0]

    def our_strategies(self, size, sequences, ranks, strategies):
        """{strategy: row} of bench.strategies."""
        name, chosen = (
            ("strategies_gpu", [f"model.size={size}", f"experiment.only={words(*(f'{each}_{size}' for each in strategies))}"])
            if self.is_gpu
            else ("strategies", [f"experiment.only={words(*strategies)}"])
        )
        rows = self.ours.run(
            deck(name),
            *chosen,
            f"train.batch_size={sequences * ranks}",
            f"bench.warmup={self.warmup}",
            "bench.warmup_ms=0",  # as theirs
            f"bench.repeats={self.repeats}",
            *self.ours.step_overrides,
            ranks=ranks,
        )
        return {row["strategy"]: row for row in rows}

    def model(self, size, sequences, sharing, compiled, V=10000, T=512, **other):
        """The request that builds and compiles PyTorch's model."""
        C, F, L, H = SIZES[size]
        if not self.is_gpu:
            V, T = 257, 128
        return {
            "do": "model",
            "V": V,
            "T": T,
            "B": sequences,
            "C": C,
            "F": F,
            "L": L,
            "H": H,
            "sharing": sharing,
            "compiled": compiled,
            "state": "fp32",
            "recompute": False,
            "attention": None,
            **other,
        }

    def their_step(self, torch, optimizer="adamw", reshards=True, seconds=120, **times):
        return of_slowest(
            torch.ask(seconds, do="step", optimizer=optimizer, reshards=reshards, **{**self.times(), **times})
        )


def step_ms(rows):
    return [row["step_ms"] for row in rows]
