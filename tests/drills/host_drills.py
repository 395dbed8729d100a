"""What a run survives on one host. Each drill harms one run, its files or its input, sees how that ends, and then that
nothing is lost: what goes on has, bit for bit, the weights, moments and losses of a run that nothing happened to.

A drill's seed decides what is harmed and when. Where a moment is a time, what must hold does not depend on it.
"""
import errno
import os
import random
import re
import shutil
import signal
import struct
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

import h5py
import numpy as np

from harness import FILES, FINISHED, PATIENCE, PROGRAM, STOPPED, TINY, USAGE, Job, column, end_all, latest_step, snapshot, tensors, wait_for_end

LIMIT_S = 120 * PATIENCE
ENDLESS = 10**9
STRATEGIES = {  # of two ranks in fp32, with one micro-step and no clipping: all have the same bits
    "replicated, per parameter": ("parallel.gradient_sync=per_parameter",),
    "replicated, flat": ("parallel.gradient_sync=flat",),
    "replicated, overlap": ("parallel.gradient_sync=overlap",),
    "replicated, buckets": ("parallel.gradient_sync=bucket", "parallel.bucket_mbyte=0.05"),
    "ZeRO-1": ("parallel.shard=optimizer",),
    "ZeRO-2": ("parallel.shard=gradients",),
    "ZeRO-3": ("parallel.shard=parameters",),
    "replicated, offload": ("parallel.offload=optimizer",),
    "ZeRO-2, offload": ("parallel.shard=gradients", "parallel.offload=optimizer"),
    "ZeRO-3, offload of weights": ("parallel.shard=parameters", "parallel.offload=parameters"),
}
# At a constant rate, so that the last step changes no other; a checkpoint of 1 MB takes part of every few steps.
RUN = ("model.d_model=96", "model.d_ff=288", "optimizer.learning_rate=1e-3", "optimizer.min_learning_rate=1e-3", "optimizer.clip_norm=0",
       "train.validate_every=0", "trace.profile_steps=[]", "trace.flush_s=0.05", "job.progress=none")
EVERY = 4  # steps between checkpoints
WRITING = (f"checkpoint.every={EVERY}", "checkpoint.background=on")
SMALL = ("job.progress=none", "train.validate_every=0", "trace.profile_steps=[]", "train.batch_size=4")
NOTHING = "nothing to harm"
COLUMNS = ("step", "loss", "grad_norm")


class Failed(Exception):
    """What a drill found."""


class Place:
    """A folder, and how runs start in it."""

    def __init__(self, folder, chance):
        self.folder, self.chance = folder, chance
        folder.mkdir(parents=True)

    def start(self, *arguments, deck=TINY, ranks=None, **more):
        return Job([deck, *arguments], ranks, self.folder, **more)

    def run(self, *arguments, code=FINISHED, **more):
        """Runs to the end. `code`: the codes that are right."""
        result = self.start(*arguments, **more).wait(LIMIT_S)
        codes = (code,) if isinstance(code, int) else code
        if result.code not in codes:
            raise Failed(f"ended with {result.code}, not {' or '.join(map(str, codes))}: {result}")
        return result

    def refused(self, *arguments, code, says=None, **more):
        """A run that must end with a code of `code` and a sentence (naming one of `says`), or, if that is one of the codes, succeed."""
        result = self.run(*arguments, code=code, **more)
        if result.code not in (FINISHED, STOPPED):
            if not result.err.startswith("tessera: ") or len(result.err) < 30:
                raise Failed(f"said nothing orderly: {result}")
            if says and not any(word in result.err for word in says):
                raise Failed(f"named none of {says}: {result}")
        return result


def require_same(made, expected, steps=None):
    """Raises Failed unless a run and an undisturbed one are the same up to `steps`, by default all of the first's."""
    steps = steps or latest_step(made)
    mine, theirs = tensors(made, steps), tensors(expected, steps)
    different = [name for name in theirs if name not in mine or not np.array_equal(mine[name], theirs[name])]
    different += [name for name in COLUMNS if not np.array_equal(column(made, name), column(expected, name)[:steps])]
    if different or mine.keys() != theirs.keys():
        raise Failed(f"{made.name}: other bits at step {steps} than without interruption: {', '.join(different[:5])}")


