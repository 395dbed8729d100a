"""The GPU side of scripts/compare_torch: what it measures, in what order, and how it reports it."""
