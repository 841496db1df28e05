from collections.abc import Callable, Iterable, Sequence
from typing import Any

from meshcomm._kernels import BoxCopies
from meshcomm.groups import Bytes

class Memory:
    size: int

class Mapping(Memory):
    def __init__(self, fd: int, size: int, token: bytes) -> None: ...

class Pool(Memory):
    share: int
    used: int
    ready: int
    token: bytes
    clock: int
    def __init__(self, share: int, private: bool = False) -> None: ...
    @property
    def fd(self) -> int: ...
    @property
    def forked(self) -> bool: ...
    def allocate(self, nbytes: int) -> Bytes | None: ...
    def locate(self, array: Any) -> int: ...
    def open_place(self) -> int: ...
    def close_place(self, place: int) -> None: ...

class Routes:
    size: int
    place: int
    def __init__(
        self,
        size: int,
        place: int,
        incoming: Iterable[tuple[int, bool]],
        outgoing: Iterable[tuple[int, bool]],
        copies: Callable[[tuple[int, ...], tuple[int, ...]], tuple[BoxCopies | None, BoxCopies | None]],
    ) -> None: ...

class Meeting:
    size: int
    place: int
    members: tuple[int, ...]
    closed: str | None
    def __init__(
        self,
        own: Pool,
        memories: Sequence[Memory],
        lines: Sequence[int],
        place: int,
        epoch: int,
        members: Sequence[int],
        names: Sequence[object],
        progress: Callable[[], object],
    ) -> None: ...
    def close(self) -> None: ...
    def agree(self) -> None: ...
    def exchange(
        self, routes: Routes, number: int, source: Any, target: Any, several: Sequence[Any] | None = None
    ) -> tuple[tuple[int, ...], tuple[int, ...]] | None: ...
