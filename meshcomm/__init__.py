"""meshcomm: meshes, layouts, AllToAll and relayout of distributed arrays for MPI programs, with NumPy.

A `Mesh` names the dimensions of a grid of ranks. A `Layout` says which elements of a global array each rank holds. A
`DTensor` is a global array in a layout, and `relayout` moves it to any other layout.
"""

import sys as _sys
import typing as _typing
from importlib import import_module as _import_module

try:
    import meshcomm._kernels
except ModuleNotFoundError:
    from meshcomm.core.failures.launchers import told_by_first

    raise told_by_first(
        ImportError(
            f"the compiled part of meshcomm is not in {__path__[0]}. If that is a clone of the sources, start Python "
            'in another directory to use the installed package, or build it here: pip install -e ".[mpich]"'
        )
    ) from None

import meshcomm.adapters.on_import  # noqa: F401 - sees autograd being imported
from meshcomm.core._mistakes import OF_THE_PACKAGE as _OF_THE_PACKAGE
from meshcomm.core._mistakes import missing as _missing
from meshcomm.core.failures import launchers as _launchers

if _typing.TYPE_CHECKING:
    from meshcomm import array_api, fft, gradients, linalg, logical_devices, ndimage, random  # noqa: F401 - public
    from meshcomm.core.arrays.collectives import (
        all_gather,
        all_reduce,
        all_to_all,
        broadcast,
        collective_permute,
        reduce_scatter,
    )
    from meshcomm.core.arrays.create import (
        distribute,
        empty,
        from_callback,
        from_local,
        fromfunction,
        full,
        ones,
        ones_like,
        zeros,
        zeros_like,
    )
    from meshcomm.core.arrays.dtensor import DTensor, fetch_layout, is_dtensor
    from meshcomm.core.arrays.nonblocking import RelayoutRequest, start_relayout
    from meshcomm.core.arrays.relayout import drop_plans, machine_of, relayout, relayout_like
    from meshcomm.core.layouts.dimensions import MeshDimension
    from meshcomm.core.layouts.layout import Layout
    from meshcomm.core.layouts.layout_text import MATCH, UNSHARDED
    from meshcomm.core.layouts.machine import Machine
    from meshcomm.core.layouts.mesh import Mesh
    from meshcomm.core.layouts.specs import Cuts, Cyclic
    from meshcomm.core.plans.plan import Plan, plan_relayout
    from meshcomm.core.ranks.barrier import barrier
    from meshcomm.core.ranks.meshes import create_mesh, default_mesh, get_default_mesh, run_on
    from meshcomm.core.ranks.simulate import simulate
    from meshcomm.errors import (
        AxisError,
        CheckpointError,
        CollectiveMismatch,
        CollectiveTimeout,
        DTypeError,
        GroupError,
        IntegerError,
        LayoutError,
        MeshcommError,
        MeshError,
        ShapeError,
    )
    from meshcomm.halos.halo import Halo, update_halos
    from meshcomm.halos.make import halo
    from meshcomm.halos.overlap import map_overlap
    from meshcomm.layout_maps.layout_map import LayoutMap, layout_map_scope
    from meshcomm.layout_maps.layout_report import LayoutReport
    from meshcomm.layout_maps.modules import Module
    from meshcomm.layout_maps.variables import DVariable, Variable
    from meshcomm.numpy.contractions.contractions import einsum, matmul, plan_einsum
    from meshcomm.numpy.contractions.einsum import EinsumPlan
    from meshcomm.numpy.indexing.migrate import Migrated, migrate
    from meshcomm.numpy.joining.joining import concatenate, stack
    from meshcomm.numpy.shapes.linalg import transpose
    from meshcomm.numpy.shapes.shaping import reshape
    from meshcomm.random.initializers import random_normal, random_uniform
    from meshcomm.storage.checkpoints import Checkpoints
    from meshcomm.storage.load import load
    from meshcomm.storage.opened import Store
    from meshcomm.storage.opened import open as open  # not in __all__: "import *" leaves Python's own
    from meshcomm.storage.plan import LoadPlan, plan_load
    from meshcomm.storage.save import SaveRequest, save, start_save
    from meshcomm.storage.series import Series
    from meshcomm.storage.trees import per_rank
    from meshcomm.tensorflow.assignment import DeviceAssignment
    from meshcomm.tensorflow.names import call_with_layout, check_layout, copy_to_mesh, pack, unpack
    from meshcomm.tensorflow.strategy import PerReplica, Strategy
    from meshcomm.tensorflow.topology import DeviceOrderMode, Topology
    from meshcomm.tools.measuring.count import Count, count
    from meshcomm.tools.measuring.trace import span, trace
    from meshcomm.tools.pictures.text import show

__version__ = "0.1.0"

