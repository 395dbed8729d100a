#!/usr/bin/env python3
"""Holds the source to the rules that no compiler checks. Prints file:line: what is wrong; exit 1 if anything is.

    check_style.py [ROOT]        check the checkout
    check_style.py --self-test   plant one fault per rule in a small tree and see that each one is found

Rules: rooms include only what their arrows allow; vendor words stay in their homes; headers start with
`#pragma once` after a doc-comment; every file opens with a comment; contracts have one field per line; section rules
are complete; no path of a particular machine; scripts parse; no source of the program is longer than MAX_LINES lines, no
line of C++ wider than MAX_COLUMNS; links in pages resolve; all pages together have at most MAX_WORDS words written by hand; no
files include each other in a circle, and no two of src share a name.
"""
import ast
import itertools
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

LEAVES = ["errors.hpp"]
# room -> what it may include with quotes, besides itself. Longest matching room counts. The README's map, as a table.
ROOMS = {
    "src/errors.hpp": ["kernels/core"],
    "src/build_info.hpp": [],
    "src/config": ["errors.hpp"],
    "src/memory": ["kernels/core", *LEAVES],
    "src/io": ["kernels/core", *LEAVES],
    "src/data": ["kernels/core/random.hpp", "kernels/core/events.hpp", "io", "config/settings.hpp", "config/text.hpp", *LEAVES],
    "src/model": ["kernels", "memory", "config/settings.hpp", *LEAVES],
    "src/optim": ["kernels", "memory", "config/settings.hpp", *LEAVES],
    "src/train": ["kernels", "parallel", "memory", "model", "optim", "data", "config", *LEAVES],
    "src/jobs": ["kernels", "parallel", "memory", "model", "optim", "data", "train", "io", "config", *LEAVES, "build_info.hpp"],
    "src/lab": ["kernels", "parallel", "memory", "model", "optim", "data", "train", "io", "config", "jobs", *LEAVES, "build_info.hpp"],
    "src/no_lab.cpp": ["lab/lab.hpp", "config", *LEAVES],
    "src/main.cpp": ["lab/lab.hpp", "kernels", "parallel", "memory", "model", "optim", "data", "train", "io", "jobs", "config", "errors.hpp", "build_info.hpp"],
    "kernels/core": [],
    "kernels/cuda": ["kernels/core"],
    "kernels": [],
    "parallel": ["kernels/core", "kernels/cuda"],
    "parallel/errors.hpp": [],
    "parallel/shared_memory.hpp": [],
    "parallel/watch": ["kernels/core", "kernels/cuda", "parallel/errors.hpp", "parallel/shared_memory.hpp"],
    "parallel/collectives": ["kernels/core", "kernels/cuda", "parallel/errors.hpp", "parallel/shared_memory.hpp", "parallel/watch",
                             "parallel/world.hpp"],
    "parallel/strategies": ["kernels/core", "parallel/collectives"],
}

CUDA_HOMES = ["kernels/cuda/", "kernels/attention/flash2/ampere/", "kernels/attention/flash2/hopper/", "kernels/gemm/cublaslt.",
              "parallel/device.", "parallel/collectives/nccl", "parallel/collectives/copy_engine.",
              "parallel/collectives/stream_", "parallel/watch/stream_log.",
              "src/train/graph."]

