from collections.abc import Callable, Iterable, Sequence

from meshcomm._kernels import RegionCopies
from meshcomm.core.memory._pool import Memory, Pool

def measure_times(measures: bool) -> None: ...

class Routes:
    size: int
    position: int
    left: tuple[tuple[int, ...], tuple[int, ...]] | None
    def __init__(
        self,
        size: int,
        position: int,
        incoming: Iterable[tuple[int, bool]],
        outgoing: Iterable[tuple[int, bool]],
        copies: Callable[[tuple[int, ...], tuple[int, ...]], tuple[RegionCopies | None, RegionCopies | None]],
    ) -> None: ...

class Rendezvous:
    size: int
    position: int
    members: tuple[int, ...]
    names: tuple[object, ...]
    memories: list[Memory]
    closed: str | None
    times: tuple[int, int, int, int] | None
    def __init__(
        self,
        pool: Pool,
        memories: Sequence[Memory],
        lines: Sequence[int],
        position: int,
        epoch: int,
        members: Sequence[int],
        names: Sequence[object],
        progress: Callable[[], object],
    ) -> None: ...
    def close(self, all_left: bool = False) -> None: ...
    def agree(self) -> None: ...
    def memory_of(self, position: int, offset: int, size: int) -> memoryview: ...
    def exchange(
        self, routes: Routes, number: int, source: object, target: object, several: Sequence[object] | None = None
    ) -> None: ...
