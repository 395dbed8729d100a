"""Tables of an experiment: aligned text, or Markdown."""
import math


def number(value, digits=3):
    """A number as a table shows it: "-" where there is none."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "-"
    value = float(value)
    if value == 0 or (value == int(value) and abs(value) < 1e7):
        return f"{value:.0f}"
    return f"{value:.0f}" if abs(value) >= 10**digits else f"{value:.{digits}g}"


def spread(mean, std):
    """A mean with its standard deviation."""
    return "-" if mean is None or math.isnan(mean) else f"{number(mean)} ± {number(std, 2)}"


def cell(value):
    return value if isinstance(value, str) else number(value)


def text(columns, rows, is_markdown=False):
    """`rows` are lists of texts and numbers, as many as there are names in `columns`."""
    cells = [[cell(value) for value in row] for row in rows]
    widths = [max(len(line[i]) for line in [columns, *cells]) for i in range(len(columns))]
    is_left = [all(isinstance(row[i], str) for row in rows) for i in range(len(columns))]
    align = lambda line: [value.ljust(width) if left else value.rjust(width) for value, width, left in zip(line, widths, is_left)]
    if is_markdown:
        rule = [("-" * width) if left else "-" * (width - 1) + ":" for width, left in zip(widths, is_left)]
        return "\n".join("| " + " | ".join(line) + " |" for line in [align(columns), rule, *map(align, cells)]) + "\n"
    return "\n".join("  ".join(line).rstrip() for line in [align(columns), *map(align, cells)]) + "\n"
