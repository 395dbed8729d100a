#!/usr/bin/env python3
"""Compiles every header of ours alone (-fsyntax-only): a header includes what it uses.

    check_headers.py BUILD_FOLDER     needs BUILD_FOLDER/compile_commands.json (CMake writes it); exit 1 on a fault
    check_headers.py --self-test BUILD_FOLDER

A header that a source file of the build includes first has been compiled alone already, if the object is newer than both. The others
that include Kokkos share one precompiled Kokkos_Core.hpp, which they would pull in anyway. Each header gets the flags of a source file of
its room.
"""
import concurrent.futures
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WITH_FILE = ("-o", "-MF", "-MT", "-MQ")  # the output, the dependency file and its target: each takes the next word


def parts_of(entry):
    """(compiler, flags) of an entry of compile_commands.json: every flag but those that name inputs and outputs, or
    headers that CMake has precompiled, which would lend a header their includes."""
    words = entry.get("arguments") or shlex.split(entry["command"])
    first = next(i for i, word in enumerate(words) if word.startswith("-"))
    inputs = {entry["file"], Path(entry["directory"], entry["file"]).as_posix()}
    rest, flags = iter(words[first:]), []
    for word in rest:
        if word in WITH_FILE:
            next(rest)
        elif word == "-Xclang":  # clang's way to name precompiled headers
            next(rest)
        elif word == "-include":
            file = next(rest)
            flags += [] if file.endswith("/cmake_pch.hxx") else [word, file]
        elif not (word in ("-c", "-Winvalid-pch", *inputs) or re.fullmatch("-M([DGMP]*|[FTQ].+)", word)):
            flags.append(word)
    return words[first - 1], flags  # a launcher such as ccache stands before the compiler


def compile_commands(build):
    return json.loads((build / "compile_commands.json").read_text())


def flags_by_folder(build):
    """{folder: flags} of the source file in each folder that has the most: it links every library of the room."""
    flags = {}
    for entry in compile_commands(build):
        folder, mine = Path(entry["directory"], entry["file"]).parent.as_posix(), parts_of(entry)[1]
        flags[folder] = max(flags.get(folder, []), mine, key=len)
    return flags


def flags_for(header, flags):
    for folder in [header.parent, *header.parents]:
        if folder.as_posix() in flags:
            return flags[folder.as_posix()]
        inside = [key for key in flags if key.startswith(folder.as_posix() + "/")]
        if inside and folder != ROOT:
            return flags[inside[0]]
    raise SystemExit(f"{header}: no source file of its room is in compile_commands.json")


def uses_kokkos(header, seen):
    if header in seen or not header.is_file():
        return False
    seen.add(header)
    for line in header.read_text().splitlines():
        match = re.match(r'\s*#\s*include\s*(["<])([^">]+)', line)
        if match and match.group(2) == "Kokkos_Core.hpp":
            return True
        if match and match.group(1) == '"' and any(uses_kokkos(base / match.group(2), seen) for base in (ROOT, ROOT / "src")):
            return True
    return False


def compile_alone(compiler, header, flags, precompiled):
    source = ["-include", precompiled / "Kokkos_Core.hpp"] if precompiled else []
    answer = subprocess.run([compiler, *flags, *map(str, source), "-fsyntax-only", "-x", "c++", "-"],
                            input=f'#include "{header}"\n', text=True, capture_output=True)
    return None if answer.returncode == 0 else f"{header}: does not compile alone\n{answer.stderr.strip()}"


def check(build, headers):
    done = built_alone(build)
    headers = [header for header in headers if header not in done]
    compiler = os.environ.get("CXX") or parts_of(compile_commands(build)[0])[0]
    flags = flags_by_folder(build)
    jobs = []
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        precompiled = {}
        for header in headers:
            mine, shared = flags_for(header, flags), None
            if uses_kokkos(header, set()):
                # One precompiled header per set of the flags in which the compiler requires agreement.
                key = tuple(f for f in mine if not f.startswith(("-I", "-D")))
                if key not in precompiled:
                    precompiled[key] = Path(folder) / str(len(precompiled))
                    precompiled[key].mkdir()
                    (precompiled[key] / "Kokkos_Core.hpp").write_text("#include <Kokkos_Core.hpp>\n")
                    subprocess.run([compiler, *mine, "-x", "c++-header", str(precompiled[key] / "Kokkos_Core.hpp"),
                                    "-o", str(precompiled[key] / "Kokkos_Core.hpp.gch")], check=True)
                shared = precompiled[key]
            jobs.append(pool.submit(compile_alone, compiler, header, mine, shared))
        return [fault for fault in (job.result() for job in jobs) if fault]


def built_alone(build):
    """Headers that the build has compiled with nothing before them: the first include of a source whose object is up to date."""
    found = set()
    for entry in compile_commands(build):
        words = entry.get("arguments") or shlex.split(entry["command"])
        source, made = Path(entry["directory"], entry["file"]), Path(entry["directory"], words[words.index("-o") + 1])
        first = re.search(r'^\s*#\s*include\s*"([^"]+)"|^\s*#', source.read_text(), re.M) if made.exists() else None
        header = next((base / first[1] for base in (ROOT, ROOT / "src") if (base / first[1]).is_file()), None) if first and first[1] else None
        if header and "-include" not in words and made.stat().st_mtime > max(path.stat().st_mtime for path in (source, header)):
            found.add(header)
    return found


