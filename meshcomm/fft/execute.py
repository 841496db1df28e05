"""Runs the steps of a transform on tensors."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from meshcomm.blocks.make import map_into, mapped, on_blocks
from meshcomm.core._arguments import quote
from meshcomm.core._types import Array
from meshcomm.core.arrays.dtensor import DTensor
from meshcomm.core.arrays.relayout import machine_of, relayout
from meshcomm.core.layouts.layout import Layout
from meshcomm.errors import ShapeError
from meshcomm.fft.backends import FFTBackend, backend_of, threads_of
from meshcomm.fft.kinds import Transform
from meshcomm.fft.local import transform_block
from meshcomm.fft.search import cheapest
from meshcomm.fft.sharded import transformed_sharded
from meshcomm.fft.steps import FFTStep, LocalStep, RelayoutStep


class FFTOptions(NamedTuple):
    """Options of all steps: the backend, its threads, and whether the input may be overwritten."""

    backend: str | None = None
    workers: int | None = None
    overwrite: bool = False


def check_options(options: FFTOptions, transform: Transform) -> None:
    """Raise the errors of *options* on all ranks, also on those without a block."""
    threads_of(options.workers)
    if not isinstance(transform.orthogonalize, bool | None):
        raise ShapeError(f"orthogonalize must be True, False or None, not {quote(transform.orthogonalize)}")
    backend_of(options.backend).check(transform)


def run_steps(
    steps: Sequence[FFTStep], tensors: Sequence[DTensor], options: FFTOptions, outs: Sequence[DTensor] | None = None
) -> list[DTensor]:
    """Return the transforms of *tensors*, which have one shape, dtype and layout. Collective over their mesh.

    Parameters
    ----------
    steps: result of `cheapest`
    tensors: tensors in the source layout of the first step; each relayout moves all of them in one exchange
    options: backend, workers and whether to overwrite
    outs: tensors for the results
    """
    backend = backend_of(options.backend)
    results, owned = list(tensors), options.overwrite
    last_number = len(steps) - 1
    for number, step in enumerate(steps):
        targets = list(outs) if outs is not None and number == last_number else [None] * len(results)
        if isinstance(step, RelayoutStep):
            results = _relaid(results, step.layout, outs if number == last_number else None)
        elif isinstance(step, LocalStep):
            results = [
                _on_block(backend, step, t, out, owned=owned, workers=options.workers)
                for t, out in zip(results, targets, strict=True)
            ]
        else:
            results = [_sharded_result(step, t, options) for t in results]
            if outs is not None and number == last_number:
                results = _relaid(results, step.layout, outs)
        owned = True
    if not steps:
        return [t.copy() for t in results] if outs is None else _relaid(results, outs[0].layout, outs)
    return results


def _relaid(tensors: list[DTensor], layout: Layout, outs: Sequence[DTensor] | None) -> list[DTensor]:
    if len(tensors) == 1:
        return [relayout(tensors[0], layout, out=None if outs is None else outs[0])]
    return relayout(tensors, layout, out=None if outs is None else list(outs))


def _on_block(
    backend: FFTBackend, step: LocalStep, tensor: DTensor, out: DTensor | None, *, owned: bool, workers: int | None
) -> DTensor:
    def run(block: Array, target: Array | None = None) -> Array:
        return transform_block(backend, step.transform, block, into=target, owned=owned, workers=workers)

    if out is not None:
        return map_into(lambda target, block: run(block, target), out, tensor)
    return mapped(run, tensor, layout=step.layout, shape=step.shape_after, dtype=step.dtype_after)


def _sharded_result(step: FFTStep, tensor: DTensor, options: FFTOptions) -> DTensor:
    backend = backend_of(options.backend)
    next_options = FFTOptions(options.backend, options.workers, overwrite=True)

    def by_blocks(transform: Transform, matrix: DTensor) -> DTensor:
        # A matrix may be a view of the tensor that the caller still has.
        owned = not on_blocks(np.may_share_memory, matrix, tensor)
        local_step = LocalStep(transform, matrix.shape, matrix.dtype, matrix.layout)
        return _on_block(backend, local_step, matrix, None, owned=owned, workers=options.workers)

    def run_anywhere(transform: Transform, source: DTensor) -> DTensor:
        shape_and_dtype = source.shape, source.dtype
        steps = cheapest(transform, shape_and_dtype, source.layout, None, machine_of(source.mesh))
        return run_steps(steps, [source], next_options)[0]

    assert not isinstance(step, LocalStep | RelayoutStep)
    return transformed_sharded(step, tensor, by_blocks, run_anywhere)