# (what, pattern, homes): in C++ code the word occurs only under these paths.
VENDORS = [
    ("MPI", r"#include\s*<mpi\.h>|\bMPI_[A-Z]\w+", ["parallel/world.", "parallel/collectives/mpi", "src/main.cpp", "tests/support/"]),
    ("NCCL", r"#include\s*<nccl\.h>|\bnccl[A-Z]\w+", ["parallel/collectives/nccl"]),
    ("HDF5", r"#include\s*<hdf5(_hl)?\.h>|\bH5[A-Z]{1,2}[a-z]\w+\(", ["src/io/h5.", "src/io/h5_calls.", "src/io/h5_attributes.", "src/io/h5_contents."]),
    ("toml++", r"#include\s*<toml\+\+/", ["src/config/"]),
    ("CLI11", r"#include\s*<CLI/", ["src/config/"]),
    ("KOKKOS_VERSION", r"\bKOKKOS_VERSION\b", ["kernels/core/compat.hpp"]),
    ("CUDA", r"#include\s*<(cuda|cublas)\w*\.h|\b(cuda|cublas)[A-Z]\w+(\(|_t\b)|__(global|shared)__|\b__(syncthreads|nv_bfloat16)\b",
     [*CUDA_HOMES, "tests/unit/parallel/collectives/", "tests/unit/parallel/watch/test_stream_log."]),
    ("a guard for CUDA", r"\b(KOKKOS_ENABLE_CUDA|TESSERA_VENDOR_CUDA|TESSERA_CUDA_ARCH|__CUDA_ARCH\w*)\b|\bKokkos::Cuda\w*", [*CUDA_HOMES, "tests/"]),
    ("a guard for nvcc", r"\b__(CUDACC|NVCC)\w*", [*CUDA_HOMES, "kernels/core/compat.hpp", "kernels/core/scalar.hpp"]),
    ("NVTX", r"#include\s*<nvtx3/|\bnvtx[A-Z]\w+", ["kernels/cuda/", "tests/unit/kernels/test_nvtx."]),
    ("fmt in a header", r"#include\s*<fmt/", [".cpp", "src/errors.hpp", "parallel/errors.hpp"]),
    ("a View that does not widen its indices", r"\bKokkos::View<[^>]*\*\*", ["kernels/core/tensor.hpp"]),
]

ROOT = [Path()]  # of the tree that is checked
MAX_LINES = 520  # of a source file of the program
MAX_COLUMNS = 120  # of a line of C++
MAX_WORDS = 15000  # of all pages together; what stands between <!-- generated: NAME --> and <!-- end --> does not count
FOLDERS = ["src", "kernels", "parallel", "tests", "scripts", "cmake", "input", "docs", ".ci"]
MACHINE_PATH = re.compile(r"(?<![\w.$}{])/(home|root|work|Users|scratch|lustre|mnt|tmp)/[\w.]")


def ignored(root):
    """What git is told to ignore, such as a site's own scripts/slurm/site; nothing where git or a .git is missing."""
    if not (root / ".git").exists() or shutil.which("git") is None:
        return set()
    words = ["git", "-C", root, "ls-files", "--others", "--ignored", "--exclude-standard", "-z", "--", *FOLDERS]
    answer = subprocess.run(words, capture_output=True, text=True)
    return {root / name for name in answer.stdout.split("\0") if name}


def files(root):
    without = ignored(root)
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            if path not in without and path.is_file() and "__pycache__" not in path.parts and path.suffix not in {".h5", ".png"}:
                yield path.relative_to(root).as_posix(), path.read_text(encoding="utf-8", errors="replace")
    for path in sorted(root.glob("*")):
        if path.suffix in {".txt", ".json", ".md"} and path.is_file():
            yield path.name, path.read_text(encoding="utf-8", errors="replace")


def is_cpp(name):
    return name.endswith((".hpp", ".cpp"))


def is_script(text):
    return text.startswith("#!")


def without_comments(text):
    """Blanks // and /* */ comments and keeps the line numbers; string literals stay."""
    blank = lambda match: match.group(0) if match.group(0)[0] in "\"'" else re.sub(r"[^\n]", " ", match.group(0))
    return re.sub(r'"(?:\\.|[^"\\\n])*"|//[^\n]*|/\*.*?\*/', blank, text, flags=re.S)


def check_includes(name, text):
    room = max((r for r in ROOMS if name == r or name.startswith(r + "/")), key=len, default=None)
    if not is_cpp(name) or room is None:
        return
    own = room.removeprefix("src/")
    for number, line in enumerate(without_comments(text).splitlines(), 1):
        match = re.match(r'\s*#\s*include\s*"([^"]+)"', line)
        if not match:
            continue
        target = match.group(1)
        if not any(target == r or target.startswith(r + "/") for r in [own, *ROOMS[room]]):
            yield number, f"{room} must not include {target} (allowed: {', '.join([own, *ROOMS[room]])})"


