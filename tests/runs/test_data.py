#!/usr/bin/env python3
"""Data that change: during a run, between two starts, from host to host; files that are not tokens; data in many
files."""
import gzip
import os
import signal
import socket
import struct
import subprocess
import sys
import time
import unittest

import h5py
import numpy as np

from harness import FILES, PATIENCE, STOPPED, TINY, RunTest, column, end_all, example, latest_step, wait_for_end

TOKENS = 40_000


def text(path, tokens):
    path.write_bytes(tokens.astype(np.uint8).tobytes())
    return ("data.source=text", "model.vocab_size=257")


def raw(path, tokens):
    path.write_bytes(tokens.astype(np.uint16).tobytes())
    return ("data.source=tokens",)


def llmc_16(path, tokens):
    path.write_bytes(struct.pack("<256i", 20240520, 1, len(tokens), *[0] * 253) + tokens.astype(np.uint16).tobytes())
    return ("data.source=tokens",)


def llmc_32(path, tokens):
    path.write_bytes(struct.pack("<256i", 20240801, 7, len(tokens), *[0] * 253) + tokens.astype(np.uint32).tobytes())
    return ("data.source=tokens",)


def hdf5(path, tokens):
    with h5py.File(path, "w") as file:
        file["tokens"] = tokens.astype(np.uint16)
    return ("data.source=tokens",)


FORMS = {"a.txt": text, "nanogpt.bin": raw, "llmc16.bin": llmc_16, "llmc32.bin": llmc_32, "a.h5": hdf5}


def some_tokens(seed, count=TOKENS):
    return np.random.default_rng(seed).integers(0, 64, count)


class OurPages(RunTest):
    def test_the_three_forms_that_a_page_writes_train_the_same(self):
        subprocess.run([sys.executable, "-c", example("input/README.md", "llmc.bin")], cwd=self.folder, check=True)
        losses = [column(self.train(name.replace(".", " "), "data.source=tokens", f"data.path={name}", "model.vocab_size=4000",
                                    "train.steps=2", "optimizer.warmup_steps=1"), "loss") for name in ("tokens.h5", "llmc.bin", "tokens.bin")]
        np.testing.assert_array_equal(losses[1:], losses[:1] * 2)


class Shrinking(RunTest):
    def test_a_file_that_shrinks_ends_the_run_with_its_name(self):
        for name, write in FORMS.items():
            for ranks in (None, 2):
                with self.subTest(name, ranks=ranks):
                    path, directory = self.folder / name, self.folder / f"{name} on {ranks}"
                    job = self.start(TINY, *write(path, some_tokens(1)), f"data.path={path}", f"job.directory={directory}",
                                     "train.steps=1000000", "train.validate_every=0", ranks=ranks)
                    self.wait_until(lambda: latest_step(directory) >= 10, "a checkpoint", job)
                    processes = job.ranks()
                    os.truncate(path, 3000)
                    result = job.wait()
                    self.assertEqual(result.code, FILES, str(result))
                    self.assertIn(f"{path}", result.err, str(result))
                    self.assertIn("--resume auto", result.err, str(result))
                    self.assertTrue(wait_for_end(processes), "a rank lives on")


