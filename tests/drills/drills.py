"""What a run on two nodes of Slurm survives: each drill hurts one, and sees how its job ends and that it goes on.

A drill submits a run by scripts/slurm/submit, does the harm at a step that the seed chose, and awaits the end of the job (its
state and code). Then the requeue, the next job of the chain, or a new one goes on from the newest checkpoint. Weights, moments and
losses must be, bit for bit, those of one run that nothing happens to.

No run can end before its harm: its deck asks for more steps than any machine takes in the time, and until the job has ended
nothing else does. Only then the deck is given a last step, which what goes on reads. The learning rate does not depend on it.
"""
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from harness import HANG, PATIENCE, PROGRAM, SOURCE, STOPPED, TINY, column, latest_step, tensors

sys.path.insert(0, str(SOURCE / "tests/support"))
from slurm_lab import CPUS, NODES  # noqa: E402

RUN = ("train.batch_size=48", "optimizer.learning_rate=1e-3", "parallel.timeout_s=6", "-N", 2, "-n", 2)  # at a constant rate
ENDLESS = 10**9
EVERY = 100  # steps; what goes on ends at a multiple, where the undisturbed run has a checkpoint
END_S = 300 * PATIENCE
ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY")
COLUMNS = ("step", "loss", "grad_norm")


class Failed(Exception):
    """What a drill found."""


