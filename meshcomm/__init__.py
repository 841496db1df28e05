"""meshcomm: meshes, layouts, AllToAll and relayout of distributed arrays for MPI programs, with NumPy.

A `Mesh` names the dimensions of a grid of ranks, a `Layout` says how a global array is divided over it, a `DTensor` is
such an array, and `relayout` takes it from any layout to any other.
"""

# simulate and relayout are modules too; imported here, the names mean the functions.
from meshcomm.collectives import (
    all_gather,
    all_reduce,
    all_to_all,
    broadcast,
    collective_permute,
    reduce_scatter,
)
from meshcomm.context import create_mesh
from meshcomm.dtensor import (
    DTensor,
    distribute,
    empty,
    from_callback,
    from_local,
    full,
    ones,
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
from meshcomm.layout import MATCH, UNSHARDED, Layout
from meshcomm.mesh import Mesh, MeshDimension
from meshcomm.plan import Plan, plan_relayout
from meshcomm.relayout import relayout, relayout_like
from meshcomm.simulate import simulate

__version__ = "0.1.0"

__all__ = [
    "MATCH",
    "UNSHARDED",
    "CollectiveMismatch",
    "CollectiveTimeout",
    "DTensor",
    "DTypeError",
    "GroupError",
    "Layout",
    "LayoutError",
    "Mesh",
    "MeshDimension",
    "MeshError",
    "MeshcommError",
    "Plan",
    "ShapeError",
    "all_gather",
    "all_reduce",
    "all_to_all",
    "broadcast",
    "collective_permute",
    "create_mesh",
    "distribute",
    "empty",
    "from_callback",
    "from_local",
    "full",
    "ones",
    "plan_relayout",
    "reduce_scatter",
    "relayout",
    "relayout_like",
    "simulate",
    "zeros",
    "zeros_like",
]
