"""Turns of both sides in alternating rounds, each failing by itself."""

import time
from dataclasses import dataclass, field
from typing import Callable

from compare.sides import Failed, median
from compare.verdicts import cannot_run

NEAR = 1.05  # a variant of the peer that is slower than its fastest rival by more than this rests after the first round


@dataclass
class Turn:
    """One thing to measure once per round. It ends with its first failure; `values` has what it gave before."""

    name: str
    work: Callable
    is_ours: bool = False
    rivals: str = ""  # of the peer's turns with the same word only the fastest go on after the first round
    values: list = field(default_factory=list)
    reason: str = ""
    code: int | None = None
    rests: bool = False

    def take(self):
        if self.reason or self.rests:
            return
        try:
            self.values.append(self.work())
        except Failed as failure:
            self.reason, self.code = str(failure), failure.code

    @property
    def step_ms(self):
        return median([value["step"] for value in self.values])


@dataclass
class Block:
    """Turns that are measured side by side, and what is made of them: judge({name: turn}, findings).

    `models`: [(TorchRanks, its request "model")], which are prepared before and ended after it."""

    name: str
    turns: list
    judge: Callable
    models: list = field(default_factory=list)
    rounds: int | None = None  # None: as many as the call has
    is_concluded: bool = False

    def run(self, rounds, deadline, say):
        """`deadline`: of time.perf_counter(); no round begins that would outlast it by the longest one so far."""
        longest = 0.0
        for number in range(self.rounds or rounds):
            begin = time.perf_counter()
            if begin + longest > deadline:
                say(f"{self.name}: {number} of {self.rounds or rounds} rounds, the time is nearly spent")
                break
            for turn in self.turns if number % 2 == 0 else reversed(self.turns):
                failed_before = turn.reason
                turn.take()
                if turn.reason and not failed_before:
                    say(f"{self.name}, {turn.name}: {turn.reason}")
            if number == 0:
                self.leave_the_fastest()
            longest = max(longest, time.perf_counter() - begin)
            say(f"{self.name}, round {number + 1} of {self.rounds or rounds}")

    def leave_the_fastest(self):
        for word in {turn.rivals for turn in self.turns} - {""}:
            rivals = [turn for turn in self.turns if turn.rivals == word and turn.values]
            for turn in rivals:
                turn.rests = turn.step_ms > NEAR * min(rival.step_ms for rival in rivals)

    def conclude(self, findings):
        """The rows, once; what failed on our side is a fault."""
        if self.is_concluded:
            return
        self.is_concluded = True
        for turn in self.turns:
            if turn.is_ours and turn.reason:
                findings.fault(f"{self.name}, {turn.name}", turn.reason, turn.code)
        self.judge({turn.name: turn for turn in self.turns}, findings)

    def stop(self):
        for torch, _ in self.models:
            torch.stop()


def fastest(turns, *prefixes):
    """The turn of the peer with the shortest step among those whose names begin so; None where none was measured, or one failed that
    might have been the fastest."""
    named = [turn for turn in turns.values() if turn.name.startswith(prefixes)]
    if any(turn.reason and not turn.values and not cannot_run(turn.reason) for turn in named):
        return None
    return min((turn for turn in named if turn.values), key=lambda turn: turn.step_ms, default=None)


def reasons(turns, *prefixes):
    """Why peers whose names begin so were not measured."""
    return "; ".join(
        f"{turn.name}: {turn.reason}" for turn in turns.values() if turn.name.startswith(prefixes) and turn.reason
    )
