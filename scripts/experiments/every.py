"""experiment --all: experiments one after another, each by a call of scripts/experiment; then what became of each, and how long it took.

Those of one rank share a machine's GPUs, a lane for each; then come the others, one at a time, and what needs the whole host: PyTorch
beside rows that have run, and modules that say ALONE.
"""
import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from compare import beside
from experiments import table
from experiments.homes import homes, module_of
from launching import STOPPED, signals_handled
from results import FINISHED, STORED, Results

ENVIRONMENT, FAULT = 3, 1
SOON_S = 2  # in which the end of an ended call's output comes, unless what it started holds it open


class Calls:
    """Calls of the script, of several threads; one signal stops all and those that would follow."""

    def __init__(self, script, words):
        self.script, self.words, self.running, self.came = script, words, set(), []
        self.printing, self.publishing = threading.Lock(), threading.Lock()

    def stop(self, number, _):
        self.came.append(signal.Signals(number).name)
        for process in list(self.running):
            process.send_signal(number)

    def said(self, gpu, name, *words):
        """(exit code, the last lines that the script itself put to standard error); its output is passed on, whole. `gpu`: None for all."""
        environment = os.environ if gpu is None else {**os.environ, "CUDA_VISIBLE_DEVICES": gpu}
        # in a group of its own, so that a terminal's Ctrl-C reaches it once
        process = subprocess.Popen([sys.executable, self.script, name, *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                   errors="replace", process_group=0, env=environment)
        self.running.add(process)
        if self.came:  # before it was among those that are told
            process.send_signal(signal.SIGTERM)
        printed, own = [], []

        def hear():
            for line in process.stderr:
                sys.stderr.write(line if gpu is None else f"{name}: {line}")
                if match := re.match(r"experiment: (?!wrote)(.*)", line):
                    own.append(match[1].strip())

        readers = [threading.Thread(target=work, daemon=True) for work in (lambda: printed.extend(process.stdout), hear)]
        for reader in readers:
            reader.start()
        code = process.wait()
        self.running.discard(process)
        for reader in readers:
            reader.join(SOON_S)
        with self.printing:
            sys.stdout.writelines(printed)
            sys.stdout.flush()
        if self.came:
            return STOPPED, own or [f"stopped by {self.came[0]}"]
        return (code, own) if code >= 0 else (128 - code, [*own, f"ended by {signal.Signals(-code).name}"])  # as a shell counts

    def outcome_of(self, gpu, name, torch, run, publishes):
        """(exit code, in words): of one experiment."""
        code, own = self.said(gpu, name, "--output", run, *self.words, *torch)
        reason = "; ".join(own)
        if code != FINISHED:
            return code, ("left out: " if code == ENVIRONMENT else f"exit {code}: ") + reason
        if not publishes:
            return code, f"ran, {reason}" if reason else "ran"
        if absent := lacks(homes()[name], run):
            return code, f"ran, not published: the stored run has {', '.join(map(str, absent))} ranks, too"
        with self.publishing:  # some pages are of several experiments
            code, own = self.said(gpu, name, "--publish", run, *self.words)
        return code, f"published, {reason}" if reason and code == FINISHED else "published" if code == FINISHED else f"ran, exit {code}: {'; '.join(own)}"


def lacks(folder, run):
    """Numbers of ranks that the published run has and this one has not: on a smaller machine it replaces nothing."""
    return sorted(set(Results(folder).ranks) - set(Results(run).ranks)) if (folder / STORED).exists() else []


def may_share(name):
    ranks = tomllib.loads((homes()[name] / "deck.toml").read_text())["experiment"].get("ranks", [1])
    return ranks == [1] and not getattr(module_of(name), "ALONE", False)


def run_all(script, names, words, place, publishes, with_torch=False, gpus=()):
    """The exit code of the first that failed for another reason than the machine; prints the table. `gpus`: those to share, as CUDA names them."""
    if with_torch:
        beside.python_with_torch(on_gpu=False)  # refuses now what every experiment would
    calls, found, first = Calls(script, words), {}, time.monotonic()
    shared, others, lanes = queue.Queue(), queue.Queue(), {}  # the last: the GPU of our rows in this call, and of PyTorch's
    for name in names:
        (shared if len(gpus) > 1 and may_share(name) else others).put(name)

    def run(name, gpu=None):
        start, before = time.monotonic(), found[name][2] if name in found else 0
        has_peers = with_torch and beside.has_peers(module_of(name))
        comes_again = has_peers and gpu is not None
        try:
            outcome = calls.outcome_of(lanes.get(name, gpu), name, ["--torch"] if has_peers and not comes_again else [], Path(place) / name, publishes and not comes_again)
        except Exception as fault:  # of this one: the others go on
            outcome = FAULT, f"{type(fault).__name__}: {fault}"
        if comes_again and outcome[0] == FINISHED:
            outcome = FINISHED, f"{outcome[1]}, PyTorch's part not begun"  # until it comes
            lanes[name] = gpu
            others.put(name)
        found[name] = *outcome, before + time.monotonic() - start

    def run_those(waiting, gpu=None):
        while not calls.came and not any(code == STOPPED for code, *_ in list(found.values())):
            try:
                run(waiting.get_nowait(), gpu)
            except queue.Empty:
                return

    with signals_handled(calls.stop):
        if not shared.empty():
            with ThreadPoolExecutor(len(gpus)) as pool:
                for lane in [pool.submit(run_those, shared, gpu) for gpu in gpus]:
                    lane.result()  # or its exception
        run_those(others)
    rows = [[name, *(found[name][1], f"{found[name][2]:.0f}")] if name in found else [name, "not begun", "-"] for name in names]
    print(table.text(["experiment", "outcome", "s"], [*rows, ["all", "", f"{time.monotonic() - first:.0f}"]]))
    if calls.came:
        return STOPPED
    return next((found[name][0] for name in names if name in found and found[name][0] not in (FINISHED, ENVIRONMENT)), FINISHED)