def resume_words(directory):
    """How a run in `directory` goes on: from its newest checkpoint, or from the start."""
    if latest_step(directory):
        return ("--resume", "auto")
    return ("job.overwrite=true",) if directory.exists() else ()


def row(kind, what, end, fault="", inside=False):
    """`inside`: whether the harm fell inside the writing of a checkpoint."""
    return {"kind": kind, "what": what, "end": str(end), "inside": inside, "fault": fault}


# --- SIGKILL

def kills(place, count):
    """`count` in all, the same number in every strategy."""
    for number, (strategy, keys) in enumerate(STRATEGIES.items()):
        share = (count + len(STRATEGIES) - 1 - number) // len(STRATEGIES)
        if share:
            yield from kills_of(Place(place.folder / strategy.replace(",", "").replace(" ", "_"), place.chance), strategy, keys, share)


def kills_of(place, strategy, keys, count):
    """Kills one run again and again; its losses after each restart, and its weights at the end, must be those of no kill."""
    directory, made = place.folder / "run", []
    for number in range(count):
        job = place.start(f"job.directory={directory}", *RUN, *WRITING, *keys, f"train.steps={ENDLESS}", *resume_words(directory), ranks=2)
        aims_inside = number % 2 == 1
        inside = strike(place, job, directory, aims_inside)
        made.append(row("kill", strategy, "killed", inside=inside))
    steps = EVERY * (latest_step(directory) // EVERY + 2)
    last = (*RUN, *WRITING, *keys, f"train.steps={steps}")
    place.run(f"job.directory={directory}", *last, *resume_words(directory), ranks=2)
    whole = place.folder / "whole"
    place.run(f"job.directory={whole}", *RUN, f"train.steps={steps}", *keys, ranks=2)
    fault = ""
    try:
        require_same(directory, whole, steps)
        if left := list((directory / "checkpoints").glob(".tmp*")):
            fault = f"{left} was left behind"
    except Failed as found:
        fault = str(found)
    yield from ({**one, "fault": fault} for one in made)


def strike(place, job, directory, aims_inside):
    """Kills one rank, or all processes, at a moment that chance chose. Returns whether a checkpoint was being written."""
    chance, checkpoints = place.chance, directory / "checkpoints"
    is_writing = lambda: any(checkpoints.glob(".tmp*"))
    begun, from_step = time.monotonic(), latest_step(directory)
    if aims_inside:  # from the third write on
        reach = from_step + EVERY * chance.randrange(1, 6)
        await_(lambda: latest_step(directory) >= reach and is_writing(), job, f"a write after step {reach}")
        time.sleep(chance.uniform(0, 0.01))
    else:
        moment = begun + chance.uniform(0.05, 3)
        while time.monotonic() < moment:
            time.sleep(0.002)
    ranks, process = job.ranks(), job.process.pid
    if chance.random() < 0.5 and ranks:
        end_all([chance.choice(ranks)])
        inside = is_writing()
        try:
            job.process.wait(LIMIT_S)
        except subprocess.TimeoutExpired as hung:
            raise Failed("the launch goes on without a rank") from hung
    else:
        job.kill_everything()
        inside = is_writing()
    job.close()
    if not wait_for_end([*ranks, process], LIMIT_S):
        raise Failed("a killed process lives on")
    return inside


def await_(condition, job, what):
    end = time.monotonic() + LIMIT_S
    while not condition():
        if job and job.process.poll() is not None:
            raise Failed(f"ended before {what}: {job.wait()}")
        if time.monotonic() > end:
            raise Failed(f"never saw {what}")
        time.sleep(0.0005)


# --- input that is wrong

def decks(place, count):
    """Each is wrong for sure: exit 2 and a sentence, before anything is written."""
    keys = re.findall(r"(?m)^(\w+)\.(\w+) +(\S+)", subprocess.run([PROGRAM, "--explain", "all"], capture_output=True, text=True,
                                                                 check=True).stdout)
    sections = sorted({section for section, *_ in keys})
    chance, text = place.chance, TINY.read_text()

    def misspelt():
        section, key, value = chance.choice(keys)
        at = chance.randrange(len(key) + 1)
        wrong = key[:at] + chance.choice("xyzqj") + key[at:]
        return "a misspelt key", f"{text}\n", (f"{section}.{wrong}={value}",)

    def wrong_type():
        section, key, value = chance.choice([one for one in keys if re.fullmatch(r"-?\d+(\.\d+)?|true|false", one[2])])
        return "a wrong type", text, (f"{section}.{key}=" + chance.choice(['"many"', "[1,2]", "1979-05-27", "{a=1}", "07:32:00"]),)

    def out_of_range():
        section, key, _ = chance.choice([one for one in keys if re.fullmatch(r"\d+", one[2]) and one[:2] != ("job", "seed")])
        return "a number out of range", text, (f"{section}.{key}={chance.choice([-1, -2**63, 2**64, '-1e400'])}",)

    def unknown_word():
        section, key, value = chance.choice([one for one in keys if one[2].startswith('"') and len(one[2]) > 3])
        if section in ("job", "data", "generate", "bench", "plan", "experiment"):  # keys that take any text
            return misspelt()
        return "an unknown word", text, (f"{section}.{key}=never{chance.randrange(1000)}",)

    def no_section():
        return "an unknown section", f"{text}\n[{chance.choice(sections)}{chance.choice('xyz')}]\na = 1\n", ()

    def twice():
        line = chance.choice([line for line in text.splitlines() if re.match(r"\w+ = ", line)])
        return "a key twice", text.replace(line, f"{line}\n{line}"), ()

    def torn():
        ends = [match.start() for match in re.finditer(r"(?m)^\w+ = \S", text)]
        return "a deck that ends early", text[:chance.choice(ends) + chance.choice([1, 2])].rstrip(), ()

    def unbalanced():
        return "a bracket without its other half", text.replace("[model]", chance.choice(["[model", "model]", "[[model]", "[model]]]", "[[[model]]]"])), ()

    def no_text():
        at = chance.randrange(len(text))
        return "bytes that are no text", text.encode()[:at] + bytes(chance.choices(range(128, 192), k=3)) + text.encode()[at:], ()

    def deep():
        return "deep nesting", f"{text}\n[train]\nx = {'[' * chance.choice([50, 1000, 100000])}\n", ()

    def noise():
        return "noise", b"\x01" + chance.randbytes(chance.randrange(1, 5000)), ()

    def clash():
        return "keys that exclude each other", text, chance.choice([
            ("model.d_model=33",), ("model.num_heads=5",), ("data.source=text",), ("parallel.offload=parameters",),
            ("train.micro_batch_size=5",), ("data.validation_fraction=1",), ("precision.compute=fp16", "precision.params=fp64")])

    makers = [misspelt, wrong_type, out_of_range, unknown_word, no_section, twice, torn, unbalanced, no_text, deep, noise, clash]
    for number in range(count):
        what, content, overrides = makers[number % len(makers)]()
        deck, directory = place.folder / f"{number}.toml", place.folder / f"run_{number}"
        deck.write_bytes(content if isinstance(content, bytes) else content.encode())

        def refuse():
            result = place.refused(*overrides, f"job.directory={directory}", deck=deck, code=USAGE)
            if directory.exists():
                raise Failed(f"wrote files: {result}")
            return result.code
        yield attempt("deck", what, refuse)


def attempt(kind, what, work):
    try:
        return row(kind, what, work())
    except Failed as found:
        return row(kind, what, "", fault=str(found))


def tried(kind, what, work):
    """The row of `work` in a list; none if each of three tries found NOTHING."""
    for _ in range(3):
        made = attempt(kind, what, work)
        if made["end"] != NOTHING:
            return [made]
    return []


def damaged(chance, content, other):
    """(what, bytes): a file's content, changed; None: the file is gone. `other`: the content of another file of its kind."""
    size = len(content)
    ways = {
        "a bit turned": lambda: with_bytes(content, (at := chance.randrange(size)), bytes([content[at] ^ 1 << chance.randrange(8)])),
        "bytes overwritten": lambda: with_bytes(content, chance.randrange(size), chance.randbytes(chance.randrange(1, 64))),
        "a block of zeros": lambda: with_bytes(content, chance.randrange(size), bytes(chance.choice([16, 512, 4096]))),
        "cut off": lambda: content[:chance.randrange(size)],
        "longer": lambda: content + chance.randbytes(chance.randrange(1, 5000)),
        "another file": lambda: other,
        "noise": lambda: chance.randbytes(size),
        "empty": lambda: b"",
        "gone": lambda: None,
    }
    what = chance.choice(list(ways))
    return what, ways[what]()


def with_bytes(content, at, put):
    return content[:at] + put[:len(content) - at] + content[at + len(put):]


def put(path, content):
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)


