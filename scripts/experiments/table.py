"""Tables of an experiment: aligned text, or Markdown."""
import math
import re

NUMBER = re.compile(r"[-+]?\d[\d.]*(e[-+]\d+)?( ± .+)?")


def decimals_of(value, digits):
    """Decimal places with which a number shows so many significant digits."""
    return max(0, digits - 1 - math.floor(math.log10(abs(float(f"{value:.{digits - 1}e}"))))) if value else 0


def number(value, digits=3):
    """A number as a table shows it: "-" where there is none, integers in full, others with so many significant digits."""
    if value is None or not math.isfinite(value):
        return "-"
    value = float(value)
    if value == int(value) and abs(value) < 1e7:
        return f"{value:.0f}"
    return f"{value:.{decimals_of(value, digits)}f}" if abs(value) >= 1e-4 else f"{value:.{digits}g}"


def spread(mean, std):
    """A mean with its standard deviation, to the same decimal place: that of the mean's third digit, or up to two more."""
    if mean is None or not math.isfinite(mean):
        return "-"
    if not math.isfinite(std):
        return number(mean)
    decimals = decimals_of(mean, 3)
    decimals = max(decimals, min(decimals_of(std, 1), decimals + 2))
    return f"{mean:.{decimals}f} ± {std:.{decimals}f}"


def cell(value):
    return value if isinstance(value, str) else number(value)


def text(columns, rows, is_markdown=False):
    """`rows` are lists of texts and numbers, as many as there are names in `columns`. Columns with numbers end flush."""
    cells = [[cell(value) for value in row] for row in rows]
    widths = [max([3, *(len(line[i]) for line in [columns, *cells])]) for i in range(len(columns))]  # "--:" has to fit
    is_left = [all(isinstance(row[i], str) and not NUMBER.fullmatch(row[i]) for row in rows) for i in range(len(columns))]
    align = lambda line: [value.ljust(width) if left else value.rjust(width) for value, width, left in zip(line, widths, is_left)]
    if is_markdown:
        rule = [("-" * width) if left else "-" * (width - 1) + ":" for width, left in zip(widths, is_left)]
        return "\n".join("| " + " | ".join(line) + " |" for line in [align(columns), rule, *map(align, cells)]) + "\n"
    return "\n".join("  ".join(line).rstrip() for line in [align(columns), *map(align, cells)]) + "\n"
