"""Starts the launches of an experiment."""
import re
import subprocess
import sys
import tomllib

import plotting
from launching import STOPPED, Refusal, program_of, run_on_ranks
from places import places
from results import FINISHED, OUT_OF_MEMORY


def note(words):
    print(f"experiment: {words}", file=sys.stderr)


class Program:
    def __init__(self, preset):
        self.path, self.preset = program_of(preset), preset
        self.figures = tomllib.loads(self.ask("--show-config", "--figures"))
        self.uses_gpus = self.figures["gpu_code"] != ""

    def ask(self, *words):
        answer = subprocess.run([self.path, *map(str, words)], capture_output=True, text=True)
        if answer.returncode != 0:
            raise Refusal(answer.returncode, answer.stderr.strip().removeprefix("tessera: "))
        return answer.stdout

    def run(self, room, ranks, deck, *words):
        """The exit code; what the program says goes to standard error. Signals that ask to stop are handed on."""
        code, _, signal_name = run_on_ranks(room, ranks, self.preset, self.path, str(deck), *words, stdout=sys.stderr)
        if signal_name:
            raise Refusal(STOPPED, f"stopped by {signal_name}: the same command continues after the rows that have run")
        return code


def room_of(program, settings, shares_cores=False):
    """Where ranks can run. `settings`: the keys that the deck and the command line set."""
    room = places(program.uses_gpus)
    shares = settings.get("parallel", {}).get("allow_shared_device") if program.uses_gpus else shares_cores
    if shares and room.on_nodes is None and room.count > 0:
        room.count = sys.maxsize
    return room


def numbers_of_ranks(asked, of_deck, room):
    """Those that are run: all of --ranks, which are refused if there is no room; of the deck's those for which there is."""
    try:
        wanted = [int(word) for word in asked.split(",")] if asked is not None else of_deck
    except ValueError:
        wanted = [0]
    if min(wanted) < 1:
        raise Refusal(2, f"--ranks {asked}: whole numbers from 1 with commas between them, such as 1,2,4")
    absent = [R for R in wanted if R > room.count]
    if absent and (asked is not None or len(absent) == len(wanted)):
        raise Refusal(3, f"there is no room for {' or '.join(map(str, absent))} ranks: {room}")
    if absent:
        note(f"left out: {', '.join(map(str, absent))} ranks, {room}")
    return [R for R in wanted if R <= room.count]


def own_launches(rows, rounds):
    """(row, round) of a launch for each measurement of each row: round by round, as the program orders them."""
    return [(row, number) for number in range(1, rounds + 1)
            for row in (rows if number % 2 else reversed(rows))]


def launch_all(deck, overrides, ranks, preset, output, shares_cores=False):
    program = Program(preset)
    settings = tomllib.loads(program.ask(deck, *overrides, "--print"))
    experiment = settings["experiment"]
    rows = re.findall(r"^row (\S+)$", program.ask(deck, *overrides, "--check"), re.M)
    room = room_of(program, settings, shares_cores)
    for R in numbers_of_ranks(ranks, experiment.get("ranks", [1]), room):
        place = output / f"ranks_{R:04d}"
        words = [*overrides, f"job.directory={place}", "job.progress=none", "--resume", "auto"]
        launches = [()]  # words behind those of the command line, which they override
        if experiment.get("fresh_processes"):
            chosen = experiment.get("only") or rows
            rounds = experiment.get("rounds", 1)
            launches = [(f'experiment.only=["{row}"]', *([f"experiment.rounds={number}"] if rounds > 1 else []))
                        for row, number in own_launches([row for row in rows if row in chosen], rounds)]
        for own in launches:
            code = program.run(room, R, deck, *words, *own)
            if code != FINISHED:
                raise Refusal(code, f"the launch on {R} rank{'s' if R > 1 else ''} ended with exit code {code}")


def draw(drawing, results, path):
    import matplotlib.pyplot as plt

    with plt.rc_context(plotting.STYLE):
        figure = drawing(results)
        plotting.heading(figure, results.heading())
        plotting.save(figure, path)
        plt.close(figure)


def judge(results):
    """The exit code of the first row that failed for another reason than memory; 0 if none did."""
    for row in results.rows:
        if not row.has_run and row.exit_code != OUT_OF_MEMORY:
            note(f"row {row.name} on {row.ranks} rank{'s' if row.ranks > 1 else ''} ended with exit code {row.exit_code}: {row.reason.splitlines()[0]}")
            return row.exit_code
    return 0