def checkpoints(place, count):
    """Exit 6 with the file's name, and the checkpoint before is as it was; or the damage touches no number, and the bits are right.
    --verify-checkpoint says the same of the damaged one, and verifies the one before."""
    steps, files = 2 * EVERY, ("rank_00000.h5", "rank_00001.h5", "index.h5", "index.xxh3")
    keys = (*SMALL, f"checkpoint.every={EVERY}")
    origin, whole = place.folder / "origin", place.folder / "whole"
    place.run(f"job.directory={origin}", *keys, f"train.steps={steps}", ranks=2)
    place.run(f"job.directory={whole}", *keys, "checkpoint.keep=9", f"train.steps={steps + EVERY}", "--resume",
              origin / f"checkpoints/step_{steps:08d}", ranks=2)
    for number in range(count):
        directory = place.folder / f"run_{number}"
        shutil.copytree(origin, directory)
        newest, before = (directory / f"checkpoints/step_{step:08d}" for step in (steps, EVERY))
        name = place.chance.choice(files)
        what, content = damaged(place.chance, (newest / name).read_bytes(), (before / name).read_bytes())
        put(newest / name, content)
        untouched = snapshot(directory)

        def go_on():
            verified = verification(newest)
            if verification(before) != FINISHED:
                raise Failed(f"{before.name} does not verify")
            result = place.refused(f"job.directory={directory}", *keys, f"train.steps={steps + EVERY}", "--resume", "auto", ranks=2,
                                   code=(FILES, FINISHED), says=[newest.name])
            if result.code != verified:
                raise Failed(f"--verify-checkpoint ended with {verified}: {result}")
            if result.code == FINISHED:
                if differing := differences(tensors(directory, steps + EVERY), tensors(whole, steps + EVERY)):
                    raise Failed(f"went on with other bits: {differing}")
            elif snapshot(directory) != untouched:
                raise Failed(f"changed files: {result}")
            return result.code
        yield attempt("checkpoint", f"{name.split('_')[0]}: {what}", go_on)
        shutil.rmtree(directory)


