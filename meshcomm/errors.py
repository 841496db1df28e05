"""The exceptions that meshcomm raises.

::

    MeshcommError
    +-- MeshError            (ValueError)     a mesh, or a world that cannot hold it
    +-- LayoutError          (ValueError)     a layout, its text or its bytes
    +-- ShapeError           (ValueError)     shapes, axes and lengths that do not fit
    |   +-- AxisError        (IndexError)     an axis that is not there
    |   +-- IntegerError     (TypeError)      a shape or an axis that is not made of integers
    +-- DTypeError           (TypeError, ValueError)   a dtype that cannot be sharded
    +-- GroupError           (ValueError)     a group_assignment
    +-- StaleViewError       (RuntimeError)   the block of a view is not up to date
    +-- CheckpointError      (RuntimeError)   files that are damaged, or hold something else
    +-- CollectiveMismatch   (RuntimeError)   ranks called different things
    +-- CollectiveTimeout    (RuntimeError)   a rank did not arrive in time

Errors in arguments are a ``ValueError``, too; errors between ranks are a ``RuntimeError``.
"""

import numpy as np


class MeshcommError(Exception):
    """The base of all exceptions that meshcomm raises itself."""

    __module__ = "meshcomm"


class MeshError(MeshcommError, ValueError):
    """A mesh is malformed, closed, or does not fit into its world."""

    __module__ = "meshcomm"


class LayoutError(MeshcommError, ValueError):
    """A layout is malformed, or does not fit the tensor or the mesh it is used with."""

    __module__ = "meshcomm"


class ShapeError(MeshcommError, ValueError):
    """A shape, an axis or a length does not fit the operation."""

    __module__ = "meshcomm"


class AxisError(ShapeError, np.exceptions.AxisError):
    """A tensor has no such axis; it is NumPy's AxisError, too, and an IndexError."""

    __module__ = "meshcomm"


class IntegerError(ShapeError, TypeError):
    """A shape or an axis is not made of integers; it is a TypeError, too, as in NumPy."""

    __module__ = "meshcomm"


class DTypeError(MeshcommError, TypeError, ValueError):
    """A dtype has no fixed size in bytes (object), or does not fit the operation."""

    __module__ = "meshcomm"


class GroupError(MeshcommError, ValueError):
    """A ``group_assignment`` or a list of pairs does not group the ranks as the operation needs."""

    __module__ = "meshcomm"


class StaleViewError(MeshcommError, RuntimeError):
    """The block of a view whose elements had to move is not up to date: ``t.refresh()`` brings them."""

    __module__ = "meshcomm"


class CollectiveMismatch(MeshcommError, RuntimeError):
    """Ranks that should have made the same collective call made different ones.

    After this error, the mesh, and every mesh that shares ranks with it, refuses further calls. To go on, close it and
    make it again, on all ranks at the same step.
    """

    __module__ = "meshcomm"


class CollectiveTimeout(MeshcommError, RuntimeError):
    """A rank did not take part in a collective call in time."""

    __module__ = "meshcomm"


class CheckpointError(MeshcommError, RuntimeError):
    """A file or checkpoint is damaged, incomplete, or holds something else than is asked for.

    Its text may have names from files, so unprintable characters are escaped: see `printable`.
    """

    __module__ = "meshcomm"

    def __str__(self) -> str:
        return "\n".join(map(printable, super().__str__().split("\n")))

    unknown_name = False
    """Whether the only error may be that the file has no such name."""

    of_objects = False
    """Whether the only error may be that elements are objects of Python, which are never loaded."""


def printable(text: str) -> str:
    r"""Return *text* with escapes for characters that are no letters, signs or spaces, and could steer a terminal.

    >>> print(printable("a\tb\x1b[2J\u202e"))
    a\tb\x1b[2J\u202e
    """
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
