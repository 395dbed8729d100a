"""The stored drills: drills.toml and host_drills.toml, and the tables of README.md that come from them."""
import re
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "scripts"))
from experiments import table  # noqa: E402
from published import MARKS, section  # noqa: E402

NAME, HOST_NAME = "drills", "host_drills"
WAYS = {"rank": "SIGKILL to a rank", "slurmstepd": "SIGKILL to a slurmstepd", "slurmd": "SIGKILL to a node's slurmd", "node": "a node crashes",
        "stopped": "SIGSTOP to a rank on the other node", "preemption": "preempted by requeue", "scancel": "scancel",
        "limit": "time limit, --signal", "limit_without_signal": "time limit, no --signal"}


HOST_KINDS = {"kill": "SIGKILL: ", "deck": "wrong decks", "checkpoint": "damaged checkpoints", "data": "damaged data files", "disk": "",
              "write": "a full disk at one write alone", "deleted": "the directory is deleted", "twins": "a second job in the directory", "clock": "a clock that jumps"}


def commit_of(program, parser):
    """The commit of a program whose drills are stored."""
    version = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
    commit, modified = re.search(r"git (\w+)(, modified)?", version).groups()
    if modified:
        parser.error("--store names a commit, and this program was built from other sources: commit, and build again")
    return commit


def store(name=NAME, /, **sections):
    """Writes both files; a section that is not given stays as it was."""
    path, page = HERE / f"{name}.toml", HERE / "README.md"
    kept = tomllib.loads(path.read_text()) if path.exists() else {}
    path.write_text(f"# Written by tests/drills/run_{name} --store; the tables of README.md come from it.\n"
                    + "".join(section(one, columns) for one, columns in {**kept, **sections}.items()))
    page.write_text(MARKS.sub(lambda mark: f"<!-- generated: {mark[1]} -->\n{GENERATED[mark[1]]()}<!-- end -->\n", page.read_text()))


def columns_of(rows):
    return {key: [row[key] for row in rows] for key in rows[0]}


def rows_of(columns):
    return [dict(zip(columns, values)) for values in zip(*columns.values())]


def generated():
    stored = tomllib.loads((HERE / "drills.toml").read_text())
    return "\n".join(text(stored) for name, text in (("drills", drills_text), ("sharding", sharding_text)) if name in stored)


def where(info):
    return f"{info['date']}, git {info['git_hash']}, {info['slurm']}, {info['mpi']}."


def drills_text(stored):
    rows, lines = rows_of(stored["drills"]), []
    for kind, what in WAYS.items():
        if mine := [row for row in rows if row["kind"] == kind]:
            ends = Counter(row["state"] if row["state"] == "requeued" else f"{row['state']} {row['code']}" for row in mine)
            lines.append([what, len(mine), span(mine, "step"), "; ".join(f"{end} ({count})" if len(ends) > 1 else end for end, count in ends.items()),
                          span(mine, "resumed"), sum(not row["fault"] for row in mine)])
    good = sum(not row["fault"] for row in rows)
    return (f"{good} of {len(rows)} jobs ended with a right state and code, and their runs went on to the same bits. Seed {stored['info']['seed']}, "
            f"{where(stored['info'])}\n\n{table.text(['what happens', 'drills', 'after step', 'the job ends as', 'goes on from', 'the same bits'], lines, True)}\n")


def span(rows, column):
    values = sorted(row[column] for row in rows)
    return f"{values[0]} to {values[-1]}"


def sharding_text(stored):
    lines = [[row["shard"], row["groups"], row["step_ms"], row["exposed_ms"], f"{row['loss']:.6f}", f"{row['difference']:.1e}"]
             for row in rows_of(stored["sharding"])]
    return (f"Four ranks on two nodes, sharded over all ranks or within a node ({where(stored['sharding_info'])} Both nodes are one machine, so "
            "losses count here, not times); differences are the largest of a loss from the replicated run's, relative:\n\n"
            + table.text(["parallel.shard", "ranks of a group", "step, ms", "exposed, ms", "last loss", "difference"], lines, True) + "\n")


def host_generated():
    """A line for each group of drills: how they ended, and how many as they must."""
    stored, lines = tomllib.loads((HERE / "host_drills.toml").read_text()), []
    soak = stored.pop("soak", None)
    for kind, what in HOST_KINDS.items():
        groups = {}
        for row in rows_of({key: stored[kind][key] for key in ("what", "end", "inside", "fault")}) if kind in stored else []:
            groups.setdefault(what + row["what"] if kind in ("kill", "disk") else what, []).append(row)
        for name, mine in groups.items():
            ends = Counter("killed" if row["end"] == "killed" else f"exit {row['end'] or '-'}" for row in mine)
            inside = sum(row["inside"] for row in mine)
            lines.append([name, len(mine), "; ".join(f"{end} ({count})" if len(ends) > 1 else end for end, count in sorted(ends.items()))
                          + (f", {inside} in the middle of a checkpoint" if inside else ""), sum(not row["fault"] for row in mine)])
    text = table.text(["what happens", "drills", "ends as", "as it must"], lines, True)
    runs = "; ".join(f"{kind}: seed {columns['seed']}, {columns['date']}, git {columns['git_hash']}" for kind, columns in stored.items())
    if soak:
        good = "bit for bit those" if not any(soak["fault"]) else "NOT those"
        text += (f"\n\nSoak, {soak['date']}, git {soak['git_hash']}: {len(soak['end'])} stops in {soak['minutes']} minutes, each start in the next "
                 f"strategy; the {soak['steps'][-1]} losses are {good} of a run that nothing stopped.")
    return f"{text}\n\n{runs}.\n"


GENERATED = {NAME: generated, HOST_NAME: host_generated}


def fault():
    """What is wrong with the page beside its stored drills, or ""."""
    marks = {mark[1]: mark[2] for mark in MARKS.finditer((HERE / "README.md").read_text())}
    wrong = [name for name, text in GENERATED.items() if marks.get(name) != text()]
    return "; ".join(f"tests/drills/README.md has another table than {name}.toml gives (run_{name} --store writes both)" for name in wrong)
