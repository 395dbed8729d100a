"""PyTorch's side as several processes that share a step, one per GPU or, on a host, per rank: torch_rank_worker.py."""

import os
import selectors
import subprocess
import tempfile
import time
from pathlib import Path

from compare.sides import Failed, Torch

LEAVING = 20  # [s] for the other ranks once one has failed: they wait for it in a collective operation


class TorchRanks:
    """The processes of one model or of the collective operations, asked together and ended together.

    A failure of any rank ends all of them, since the others may wait for it for ever; `self.reason` keeps its words and
    every later request fails with them. What the processes print goes to `folder`/NAME.RANK.log.
    """

    def __init__(self, name, ranks, folder, is_gpu):
        self.name, self.ranks, self.folder, self.is_gpu = name, ranks, Path(folder), is_gpu
        self.processes, self.reason = [], None

    def start(self):
        """Starts the processes; they import PyTorch and meet while the caller goes on."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.meeting = tempfile.TemporaryDirectory()
        for rank in range(self.ranks):
            own = {
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(self.ranks),
                "MEETING": f"{self.meeting.name}/ranks",
                "BACKEND": "nccl" if self.is_gpu else "gloo",
                "OMP_NUM_THREADS": "1",
                "TORCHINDUCTOR_COMPILE_THREADS": "4",
            }
            self.processes.append(Torch("torch_rank_worker.py", {**os.environ, **own}, open(self.log(rank), "w")))

    def send(self, **request):
        if self.reason:
            raise Failed(self.reason)
        if not self.processes:
            self.start()
        try:
            for process in self.processes:
                process.send(**request)
        except Failed as failure:
            self.fail(str(failure))

    def receive(self, seconds):
        """[the answer of each rank]; Failed with the first failure, or when they take longer than that."""
        if self.reason:
            raise Failed(self.reason)
        deadline, answers, failure = time.perf_counter() + seconds, {}, None
        with selectors.DefaultSelector() as waiting:
            for rank, process in enumerate(self.processes):
                waiting.register(process.process.stdout, selectors.EVENT_READ, rank)
            while waiting.get_map():
                ready = waiting.select(max(0, deadline - time.perf_counter()))
                if not ready:
                    self.fail(failure or f"no answer within {seconds:.0f} s")
                for key, _ in ready:
                    waiting.unregister(key.fileobj)
                    try:
                        answers[key.data] = self.processes[key.data].receive()
                    except Failed as reason:
                        failure = failure or f"{reason} ({self.log(key.data)})"
                        deadline = min(deadline, time.perf_counter() + LEAVING)
        if failure:
            self.fail(failure)
        return [answers[rank] for rank in range(self.ranks)]

    def ask(self, seconds=120, **request):
        self.send(**request)
        return self.receive(seconds)

    def fail(self, reason):
        self.reason = reason
        self.stop()
        raise Failed(reason)

    def log(self, rank):
        return self.folder / f"{self.name.replace(' ', '_')}.{rank}.log"

    def stop(self):
        """Ends the processes, which frees their memory."""
        alive = [each.process for each in self.processes if each.process is not None]
        for process in alive:
            if self.reason:
                process.kill()
            try:
                process.stdin.close()
            except BrokenPipeError:
                pass  # it had died already
        for process in alive:
            try:
                process.wait(LEAVING)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            process.stdout.close()
        for each in self.processes:
            each.log.close()
        if self.processes:
            self.meeting.cleanup()
        self.processes = []


def of_slowest(answers):
    """One answer of all ranks: the longest time, the most memory."""
    known = {key: [answer[key] for answer in answers if answer[key] is not None] for key in answers[0]}
    return {key: max(values) if values else None for key, values in known.items()}