def verification(checkpoint):
    """The code of --verify-checkpoint, whose sentence must fit."""
    result = subprocess.run([PROGRAM, "--verify-checkpoint", checkpoint], capture_output=True, text=True, errors="replace")
    if result.returncode == FINISHED and "verified: step" not in result.stdout or result.returncode and not result.stderr.startswith("tessera: "):
        raise Failed(f"--verify-checkpoint: exit {result.returncode}: {result.stdout}{result.stderr}")
    return result.returncode


def differences(made, expected):
    return [name for name in expected if name not in made or not np.array_equal(made[name], expected[name])]


def data_files(place, count):
    """Exit 6 with the file's name, or, where only tokens changed, training on them; the file stays as it was."""
    chance, tokens = place.chance, np.random.default_rng(1).integers(0, 64, 20000)
    header = lambda magic, version, n: struct.pack("<256i", magic, version, n, *[0] * 253)
    originals = {"raw.bin": tokens.astype("<u2").tobytes(), "llmc.bin": header(20240520, 1, len(tokens)) + tokens.astype("<u2").tobytes()}
    for name, layout in (("plain.h5", {}), ("chunked.h5", {"chunks": (1000,), "compression": "gzip"})):
        with h5py.File(place.folder / name, "w") as file:
            file.create_dataset("tokens", data=tokens.astype("u2"), **layout)
        originals[name] = (place.folder / name).read_bytes()
    for number in range(count):
        name = list(originals)[number % len(originals)]
        original = originals[name]
        head = chance.random() < 0.7 and len(original) > 2048  # where headers are
        what, content = damaged(chance, original[:2048] if head else original, originals["plain.h5" if name == "raw.bin" else "raw.bin"])
        if head and content is not None and what not in ("cut off", "another file", "noise", "empty", "longer"):
            content += original[2048:]
        path, directory = place.folder / f"{number}_{name}", place.folder / f"run_{number}"
        path.write_bytes(b"")
        put(path, content)

        def read():
            result = place.refused(f"job.directory={directory}", *SMALL, "train.steps=2", "optimizer.warmup_steps=1", "data.source=tokens",
                                   f"data.path={path}", code=(FILES, FINISHED), says=[path.name])
            if (path.read_bytes() if path.exists() else None) != content:
                raise Failed(f"changed the file: {result}")
            if result.code == FINISHED and not np.isfinite(column(directory, "loss")).all():
                raise Failed(f"trained on no numbers: {result}")
            return result.code
        yield attempt("data", f"{name}: {what}", read)
        shutil.rmtree(directory, ignore_errors=True)