class NoFiles(RunTest):
    def test_what_is_no_file_is_refused_and_not_waited_for(self):
        def fifo(path):
            os.mkfifo(path)
            return path

        def link(path):
            path.symlink_to(fifo(self.folder / f"behind {path.name}"))
            return path

        def listening(path):
            here = socket.socket(socket.AF_UNIX)
            self.addCleanup(here.close)
            here.bind(os.path.relpath(path))  # the whole path may be longer than a socket's name
            return path

        os.chdir(self.folder)
        self.addCleanup(os.chdir, "/")
        kinds = {"FIFO": fifo, "symlink": link, "socket": listening, "device": lambda path: "/dev/zero"}
        for kind, make in kinds.items():
            for source, name in (("text", "a.txt"), ("tokens", "a.bin"), ("tokens", "a.h5")):
                if kind == "device" and name == "a.h5":
                    continue  # no device has such a name
                with self.subTest(kind, name=name):
                    path = make(self.folder / f"{kind} {name}")
                    for ranks in (None, 2) if kind == "FIFO" else (None,):
                        job = self.start(TINY, f"job.directory={self.folder / 'run'}", f"data.source={source}",
                                         f"data.path={path}", "model.vocab_size=257", ranks=ranks)
                        result = job.wait()
                        self.assertEqual(result.code, FILES, str(result))
                        self.assertIn(f"{path}: not a regular file but a ", result.err, str(result))

    def test_tokens_of_32_bits_are_not_read_as_those_of_16(self):
        path = self.folder / "train.bin"
        path.write_bytes(some_tokens(1).astype(np.uint32).tobytes())
        self.run_deck(TINY, f"job.directory={self.folder / 'run'}", "data.source=tokens", f"data.path={path}", code=FILES,
                      says=[str(path), "uint32", "20240801", ".h5"])


