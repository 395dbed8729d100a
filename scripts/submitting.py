"""Job scripts for Slurm: what slurm/submit, scaling and experiment share."""
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from launching import ROOT, Refusal


def joined(words):
    """Options of sbatch with their values: ["-p", "gpu", "--time=1"] is ["-p gpu", "--time=1"]."""
    options = []
    for word in words:
        if word.startswith("-"):
            options.append(shlex.quote(word))
        elif options:
            options[-1] += " " + shlex.quote(word)
        else:
            raise Refusal(2, f"{word}: options of sbatch, such as --time=04:00:00, were expected")
    return options


def site():
    """(#SBATCH lines, other lines) of the site's file."""
    path = Path(os.environ.get("TESSERA_SLURM_SITE") or ROOT / "scripts/slurm/site")
    if not path.exists():
        if "TESSERA_SLURM_SITE" in os.environ:
            raise Refusal(6, f"{path}: there is no such file (TESSERA_SLURM_SITE)")
        return [], []
    lines = path.read_text().splitlines()
    options = [line.removeprefix("#SBATCH").strip() for line in lines if line.startswith("#SBATCH")]
    return options, [line for line in lines if line.strip() and not line.startswith("#")]


def with_site(options, given):
    """All of a script's options in the order of their rank: of two, Slurm takes the later. `given`: the user's."""
    return [f"--chdir={shlex.quote(os.getcwd())}", "--open-mode=append", *options, *site()[0], *given]


def script(title, options, lines):
    """A job script as text; its lines follow the site's."""
    of_site = site()[1]
    return "\n".join(["#!/bin/bash", f"# {title}; submit it again, changed or not, with sbatch.",
                      *(f"#SBATCH {option}" for option in options), *(["", "# this cluster's", *of_site] if of_site else []), "", *lines]) + "\n"


def submit(path, text, *arguments):
    """Writes the script and submits it with its arguments: the job's number. Nothing is left of a job that is refused."""
    if shutil.which("sbatch") is None:
        raise Refusal(3, "there is no sbatch here: log in to the cluster, or see a deck's script by slurm/submit --dry-run")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    except OSError as fault:
        raise Refusal(6, str(fault)) from None
    try:
        return sbatch(path, *arguments)
    except Refusal:
        path.unlink()
        raise


def sbatch(*words):
    """The number that Slurm gives the job."""
    answer = subprocess.run(["sbatch", "--parsable", *map(str, words)], stdout=subprocess.PIPE, text=True)
    if answer.returncode != 0:
        raise Refusal(answer.returncode, "sbatch refused the job (its message is above)")
    return answer.stdout.strip().split(";")[0]


def submit_itself(sbatch_options, output, *ours):
    """Submits this very command as a job, in whose allocation it starts its ranks, and prints the job's number. Script and
    output lie beside the command's folder: OUTPUT.sh and OUTPUT.JOB.out."""
    try:
        given = joined(shlex.split(sbatch_options))
    except ValueError as fault:
        raise Refusal(2, f"--submit: {fault}") from None
    name, words, rest = Path(sys.argv[0]).name, [os.path.abspath(sys.argv[0])], iter(sys.argv[1:])
    for word in rest:
        if word == "--submit":
            next(rest)
        elif not word.startswith("--submit="):
            words.append(word)
    program = os.environ.get("TESSERA_PROGRAM")
    log = str(output).replace("%", "%%") + ".%j.out"
    options = with_site([f"--job-name={shlex.quote(output.name)}", f"--output={shlex.quote(log)}", *ours], given)
    path = Path(f"{output}.sh")
    print(submit(path, script(f"{output.name}: written by scripts/{name} --submit", options, [
        *([f"export TESSERA_PROGRAM={shlex.quote(os.path.abspath(program))}"] if program else []),
        "exec " + shlex.join([*words, "--output", str(output)])])))
    print(f"{name}: {path}", file=sys.stderr)
