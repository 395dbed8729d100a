"""What a failure of PyTorch's says: read by this side, and in part written by torch_worker."""

# Where a backend lacks the shape or the number format, or memory for it
CANNOT = ("No available kernel", "No viable backend", "No valid execution plans", "out of memory", "OutOfResources", "ALLOC_FAILED", "can't allocate memory")
NOT_COMPILED, NOT_RECORDED = "not compiled: ", "graphs were not recorded"  # a model in a mode


def cannot_run(reason):
    """Whether PyTorch has no such form here, or no memory for it: then another may be its fastest. What was not compiled for memory,
    beside other models, might run alone."""
    return NOT_COMPILED not in reason and any(text in reason for text in CANNOT)
