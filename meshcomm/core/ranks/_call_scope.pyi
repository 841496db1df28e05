from types import TracebackType
from typing import Generic, TypeVar

from meshcomm.core.failures.watch import WatchedRankSet

H = TypeVar("H")

class CallLock:
    operation: str | None
    depth: int
    end_reason: str | None
    def end(self, reason: str) -> None: ...

class CallScope(Generic[H]):
    def __init__(
        self, operation: str, rank_set: WatchedRankSet | None, number: int | None = None, value: H = ...
    ) -> None: ...
    def __enter__(self) -> H: ...
    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None: ...