__all__ = [
    "MATCH",
    "UNSHARDED",
    "AxisError",
    "CheckpointError",
    "Checkpoints",
    "CollectiveMismatch",
    "CollectiveTimeout",
    "Count",
    "Cuts",
    "Cyclic",
    "DTensor",
    "DTypeError",
    "DVariable",
    "DeviceAssignment",
    "DeviceOrderMode",
    "EinsumPlan",
    "GroupError",
    "Halo",
    "IntegerError",
    "Layout",
    "LayoutError",
    "LayoutMap",
    "LayoutReport",
    "LoadPlan",
    "Machine",
    "Mesh",
    "MeshDimension",
    "MeshError",
    "MeshcommError",
    "Migrated",
    "Module",
    "PerReplica",
    "Plan",
    "RelayoutRequest",
    "SaveRequest",
    "Series",
    "ShapeError",
    "Store",
    "Strategy",
    "Topology",
    "Variable",
    "all_gather",
    "all_reduce",
    "all_to_all",
    "barrier",
    "broadcast",
    "call_with_layout",
    "check_layout",
    "collective_permute",
    "concatenate",
    "copy_to_mesh",
    "count",
    "create_mesh",
    "default_mesh",
    "distribute",
    "drop_plans",
    "einsum",
    "empty",
    "fetch_layout",
    "from_callback",
    "from_local",
    "fromfunction",
    "full",
    "get_default_mesh",
    "halo",
    "is_dtensor",
    "layout_map_scope",
    "load",
    "machine_of",
    "map_overlap",
    "matmul",
    "migrate",
    "ones",
    "ones_like",
    "pack",
    "per_rank",
    "plan_einsum",
    "plan_load",
    "plan_relayout",
    "random_normal",
    "random_uniform",
    "reduce_scatter",
    "relayout",
    "relayout_like",
    "reshape",
    "run_on",
    "save",
    "show",
    "simulate",
    "span",
    "stack",
    "start_relayout",
    "start_save",
    "trace",
    "transpose",
    "unpack",
    "update_halos",
    "zeros",
    "zeros_like",
]

_MODULES = ("array_api", "fft", "gradients", "linalg", "logical_devices", "ndimage", "random")
"""The public modules."""

_HOMES = {
    "core.arrays.collectives": "all_gather all_reduce all_to_all broadcast collective_permute reduce_scatter",
    "core.arrays.create": (
        "distribute empty from_callback from_local fromfunction full ones ones_like zeros zeros_like"
    ),
    "core.arrays.dtensor": "DTensor fetch_layout is_dtensor",
    "core.arrays.nonblocking": "RelayoutRequest start_relayout",
    "core.arrays.relayout": "drop_plans machine_of relayout relayout_like",
    "tensorflow.names": "call_with_layout check_layout copy_to_mesh pack unpack",
    "errors": (
        "AxisError CheckpointError CollectiveMismatch CollectiveTimeout DTypeError GroupError IntegerError "
        "LayoutError MeshcommError MeshError ShapeError"
    ),
    "halos.halo": "Halo update_halos",
    "halos.make": "halo",
    "halos.overlap": "map_overlap",
    "core.layouts.dimensions": "MeshDimension",
    "core.layouts.layout": "Layout",
    "core.layouts.layout_text": "MATCH UNSHARDED",
    "core.layouts.machine": "Machine",
    "core.layouts.mesh": "Mesh",
    "core.layouts.specs": "Cuts Cyclic",
    "tools.measuring.count": "Count count",
    "tools.measuring.trace": "span trace",
    "numpy.joining.joining": "concatenate stack",
    "numpy.contractions.contractions": "einsum matmul plan_einsum",
    "numpy.shapes.linalg": "transpose",
    "numpy.indexing.migrate": "Migrated migrate",
    "random.initializers": "random_normal random_uniform",
    "numpy.shapes.shaping": "reshape",
    "tools.pictures.text": "show",
    "numpy.contractions.einsum": "EinsumPlan",
    "core.plans.plan": "Plan plan_relayout",
    "core.ranks.barrier": "barrier",
    "core.ranks.meshes": "create_mesh default_mesh get_default_mesh run_on",
    "core.ranks.simulate": "simulate",
    "storage.checkpoints": "Checkpoints",
    "storage.load": "load",
    "storage.opened": "Store open",
    "storage.plan": "LoadPlan plan_load",
    "storage.save": "SaveRequest save start_save",
    "storage.series": "Series",
    "storage.trees": "per_rank",
    "tensorflow.assignment": "DeviceAssignment",
    "layout_maps.layout_map": "LayoutMap layout_map_scope",
    "layout_maps.layout_report": "LayoutReport",
    "layout_maps.modules": "Module",
    "tensorflow.strategy": "PerReplica Strategy",
    "tensorflow.topology": "DeviceOrderMode Topology",
    "layout_maps.variables": "DVariable Variable",
}
"""The public names of each module. To add one, write it here, into ``__all__``, and into the imports for checkers."""

_METHODS = {
    "core.layouts.layout": "tools.pictures.of_layouts",
    "core.layouts.mesh": "tools.pictures.of_meshes",
    "core.plans.plan": "tools.pictures.of_plans",
}
"""Modules that give the classes of another module their last methods, once that one is there."""

_home_of = {name: home for home, names in _HOMES.items() for name in names.split()}

if not _typing.TYPE_CHECKING:  # checkers know the imports above, and see misspelt names

    def __getattr__(name: str) -> object:
        """Import a public name when it is first asked for, so that ``import meshcomm`` takes no longer than NumPy."""
        if name in _MODULES:
            value = _import_module(f"meshcomm.{name}")
        elif name in _home_of:
            value = globals()[name] = getattr(_import_module(f"meshcomm.{_home_of[name]}"), name)
        else:
            raise _missing("meshcomm", name, _OF_THE_PACKAGE, __dir__(), _sys.modules[__name__])
        for home, methods in _METHODS.items():
            if f"meshcomm.{home}" in _sys.modules:
                _import_module(f"meshcomm.{methods}")
        return value


def __dir__() -> list[str]:
    return sorted([*__all__, *_MODULES, "__version__", "open"])


if (_launchers.launched() or (0, 1))[1] > 1:  # an error ends the job even before the first call
    _import_module("meshcomm.core.ranks.meshes")
if _launchers.folder_in(_launchers.TRACE_FOLDER):
    _import_module("meshcomm.tools.measuring.program").start()
