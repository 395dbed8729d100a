#!/usr/bin/env python3
"""Writes the first inputs of a fuzz target, and its dictionary.

    tests/fuzz/seeds.py TARGET FOLDER [DICTIONARY]

Decks are shipped ones; token files are made here; a checkpoint's index is that of tests/golden, made small. Needs
h5py and numpy, for the targets hdf5 and checkpoint.
"""
import re
import struct
import sys
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2]
GOLDEN = SOURCE / "tests/golden"
OVERRIDES = ["model.size=small", "train.steps=7", "data.path=a b", "optimizer.learning_rate=1e-3", "train.fused=false", "bench.length=[64,128]",
             "job.kind=bench.step", "generate.prompt=\"Once\\n\""]


def decks():
    for path in sorted([*(SOURCE / "input").rglob("*.toml"), *GOLDEN.rglob("*.toml")]):
        if path.stat().st_size < 1500:  # those of large experiments take seconds
            yield path.read_bytes()
    tiny = (SOURCE / "input/tiny.toml").read_bytes()
    for override in OVERRIDES:
        yield tiny + b"\0" + override.encode()
    yield b"\0".join([tiny, *(one.encode() for one in OVERRIDES)])


def bins():
    tokens = [i * i % 50257 for i in range(40)]
    header = lambda magic, version, count: struct.pack("<256i", magic, version, count, *[0] * 253)
    yield struct.pack("<40H", *tokens)
    yield header(20240520, 1, 40) + struct.pack("<40H", *tokens)
    yield header(20240801, 7, 40) + struct.pack("<40I", *tokens)
    yield struct.pack(">256i", 20240520, 1, 0, *[0] * 253)
    yield b"It was the best of times, it was the worst of times.\n"
    yield struct.pack("<600I", *(number % 50257 for number in range(1000, 601000, 1000)))
    for start in (b"\x93NUMPY", b"\x89HDF\r\n\x1a\n", b"PAR1", b"PK\x03\x04", b"\x1f\x8b\x08"):
        yield start + bytes(40)


def hdf5(made):
    import h5py
    import numpy as np
    tokens = np.arange(64) * 7 % 50257
    path = made / "made.h5"

    def file(fill, **options):
        with h5py.File(path, "w", **options) as one:
            fill(one)
        return path.read_bytes()

    for kind in ("u1", "u2", "u4", "u8", "i2", "i4", "i8", "f4", "f8", ">u2"):
        yield file(lambda one: one.create_dataset("tokens", data=tokens.astype(kind)))
    yield file(lambda one: one.create_dataset("tokens", data=tokens.astype("u2"), chunks=(16,), compression="gzip", shuffle=True))
    yield file(lambda one: one.create_dataset("tokens", data=tokens.astype("u2")), libver="latest")
    yield file(lambda one: one.create_dataset("tokens", data=tokens.astype("u2"), chunks=(16,), maxshape=(None,)), libver="latest")
    yield file(lambda one: one.create_dataset("tokens", (2**40,), "u2", chunks=(2**20,)))
    yield file(lambda one: one.create_dataset("tokens", (2**62,), "u8", chunks=(2**20,)))
    yield file(lambda one: one.create_dataset("tokens", (2**40, 2**40), "u1", chunks=(16, 16)))
    yield file(lambda one: one.create_dataset("tokens", (0,), "u2"))
    yield file(lambda one: one.create_dataset("tokens", data=h5py.Empty("u2")))
    yield file(lambda one: one.create_dataset("tokens", data=["a", "bc"], dtype=h5py.string_dtype()))
    yield file(lambda one: one.create_dataset("tokens", data=np.array([b"a", b"bc"], "S2")))
    yield file(lambda one: one.create_dataset("tokens", data=np.zeros(3, [("a", "i4"), ("b", "f8")])))
    yield file(lambda one: one.create_dataset("tokens", data=[True, False]))

    def everything(one):
        one.attrs.update({"causal": True, "units": ["a", "b"], "scale": 0.5})
        one.create_group("info").attrs["format"] = "tessera run"
        one["deep/er/x"] = tokens.astype("f4").reshape(4, 4, 4)
        one["deep/y"] = "text"
        one["tokens"] = tokens.astype("u2")
        one["deep/soft"] = h5py.SoftLink("/deep/y")
        one["deep/none"] = h5py.SoftLink("/nowhere")
        one["deep/out"] = h5py.ExternalLink("other.h5", "/x")
        one["deep/er/round"] = one["deep"]
    yield file(everything)

    def virtual(source, name):
        def fill(one):
            one["part"] = tokens.astype("u2")
            layout = h5py.VirtualLayout((64,), "u2")
            layout[:] = h5py.VirtualSource(source, name, (64,))
            one.create_virtual_dataset("tokens", layout)
        return fill
    yield file(virtual(".", "part"))
    yield file(virtual(".", "tokens"))
    yield file(virtual(".", "/"))
    yield file(virtual("missing.h5", "part"))
    path.unlink()


