"""Runs a program that signals stop in its own way: one copy of each reaches it, wherever it came from."""
import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

if sys.version_info < (3, 11):
    print(f"{Path(sys.argv[0]).name}: needs Python 3.11, this is {sys.version.split()[0]}: put a newer python3 first in PATH (a module, a venv)", file=sys.stderr)
    sys.exit(3)

ROOT = Path(__file__).resolve().parent.parent
STOPPED = 75  # the exit code of what was asked to stop and can go on


class Refusal(Exception):
    """Ends a script with an exit code; the text says why."""

    def __init__(self, code, words):
        super().__init__(words)
        self.code = code


def program_of(preset):
    """The path of a preset's program, of an installation's, or of the one that TESSERA_PROGRAM names, as in common.sh."""
    installed = ROOT.parents[1] / "bin/tessera"
    built = installed if not (ROOT / "CMakePresets.json").exists() and installed.exists() else ROOT / "build" / preset / "tessera"
    path = os.environ.get("TESSERA_PROGRAM") or str(built)
    if not os.access(path, os.X_OK):
        raise Refusal(3, f"there is no program {path}; scripts/build {preset} makes build/{preset}/tessera")
    return path


def replace_text(path, text):
    """Writes a file whole or not at all: a signal may come at any time, and the disk may be full."""
    path.with_suffix(".tmp").write_text(text)
    path.with_suffix(".tmp").replace(path)


def deck_name(deck):
    """What the program calls the run of a deck: NAME of NAME.toml, and of NAME/deck.toml."""
    deck = Path(deck).absolute()
    return deck.parent.name if deck.stem == "deck" else deck.stem


@contextlib.contextmanager
def signals_handled(handler):
    """SIGINT and SIGTERM go to `handler` within."""
    before = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


def stops_at_signals(words):
    """SIGINT and SIGTERM end what is within by a Refusal with STOPPED, which says `words`."""
    def stop(number, _):
        for each in signal.SIGINT, signal.SIGTERM:
            signal.signal(each, signal.SIG_IGN)  # one is enough: no other may cut short what it sets off
        raise Refusal(STOPPED, f"stopped by {signal.Signals(number).name}: {words}")

    return signals_handled(stop)


def run_handing_on(command, **streams):
    """Exit code, standard error (None unless `streams` pipes it) and the name of the signal that asked to stop, or None.

    SIGINT and SIGTERM are handed on to the command, and what it makes of them is awaited.
    """
    # in a group of its own, so that a terminal's Ctrl-C reaches it once
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, process_group=0, **streams)
    came = []

    def hand_on(number, _):
        came.append(signal.Signals(number).name)
        os.killpg(child.pid, number)

    with signals_handled(hand_on):
        errors = child.communicate()[1]
    return child.returncode, errors, came[0] if came else None


def run_on_ranks(room, ranks, preset, *words, **streams):
    """A program and its words on so many ranks, where `room` (places.py) has them: what run_handing_on gives."""
    launcher, environment = room.launcher(ranks)
    command = [str(ROOT / "scripts/run"), "-n", str(ranks), "--quiet", "--preset", preset, *launcher, *words]
    return run_handing_on(command, env=environment, **streams)
