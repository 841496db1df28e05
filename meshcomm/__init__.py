"""meshcomm: meshes, layouts, AllToAll and relayout of distributed arrays for MPI programs, with NumPy.

A `Mesh` names the dimensions of a grid of ranks, a `Layout` says how a global array is divided over it, a `DTensor` is
such an array, and `relayout` takes it from any layout to any other.
"""

try:
    import meshcomm._kernels  # noqa: F401
except ModuleNotFoundError:
    raise ImportError(
        f"the compiled part of meshcomm is not in {__path__[0]}. If that is a clone of the sources, start Python in "
        'another directory to use the installed package, or build it here: pip install -e ".[mpich]"'
    ) from None

# simulate and relayout are modules too; imported here, the names mean the functions.
from meshcomm import arithmetic, gradients  # noqa: F401 - operators of DTensor, and autograd's rules, register themselves
from meshcomm.arithmetic import matmul, transpose
from meshcomm.collectives import (
    all_gather,
    all_reduce,
    all_to_all,
    broadcast,
    collective_permute,
    reduce_scatter,
)
from meshcomm.context import barrier, create_mesh, default_mesh, get_default_mesh, run_on
from meshcomm.dtensor import (
    DTensor,
    distribute,
    empty,
    from_callback,
    from_local,
    full,
    ones,
    ones_like,
    zeros,
    zeros_like,
)
from meshcomm.errors import (
    CollectiveMismatch,
    CollectiveTimeout,
    DTypeError,
    GroupError,
    LayoutError,
    MeshcommError,
    MeshError,
    ShapeError,
)
from meshcomm.initializers import random_normal, random_uniform
from meshcomm.layout import MATCH, UNSHARDED, Layout
from meshcomm.layout_map import LayoutMap, LayoutReport, layout_map_scope
from meshcomm.logical_devices import DeviceAssignment, DeviceOrderMode, PerReplica, Strategy, Topology
from meshcomm.machine import Machine
from meshcomm.mesh import Mesh, MeshDimension
from meshcomm.placement import (
    call_with_layout,
    check_layout,
    copy_to_mesh,
    fetch_layout,
    is_dtensor,
    pack,
    unpack,
)
from meshcomm.plan import Plan, plan_relayout
from meshcomm.relayout import drop_plans, machine_of, relayout, relayout_like
from meshcomm.request import RelayoutRequest, start_relayout
from meshcomm.simulate import simulate
from meshcomm.variables import DVariable, Module, Variable

__version__ = "0.1.0"

__all__ = [
    "MATCH",
    "UNSHARDED",
    "CollectiveMismatch",
    "CollectiveTimeout",
    "DTensor",
    "DTypeError",
    "DVariable",
    "DeviceAssignment",
    "DeviceOrderMode",
    "GroupError",
    "Layout",
    "LayoutError",
    "LayoutMap",
    "LayoutReport",
    "Machine",
    "Mesh",
    "MeshDimension",
    "MeshError",
    "MeshcommError",
    "Module",
    "PerReplica",
    "Plan",
    "RelayoutRequest",
    "ShapeError",
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
    "copy_to_mesh",
    "create_mesh",
    "default_mesh",
    "distribute",
    "drop_plans",
    "empty",
    "fetch_layout",
    "from_callback",
    "from_local",
    "full",
    "get_default_mesh",
    "is_dtensor",
    "layout_map_scope",
    "machine_of",
    "matmul",
    "ones",
    "ones_like",
    "pack",
    "plan_relayout",
    "random_normal",
    "random_uniform",
    "reduce_scatter",
    "relayout",
    "relayout_like",
    "run_on",
    "simulate",
    "start_relayout",
    "transpose",
    "unpack",
    "zeros",
    "zeros_like",
]

for _name in __all__:
    if isinstance(_value := globals()[_name], type):
        _value.__module__ = __name__  # so that reprs and pickles do not depend on the folder
del _name, _value
