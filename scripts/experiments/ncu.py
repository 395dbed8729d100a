"""Bytes that kernels move between a GPU's memory and its cache, counted by Nsight Compute."""
import csv
import json
import re
import shutil
import subprocess

from experiments.launch import Program, note

METRICS = ("dram__bytes_read.sum", "dram__bytes_write.sum")
FACTORS = {"byte": 1.0, "Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9}
ONCE = ("bench.warmup=0", "bench.warmup_ms=0", "bench.rest_ms=0", "bench.repeats=1", "bench.row_limit_s=0", "job.overwrite=true",
        "job.progress=none")


def bytes_of(table, groups):
    """{group: bytes read and written} from ncu's CSV; `groups` are regular expressions of kernels' names."""
    lines = table.splitlines()
    first = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), None)
    if first is None:
        raise ValueError("ncu wrote no table: " + " ".join(lines[-3:]))
    sums = {}
    for row in csv.DictReader(lines[first:]):
        group = next((name for name, pattern in groups.items() if re.search(pattern, row["Kernel Name"])), None)
        if group is not None and row["Metric Name"] in METRICS:
            sums[group] = sums.get(group, 0.0) + float(row["Metric Value"].replace(",", "")) * FACTORS[row["Metric Unit"]]
    return sums


def count(row, program, folder, groups):
    """Runs the row's kernels once each under ncu."""
    with row.file() as file:
        deck = folder / f"{row.name}.toml"
        deck.write_text(file["info"].attrs["deck"])
    log = folder / f"{row.name}.csv"
    command = ["ncu", "--metrics", ",".join(METRICS), "--csv", "--log-file", log, program.path, deck, *ONCE, f"job.directory={folder / row.name}"]
    answer = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    text = log.read_text(errors="replace") if log.exists() else ""
    if answer.returncode != 0:
        raise ValueError(f"ncu ended with exit code {answer.returncode}: " + " ".join((text + answer.stderr).splitlines()[-2:])[:200])
    return bytes_of(text, groups)


def measured(results, groups):
    """({row name: {group: bytes}}, ""), or what of it there is and why the rest is missing. What was counted is kept in ncu.json.

    Runs ncu for the rows that it lacks, where there is ncu and a build with GPU code: once, however often it is asked.
    """
    if not hasattr(results, "counted"):
        results.counted = count_all(results, groups)
    return results.counted


def count_all(results, groups):
    path = results.output / "ncu.json"
    found = json.loads(path.read_text()) if path.exists() else {}
    absent = [row for row in results.rows if row.has_run and row.name not in found]
    if not absent or results.is_redraw:
        return found, "not measured" if absent else ""
    if shutil.which("ncu") is None:
        return found, "not measured (no ncu)"
    program = Program(results.preset)
    if not program.uses_gpus:
        return found, "not measured (no GPU code)"
    folder = results.output / "ncu"
    folder.mkdir(exist_ok=True)
    for row in absent:
        try:
            found[row.name] = count(row, program, folder, groups)
        except (ValueError, OSError) as fault:
            note(f"{row.name}: {fault}")
            return found, "not measured (ncu failed)"
        path.write_text(json.dumps(found, indent=1))
    return found, ""
