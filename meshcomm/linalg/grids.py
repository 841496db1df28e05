"""Grids of processes of BLACS, on which ScaLAPACK runs: created once for a set of ranks, and freed with it."""

import ctypes

import numpy as np

from meshcomm.blocks.session import Session
from meshcomm.core.layouts.layout import Layout
from meshcomm.linalg.library import ScalapackLibrary
from meshcomm.linalg.native import native_handle

_OUTSIDE = -1  # the context on a process outside of the grid


class BlacsGrid:
    """A grid of BLACS, named by its *context*."""

    def __init__(self, library: ScalapackLibrary, context: int) -> None:
        self._library = library
        self.context = context

    def free(self) -> None:
        """Give the communicators of the grid back. Collective over the grid."""
        if self.context != _OUTSIDE:
            # Never Cblacs_exit: it would end MPI, or all grids of the program.
            self._library.blacs.Cblacs_gridexit(ctypes.c_int(self.context))


def grid_of(session: Session, layout: Layout, library: ScalapackLibrary) -> BlacsGrid:
    """Return the grid for blocks in *layout*: devices along axis 1 are its rows. Collective over the session.

    The session has the ranks of all devices. On other ranks the context is -1.
    """
    key = "BLACS", layout.mesh, tuple(map(tuple, layout.axes))
    return session.cached_resource(key, lambda: _new_grid(session, _positions_of(layout, session), library))


def grid_of_all(session: Session, library: ScalapackLibrary) -> BlacsGrid:
    """Return the grid of all ranks of the session, in one row. Collective over them."""
    positions = np.arange(len(session.ranks), dtype=np.intc)
    return session.cached_resource("BLACS of all", lambda: _new_grid(session, positions.reshape(1, -1), library))


def _positions_of(layout: Layout, session: Session) -> np.ndarray[tuple[int, int], np.dtype[np.intc]]:
    """Return the position of the rank at each row and column of the grid."""
    positions = {rank: position for position, rank in enumerate(session.ranks)}
    rows, columns = layout.shape
    grid = np.empty((columns, rows), dtype=np.intc)
    for device, rank in enumerate(layout.mesh.ranks):
        row, column = layout.block_numbers(device)
        grid[column, row] = positions[rank]
    return grid


def _new_grid(
    session: Session, positions: np.ndarray[tuple[int, int], np.dtype[np.intc]], library: ScalapackLibrary
) -> BlacsGrid:
    """Return a new grid. Collective over the session."""
    blacs = library.blacs
    rows, columns = positions.shape
    ranks = np.asfortranarray(positions)
    with session.new_call("a grid of BLACS"):
        handle = native_handle(session.communicator)
        blacs.Csys2blacs_handle.argtypes, blacs.Csys2blacs_handle.restype = (type(handle),), ctypes.c_int
        system_handle = blacs.Csys2blacs_handle(handle)
        context = ctypes.c_int(system_handle)
        blacs.Cblacs_gridmap(ctypes.byref(context), ctypes.c_void_p(ranks.ctypes.data), rows, rows, columns)
        blacs.Cfree_blacs_system_handle(ctypes.c_int(system_handle))
    return BlacsGrid(library, context.value)
