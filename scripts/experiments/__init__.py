"""The experiments of scripts/experiment: what the table and the picture of each show, one module each."""
