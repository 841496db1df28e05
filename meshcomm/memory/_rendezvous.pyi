from collections.abc import Callable, Iterable, Sequence

from meshcomm._kernels import BoxCopies
from meshcomm.memory._pool import Memory, Pool

class Routes:
    size: int
    position: int
    reads_from: tuple[int, ...]
    writes_to: tuple[int, ...]
    left: tuple[tuple[int, ...], tuple[int, ...]] | None
    def __init__(
        self, size: int, position: int, incoming: Iterable[tuple[int, bool]], outgoing: Iterable[tuple[int, bool]]
    ) -> None: ...
    def plan(self, reads: BoxCopies | None, writes: BoxCopies | None) -> None: ...

class Rendezvous:
    size: int
    position: int
    members: tuple[int, ...]
    closed: str | None
    def __init__(
        self,
        own: Pool,
        memories: Sequence[Memory],
        lines: Sequence[int],
        position: int,
        epoch: int,
        members: Sequence[int],
        names: Sequence[object],
        progress: Callable[[], object],
    ) -> None: ...
    def close(self) -> None: ...
    def agree(self) -> None: ...
    def exchange(
        self, routes: Routes, number: int, source: object, target: object, several: Sequence[object] | None = None
    ) -> bool: ...
    def resume(self) -> None: ...
    def abandon(self) -> None: ...
