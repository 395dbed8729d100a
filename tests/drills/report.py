"""The stored drills: drills.toml, and the table of README.md that comes from it."""
import sys
import tomllib
from collections import Counter
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "scripts"))
from experiments import table  # noqa: E402
from published import MARKS, section  # noqa: E402

NAME = "drills"
WAYS = {"rank": "SIGKILL to a rank", "slurmstepd": "SIGKILL to a slurmstepd", "slurmd": "SIGKILL to a node's slurmd", "node": "a node crashes",
        "stopped": "SIGSTOP to a rank on the other node", "preemption": "preempted by requeue", "scancel": "scancel",
        "limit": "time limit, --signal", "limit_without_signal": "time limit, no --signal"}


def store(rows, info):
    """Writes both files; `rows`: as run_drills makes them."""
    columns = {key: [row[key] for row in rows] for key in ("kind", "number", "step", "victim", "state", "code", "fault")}
    (HERE / "drills.toml").write_text("# Written by tests/drills/run_drills --store; the table of README.md comes from it.\n"
                                      + section("info", info) + section("drills", columns))
    page = HERE / "README.md"
    page.write_text(MARKS.sub(lambda _: f"<!-- generated: {NAME} -->\n{generated()}<!-- end -->\n", page.read_text()))


def generated():
    stored = tomllib.loads((HERE / "drills.toml").read_text())
    info, columns = stored["info"], stored["drills"]
    rows = [dict(zip(columns, values)) for values in zip(*columns.values())]
    good = sum(not row["fault"] for row in rows)
    lines = []
    for kind in dict.fromkeys(columns["kind"]):
        mine = [row for row in rows if row["kind"] == kind]
        ends = Counter(row["state"] if row["state"] == "requeued" else f"{row['state']} {row['code']}" for row in mine)
        lines.append([WAYS[kind], len(mine), ", ".join(str(row["step"]) for row in mine),
                      "; ".join(f"{end} ({count})" if len(ends) > 1 else end for end, count in ends.items()), sum(not row["fault"] for row in mine)])
    says = (f"{good} of {len(rows)} ended with the state and code that are right for them and went on bit for bit. {info['date']}, git {info['git_hash']}, "
            f"seed {info['seed']}, {info['slurm']}, {info['mpi']}.")
    return f"{says}\n\n{table.text(['what happens', 'drills', 'at step', 'job ends as', 'same bits'], lines, True)}\n"


def fault():
    """What is wrong with the page beside drills.toml, or ""."""
    marks = [mark[2] for mark in MARKS.finditer((HERE / "README.md").read_text()) if mark[1] == NAME]
    return "" if marks == [generated()] else "tests/drills/README.md has another table than drills.toml gives (run_drills --store writes both)"
