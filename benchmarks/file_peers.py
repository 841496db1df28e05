"""Other packages that save and load arrays from several ranks, as their manuals use them, if they are installed.

Each function takes the turns of `files.py` and returns contenders of saving and of loading.
"""

import os
from collections.abc import Callable
from importlib import import_module, util
from pathlib import Path
from typing import Any

import numpy as np

Run = Callable[[], object]
Contenders = tuple[dict[str, Run], dict[str, Run]]


def missing(*packages: str) -> bool:
    """Return whether one of *packages* is not installed."""
    return any(util.find_spec(package) is None for package in packages)


def torch_dcp(turns: Any) -> Contenders:
    """torch.distributed.checkpoint with DTensors on the CPU, processes connected by gloo."""
    if missing("torch"):
        return {}, {}
    torch, dist = import_module("torch"), import_module("torch.distributed")
    dcp, tensors = import_module("torch.distributed.checkpoint"), import_module("torch.distributed.tensor")
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{turns.folder}/gloo", rank=turns.comm.rank, world_size=turns.comm.size
    )
    mesh = import_module("torch.distributed.device_mesh").init_device_mesh("cpu", (turns.comm.size,))
    block = {"rows": (turns.n // turns.comm.size, turns.n), "columns": (turns.n, turns.n // turns.comm.size)}
    saves: dict[str, Run] = {}
    loads: dict[str, Run] = {}
    for name, axis in (("rows", 0), ("columns", 1)):
        local = torch.ones(block[name], dtype=torch.float64)
        tensor = tensors.DTensor.from_local(local, mesh, [tensors.Shard(axis)], run_check=False)

        def save(tensor: Any = tensor, name: str = name) -> None:
            # The manual's writer with one file for each rank, and fsync.
            writer = dcp.FileSystemWriter(turns.folder / f"dcp-{name}", sync_files=True)
            dcp.save({"a": tensor}, storage_writer=writer)

        def load(tensor: Any = tensor) -> None:
            dcp.load({"a": tensor}, checkpoint_id=turns.folder / "dcp-rows")

        saves[f"torch DCP, {name}"], loads[f"torch DCP, {name}"] = save, load
    return saves, loads


def tensorstore(turns: Any) -> Contenders:
    """A zarr store through tensorstore: a chunk for the rows of each rank, which all ranks share."""
    if missing("tensorstore"):
        return {}, {}
    ts = import_module("tensorstore")
    rank, size, n = turns.comm.rank, turns.comm.size, turns.n
    blocks = {name: np.ascontiguousarray(turns.tensors[name].local) for name in ("rows", "columns")}
    where = {"rows": np.s_[rank * n // size : (rank + 1) * n // size, :]}
    where["columns"] = where["rows"][::-1]
    context = ts.Context({"file_io_concurrency": {"limit": 1}, "data_copy_concurrency": {"limit": 1}})

    def opened(path: Path, name: str, **more: object) -> Any:
        spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": str(path)}}
        chunk = [n // size, n] if name == "rows" else [n, n // size]
        grid = {"chunk_grid": {"name": "regular", "configuration": {"chunk_shape": chunk}}}
        new = {"metadata": {"shape": [n, n], "data_type": "float64", **grid}} if more else {}
        return ts.open({**spec, **new}, context=context, **more).result()

    def save(name: str) -> None:
        path = turns.folder / f"tensorstore-{name}.zarr"
        if rank == 0:
            opened(path, name, create=True, delete_existing=True)
        turns.comm.Barrier()
        opened(path, name)[where[name]].write(blocks[name]).result()

    def load(name: str) -> None:
        found = opened(turns.folder / "tensorstore-rows.zarr", "rows")[where[name]].read().result()
        assert found.shape == blocks[name].shape

    named = {f"tensorstore, {name}": name for name in where}
    return (
        {text: lambda name=name: save(name) for text, name in named.items()},  # type: ignore[misc]
        {text: lambda name=name: load(name) for text, name in named.items()},  # type: ignore[misc]
    )


def heat(turns: Any) -> Contenders:
    """An HDF5 file through Heat."""
    if missing("heat", "torch", "h5py"):
        return {}, {}
    ht, path = import_module("heat"), str(turns.folder / "heat.h5")
    array = ht.ones((turns.n, turns.n), dtype=ht.float64, split=0)

    def save() -> None:
        ht.save_hdf5(array, path, "a")
        if turns.comm.rank == 0:
            file = os.open(path, os.O_RDWR)
            os.fsync(file)
            os.close(file)

    loads = {
        f"Heat, {name}": lambda axis=axis: ht.load_hdf5(path, "a", dtype=ht.float64, split=axis)
        for name, axis in (("rows", 0), ("columns", 1))
    }
    return {"Heat, rows": save}, loads  # type: ignore[return-value]


PEERS = (torch_dcp, tensorstore, heat)
