"""Arrays of files to tensors. Decisions, such as who reads which bytes, are kept for the next time."""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from meshcomm.blocks.make import make, on_blocks, on_device
from meshcomm.blocks.session import Session
from meshcomm.core._types import Array
from meshcomm.core.arrays.create import empty
from meshcomm.core.arrays.cutting import cut_out
from meshcomm.core.arrays.dtensor import DTensor
from meshcomm.core.arrays.relayout import machine_of
from meshcomm.storage.by_library import read_by_library
from meshcomm.storage.decoding import decode
from meshcomm.storage.request import ArrayRequest
from meshcomm.storage.small import batches
from meshcomm.storage.transfer import OpenFiles, TensorReader, convert, reading_costs, route_of


class ArraysReader:
    """Fills tensors with arrays of the same files, again and again: those of *requests*.

    A rank uses at most *limit* bytes beyond their blocks.
    """

    def __init__(self, requests: Sequence[ArrayRequest], limit: int | None) -> None:
        self.requests, self._limit = requests, limit
        self.names = [request.name for request in requests]
        self.nbytes = sum(request.nbytes for request in requests)
        self._small_numbers = [number for number, request in enumerate(requests) if request.read_by_one]
        self._large_numbers = [number for number, request in enumerate(requests) if not request.read_by_one]
        self._batches = list(batches((requests[number].stored for number in self._small_numbers), limit))
        self._readers: dict[int, TensorReader] = {}

    def fill(self, targets: Sequence[DTensor], open_files: OpenFiles, session: Session) -> None:
        """Fill the *targets*, one for each request. Collective over the rank set."""
        numbers = iter(self._small_numbers)
        for batch in self._batches:
            open_files.has_agreed = False
            packed = np.zeros(batch.nbytes, np.uint8) if session.position else batch.read(open_files)
            open_files.before_sending()
            session.broadcast(packed)
            for array, number in zip(batch.unpacked(packed), numbers, strict=False):  # in the order of the batches
                self._fill_decoded(number, targets[number], open_files, partial(self._copy_whole, array))
        for number in self._large_numbers:
            self._fill_decoded(number, targets[number], open_files, self._read)

    def _fill_decoded(
        self, number: int, target: DTensor, open_files: OpenFiles, fill: Callable[[int, DTensor, OpenFiles], None]
    ) -> None:
        """Let *fill* fill *target*; if the array has a coding, fill a tensor as in the file, and decode that."""
        request = self.requests[number]
        if request.coding is None:
            fill(number, target, open_files)
            return
        encoded = empty(target.shape, request.stored.dtype, target.layout)
        fill(number, encoded, open_files)
        with open_files.trying():
            on_blocks(partial(decode, coding=request.coding, limit=self._limit), encoded, target)

    def _copy_whole(self, array: Array, number: int, target: DTensor, _: OpenFiles) -> None:
        """Write the requested part of a whole *array*, which all ranks have, to *target*."""
        request = self.requests[number]
        view = array.T if request.stored.fortran else array
        if request.block_box is not None:
            convert(cut_out(view[request.numpy_index], request.block_box), target._block)

    def _read(self, number: int, target: DTensor, open_files: OpenFiles) -> None:
        """Fill *target* with a large array. Collective over its mesh; all ranks of the call have to make it."""
        request, file_view = self.requests[number], target
        stored, selection = request.stored, request.file_chosen
        if stored.fortran or selection.dropped:  # the axes as the file has them
            block = on_blocks(lambda block: np.expand_dims(block, request.chosen.dropped), target)
            block = block.T if stored.fortran and block is not None else block
            file_view = make(block, request.file_layout, selection.box, target.dtype)
        if request.chunks is not None:
            read_by_library(open_files, request, file_view, self._limit)
            return

        def make_reader(device: int) -> TensorReader:
            costs, staged = reading_costs(machine_of(file_view.mesh), open_files.checks), request.staged
            route = route_of(file_view.layout, stored, selection, self._limit, costs, staged=staged)
            return TensorReader(route, stored, selection, self._limit, device, staged, costs.one_node)

        reader = self._readers.get(number) or on_device(file_view.mesh, make_reader)
        if reader is not None:
            self._readers[number] = reader
            reader.fill(file_view, open_files)
