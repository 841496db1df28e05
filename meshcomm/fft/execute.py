"""Runs the steps of a transform on tensors."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from meshcomm.blocks.make import changed, mapped, on_blocks
from meshcomm.core._arguments import quote
from meshcomm.core._types import Array
from meshcomm.core.arrays.dtensor import DTensor
from meshcomm.core.arrays.relayout import machine_of, relayout
from meshcomm.core.layouts.layout import Layout
from meshcomm.errors import ShapeError
from meshcomm.fft.backends import Backend, backend_of, threads_of
from meshcomm.fft.kinds import Transform
from meshcomm.fft.local import transformed
from meshcomm.fft.search import cheapest
from meshcomm.fft.sharded import transformed_sharded
from meshcomm.fft.steps import FFTStep, Local, Move


class Options(NamedTuple):
    """How to transform, whatever the steps are."""

    backend: str | None = None
    workers: int | None = None
    overwrite: bool = False


def check_options(options: Options, transform: Transform) -> None:
    """Raise, on all ranks, what would else be raised on those only that have something to transform."""
    threads_of(options.workers)
    if not isinstance(transform.orthogonalize, bool | None):
        raise ShapeError(f"orthogonalize must be True, False or None, not {quote(transform.orthogonalize)}")
    backend_of(options.backend).check(transform)


def run_steps(
    steps: Sequence[FFTStep], tensors: Sequence[DTensor], options: Options, outs: Sequence[DTensor] | None = None
) -> list[DTensor]:
    """Return the transforms of *tensors*, which have one shape, dtype and layout. Collective over their mesh.

    Parameters
    ----------
    steps: as `cheapest` found them
    tensors: in the source layout of the first step; each relayout moves all of them in one exchange
    options: how
    outs: tensors to write the results to
    """
    backend = backend_of(options.backend)
    found, owned = list(tensors), options.overwrite
    last = len(steps) - 1
    for number, step in enumerate(steps):
        into = list(outs) if outs is not None and number == last else [None] * len(found)
        if isinstance(step, Move):
            found = _moved(found, step.layout, outs if number == last else None)
        elif isinstance(step, Local):
            found = [
                _on_block(backend, step, t, out, owned=owned, workers=options.workers)
                for t, out in zip(found, into, strict=True)
            ]
        else:
            found = [_sharded(step, t, options) for t in found]
            if outs is not None and number == last:
                found = _moved(found, step.layout, outs)
        owned = True
    if not steps:
        return [t.copy() for t in found] if outs is None else _moved(found, outs[0].layout, outs)
    return found


def _moved(tensors: list[DTensor], layout: Layout, outs: Sequence[DTensor] | None) -> list[DTensor]:
    if len(tensors) == 1:
        return [relayout(tensors[0], layout, out=None if outs is None else outs[0])]
    return relayout(tensors, layout, out=None if outs is None else list(outs))


def _on_block(
    backend: Backend, step: Local, tensor: DTensor, out: DTensor | None, *, owned: bool, workers: int | None
) -> DTensor:
    def run(block: Array, into: Array | None = None) -> Array:
        return transformed(backend, step.transform, block, into=into, owned=owned, workers=workers)

    if out is not None:
        return changed(lambda into, block: run(block, into), out, tensor)
    return mapped(run, tensor, layout=step.layout, shape=step.shape_after, dtype=step.dtype_after)


def _sharded(step: FFTStep, tensor: DTensor, options: Options) -> DTensor:
    backend = backend_of(options.backend)
    again = Options(options.backend, options.workers, overwrite=True)

    def by_blocks(transform: Transform, given: DTensor) -> DTensor:
        # A matrix may be a view of the tensor that the caller still has.
        owned = not on_blocks(np.may_share_memory, given, tensor)
        whole = Local(transform, given.shape, given.dtype, given.layout)
        return _on_block(backend, whole, given, None, owned=owned, workers=options.workers)

    def anywhere(transform: Transform, given: DTensor) -> DTensor:
        described = given.shape, given.dtype
        steps = cheapest(transform, described, given.layout, None, machine_of(given.mesh))
        return run_steps(steps, [given], again)[0]

    assert not isinstance(step, Local | Move)
    return transformed_sharded(step, tensor, by_blocks, anywhere)
