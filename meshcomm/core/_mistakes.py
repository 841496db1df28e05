"""Advice in errors for names that other libraries have, and for misspelt names."""

import sys
from collections.abc import Callable, Iterable, Sequence
from types import FrameType, ModuleType

_MOVE = "t.relayout(layout) takes a tensor to another layout"
_BLOCK = "t.local is the block of this rank"
_WHOLE = "t.to_numpy() gives the global array to every rank, t.to_numpy(root=0) to one (Collective)"

OF_TENSORS = {
    **dict.fromkeys(("redistribute", "reshard", "rechunk", "resplit", "to_layout"), _MOVE),
    **dict.fromkeys(("numpy", "full_tensor", "gather", "values", "get", "asnumpy"), _WHOLE),
    **dict.fromkeys(
        ("data", "larray", "array", "cpu", "detach", "to_local", "addressable_data"),
        _BLOCK,
    ),
    "ctypes": f"{_BLOCK}, and {_WHOLE}",
    **dict.fromkeys(("compute", "persist", "block_until_ready", "wait", "result"), f"nothing is lazy here: {_BLOCK}"),
    **dict.fromkeys(("sharding", "placements", "split", "chunks", "spec"), "t.layout says how the tensor is cut"),
    "addressable_shards": f"{_BLOCK}, and t.slices say where it is in the global array",
    "chunksize": "t.layout.block_shape(t.shape) is the shape of the block of this rank",
    "lshape": "t.local.shape is the shape of the block of this rank",
    "device_mesh": "t.mesh is its mesh",
    "comm": "t.mesh.rank is the rank in its mesh, and t.mesh.size their number",
    "rank": "t.ndim is the number of axes, and t.mesh.rank the rank of this process in its mesh",
    "backward": "mc.gradients has gradients, and autograd follows tensors",
    "grad": "mc.gradients has gradients, and autograd follows tensors",
    "map_blocks": "mc.map_overlap(fn, t, depth, boundary) calls a function on each block",
    **dict.fromkeys(("save", "dump", "dumps"), "mc.save(path, t)"),
    "setflags": "t.flags of a tensor are only read: t.copy() is a tensor of its own",
    "resize": "numpy.resize(t, shape) makes another tensor",
    "norm": "numpy.linalg.norm(t)",
}
"""Advice for attributes that tensors of other libraries have."""

_GROUPS = "over groups of ranks of a plain array; a tensor needs none: mc.relayout moves it"

OF_THE_PACKAGE = {
    **dict.fromkeys(
        ("redistribute", "reshard", "rechunk", "resplit", "device_put"), "mc.relayout(t, layout) moves it"
    ),
    **dict.fromkeys(
        ("shard", "scatter", "distribute_tensor", "shard_tensor", "array", "asarray", "tensor", "from_numpy"),
        "mc.distribute(array, layout) makes a tensor",
    ),
    "gather": "t.to_numpy(root=0) gives the global array to one rank; mc.all_gather does so of plain arrays",
    **dict.fromkeys(("DeviceMesh", "init_device_mesh", "make_mesh"), "mc.create_mesh([('x', -1)]) makes a mesh"),
    **dict.fromkeys(("PartitionSpec", "NamedSharding", "P"), "mc.Layout(['x', mc.UNSHARDED], mesh) is a layout"),
    **dict.fromkeys(("Shard", "Replicate"), "a spec is a mesh dimension's name or mc.UNSHARDED: see mc.Layout"),
    **dict.fromkeys(("rank", "get_rank", "size", "world_size"), "a mesh has them: mesh.rank, mesh.size"),
    **dict.fromkeys(
        ("sum", "mean", "max", "min", "exp", "sqrt", "where", "dot"), "NumPy's take tensors: numpy.sum(t)"
    ),
    **dict.fromkeys(("allreduce", "Allreduce"), f"mc.all_reduce is {_GROUPS}"),
    **dict.fromkeys(("allgather", "Allgather"), f"mc.all_gather is {_GROUPS}"),
    **dict.fromkeys(("alltoall", "Alltoall", "alltoallv", "Alltoallv"), f"mc.all_to_all is {_GROUPS}"),
    **dict.fromkeys(("bcast", "Bcast"), f"mc.broadcast is {_GROUPS}"),
    "torch": "import meshcomm.torch, which needs PyTorch",
}
"""Advice for names that the packages of other libraries have."""


_MODULES = {"scipy.fft": "meshcomm.fft", "scipy.ndimage": "meshcomm.ndimage"}
"""Modules whose functions convert operands to arrays, and modules with these functions for tensors."""


def meant_by_caller() -> str:
    """Return advice to use another module if a function that takes no tensors is on the stack; else ""."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = str(frame.f_globals.get("__name__", ""))
        for module, replacement in _MODULES.items():
            if name == module or name.startswith(f"{module}."):
                return f"{replacement} has the functions of {module}; or "
        frame = frame.f_back
    return ""


def suggestion(name: object, choices: Iterable[str]) -> str:
    """Return the end of a message with the name among *choices* that is most like *name*; "" if none is.

    >>> suggestion("rwos", ["rows", "columns"]), suggestion("X", ["x"]), suggestion("depth", ["rows"])
    ("; did you mean 'rows'?", "; did you mean 'x'?", '')
    """
    from difflib import get_close_matches  # here, as its import takes long

    if not isinstance(name, str):
        return ""
    names = [choice for choice in choices if choice]
    matches = get_close_matches(name, names, 1, 0.6)
    if not matches:
        by_lower_name = {choice.lower(): choice for choice in names}
        matches = [by_lower_name[choice] for choice in get_close_matches(name.lower(), by_lower_name, 1, 0.6)]
    return f"; did you mean {matches[0]!r}?" if matches else ""


def missing_attribute(
    subject: str, name: str, instead: dict[str, str], attributes: Iterable[str], obj: object
) -> AttributeError:
    """Return the error for an attribute that is not there.

    Parameters
    ----------
    subject: beginning of the message
    name: name of the attribute
    instead: advice for some names
    attributes: names of the existing attributes
    obj: object in which the attribute was looked up
    """
    if name in instead:
        hint = f": {instead[name]}"
    else:
        hint = "" if name.startswith("_") else suggestion(name, (x for x in attributes if not x.startswith("_")))
    error = AttributeError(f"{subject} has no attribute {name!r}{hint}")
    error.name = name
    if not hint:  # else Python, which looks at the names of `obj`, would print a second suggestion
        error.obj = obj
    return error


def only_public(module: str, public: Sequence[str]) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` for a *module* with the names *public*.

    Type checkers must not see ``__getattr__``: they would accept any name.
    """

    def get_attribute(name: str) -> object:
        raise missing_attribute(f"module {module!r}", name, {}, public, sys.modules[module])

    return get_attribute, lambda: sorted(public)


def facade(module: str) -> tuple[list[str], Callable[[str], object], Callable[[], list[str]]]:
    """Return ``__all__``, ``__getattr__`` and ``__dir__`` of a *module*, which imports its public names."""
    names = vars(sys.modules[module]).items()
    helpers = {"TYPE_CHECKING", "facade"}
    public = sorted(n for n, value in names if n[0] != "_" and n not in helpers and not isinstance(value, ModuleType))
    return public, *only_public(module, public)
