"""What arithmetic on DTensors refuses, on every rank."""

import numpy as np
import pytest

import meshcomm as mc
from meshcomm.errors import CollectiveMismatch, DTypeError, LayoutError, MeshError, ShapeError
from meshcomm.numpy.reductions import reductions
from meshcomm.numpy.shapes import linalg
from support.gradient_cases import on
from support.operands import U, check, mesh_of, random
from support.reference import on_ranks

# -- what raises ------------------------------------------------------------------------------------------------------


@on_ranks(4)
def test_errors_on_every_rank():
    mesh, other = mesh_of(2, 2), mc.create_mesh([("x", 4)])
    t = mc.distribute(random(5, 3), mc.Layout(["x", "y"], mesh))
    far = mc.distribute(random(5, 3), mc.Layout(["x", U], other))
    cases = [
        (MeshError, "operands must be on one mesh", lambda: t + far),
        (MeshError, "operands must be on one mesh", lambda: t @ far.T),
        (ShapeError, r"shapes \(5, 3\), \(5,\) could not be broadcast", lambda: t + random(5)),
        (ShapeError, r"shapes \(5, 3\), \(3, 5\) could not be broadcast", lambda: t + t.T),
        (ShapeError, "has 3 elements and the first axis of the second 5", lambda: t @ t),
        (ShapeError, "last axis of the first has 3 elements and the last but one", lambda: t @ random(2, 4, 3)),
        (ShapeError, "1 axis or more, but the first is a number", lambda: t.sum() @ t),
        (TypeError, "Cannot cast", lambda: np.add(t, t, where=np.ones((5, 3)))),
        (ShapeError, r"out has shape \(5, 3\), but the result has \(\)", lambda: np.sum(t, out=t)),
        (TypeError, "out= must be a DTensor", lambda: np.sum(t, out=np.zeros(()))),
        (ValueError, "does not have an identity", lambda: np.max(t, where=t > 0)),
        (ValueError, "only supported for binary functions", lambda: np.sin.reduce(t)),
        (TypeError, "numpy.det is not defined .* it is not elementwise", lambda: np.linalg._umath_linalg.det(t)),
        (TypeError, "takes tensors, arrays and numbers", lambda: t + None),
        (TypeError, "takes tensors, arrays and numbers", lambda: t + object()),
        (DTypeError, "Python objects", lambda: t + np.array([None] * 3)),
        (DTypeError, "Python objects", lambda: np.frompyfunc(str, 1, 1)(t)),
        (ShapeError, "axis 2 is out of range for a tensor with 2 axes", lambda: t.sum(2)),
        (ShapeError, "axis -3 is out of range", lambda: t.max(axis=-3)),
        (ShapeError, "names an axis twice", lambda: t.mean(axis=(0, -2))),
        (ShapeError, "axis must be an integer", lambda: t.min(axis="x")),
        (ShapeError, "must have every axis", lambda: linalg.transpose(t, (0,))),
        (LayoutError, "sum is for DTensors, not for ndarray", lambda: reductions.sum(random(3))),
        (LayoutError, "one of the operands must be a DTensor", lambda: mc.matmul(random(3), random(3))),
        (ShapeError, "has 15 elements; a number is just one", lambda: float(t)),
        (
            LayoutError,
            "not every rank holds the element",
            lambda: t.sum(keepdims=True).item() and elsewhere().item(),
        ),
    ]

    def elsewhere():
        return mc.ones((1, 1), "f8", t.layout)

    for error, match, wrong in cases:
        with pytest.raises(error, match=match):
            wrong()
    check(t + t, random(5, 3) * 2)


@pytest.mark.parametrize("size", [2, 3])
def test_plain_arrays_must_be_replicated(size):
    def tensor():
        return mc.distribute(random(4), mc.Layout(["x"], mesh_of(size)))

    def program():
        rank = mesh_of(size).rank
        different = [
            np.full(4, rank),
            np.zeros(4, "f4" if rank else "f8"),
            np.zeros(4 if rank else 1),
            [0.0, 0, 0, rank],
        ]
        for array in different:
            t = tensor()
            with pytest.raises(CollectiveMismatch, match="a plain array must be the same on every rank"):
                t + array
            t.mesh.close()
        t = tensor()
        with pytest.raises(CollectiveMismatch, match=r"numpy\.matmul of a DTensor"):
            t @ different[0]
        t.mesh.close()
        t = tensor()
        with pytest.raises(DTypeError):
            t + (np.array([None]) if rank else np.zeros(1))  # what one rank sees
        check(t + random(4), random(4) * 2)

    on(size, program)