def check_vendors(name, text):
    if not is_cpp(name):
        return
    for number, line in enumerate(without_comments(text).splitlines(), 1):
        for what, pattern, homes in VENDORS:
            word = re.search(pattern, line)
            if word and not any(name.endswith(h) if h[0] == "." else name.startswith(h) for h in homes):
                yield number, f"{what}: '{word.group(0)}' belongs in {', '.join(homes)}"


def check_opening(name, text):
    if not (is_cpp(name) or is_script(text) or name.endswith((".py", ".toml", ".cmake"))):
        return
    if re.match(r"tests/unit/.*/test_\w+\.cpp$", name):  # its name and its tests' names say what it is for
        return
    lines = [line for line in text.splitlines() if line.strip()]
    if lines and is_script(text):
        lines = lines[1:]
    first = lines[0] if lines else ""
    commented = first.startswith(("//", "/*", "#", '"""')) and not first.startswith("#include") and not first.startswith("#pragma")
    # A .cpp whose contract is a header opens with includes, among them that header: its own, or one marked so.
    includes = itertools.takewhile(lambda line: line.startswith("#include"), lines)
    contracts = [m for m in (re.match(r'#include "(?:[^"]*/)?([^"/]+)\.hpp"(\s+//)?', line) for line in includes) if m]
    if not commented and not (name.endswith(".cpp") and any(m.group(1) == Path(name).stem or m.group(2) for m in contracts)):
        yield 1, "open the file with a comment: what it is for"
    if name.endswith(".hpp"):
        code = without_comments(text).split()
        if code[:2] != ["#pragma", "once"]:
            yield 1, "a header starts with #pragma once, right after its doc-comment"


FIELD = r"(?:Source|Departs|Numerics|Error|Order|Memory|Cost|Edges|Async|Throws|Limits)  +\S"  # of a contract


def check_comments(name, text):
    if not is_cpp(name):
        return
    in_contract = False
    for number, line in enumerate(text.splitlines(), 1):
        comment = re.match(r"\s*///( *)(.*)", line)
        indent, words = comment.groups() if comment else ("", "")
        if re.search(r"\S.*\b" + FIELD, words):
            yield number, "a field of a contract starts its own line"
        elif in_contract and words and len(indent) < 3 and not re.match(r"[A-Z][a-z]+( \w+)?  ", words):
            yield number, "indent the continuation of a contract's field, or separate it by an empty comment line"
        in_contract = bool(words) and (in_contract or re.match(FIELD, words) is not None)
        if re.match(r"\s*// -{3,}", line) and not re.match(r"\s*// --- [^- ].* -{3,}$", line):
            yield number, "a broken rule: write '// --- words ----', on one line"


def check_paths(name, text):
    for number, line in enumerate(text.splitlines(), 1):
        match = MACHINE_PATH.search(line)
        if match and not line.startswith("#!"):
            yield number, f"a path of one machine: {line[match.start():match.start() + 40].split()[0]}"


def check_scripts(name, text):
    if name.endswith(".py") or re.match(r"#!.*python", text):
        try:
            ast.parse(text)
        except SyntaxError as error:
            yield error.lineno or 1, f"does not parse: {error.msg}"
    elif re.match(r"#!.*\b(ba)?sh\b", text):
        shell = "bash" if "bash" in text.splitlines()[0] else "sh"
        answer = subprocess.run([shell, "-n"], input=text, text=True, capture_output=True)
        if answer.returncode != 0:
            yield 1, "does not parse: " + answer.stderr.strip().splitlines()[0]


def check_length(name, text):
    lines = text.count("\n")
    if is_cpp(name) and name.startswith(("src/", "parallel/", "kernels/")) and lines > MAX_LINES:
        yield MAX_LINES + 1, f"{lines} lines: split a file of more than {MAX_LINES} where it holds two ideas"
    if is_cpp(name):
        for number, line in enumerate(text.splitlines(), 1):
            if len(line) > MAX_COLUMNS and "http" not in line:
                yield number, f"{len(line)} columns: wrap what is wider than {MAX_COLUMNS}"