def is_of_device_code(header):
    """Device code: only a CUDA compiler with a CUDA Kokkos can read it. A header of these folders that asks for
    TESSERA_VENDOR_CUDA itself is for every build."""
    homes = ("kernels/cuda", "kernels/attention/flash2/ampere", "kernels/attention/flash2/hopper")
    return header.parent.as_posix().endswith(homes) and "#ifdef TESSERA_VENDOR_CUDA" not in header.read_text()


def all_headers():
    """Every header that a host compiler can read."""
    found = [path for room in ("kernels", "parallel", "src") for path in sorted((ROOT / room).rglob("*.hpp"))]
    return [path for path in found if not is_of_device_code(path)]


def faults_of_flags(folder):
    """Compile commands, as CMake and other generators write them, keep every flag that names no input or output."""
    flags = ["-DNAME=\"a b\"", "-I", "/include", "-isystem", "/lib/include", "-include", "config.h", "-O3", "-fopenmp", "-pthread",
             "-std=c++20", "--param", "max-inline=9", "-fsanitize=address,undefined", "-Werror", "-mavx2"]
    precompiled = ["-Winvalid-pch", "-include", "/build/cmake_pch.hxx", "-Xclang", "-include-pch", "-Xclang", "/build/x.pch"]
    files = ["-MD", "-MMD", "-MP", "-MT", "x.o", "-MFx.d", "-MF", "x.d", "-o", "x.o", "-c", "/room/x.cpp"]
    words = ["/usr/bin/c++", *flags[:7], *precompiled, *files[:8], *flags[7:], *files[8:]]
    entries = [{"directory": "/build", "file": "/room/x.cpp", "command": shlex.join(words)},
               {"directory": "/build", "file": "/room/words/x.cpp", "arguments": [*words[:-1], "/room/words/x.cpp"]},
               {"directory": "/room", "file": "x.cpp", "command": shlex.join(words)},
               {"directory": "/build", "file": "/room/launched/x.cpp", "command": shlex.join(["ccache", *words[:-1], "/room/launched/x.cpp"])}]
    (folder / "compile_commands.json").write_text(json.dumps(entries))
    faults = [f"flags of {room}: {found}" for room, found in flags_by_folder(folder).items() if found != flags]
    compilers = {parts_of(entry)[0] for entry in entries}
    return faults + ([] if compilers == {"/usr/bin/c++"} else [f"compilers: {compilers}"])


def faults_of_built(folder):
    """Only a header that an up-to-date object's source includes before all else counts as compiled alone."""
    header = folder / "x.hpp"
    name, faults = os.path.relpath(header, ROOT), []
    for text, made, flags, expected in ((f'// x\n#include "{name}"\n', 2, [], True), (f'#include <vector>\n#include "{name}"\n', 2, [], False),
                                        (f'#define X\n#include "{name}"\n', 2, [], False), (f'#include "{name}"\n', 0, [], False),
                                        (f'#include "{name}"\n', 2, ["-include", "y.hpp"], False)):
        (folder / "x.cpp").write_text(text)
        for file, time in ((header, 1), (folder / "x.cpp", 1), (folder / "x.o", made)):
            file.touch()
            os.utime(file, (time, time))
        (folder / "compile_commands.json").write_text(json.dumps([{"directory": str(folder), "file": "x.cpp", "arguments": ["c++", *flags, "-o", "x.o"]}]))
        if bool(built_alone(folder)) != expected:
            faults.append(f"compiled alone by the build: {not expected} of {text!r} {flags} made at {made}")
    return faults


def self_test(build):
    """A header that forgets <vector> must be found, a sound one must pass; a compile command keeps its flags."""
    with tempfile.TemporaryDirectory(dir=build) as folder:
        sound, faulty = Path(folder) / "sound.hpp", Path(folder) / "faulty.hpp"
        sound.write_text("#pragma once\n#include <vector>\ninline std::vector<int> f() { return {}; }\n")
        faulty.write_text("#pragma once\ninline std::vector<int> f() { return {}; }\n")
        faults = faults_of_flags(Path(folder)) + faults_of_built(Path(folder))
        compiler = os.environ.get("CXX", "c++")
        found = [compile_alone(compiler, header, ["-std=c++20"], None) for header in (sound, faulty)]
    return faults + ([] if found[0] is None and found[1] is not None else [f"sound: {found[0]}; faulty: {found[1]}"])


if __name__ == "__main__":
    build_folder = Path(sys.argv[-1]).resolve()
    faults = self_test(build_folder) if "--self-test" in sys.argv else check(build_folder, all_headers())
    print("\n".join(faults) or "headers: each compiles alone")
    sys.exit(bool(faults))
