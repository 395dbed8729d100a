"""Opens a checkpoint's index.h5 as its users do, with h5py, and checks that it shows the logical tensors.

    open_checkpoint.py INDEX.h5 PATH:FIRST:EXTENT[:EXTENT...] ...

PATH is a virtual dataset of that shape; its values, in row-major order, are FIRST, FIRST + 1, ... Each axis has a
dimension scale with the axis's name as its label. Each part is mapped by at most 2 * rank - 1 hyperslabs.
"""
import sys
from collections import Counter

import h5py
import numpy as np

with h5py.File(sys.argv[1], "r") as index:
    found = []
    index.visititems(lambda name, item: found.append(name) if isinstance(item, h5py.Dataset) else None)
    for argument in sys.argv[2:]:
        path, first, *shape = argument.split(":")
        first, shape = int(first), tuple(map(int, shape))
        tensor = index[path]
        assert tensor.is_virtual and tensor.dtype == "<f4" and tensor.shape == shape, (path, tensor)
        expected = np.arange(first, first + np.prod(shape)).reshape(shape)
        assert np.array_equal(tensor[()], expected), (path, tensor[()])
        assert np.array_equal(tensor[-1:], expected[-1:]) and np.array_equal(tensor[..., -1], expected[..., -1]), path
        for axis, dim in enumerate(tensor.dims):
            assert dim.label == f"{path.split('/')[-1]}.axis{axis}", (path, dim.label)
            assert len(dim) == 1 and np.array_equal(dim[0][()], np.arange(shape[axis])), path
        slabs = Counter(source.file_name for source in tensor.virtual_sources())
        assert max(slabs.values()) <= 2 * len(shape) - 1, (path, slabs)
    named = {argument.split(":")[0] for argument in sys.argv[2:]}
    assert {name for name in found if name.startswith("params/")} == named, found