def check_links(name, text):
    """A link in a page names a file that exists; code is not searched."""
    if not name.endswith(".md"):
        return
    page = re.sub(r"```.*?```", lambda m: "\n" * m.group(0).count("\n"), text, flags=re.S)
    for number, line in enumerate(page.splitlines(), 1):
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", re.sub(r"`[^`]*`", "", line)):
            if "://" not in target and not (ROOT[0] / name).parent.joinpath(target).exists():
                yield number, f"links to {target}, which is not there"


def check_circles(sources):
    """A header and its .cpp count as one file: if A includes B, B must not include A, however many lie between."""
    stem = lambda name: name.rsplit(".", 1)[0]
    names = {name for name, _ in sources}
    includes = {}
    for name, text in sources:
        targets = re.findall(r'^\s*#\s*include\s*"([^"]+)"', without_comments(text), flags=re.M)
        found = {stem(place) for target in targets for place in (target, "src/" + target) if place in names}
        includes.setdefault(stem(name), set()).update(found - {stem(name)})

    def reached_from(start):
        reached, todo = set(), [start]
        while todo:
            for target in includes.get(todo.pop(), ()):
                if target not in reached:
                    reached.add(target)
                    todo.append(target)
        return reached

    reached = {name: reached_from(name) for name in includes}
    for name, _ in sources:
        circle = sorted(other for other in reached[stem(name)] if stem(name) in reached.get(other, ()))
        if circle and stem(name) == circle[0]:
            yield f"{name}:1: files include each other in a circle: {' '.join(circle)}"


def twins(names):
    """Files of src of one name: a reader who looks for one finds the other."""
    homes = {}
    for name in names:
        if name.startswith("src/") and is_cpp(name):
            homes.setdefault(Path(name).name, []).append(name)
    for same in homes.values():
        for name in same[1:]:
            yield f"{name}:1: {same[0]} has the same name"


def words_by_hand(text):
    written = re.sub(r"<!-- generated: \S+ -->\n.*?<!-- end -->", "", text, flags=re.S)
    return sum(re.search(r"\w", word) is not None for word in written.split())


def check_words(pages):
    counts = {name: words_by_hand(text) for name, text in pages}
    total = sum(counts.values())
    if total > MAX_WORDS:
        longest = sorted(counts, key=counts.get, reverse=True)[:5]
        yield (f"{longest[0]}:1: all pages together have {total} words written by hand, more than {MAX_WORDS}; the longest: "
               + ", ".join(f"{name} {counts[name]}" for name in longest))


RULES = [check_includes, check_vendors, check_opening, check_comments, check_paths, check_scripts, check_length, check_links]


def check(root):
    ROOT[0] = root
    texts = list(files(root))
    found = [f"{name}:{number}: {message}" for name, text in texts for rule in RULES for number, message in rule(name, text)]
    sources = [(name, text) for name, text in texts if is_cpp(name) and name.startswith(("src/", "parallel/", "kernels/"))]
    pages = [(name, text) for name, text in texts if name.endswith(".md")]
    return found + list(check_circles(sources)) + list(twins(name for name, _ in texts)) + list(check_words(pages))


# name, text, a word of the message that must come back ("" : the file is sound)
HPP = "/// What.\n#pragma once\n"
PLANTED = [
    ("src/page.md", "[here](page.md#part) and `[code](none.md)` and [there](none.md)\n", "links to none.md"),
    ("kernels/long.cpp", "// What.\n" + "int x;\n" * 520, "split"),
    ("kernels/wide.cpp", "// What.\n// " + "x" * 118 + "\n", "columns"),
    ("kernels/wide.md", "x" * 200 + "\n", ""),
    ("input/long.md", "a word | " * (MAX_WORDS // 2) + "a b c d e f g h i j\n", f"more than {MAX_WORDS}"),
    ("input/table.md", "<!-- generated: table -->\n" + "word " * MAX_WORDS + "\n<!-- end -->\n", ""),
    ("src/optim/a.hpp", HPP + '#include "optim/b.hpp"\n', "in a circle: src/optim/a src/optim/b src/optim/c"),
    ("src/optim/b.hpp", HPP, ""),
    ("src/optim/b.cpp", '#include "optim/b.hpp"\n#include "optim/c.hpp"\n', ""),
    ("src/optim/c.hpp", HPP + '#include "optim/a.hpp"\n', ""),
    ("src/optim/user.cpp", '// What.\n#include "optim/a.hpp"\n', ""),
    ("kernels/good.hpp", HPP + '#include "kernels/core/tensor.hpp"\n// MPI_Send and #include <mpi.h> in a comment are fine\n', ""),
    ("parallel/collectives/mpi_good.cpp", "// What.\n#include <mpi.h>\nint x = MPI_COMM_WORLD;\n", ""),
    ("kernels/good.cpp", '#include "kernels/good.hpp"\n', ""),
    ("kernels/good/forward.cpp", '#include "kernels/good.hpp"  // the contract is there\n', ""),
    ("kernels/attention/flash2/hopper/good.cpp", "// What.\n__global__ void f();\n", ""),
    ("scripts/good", "#!/usr/bin/env bash\n# What.\necho a\n", ""),
    ("kernels/up.hpp", HPP + '#include "model/params.hpp"\n', "kernels must not include"),
    ("kernels/core/up.hpp", HPP + '#include "kernels/rope.hpp"\n', "kernels/core must not include"),
    ("src/model/ranks.hpp", HPP + '#include "parallel/world.hpp"\n', "src/model must not include"),
    ("src/jobs/upwards.hpp", HPP + '#include "lab/lab.hpp"\n', "src/jobs must not include"),
    ("src/train/above.hpp", HPP + '#include "lab/bench_keys.hpp"\n', "src/train must not include"),
    ("src/lab/downwards.hpp", HPP + '#include "jobs/jobs.hpp"\n#include "config/settings.hpp"\n', ""),
    ("src/main.cpp", "// What.\n#include \"lab/lab.hpp\"\n#include \"lab/bench_keys.hpp\"\n", "src/main.cpp must not include"),
    ("src/lab/twin.hpp", HPP, ""),
    ("src/train/twin.hpp", HPP, "has the same name"),
    ("src/data/step.hpp", HPP + '#include "train/step.hpp"\n', "src/data must not include"),
    ("parallel/deck.hpp", HPP + '#include "config/settings.hpp"\n', "parallel must not include"),
    ("parallel/code.hpp", HPP + '#include "errors.hpp"\n', "parallel must not include"),
    ("parallel/model.hpp", HPP + '#include "model/params.hpp"\n', "parallel must not include"),
    ("src/train/ranks.cpp", "// What.\n#include <mpi.h>\n", "MPI"),
    ("src/train/word.cpp", "// What.\nint x = MPI_COMM_WORLD;\n", "MPI"),
    ("src/data/h5.cpp", "// What.\n#include <hdf5.h>\n", "HDF5"),
    ("src/data/h5_word.cpp", "// What.\nauto f = H5Fopen(1);\n", "HDF5"),
    ("parallel/collectives/mpi.cpp", "// What.\n#include <nccl.h>\n", "NCCL"),
    ("parallel/strategies/ranks.cpp", "// What.\n#include <mpi.h>\n", "MPI"),
    ("parallel/watch/up.hpp", HPP + '#include "parallel/collectives/collective.hpp"\n', "parallel/watch must not include"),
    ("parallel/collectives/up.hpp", HPP + '#include "parallel/strategies/strategy.hpp"\n', "parallel/collectives must not include"),
    ("kernels/core/device.hpp", HPP + '#include "kernels/cuda/device.hpp"\n', "kernels/core must not include"),
    ("kernels/cuda/up.hpp", HPP + '#include "kernels/rope.hpp"\n', "kernels/cuda must not include"),
    ("kernels/cuda/good.hpp", HPP + '#include "kernels/core/team.hpp"\n#ifdef KOKKOS_ENABLE_CUDA\n#endif\n', ""),
    ("kernels/core/compat.hpp", HPP + "#ifdef __CUDACC__\n#endif\n", ""),
    ("parallel/device.cpp", "// What.\n#if defined(KOKKOS_ENABLE_CUDA)\nKokkos::Cuda exec;\n#endif\n", ""),
    ("tests/support/good.hpp", HPP + "#ifdef KOKKOS_ENABLE_CUDA\n#endif\n", ""),
    ("kernels/rope.cpp", "// What.\n__global__ void f();\n", "CUDA"),
    ("kernels/swiglu.cpp", "// What.\ncudaStream_t stream;\n", "CUDA"),
    ("kernels/norm2.cpp", "// What.\n#ifdef KOKKOS_ENABLE_CUDA\n#endif\n", "a guard for CUDA"),
    ("kernels/core/compat.cpp", "// What.\n#if __CUDA_ARCH__ >= 900\n#endif\n", "a guard for CUDA"),
    ("kernels/adamw.cpp", "// What.\n#ifdef __CUDACC__\n#endif\n", "a guard for nvcc"),
    ("parallel/space.cpp", "// What.\nusing Space = Kokkos::CudaSpace;\n", "a guard for CUDA"),
    ("src/model/table.cpp", "// What.\nKokkos::View<float**> table;\nKokkos::View<float*> row;\n", "does not widen"),
    ("kernels/core/tensor.hpp", HPP + "using Matrix = Wide<Kokkos::View<float**>>;\n", ""),
    ("src/train/space.cpp", "// What.\nvoid run(const Kokkos::Cuda& exec);\n", "a guard for CUDA"),
    ("kernels/attention/flash2/hopper.cpp", "// What.\n__global__ void f();\n", "CUDA"),
    ("kernels/core/ranges.cpp", "// What.\nvoid f() { nvtxRangePop(); }\n", "NVTX"),
    ("kernels/version.hpp", HPP + "#if KOKKOS_VERSION > 1\n#endif\n", "KOKKOS_VERSION"),
    ("src/io/toml.cpp", "// What.\n#include <toml++/toml.h>\n", "toml++"),
    ("src/io/fmt.hpp", HPP + "#include <fmt/core.h>\n", "fmt in a header"),
    ("kernels/no_pragma.hpp", "/// What.\n#include <vector>\n", "#pragma once"),
    ("kernels/no_comment.hpp", "#pragma once\nint x;\n", "open the file"),
    ("kernels/no_comment.cpp", '#include "kernels/good.hpp"\n', "open the file"),
    ("tests/unit/kernels/test_good.cpp", "#include <gtest/gtest.h>\n", ""),
    ("src/data/no_comment.cpp", "#include <vector>\n", "open the file"),
    ("kernels/fields.hpp", "/// What.\n///\n/// Async   never fences,\n///         nor allocates.\n/// Throws  nothing.\n#pragma once\n", ""),
    ("kernels/ran_together.hpp", "/// What.\n///\n/// Async   never fences. Throws     nothing.\n#pragma once\n", "starts its own line"),
    ("kernels/flush_left.hpp", "/// What.\n///\n/// Async   never fences,\n/// nor allocates.\n#pragma once\n", "indent the continuation"),
    ("kernels/rule.cpp", "// What.\n// --- rows on GPUs ---------\n  // --- rows on CPUs -------\n", ""),
    ("kernels/bare_rule.cpp", "// What.\n// -------------------------\n", "broken rule"),
    ("kernels/open_rule.cpp", "// What.\n// --- rows on GPUs\n", "broken rule"),
    ("input/path.toml", "# What.\npath = '" + "/home" + "/me/text.txt'\n", "path of one machine"),
    ("scripts/broken", "#!/usr/bin/env bash\n# What.\nif true; then\n", "does not parse"),
    ("tests/broken.py", '"""What."""\ndef f(:\n', "does not parse"),
]


def self_test():
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for name, text, _ in PLANTED:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
        found = check(root)
    wrong = []
    for name, _, expected in PLANTED:
        mine = [line for line in found if line.startswith(name + ":")]
        if (len(mine) != 1 or expected not in mine[0]) if expected else mine:
            wrong.append(f"{name}: expected {[expected] if expected else 'nothing'}, found {mine}")
    return wrong


if __name__ == "__main__":
    if sys.argv[1:] == ["--self-test"]:
        faults = self_test()
    else:
        faults = check(Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parents[2]))
    print("\n".join(faults) or "style: all rules hold")
    sys.exit(bool(faults))
