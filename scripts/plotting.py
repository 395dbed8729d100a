"""Shared by plot_run, plot_bench, experiment and compare_torch: the look, units, and drawing a file into a picture.

Imports nothing but the standard library by itself, so that --help wants nothing installed.
"""
import argparse
import os
import re
import sys

# Okabe & Ito's colours: distinct for colour-blind readers and in print.
BLUE, ORANGE, GREEN, VERMILION, PURPLE, SKY, YELLOW, GREY = (
    "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#F0E442", "#9A9A9A")
SPARE = ("#332288", "#A6761D", "#66A61E", "#E7298A", "#44AA99", "#882255", YELLOW, "#7F7F00", "#6A3D9A", "#B2182B",
         "#1B4D3E")                                                      # for what has no colour of its own
INK, FAINT, PALE = "#2B2B2B", "#707070", "#C8C8C8"                       # text, small text, remainders

CATEGORIES = {"parameters": BLUE, "gradients": ORANGE, "optimizer": GREEN, "activations": SKY, "workspace": GREY,
              "data": PURPLE}  # of tensors, as the layout names them
PHASES = {"forward": SKY, "backward": BLUE, "exposed": VERMILION, "optimizer": GREEN}  # of a step

# Columns of text, in run.h5 and in tables of bench jobs; all others hold numbers.
TEXT = frozenset(("accumulator", "addend", "attention", "category", "causal", "collectives", "compute", "dtype", "engine", "graph",
                  "implementation", "kernel", "label", "lane", "operation", "ordered", "outcome", "phase", "size", "strategy",
                  "stream", "variant"))

FORMATS = (".png", ".pdf", ".svg")  # of pictures

STYLE = {
    "figure.facecolor": "white", "axes.facecolor": "white", "axes.edgecolor": "#B0B0B0", "axes.labelcolor": INK,
    "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.color": "#E6E6E6",
    "grid.linewidth": 0.8, "axes.axisbelow": True, "xtick.color": INK, "ytick.color": INK, "text.color": INK,
    "font.size": 9.5, "axes.titlesize": 11.5, "axes.titleweight": "bold", "axes.titlelocation": "left",
    "legend.frameon": False, "legend.fontsize": 8.5, "figure.dpi": 160, "savefig.dpi": "figure",
}


# --- units

def scaled(largest, units):
    """The unit that keeps `largest` readable: (factor, name)."""
    best = units[0]
    for factor, name in units:
        if largest >= factor:
            best = (factor, name)
    return best


def byte_unit(largest):
    return scaled(largest, [(1.0, "B"), (2.0**10, "KiB"), (2.0**20, "MiB"), (2.0**30, "GiB")])


def time_unit(largest):
    return scaled(largest, [(1e-6, "µs"), (1e-3, "ms"), (1.0, "s")])


def rate_unit(largest):
    """Of flop per second."""
    return scaled(largest, [(1e9, "GFLOP/s"), (1e12, "TFLOP/s")])


def significant(value, digits=3):
    """So many digits of a number, and never a power of ten for want of one: 1010, not 1.01e+03."""
    return f"{value:.{max(digits, len(f'{abs(value):.0f}'))}g}"


def short_count(value, _=None):
    for limit, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= 0.9995 * limit:  # which three digits would round to 1e+03
            return f"{value / limit:.3g}{letter}"
    return f"{value:.3g}"


def length_text(tokens):
    """512, 4k, 16k: lengths of sequences, which are mostly powers of two."""
    return f"{tokens // 1024}k" if tokens >= 1024 and tokens % 1024 == 0 else str(tokens)


PEAKS = {"H100 PCIe": 756, "H100": 989, "H200": 989, "A100": 312}  # [TFLOP/s] of GPUs, dense bf16, by their data sheets


def known_gpu(model, names):
    """Which of these GPUs a driver's name means, or None: a part of one is none of them, nor is another with its chip (kernels/core/gpus.hpp)."""
    return None if re.search(" MIG | NVL|-40GB", model) else next((name for name in names if re.search(f"(^| ){re.escape(name)}", model)), None)


def peak_of(models):
    """TFLOP/s, dense bf16, of the first of these models that has a data sheet here; NaN if none has."""
    return next((PEAKS[name] for model in models if (name := known_gpu(model, PEAKS))), float("nan"))


# --- parts of a picture