class NoTokens(RunTest):
    """Files that could be read as tokens, or as zeros, and hold none."""

    def refused(self, path, *says):
        self.run_deck(TINY, "data.source=tokens", f"data.path={path}", "model.vocab_size=65536", "model.d_model=16", "train.steps=1",
                      "train.validate_every=0", f"job.directory={self.folder / 'run'}", code=FILES, says=[str(path).split(":")[0], *says])

    def test_files_of_other_kinds_are_named(self):
        tokens = some_tokens(1)
        for name, write, says in (
            ("t64.npy", lambda path: np.save(path, tokens), "a NumPy file"),
            ("t.npz", lambda path: np.savez(path, tokens), "a zip archive"),
            ("a.bin", lambda path: hdf5(path, tokens), "an HDF5 file"),
            ("a.gz", lambda path: path.write_bytes(gzip.compress(tokens.astype(np.uint16).tobytes())), "compressed by gzip"),
            ("big.bin", lambda path: path.write_bytes(struct.pack(">256i", 20240520, 1, 2, *[0] * 253) + bytes(4)), "the other byte order"),
            ("meta.json", lambda path: path.write_text('{"vocabulary": 50257, "tokens": 1}'), "looks like text"),
            ("book.txt", lambda path: path.write_text("Ein Bär aß Öl.\n" * 2000), 'data.source="text"'),
        ):
            with self.subTest(name):
                write(self.folder / name)
                self.refused(self.folder / name, says)

    def test_entries_that_nobody_wrote_are_not_read_as_zeros(self):
        tokens = some_tokens(1).astype(np.uint16)
        hdf5(self.folder / "part.h5", tokens)
        layout = h5py.VirtualLayout(shape=(TOKENS,), dtype="u2")
        layout[:] = h5py.VirtualSource("part.h5", "tokens", shape=(TOKENS,))
        with h5py.File(self.folder / "virtual.h5", "w") as file:  # whole now, but not if its part goes during the run
            file.create_virtual_dataset("tokens", layout)
        with h5py.File(self.folder / "empty.h5", "w") as file:
            file.create_dataset("tokens", shape=(TOKENS,), dtype="u2")
        with h5py.File(self.folder / "stopped.h5", "w") as file:
            file.create_dataset("tokens", shape=(TOKENS,), dtype="u2", chunks=(TOKENS // 4,), compression="gzip")[:TOKENS // 2] = 1
        with h5py.File(self.folder / "lzf.h5", "w") as file:
            file.create_dataset("tokens", data=tokens, compression="lzf")
        self.refused(self.folder / "virtual.h5", "its entries lie in other files", "data.path takes a pattern")
        self.refused(self.folder / "empty.h5", "it has never been written")
        self.refused(self.folder / "stopped.h5", "2 of its 4 chunks have never been written")
        self.refused(self.folder / "lzf.h5", "filter 32000 (lzf)", 'compression="gzip"')

    def test_whole_datasets_in_other_layouts_are_read(self):
        tokens = some_tokens(1).astype(np.uint16)
        with h5py.File(self.folder / "all.h5", "w") as file:
            file.create_dataset("packed", data=tokens, chunks=(1000,), compression="gzip")
            file.create_dataset("plain", data=tokens)
        for name in ("packed", "plain"):
            self.run_deck(TINY, "data.source=tokens", f"data.path={self.folder / 'all.h5'}:/{name}", "train.steps=2",
                          f"job.directory={self.folder / name}")
        self.assertEqual(*(list(column(self.folder / name, "loss")) for name in ("packed", "plain")))


class Large(RunTest):
    """A sparse file: as long to check as a real one, and no space on the disk."""

    def test_checking_it_is_progress_and_a_signal_to_one_rank_ends_it(self):
        path, directory = self.folder / "zeros.bin", self.folder / "run"
        path.touch()
        os.truncate(path, 2 << 40)  # many minutes
        limit_s = 1.5 * PATIENCE
        for ranks in (None, 2):
            job = self.start(TINY, "data.source=tokens", f"data.path={path}", f"job.directory={directory}",
                             f"parallel.timeout_s={limit_s}", ranks=ranks)
            self.wait_until(lambda: "tokens checked:" in job.printed(), "a line of progress", job)
            if ranks:  # a single rank is not watched
                time.sleep(10 * limit_s + 1)  # the watchdog's limit during the set-up, as well as that of the start
            self.assertIsNone(job.process.poll(), "it ended")
            end_all(job.ranks()[-1:], signal.SIGTERM)
            result = job.wait(20 * PATIENCE)
            self.assertEqual(result.code, STOPPED, str(result))
            self.assertEqual(result.err.count("tessera: stopped by SIGTERM"), 1, str(result))
            self.assertIn("start it again as before", result.err)
            self.assertFalse(directory.exists(), "something was changed")

    def test_a_token_outside_the_vocabulary_is_told_once_whichever_rank_reads_it(self):
        path, tokens = self.folder / "a.bin", np.zeros(10 << 20, np.uint16)
        for at in (len(tokens) - 1, 5 << 20, 100):  # the last, one in a second part, one in the first
            tokens[at] = 64
            source = raw(path, tokens)
            result = self.run_deck(TINY, *source, f"data.path={path}", ranks=2, code=FILES)
            self.assertRegex(result.err, rf"(?m)^tessera: {path}: token 64 at position {at} is outside", str(result))
            self.assertEqual(result.err.count("tessera:"), 1, str(result))


class Names(RunTest):
    def test_a_name_cannot_steer_the_terminal(self):
        name = "a\033[31m\a.bin"
        source = raw(self.folder / name, some_tokens(1))
        shown = name.replace("\033", "\\x1b").replace("\a", "\\x07")
        result = self.run_deck(TINY, *source, f"data.path={name}", "train.steps=1", f"job.directory={self.folder / 'run'}")
        self.assertIn(f"{shown}: ", result.out)
        self.assertNotIn("\033", result.out + result.err)
        (self.folder / name).write_bytes(b"odd")
        result = self.run_deck(TINY, *source, f"data.path={name}", f"job.directory={self.folder / 'other'}", code=FILES, says=shown)
        self.assertNotIn("\033", result.out + result.err)


class Changing(RunTest):
    def go_on(self, path, steps, *arguments, run="run", ranks=None):
        """What the start reports of data that have changed."""
        out = self.run_deck(TINY, *arguments, f"data.path={path}", f"train.steps={steps}", f"job.directory={self.folder / run}",
                            "--resume", "auto", ranks=ranks).out
        return [line for line in out.splitlines() if line.startswith("resume     the data")]

    def test_other_content_of_the_same_length_is_told_once(self):
        for name, write in FORMS.items():
            for ranks in (None, 2):
                with self.subTest(name, ranks=ranks):
                    path, where = self.folder / name, {"run": f"{name} on {ranks}", "ranks": ranks}
                    self.assertEqual(self.go_on(path, 5, *write(path, some_tokens(1)), **where), [])
                    self.assertEqual(self.go_on(path, 10, *write(path, some_tokens(1)), **where), [])
                    said = self.go_on(path, 15, *write(path, some_tokens(2)), **where)
                    self.assertEqual(len(said), 1, said)
                    self.assertIn("have changed", said[0])
                    self.assertEqual(self.go_on(path, 20, *write(path, some_tokens(2)), **where), [])

    def test_one_token_is_enough(self):
        tokens, path = some_tokens(1), self.folder / "a.bin"
        self.assertEqual(self.go_on(path, 5, *raw(path, tokens)), [])
        tokens[20_000] ^= 1
        self.assertEqual(len(self.go_on(path, 10, *raw(path, tokens))), 1)

    def test_the_same_tokens_in_another_file_are_the_same_data(self):
        forms = {name: FORMS[name] for name in ("nanogpt.bin", "llmc16.bin", "a.h5")}  # one kind of tokens: uint16
        for steps, (name, write) in enumerate(forms.items(), 1):
            self.assertEqual(self.go_on(self.folder / name, 5 * steps, *write(self.folder / name, some_tokens(1))), [], name)

    def test_ranks_that_read_other_data_are_named(self):
        for rank in (0, 1):
            (self.folder / f"host {rank}").mkdir()
        there = ("bash", "-c", 'cd "host $OMPI_COMM_WORLD_RANK" && exec "$@"', "bash")
        for name, write in FORMS.items():
            for other in (some_tokens(2), some_tokens(1, TOKENS - 2)):
                with self.subTest(name, tokens=len(other)):
                    source = write(self.folder / "host 0" / name, some_tokens(1))
                    write(self.folder / "host 1" / name, other)
                    result = self.run_deck(TINY, *source, f"data.path={name}", f"job.directory={self.folder / 'run'}", ranks=2,
                                           code=FILES, says=[name, "rank 1 "], wrapper=there)
                    self.assertEqual(result.err.count("tessera:"), 1, str(result))


class Shards(RunTest):
    """One corpus in several files: `data.path` is a pattern."""

    def shards(self, name, tokens, parts):
        """Writes `tokens` in so many files of uneven lengths; returns their pattern and the rest of the arguments."""
        stem, dot, ending = name.partition(".")
        cuts = np.sort(np.random.default_rng(3).choice(np.arange(1, len(tokens)), parts - 1, replace=False))
        for index, part in enumerate(np.split(tokens, cuts)):
            more = FORMS[name](self.folder / f"{stem}_{index:03}.{ending}", part)
        return (f"data.path={self.folder / stem}_*.{ending}", *more)

    def test_train_like_the_one_file_bit_by_bit(self):
        tokens = some_tokens(1, 5000)
        for name, write in FORMS.items():
            path = self.folder / name
            whole = (f"data.path={path}", *write(path, tokens))
            shards = self.shards(name, tokens, 70)  # more than are open at a time; a batch lies in many
            for ranks in (None, 2):
                with self.subTest(name, ranks=ranks):
                    alone = self.train(f"{name} {ranks} alone", *whole, ranks=ranks)
                    result = self.run_deck(TINY, *shards, f"job.directory={self.folder / name} {ranks} shards", ranks=ranks)
                    size = f"{len(tokens) + (name == 'a.txt')} tokens"
                    self.assertRegex(result.out, rf"(?m)^data       .*_\*\.\w+ \(70 files\): {size}, ", str(result))
                    for quantity in ("loss", "grad_norm"):
                        made = column(self.folder / f"{name} {ranks} shards", quantity)
                        np.testing.assert_array_equal(made, column(alone, quantity), quantity)

    def test_a_run_goes_on_from_one_file_to_many(self):
        path, tokens = self.folder / "a.bin", some_tokens(1)
        arguments = (f"job.directory={self.folder / 'run'}", "--resume", "auto")
        self.run_deck(TINY, *raw(path, tokens), f"data.path={path}", "train.steps=5", *arguments)
        for steps, count in ((10, TOKENS), (15, TOKENS - 2)):
            out = self.run_deck(TINY, *self.shards("nanogpt.bin", tokens[:count], 3), f"train.steps={steps}", *arguments).out
            self.assertEqual("the data have changed" in out, count != TOKENS, out)

    def test_a_backslash_is_itself(self):
        for number in (1, 2):
            source = raw(self.folder / f"a\\b{number}.bin", some_tokens(number))
        out = self.run_deck(TINY, *source, f"data.path={self.folder}/a\\b*.bin", "train.steps=1", f"job.directory={self.folder / 'run'}").out
        self.assertIn("a\\b*.bin (2 files)", out)

    def test_few_descriptors_are_enough(self):
        few = ("bash", "-c", 'ulimit -n 128; exec "$@"', "bash")
        for name in FORMS:
            with self.subTest(name):
                self.train(name + " run", *self.shards(name, some_tokens(1, 5000), 300), "train.steps=5", ranks=2, wrapper=few)

    def test_the_deck_gives_the_folder_and_needs_no_data_to_be_checked(self):
        (self.folder / "data").mkdir()
        (self.folder / "decks").mkdir()
        deck = self.deck(TINY.read_text().replace('source = "synthetic"', 'source = "tokens"\npath = "../data/x_[0-9].bin"'),
                         "decks/a.toml")
        arguments = (f"job.directory={self.folder / 'run'}", "train.steps=2")
        for question in ("--check", "--plan"):
            self.run_deck(deck, question, *arguments)
        self.run_deck(deck, *arguments, code=FILES, says=[f"{self.folder}/data/x_[0-9].bin: no file matches"])
        for number in (1, 2):
            raw(self.folder / f"data/x_{number}.bin", some_tokens(number))
        self.assertIn("x_[0-9].bin (2 files): 80000 tokens", self.run_deck(deck, *arguments).out)

    def test_a_faulty_one_is_named_once(self):
        def faults():
            yield "x_001.bin", "empty", lambda path: path.write_bytes(b"")
            yield "x_001.bin", "llm.c's uint16", lambda path: llmc_16(path, some_tokens(1))
            yield "x_001.bin", "promises", lambda path: path.write_bytes(struct.pack("<256i", 20240520, 1, 9, *[0] * 253))
            yield "x_002.bin", "token 64 at position 7", lambda path: raw(path, np.array([*range(7), 64]))
            yield "x_002.bin", "FIFO", lambda path: (path.unlink(), os.mkfifo(path))

        for name, says, spoil in faults():
            source = [raw(self.folder / f"x_{index:03}.bin", some_tokens(1)) for index in range(3)][0]
            path = self.folder / name
            spoil(path)
            for ranks in (None, 2):
                with self.subTest(says, ranks=ranks):
                    result = self.run_deck(TINY, *source, f"data.path={self.folder}/x_*.bin", ranks=ranks, code=FILES,
                                           says=[str(path), says])
                    self.assertEqual(result.err.count("tessera:"), 1, str(result))
            path.unlink()

    def test_one_that_shrinks_or_goes_ends_the_run_with_its_name(self):
        for says, parts, spoil in (("shortened", 3, lambda path: os.truncate(path, 40)),
                                   ("shortened", 100, lambda path: os.truncate(path, 40)),
                                   ("No such file", 100, os.unlink)):
            with self.subTest(says, parts=parts):
                directory = self.folder / f"{parts} {says}"
                job = self.start(TINY, *self.shards("nanogpt.bin", some_tokens(1), parts), f"job.directory={directory}",
                                 "train.steps=1000000", "train.validate_every=0", ranks=2)
                self.wait_until(lambda: latest_step(directory) >= 10, "a checkpoint", job)
                for path in self.folder.glob("nanogpt_*.bin"):  # one that is open may be removed unnoticed
                    spoil(path)
                result = job.wait()
                self.assertEqual(result.code, FILES, str(result))
                self.assertRegex(result.err, rf"{self.folder}/nanogpt_\d+\.bin: .*{says}", str(result))


if __name__ == "__main__":
    unittest.main(verbosity=2)  # so that a test that skips itself says so
