"""experiment --all: one experiment after another, each by a call of scripts/experiment; then what became of each, and how long it took."""
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

from compare import beside
from experiments import table
from experiments.homes import homes, module_of
from launching import STOPPED, signals_handled
from results import FINISHED, STORED, Results

ENVIRONMENT = 3


def said(script, *words):
    """(exit code, the last lines that the script itself put to standard error); its output is passed on."""
    # in a group of its own, so that a terminal's Ctrl-C reaches it once
    process = subprocess.Popen([sys.executable, script, *map(str, words)], stderr=subprocess.PIPE, text=True, errors="replace", process_group=0)
    own, came = [], []

    def hand_on(number, _):
        came.append(signal.Signals(number).name)
        process.send_signal(number)

    with signals_handled(hand_on):
        for line in process.stderr:
            sys.stderr.write(line)
            if match := re.match(r"experiment: (?!wrote)(.*)", line):
                own.append(match[1].strip())
        code = process.wait()
    if came:
        return STOPPED, own or [f"stopped by {came[0]}"]
    return (code, own) if code >= 0 else (128 - code, [*own, f"ended by {signal.Signals(-code).name}"])  # as a shell counts


def lacks(folder, run):
    """Numbers of ranks that the published run has and this one has not: on a smaller machine it replaces nothing."""
    return sorted(set(Results(folder).ranks) - set(Results(run).ranks)) if (folder / STORED).exists() else []


def outcome_of(script, name, words, run, publishes):
    """(exit code, in words): of one experiment."""
    code, own = said(script, name, "--output", run, *words)
    reason = "; ".join(own)
    if code != FINISHED:
        return code, ("left out: " if code == ENVIRONMENT else f"exit {code}: ") + reason
    if not publishes:
        return code, f"ran, {reason}" if reason else "ran"
    if absent := lacks(homes()[name], run):
        return code, f"ran, not published: the stored run has {', '.join(map(str, absent))} ranks, too"
    code, own = said(script, name, "--publish", run)
    return code, f"published, {reason}" if reason and code == FINISHED else "published" if code == FINISHED else f"ran, exit {code}: {'; '.join(own)}"


def run_all(script, names, words, place, publishes, with_torch=False):
    """The exit code of the first that failed for another reason than the machine; prints the table."""
    if with_torch:
        beside.python_with_torch(on_gpu=False)  # refuses now what every experiment would
    rows, worst, first = [], FINISHED, time.monotonic()
    for name in names:
        start = time.monotonic()
        torch = ["--torch"] if with_torch and beside.has_peers(module_of(name)) else []
        code, outcome = outcome_of(script, name, [*words, *torch], Path(place) / name, publishes)
        rows.append([name, outcome, f"{time.monotonic() - start:.0f}"])
        worst = worst or (code if code != ENVIRONMENT else FINISHED)
        if code == STOPPED:
            break
    rows += [[name, "not begun", "-"] for name in names[len(rows):]]
    print(table.text(["experiment", "outcome", "s"], [*rows, ["all", "", f"{time.monotonic() - first:.0f}"]]))
    return worst