def colours_of(names, own):
    """{name: colour}: its own where it has one, else one that no other name has, as long as they last."""
    spare = iter(SPARE * (1 + len(names) // len(SPARE)))
    return {name: own.get(name) or next(spare) for name in names}


def nothing(axes, why):
    """An empty panel that says why."""
    axes.grid(False)
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.text(0.5, 0.5, why, ha="center", va="center", color="#808080", transform=axes.transAxes, linespacing=1.7)


def aside(axes, text, size=9):
    """Small text to the right of a panel's title."""
    axes.set_title(text, loc="right", fontsize=size, fontweight="normal", color=FAINT)


def peak_line(axes, peak):
    """A line at the peak, named inside of the axes; none of a peak that is not known."""
    if peak == peak:
        axes.axhline(peak, color=FAINT, linewidth=1)
        axes.annotate(f"peak {peak:.0f}", (1, peak), xycoords=axes.get_yaxis_transform(), xytext=(-4, -3), textcoords="offset points", ha="right",
                      va="top", fontsize=8, color=FAINT)


SPREAD = dict(ecolor="#404040", capsize=2)  # of bars, beside their xerr or yerr: how a standard deviation is drawn


def line_with_spread(axes, x, y, spread, **style):
    """Points joined by a line, each with its standard deviation to both sides; none where it is NaN. On a logarithmic axis what
    would reach zero ends at the foot of the axes."""
    import numpy as np

    axes.errorbar(x, y, yerr=np.nan_to_num(np.asarray(spread, float)), **{"marker": "o", "markersize": 4, "linewidth": 1.5, "capsize": 2, **style})


def heading(figure, words):
    """What ran, when and where, above all panels; empty words are left out."""
    figure.suptitle("   ·   ".join(word for word in words if word), x=0.012, ha="left", fontsize=9.5, color="#606060")


# --- from a file to a picture

def values(dataset):
    """A dataset as an array, text as str."""
    import h5py

    return dataset.asstr()[...] if h5py.check_string_dtype(dataset.dtype) else dataset[...]


def columns(group):
    """The datasets of a group of an HDF5 file as arrays of one length, text as str. OSError if they are no such table."""
    import h5py

    if not isinstance(group, h5py.Group):
        raise OSError(f"{group.name} is no group of columns")
    table = {name: item for name, item in group.items() if isinstance(item, h5py.Dataset)}
    try:
        for name, item in table.items():
            is_text = name in TEXT
            fits = h5py.check_string_dtype(item.dtype) if is_text else item.dtype.kind in "iuf"
            if item.ndim != 1 or not fits:
                raise OSError(f"{item.name} is no column of {'text' if is_text else 'numbers'}")
        if len({len(item) for item in table.values()}) > 1:
            raise OSError(f"the columns of {group.name} differ in length")
        return {name: values(item) for name, item in table.items()}
    except (MemoryError, TypeError, ValueError) as fault:  # lengths, types or text that h5py cannot read
        raise OSError(f"{group.name}: {fault}") from fault


def command_line(program, description, file, what):
    parser = argparse.ArgumentParser(prog=program, description=description,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", metavar=file, help=what)
    parser.add_argument("-o", "--output", metavar="OUT.png", type=picture_name, help="default: .png beside the file; also .pdf and .svg")
    return parser


def is_no_file(path):
    """Whether `path` is a folder, a device or another thing that no picture replaces."""
    return os.path.exists(path) and not os.path.isfile(path)


def picture_name(text):
    """The type of --output: `text`, with .png where it has no suffix. What is no file stays as it is, for save() to refuse."""
    suffix = os.path.splitext(text)[1]
    if suffix and suffix.lower() not in FORMATS:
        raise argparse.ArgumentTypeError(f"{text}: name a .png, .pdf or .svg file")
    return text if suffix or not text or is_no_file(text) else text + ".png"


def save(figure, path):
    """Writes a figure to `path`, in the format that its suffix names; OSError where that cannot be."""
    if is_no_file(path):
        raise OSError(f"{path} is no regular file")
    figure.savefig(path, format=os.path.splitext(path)[1][1:])


def require_modules(program):
    """Returns if h5py, numpy and matplotlib are there; else restarts with the distribution's Python, or exits with 3."""
    try:
        import h5py, matplotlib, numpy  # noqa: E401, F401
    except ImportError as missing:
        # The first python3 on PATH may not see the distribution's packages; the distribution's own python3 does.
        system = "/usr/bin/python3"
        if os.path.exists(system) and not os.environ.get("TESSERA_PLOT_RETRIED"):
            os.environ["TESSERA_PLOT_RETRIED"] = "1"
            os.execv(system, [system, os.path.abspath(sys.argv[0]), *sys.argv[1:]])
        print(f"{program}: {sys.executable} and {system} lack h5py, numpy or matplotlib ({missing}).\n"
              "Debian, Ubuntu: apt-get install python3-h5py python3-numpy python3-matplotlib\n"
              "elsewhere: activate an environment that has them.", file=sys.stderr)
        sys.exit(3)
    matplotlib.use("Agg")


def draw_file(program, path, output, draw, wanted, lines=()):
    """Writes draw(file), a figure, to `output`, or beside `path`, then prints `lines`; the exit code. `wanted`: what `path` should be."""
    import h5py
    import matplotlib.pyplot as plt

    output = output or os.path.splitext(path)[0] + ".png"
    if not os.path.isfile(path):
        print(f"{program}: there is no {path}. Give {wanted}.", file=sys.stderr)
        return 6
    try:
        with h5py.File(path, "r") as file, plt.rc_context(STYLE):
            save(draw(file), output)
    except (OSError, KeyError, RuntimeError) as fault:  # the last: h5py's, of damaged groups
        print(f"{program}: {path} -> {output}: {fault}. Give {wanted} and a place that can be written to.",
              file=sys.stderr)
        return 6
    try:
        print(*lines, f"{program}: wrote {output}", sep="\n", flush=True)
    except BrokenPipeError:  # who reads has seen enough, and the picture is there
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0
