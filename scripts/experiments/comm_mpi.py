"""All-reduce over MPI: the table and the picture of comm."""
from experiments.comm import draw, tables  # noqa: F401