def checkpoint(made):
    import h5py
    path = made / "made.h5"

    def index(change=lambda one: None):
        with h5py.File(GOLDEN / "checkpoint_v1/ranks_1/step_00000004/index.h5") as whole, h5py.File(path, "w") as small:
            small.attrs.update(whole.attrs)
            small.attrs["deck"] = "[train]\nsteps = 6\n"
            whole.copy("files", small)
            name = sorted(whole["params"])[0]
            layout = h5py.VirtualLayout(whole["params"][name].shape, "f4")
            layout[...] = h5py.VirtualSource("rank_00000.h5", f"/params/{name}", layout.shape)
            small.create_virtual_dataset(f"params/{name}", layout)
            change(small)
        return b"i" + path.read_bytes()

    def files(**columns):
        def change(one):
            for name, values in columns.items():
                del one["files"][name]
                one["files"].create_dataset(name, data=values)
        return change
    yield index()
    yield index(files(bytes=[1, 2]))
    yield index(files(bytes=[-1]))
    yield index(files(name=["a/../../index.h5"]))
    yield index(files(name=["rank_00000.h5"] * 3))
    yield index(lambda one: one.attrs.update({"step": -5, "left_out": "1 2", "norms": "1.5 2.5"}))
    yield b"i" + (GOLDEN / "checkpoint_v1/ranks_1/step_00000004/index.h5").read_bytes()
    yield b"d" + (GOLDEN / "checkpoint_v1/ranks_1/step_00000004/index.h5").read_bytes()[:3000]
    yield b"x" + (GOLDEN / "checkpoint_v1/ranks_1/step_00000004/index.xxh3").read_bytes()
    for latest in (b"step_00000004\n", b"step_00000002 abandoned_01\n", b"step_99999999\n", b"../run\n", b""):
        yield b"l" + latest
    path.unlink()


def dictionary(target):
    words = {"deck": set(), "bin": {"NUMPY", "PAR1", "ARROW1", "HDF"}, "hdf5": {"tokens", "TREE", "HEAP", "SNOD", "OHDR", "OCHK", "FRHP", "BTHD"},
             "checkpoint": {"step_00000004", "abandoned_01", "rank_00000.h5", "files", "name", "bytes", "xxh3", "TREE", "HEAP", "SNOD"}}[target]
    if target == "deck":
        for path in [*(SOURCE / "src/config").glob("*.cpp"), *(SOURCE / "src/lab").glob("*.cpp")]:
            for section, leaf in re.findall(r'"(\w+)\.(\w+)"', path.read_text()):
                words |= {section, leaf, f"{section}.{leaf}"}
        words |= {"true", "false", "nan", "inf", "-1", "1e308", "9223372036854775807", "[[", "]]", "experiment.product", "experiment.rows", "when_quick"}
        for deck in decks():
            words |= set(re.findall(r'"([\w.]+)"', deck.decode()))
    return "".join(f'"{word}"\n' for word in sorted(words))


def main(target, folder, words=None):
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    makers = {"deck": decks, "bin": bins, "hdf5": lambda: hdf5(folder), "checkpoint": lambda: checkpoint(folder)}
    for number, content in enumerate(list(makers[target]())):
        (folder / f"{target}_{number:02d}").write_bytes(content)
    if words:
        Path(words).write_text(dictionary(target))


if __name__ == "__main__":
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    main(*sys.argv[1:])
