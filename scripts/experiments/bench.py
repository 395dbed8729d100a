"""A benchmark of input/bench that has no module of its own: the table and the picture of plot_bench."""
import benches


def tables(results):
    return [benches.table(results.rows)]


def draw(results):
    return benches.draw(results.rows)