# --- a disk that fails

DISK = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>
/* From the FAIL_FROM-th call on, or with FAIL_ONCE in that one alone, whatever would change the folder FAIL_UNDER fails with FAIL_WITH; the
   number of calls goes to FAIL_COUNT. */
static atomic_int calls;
#define REAL(name, type, ...) ((type (*)(__VA_ARGS__))dlsym(RTLD_NEXT, #name))
static int is_under(const char* path) {
  const char* under = getenv("FAIL_UNDER");
  return under && path && strstr(path, under) != NULL;
}
static int is_file_under(int file) {
  char link[64], path[4096];
  snprintf(link, sizeof link, "/proc/self/fd/%d", file);
  const ssize_t length = readlink(link, path, sizeof path - 1);
  if (length < 0) return 0;
  path[length] = 0;
  return is_under(path);
}
static int fails(int is_ours) {
  if (!is_ours) return 0;
  const int from = atoi(getenv("FAIL_FROM"));
  const int call = ++calls;
  if (from == 0 || call < from || (getenv("FAIL_ONCE") && call > from)) return 0;
  errno = atoi(getenv("FAIL_WITH"));
  return 1;
}
static __attribute__((destructor)) void tell(void) {
  if (!getenv("FAIL_COUNT") || calls == 0) return;  /* or one of the processes that MPI starts */
  FILE* file = fopen(getenv("FAIL_COUNT"), "w");
  if (file) { fprintf(file, "%d", calls); fclose(file); }
}
static int opened(const char* name, const char* path, int flags, mode_t mode) {
  if ((flags & O_ACCMODE) != O_RDONLY && fails(is_under(path))) return -1;
  return ((int (*)(const char*, int, ...))dlsym(RTLD_NEXT, name))(path, flags, mode);
}
#define OPEN(name) int name(const char* path, int flags, ...) { \
  va_list more; va_start(more, flags); const mode_t mode = va_arg(more, mode_t); va_end(more); return opened(#name, path, flags, mode); }
OPEN(open)
OPEN(open64)
FILE* fopen(const char* path, const char* mode) { return mode[0] != 'r' && fails(is_under(path)) ? NULL : REAL(fopen, FILE*, const char*, const char*)(path, mode); }
FILE* fopen64(const char* path, const char* mode) { return mode[0] != 'r' && fails(is_under(path)) ? NULL : REAL(fopen64, FILE*, const char*, const char*)(path, mode); }
ssize_t write(int file, const void* bytes, size_t count) { return fails(is_file_under(file)) ? -1 : REAL(write, ssize_t, int, const void*, size_t)(file, bytes, count); }
ssize_t writev(int file, const struct iovec* parts, int count) { return fails(is_file_under(file)) ? -1 : REAL(writev, ssize_t, int, const struct iovec*, int)(file, parts, count); }
ssize_t pwrite(int file, const void* bytes, size_t count, off_t at) { return fails(is_file_under(file)) ? -1 : REAL(pwrite, ssize_t, int, const void*, size_t, off_t)(file, bytes, count, at); }
ssize_t pwrite64(int file, const void* bytes, size_t count, off_t at) { return fails(is_file_under(file)) ? -1 : REAL(pwrite64, ssize_t, int, const void*, size_t, off_t)(file, bytes, count, at); }
int ftruncate(int file, off_t length) { return fails(is_file_under(file)) ? -1 : REAL(ftruncate, int, int, off_t)(file, length); }
int ftruncate64(int file, off_t length) { return fails(is_file_under(file)) ? -1 : REAL(ftruncate64, int, int, off_t)(file, length); }
int fsync(int file) { return fails(is_file_under(file)) ? -1 : REAL(fsync, int, int)(file); }
int fdatasync(int file) { return fails(is_file_under(file)) ? -1 : REAL(fdatasync, int, int)(file); }
int mkdir(const char* path, mode_t mode) { return fails(is_under(path)) ? -1 : REAL(mkdir, int, const char*, mode_t)(path, mode); }
int rename(const char* from, const char* to) { return fails(is_under(to)) ? -1 : REAL(rename, int, const char*, const char*)(from, to); }
"""
KINDS_OF_DISK = {"a full disk": errno.ENOSPC, "a quota": errno.EDQUOT, "a disk that becomes read-only": errno.EROFS, "a disk that fails": errno.EIO}


def shim(place, name, source):
    """The path of a library made of C; without spaces, at which LD_PRELOAD is split."""
    library = place.folder / f"{name}.so"
    if not library.exists():
        (place.folder / f"{name}.c").write_text(source)
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-w", "-o", library, place.folder / f"{name}.c", "-ldl"], check=True)
    return library


def between(library, **variables):
    """What start() is given for a program with a shim."""
    options = ":".join(filter(None, [os.environ.get("ASAN_OPTIONS"), "verify_asan_link_order=0"]))
    return {"wrapper": ("env", f"LD_PRELOAD={library}", *(f"{name}={value}" for name, value in variables.items())), "env": {"ASAN_OPTIONS": options}}


class Disk:
    """Runs that start, or go on from their first checkpoint, on a disk that fails; beside one that nothing happened to."""

    def __init__(self, place, steps, every):
        self.place, self.steps, self.every, self.library = place, steps, every, shim(place, "disk", DISK)
        self.origin, self.whole = place.folder / "origin", place.folder / "whole"
        self.keys = (*SMALL, *WRITING, f"checkpoint.every={every}", "optimizer.warmup_steps=1", "trace.flush_s=0",
                     "optimizer.min_learning_rate=1e-2")  # the peak's: no step's rate depends on train.steps
        place.run(f"job.directory={self.origin}", *self.keys, f"train.steps={every}")
        place.run(f"job.directory={self.whole}", *self.keys, f"train.steps={steps}", "checkpoint.keep=9")

    def run(self, directory, resumes, at, **fails):
        """The result, and the number of writes."""
        if resumes:
            shutil.copytree(self.origin, directory)
        count = self.place.folder / f"{directory.name}.count"
        count.unlink(missing_ok=True)
        result = self.place.start(f"job.directory={directory}", *self.keys, f"train.steps={self.steps}", *(("--resume", "auto") if resumes else ()),
                                  **between(self.library, FAIL_FROM=at, FAIL_UNDER=directory.name, FAIL_COUNT=count, **fails)).wait(LIMIT_S)
        return result, int(count.read_text()) if count.exists() else 0

    def moments(self, count):
        """(whether the run goes on, number of its write) for all writes or, if they are more than `count`, that many, spread evenly."""
        found = []
        for resumes in (False, True):
            directory = self.place.folder / f"counted_{resumes}"
            result, calls = self.run(directory, resumes, 0, FAIL_WITH=0)
            if result.code != FINISHED:
                raise Failed(str(result))
            require_same(directory, self.whole)
            if calls < 30:
                raise Failed(f"the shim saw {calls} writes only")
            found += [(resumes, at) for at in range(1, calls + 1)]
        return [found[len(found) * i // count] for i in range(count)] if count < len(found) else found

    def fail(self, number, resumes, at, **fails):
        """Exit 6, or 0 if only what is not needed was lost; with a sound disk the run then goes on to the same bits. NOTHING if the run, whose
        number of writes depends on times, had none of that number."""
        directory = self.place.folder / f"run_{number}"
        try:
            result, calls = self.run(directory, resumes, at, **fails)
            if calls < at and result.code == FINISHED:
                require_same(directory, self.whole, self.steps)
                return NOTHING
            if result.code not in (FINISHED, FILES):
                raise Failed(f"write {at} failed: {result}")
            if result.code == FILES and (not result.err.startswith("tessera: ") or result.err.count("tessera: ") > 2):
                raise Failed(f"write {at} failed: {result}")
            if resumes and latest_step(directory) < self.every:
                raise Failed(f"write {at} failed, and the checkpoint before is gone: {result}")
            if result.code == FILES:
                self.place.run(f"job.directory={directory}", *self.keys, f"train.steps={self.steps}", *resume_words(directory))
            require_same(directory, self.whole, self.steps)  # whose folder may be whole though `latest` could not be moved
            return result.code
        finally:
            shutil.rmtree(directory, ignore_errors=True)


def disks(place, count):
    """The disk fails from a write on, in each of the KINDS_OF_DISK in turn."""
    disk = Disk(place, 3 * EVERY, EVERY)
    for number, (resumes, at) in enumerate(disk.moments(count)):
        what, how = list(KINDS_OF_DISK.items())[number % len(KINDS_OF_DISK)]
        yield from tried("disk", what, lambda: disk.fail(number, resumes, at, FAIL_WITH=how))


def writes(place, count):
    """Of a run of two steps and two checkpoints, the disk is full at one write alone, so that no later failure makes up for one that was
    overlooked. Many at a time: they wait for the disk."""
    disk = Disk(place, 2, 1)

    def fail(number, moment):
        resumes, at = moment
        return tried("write", f"write {at} of a run that {'goes on' if resumes else 'starts'}",
                     lambda: disk.fail(number, resumes, at, FAIL_WITH=errno.ENOSPC, FAIL_ONCE=1))

    moments = disk.moments(count)
    with ThreadPoolExecutor(8 * (os.cpu_count() or 1)) as pool:
        for made in pool.map(fail, range(len(moments)), moments):
            yield from made


# --- what else happens to a run

def deleted(place, count):
    """The directory goes while the run writes there: exit 6; a new start is not hindered."""
    for number in range(count):
        directory = place.folder / f"run_{number}"

        def delete():
            job = place.start(f"job.directory={directory}", *RUN, *WRITING, f"train.steps={ENDLESS}", ranks=2)
            await_(lambda: latest_step(directory) >= EVERY, job, "a checkpoint")
            time.sleep(place.chance.uniform(0, 0.3))
            while directory.exists():  # the run may write while it is being emptied
                shutil.rmtree(directory, ignore_errors=True)
            result = job.wait(LIMIT_S)
            if result.code != FILES or "tessera: " not in result.err:
                raise Failed(str(result))
            place.run(f"job.directory={directory}", *RUN, *WRITING, f"train.steps={EVERY}", "job.overwrite=true", ranks=2)
            return result.code
        yield attempt("deleted", "the directory is deleted", delete)


def twins(place, count):
    """A second job in a directory where one runs: refused, whatever it asks for, and the first is not disturbed."""
    whole = place.folder / "whole"
    steps = 100 * EVERY  # many seconds more than the second takes to start
    place.run(f"job.directory={whole}", *RUN, *WRITING, f"train.steps={steps}", ranks=2)
    for number in range(count):
        directory = place.folder / f"run_{number}"
        wish = [(), ("--resume", "auto"), ("job.overwrite=true",)][number % 3]

        def collide():
            first = place.start(f"job.directory={directory}", *RUN, *WRITING, f"train.steps={steps}", ranks=2)
            await_(lambda: (directory / "run.h5").exists(), first, "run.h5")
            time.sleep(place.chance.uniform(0, 0.5))
            second = place.refused(f"job.directory={directory}", *RUN, *WRITING, f"train.steps={steps}", *wish, ranks=2,
                                   code=(USAGE, FILES, FINISHED), says=[directory.name])
            if first.process.poll() is not None:
                raise Failed("the first had ended before the second")
            if second.code == FINISHED and wish != ("--resume", "auto"):
                raise Failed(f"replaced a run: {second}")
            if (result := first.wait(LIMIT_S)).code != FINISHED:
                raise Failed(str(result))
            require_same(directory, whole)
            return second.code
        yield attempt("twins", "two jobs in one directory", collide)


CLOCK = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>
/* The calendar's clock jumps by JUMP_S to and fro, every JUMP_EVERY_MS of the other clock. */
static long offset(void) {
  struct timespec now;
  ((int (*)(clockid_t, struct timespec*))dlsym(RTLD_NEXT, "clock_gettime"))(CLOCK_MONOTONIC, &now);
  const long ms = now.tv_sec * 1000L + now.tv_nsec / 1000000;
  return ms / atol(getenv("JUMP_EVERY_MS")) % 2 ? atol(getenv("JUMP_S")) : 0;
}
int clock_gettime(clockid_t which, struct timespec* now) {
  const int status = ((int (*)(clockid_t, struct timespec*))dlsym(RTLD_NEXT, "clock_gettime"))(which, now);
  if (which == CLOCK_REALTIME || which == CLOCK_REALTIME_COARSE) now->tv_sec += offset();
  return status;
}
int gettimeofday(struct timeval* now, void* zone) {
  const int status = ((int (*)(struct timeval*, void*))dlsym(RTLD_NEXT, "gettimeofday"))(now, zone);
  now->tv_sec += offset();
  return status;
}
time_t time(time_t* to) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (to) *to = now.tv_sec;
  return now.tv_sec;
}
"""


def clocks(place, count):
    """No limit of time strikes, no rank is taken for lost, and the bits are the same."""
    library, whole, steps = shim(place, "clock", CLOCK), place.folder / "whole", 10 * EVERY
    keys = (*RUN, *WRITING, f"train.steps={steps}", "train.time_limit_s=3600", "parallel.timeout_s=60")
    place.run(f"job.directory={whole}", *keys, ranks=2)
    for number in range(count):
        directory = place.folder / f"run_{number}"
        jump = place.chance.choice([-1, 1]) * place.chance.choice([7200, 86400, 10**9])

        def jumping():
            result = place.run(f"job.directory={directory}", *keys, ranks=2,
                               **between(library, JUMP_S=jump, JUMP_EVERY_MS=place.chance.choice([7, 100, 900])))
            require_same(directory, whole)
            return result.code
        yield attempt("clock", "a clock that jumps", jumping)


# --- hours in short

STOPS_EVERY_S = 120


def soak(place, minutes):
    """A run that is stopped every two minutes and goes on in the next strategy, beside one that nothing stops."""
    run, whole = place.folder / "run", place.folder / "whole"
    keys = (*RUN, "checkpoint.every=500", "checkpoint.background=on", f"train.steps={ENDLESS}", "trace.flush_s=5")
    beside = place.start(f"job.directory={whole}", *keys, "checkpoint.every=0", ranks=2)
    made, end = [], time.monotonic() + 60 * minutes
    names = list(STRATEGIES)
    try:
        while time.monotonic() < end or len(made) < 3:
            strategy = names[len(made) % len(names)]
            before = latest_step(run)
            job = place.start(f"job.directory={run}", *keys, *STRATEGIES[strategy], *resume_words(run), ranks=2)
            await_(lambda: text_of(run / "status").startswith("running"), job, "a running step")
            time.sleep(STOPS_EVERY_S)
            for process in (job, beside):
                if process.process.poll() is not None:
                    raise Failed(str(process.wait()))
            end_all(job.ranks()[:1], signal.SIGUSR1)
            result = job.wait(LIMIT_S)
            if result.code != STOPPED or latest_step(run) <= before:
                raise Failed(f"{strategy}: {result}")
            made.append(row("soak", strategy, result.code))
            made[-1]["steps"] = latest_step(run)
        steps = latest_step(run)
        reached = lambda: int((re.match(r"running +step +(\d+)/", text_of(whole / "status")) or [0, 0])[1])
        while reached() < steps and beside.process.poll() is None:
            time.sleep(1)
        end_all(beside.ranks()[:1], signal.SIGUSR1)
        if (result := beside.wait(LIMIT_S)).code != STOPPED:
            raise Failed(str(result))
        # not the norms: each strategy adds the squares in an order of its own, and without clipping nothing depends on them
        different = [name for name in ("step", "loss") if not np.array_equal(column(run, name), column(whole, name)[:steps])]
        fault = f"other losses than without a stop: {different}" if different or len(column(run, "step")) != steps else ""
    finally:
        beside.close()
    yield from ({**one, "fault": fault} for one in made)


def text_of(path):
    try:
        return path.read_text()
    except OSError:
        return ""


KINDS = {"kill": kills, "deck": decks, "checkpoint": checkpoints, "data": data_files, "disk": disks, "write": writes, "deleted": deleted, "twins": twins, "clock": clocks,
         "soak": soak}
COUNTS = {"kill": 100, "deck": 200, "checkpoint": 100, "data": 100, "disk": 80, "write": 10**6, "deleted": 6, "twins": 3, "clock": 6}


def drill(kind, count, seed, folder):
    """Rows of `count` drills of a kind (of a soak: minutes), as they come. A kind that cannot go on ends with a row that says why."""
    place = Place(folder / kind, random.Random(f"{seed} {kind}"))
    try:
        yield from KINDS[kind](place, count)
    except Failed as found:
        yield row(kind, "all", "", fault=str(found))
