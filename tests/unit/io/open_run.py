"""Opens a run.h5 as its users do, with h5py and with xarray, and checks what the format promises.

    open_run.py RUN.h5 ROWS      ROWS: expected length of /steps

Exits with an assertion where a dataset lacks units, description or a dimension scale, or where xarray complains.
"""
import sys
import warnings

import h5py
import numpy as np
import xarray

path, rows = sys.argv[1], int(sys.argv[2])
warnings.simplefilter("error")

STEPS = ("step loss validation_loss grad_norm learning_rate tokens step_time forward backward exposed_comm optimizer "
         "tokens_per_second mfu peak_bytes loss_scale wall_time first_sample bad attempt").split()
COLUMNS = {
    "steps": STEPS,
    "kernels": "label calls total min max".split(),
    "events": "label start end rank stream step".split(),
    "memory/events": "time label bytes begin live_bytes phase category dtype rank step".split(),
    "comm": "operation bytes start end exposed rank step".split(),
    "sample": "token is_prompt".split(),
    "steps/by_rank": "step rank step_time compute_time exposed_comm data_time device_free_bytes resident_bytes".split(),
    "ranks": "rank host local_rank gpu bus_id uuid numa_node cores".split(),
    "attempts": "attempt start end reason from_step hosts ranks job commit".split(),
}

with h5py.File(path, "r") as run:
    for name in "format format_version version git_hash build hosts devices transport mfu command deck created".split():
        assert name in run["info"].attrs, f"/info lacks {name}"
    info = run["info"].attrs
    assert info["format"] == "tessera run"
    assert (info["ranks"], info["host_count"], info["ranks_per_host"], info["gpu_count"]) == (1, 1, 1, 1)
    assert list(info["gpu_models"]) == ["a GPU"] and list(info["ranks_of_gpu_models"]) == [1] and info["dense_peak"] == 1e12

    def check(name, item):
        if not isinstance(item, h5py.Dataset):
            return
        assert item.dtype.fields is None, f"{name} is a compound"
        assert item.attrs["units"] and item.attrs["description"], f"{name} lacks units or description"
        for axis, dim in enumerate(item.dims):
            assert h5py.h5ds.is_scale(item.id) or len(dim) == 1, f"{name}: axis {axis} has no dimension scale"

    run.visititems(check)
    for group, columns in COLUMNS.items():
        lengths = {len(run[group][column]) for column in columns if column != "rank" or group == "ranks"}
        assert len(lengths) == 1, f"/{group}: columns of different lengths {lengths}"
    assert len(run["steps/step"]) == rows, f"{len(run['steps/step'])} rows, {rows} expected"
    assert run["memory/peaks"].ndim == 2

for group, columns in {**COLUMNS, "memory": ["peaks", "phase", "category"]}.items():
    with xarray.open_dataset(path, group=group, engine="h5netcdf") as data:
        data.load()
        assert set(columns) <= set(data.variables), f"xarray sees {list(data.variables)} in /{group}"
        assert not [dim for dim in data.dims if "phony" in dim], data.dims
with xarray.open_dataset(path, group="steps", engine="h5netcdf") as steps:
    assert steps.loss.dims == ("step",) and steps.loss.attrs["units"] == "nat"
    if rows > 0:  # rows are found by their step
        last = steps.sel(step=int(steps.step[-1])).loss
        assert np.array_equal(last, steps.loss[-1], equal_nan=True)
with xarray.open_dataset(path, group="steps/by_rank", engine="h5netcdf") as steps:
    assert steps["compute_time"].dims == ("step", "rank") and steps["compute_time"].dtype == np.float32
if hasattr(xarray, "open_datatree"):  # from 2024.10 on
    with xarray.open_datatree(path, engine="h5netcdf") as tree:
        tree.load()
with xarray.open_dataset(path, group="memory", engine="h5netcdf") as memory:
    assert memory.peaks.dims == ("phase", "category"), memory.peaks.dims