class Drill:
    """One run in `folder`, hurt once."""

    def __init__(self, lab, folder, kind, number, seed):
        self.lab, self.folder, self.kind, self.number = lab, folder, kind, number
        self.chance = random.Random(f"{seed} {kind} {number}")
        self.directory, self.deck = (folder / f"{kind}_{number}{suffix}" for suffix in ("", ".toml"))
        self.at_step = self.chance.randrange(3, 50)
        self.victim = self.code = self.state = self.urgent = ""
        self.steps = self.resumed = 0  # of what goes on: its last one and its first

    # --- Slurm

    def submit(self, *words, steps=ENDLESS, without_signal=False):
        """The numbers of the first job and of the last."""
        self.ask_for(steps)
        command = [SOURCE / "scripts/slurm/submit", self.deck, f"job.directory={self.directory}", *RUN,
                   *(["--dry-run"] if without_signal else []), *words]
        environment = {**os.environ, **self.lab.environment, "TESSERA_PROGRAM": str(PROGRAM), "SLURM_WAIT": "5"}
        answer = subprocess.run([*map(str, command)], capture_output=True, text=True, cwd=self.folder, env=environment, timeout=120)
        if answer.returncode != 0:
            raise Failed(f"submit ended with {answer.returncode}: {answer.stderr}")
        if not without_signal:
            return answer.stdout.split()[0], answer.stdout.split()[-1]
        path = self.directory / "slurm/script.sh"
        path.parent.mkdir(parents=True)
        path.write_text(re.sub(r"(?m)^#SBATCH --signal=.*\n", "", answer.stdout))
        job = self.lab.command("sbatch", "--parsable", path).strip()
        return job, job

    def ask_for(self, steps):
        self.deck.write_text(TINY.read_text().replace("\nsteps = 30 ", f"\nsteps = {steps} "))

    def text(self):
        return "".join(path.read_text(errors="replace") for path in sorted(self.directory.glob("slurm/*.out")))

    def until(self, condition, what, limit_s=END_S):
        end = time.monotonic() + limit_s
        while not condition():
            if time.monotonic() > end:
                raise Failed(f"never saw {what}:\n{self.lab.command('squeue')}{self.text()[-2000:]}")
            time.sleep(0.2)

    def until_step(self, step):
        """Until the run's line in `status` has come so far."""
        def reached():
            found = re.match(r"running +step +(\d+)/", text_of(self.directory / "status"))
            return found and int(found[1]) >= step

        self.until(reached, f"step {step}")

    # --- processes of a job

    def ranks(self, job):
        """{process: node}"""
        found = {}
        for path in Path("/proc").glob("[0-9]*"):
            try:
                if os.path.samefile(path / "exe", PROGRAM):
                    words = dict(word.split("=", 1) for word in (path / "environ").read_text(errors="replace").split("\0") if "=" in word)
                    if words.get("SLURM_JOB_ID") == job:
                        found[int(path.name)] = words.get("SLURMD_NODENAME", "")
            except OSError:
                pass  # it has ended
        return found

    def a_rank(self, job, node=None):
        ranks = {pid: where for pid, where in self.ranks(job).items() if node in (None, where)}
        if not ranks:
            raise Failed(f"job {job} has no ranks (on {node})")
        pid = self.chance.choice(sorted(ranks))
        self.victim = f"a rank on {ranks[pid]}"
        return pid

    # --- the drill

    def run(self):
        """Raises Failed unless the job ends as it must, and what goes on finishes the run."""
        way, harm, expected = KINDS[self.kind]
        job, last = self.submit(*way, without_signal=harm is limit_without_signal)
        if last != job:
            self.lab.command("scontrol", "hold", last)
        self.until_step(self.at_step)
        harm(self, job)
        self.until(lambda: self.is_over(job, way), "the end of the job")
        self.state = "requeued" if self.is_requeued(job) else self.lab.shown(job, "JobState")
        self.code = self.lab.shown(job, "ExitCode") if self.state != "requeued" else "-"
        self.until(lambda: not self.ranks(job), "the end of its ranks")
        self.resumed = latest_step(self.directory)
        self.steps = EVERY * (self.resumed // EVERY + 1)
        self.ask_for(self.steps)
        repair(self)
        if (self.state, self.code) not in expected:
            raise Failed(f"{self.victim or self.kind}: the job ended as {self.state} with {self.code}, not as {expected}:\n{self.text()[-3000:]}")
        if self.state == "requeued":
            self.until(lambda: not self.lab.steps_of(job), "the end of the first start")
            if self.lab.shown(job, "JobState") == "PENDING":
                self.lab.release(job)
        elif last == job:
            last = self.submit(steps=self.steps)[1]
        else:
            self.lab.command("scontrol", "release", last)
        self.until_end(last)

    def abandon(self):
        """After a failure: ends what is left of its jobs."""
        repair(self)
        self.lab.command("scancel", f"--name={self.deck.stem}")

    def until_end(self, job):
        self.until(lambda: self.lab.shown(job, "JobState") in ENDED, "the end of the run")
        if (ended := (self.lab.shown(job, "JobState"), self.lab.shown(job, "ExitCode"))) != ("COMPLETED", "0:0"):
            raise Failed(f"{self.victim or self.kind}: what went on ended as {ended}:\n{self.text()[-3000:]}")

    def is_requeued(self, job):
        return int(self.lab.shown(job, "Restarts")) > 0

    def is_over(self, job, way):
        return self.lab.shown(job, "JobState") in ENDED or ("--requeue" in way and self.is_requeued(job))


def undisturbed(lab, folder, steps):
    """The directory of a run of so many steps that nothing happens to, with a checkpoint at every multiple of EVERY."""
    run = Drill(lab, folder, "undisturbed", steps, 0)
    run.until_end(run.submit(f"checkpoint.every={EVERY}", f"checkpoint.keep={steps}", steps=steps)[1])
    return run.directory


def text_of(path):
    try:
        return path.read_text()
    except OSError:
        return ""


def require_same(drill, whole):
    """Raises Failed unless the drill's run and `whole`, the undisturbed one, are the same up to the drill's last step."""
    mine, theirs = tensors(drill.directory), tensors(whole, drill.steps)
    different = [name for name in theirs if name not in mine or not np.array_equal(mine[name], theirs[name])]
    different += [name for name in COLUMNS if not np.array_equal(column(drill.directory, name), column(whole, name)[:drill.steps])]
    if different or mine.keys() != theirs.keys() or latest_step(drill.directory) != drill.steps:
        raise Failed(f"other bits than without interruption, or other steps: {', '.join(different)}")


def compare_sharding(lab, folder):
    """Rows of training on two ranks of each of two nodes: replicated, and sharded over all ranks or within a node."""
    rows, replicated = [], None
    for shard in ("none", "optimizer", "gradients", "parameters"):
        for group in (0, 2) if shard != "none" else (0,):
            run = Drill(lab, folder, "sharding", f"{shard}_{group}", 0)
            job, _ = run.submit("-n", 4, f"parallel.shard={shard}", f"parallel.shard_ranks={group}", "optimizer.eps=1e-3", steps=30)
            run.until_end(job)
            if "n1: 2 ranks, n2: 2 ranks" not in run.text():
                raise Failed(run.text()[-3000:])
            loss = column(run.directory, "loss")
            replicated = loss if replicated is None else replicated
            median = lambda name: 1e3 * float(np.nanmedian(column(run.directory, name)[5:]))
            rows.append({"shard": shard, "groups": {"none": 1}.get(shard, group or 4), "step_ms": median("step_time"), "exposed_ms": median("exposed_comm"),
                         "loss": float(loss[-1]), "difference": float(np.max(np.abs(loss / replicated - 1)))})
    return rows


# --- what is done to a job

def kill_rank(drill, job):
    os.kill(drill.a_rank(job), signal.SIGKILL)


def stop_rank(drill, job):
    os.kill(drill.a_rank(job, "n2"), signal.SIGSTOP)


def kill_stepd(drill, job):
    """The one that looks after the ranks of a node, or the script."""
    pid = int(drill.chance.choice(sorted(drill.lab.steps_of(job), key=int)))
    what = Path(f"/proc/{pid}/cmdline").read_text().split("\0")[0]
    whose = "the script's" if "batch" in what else "the ranks'"
    drill.victim = f"{whose} slurmstepd on {drill.lab.node_of(pid)}"
    os.kill(pid, signal.SIGKILL)
    if whose == "the script's":  # which harms no rank, and Slurm does not miss it while they run
        drill.lab.command("scancel", "--signal=USR1", job)


def kill_slurmd(drill, job):
    node = drill.chance.choice(sorted(NODES))
    drill.victim = f"slurmd of {node}"
    drill.lab.kill_node(node, everything=False)


def crash_node(drill, job):
    node = drill.chance.choice(sorted(NODES))
    drill.victim = f"all of {node}"
    drill.lab.kill_node(node, everything=True)


def preempt(drill, job):
    drill.victim = "the job"
    drill.urgent = drill.lab.command("sbatch", "--parsable", "--partition=urgent", *MOST, "--output=/dev/null", "--wrap",
                                     "sleep 1000").strip()


def cancel(drill, job):
    drill.lab.command("scancel", job)


def limit_with_signal(drill, job):
    """The margin is 61 s."""
    drill.lab.command("scontrol", "update", f"JobId={job}", "EndTime=now+62")


def limit_without_signal(drill, job):
    drill.lab.command("scontrol", "update", f"JobId={job}", "EndTime=now+1")


def repair(drill):
    """Undoes the harm, as an administrator does, or the end of a job that was more urgent."""
    if drill.urgent:
        drill.lab.command("scancel", drill.urgent)
    for node in NODES:
        drill.lab.revive(node)


MOST = ("--nodes=2", "--ntasks-per-node=1", f"--cpus-per-task={CPUS // 2 + 1}")  # two such jobs do not fit
REQUEUE, CHAIN, ALONE = ("--requeue", "--", "--time=10"), ("--chain", 2), ("--", "--time=10")
AGAIN, KILLED, LOST, NO_NODE = ("requeued", "-"), ("FAILED", "137:0"), ("FAILED", f"{HANG}:0"), ("NODE_FAIL", "0:1")
KINDS = {  # how it is submitted, what is done to it, the states and codes that are right
    "rank": (CHAIN, kill_rank, [KILLED, LOST]),  # what is quicker: srun kills the other rank, or that one gives up
    "slurmstepd": (CHAIN, kill_stepd, [LOST, NO_NODE]),
    "slurmd": (REQUEUE, kill_slurmd, [AGAIN]),
    "node": (REQUEUE, crash_node, [AGAIN, LOST]),  # which notice first: Slurm, or the ranks that are left
    "stopped": (CHAIN, stop_rank, [LOST, KILLED]),  # srun kills the stopped one
    "preemption": ((*REQUEUE, "--partition=spare", *MOST), preempt, [AGAIN]),
    "scancel": (CHAIN, cancel, [("CANCELLED", f"{STOPPED}:0"), ("CANCELLED", "0:15")]),
    "limit": (REQUEUE, limit_with_signal, [AGAIN]),
    "limit_without_signal": (ALONE, limit_without_signal, [("TIMEOUT", f"{STOPPED}:0"), ("TIMEOUT", "0:15")]),
}
