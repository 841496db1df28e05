from types import TracebackType
from typing import Generic, TypeVar

from meshcomm.core.failures.watch import WatchedTeam

H = TypeVar("H")

class Turn:
    operation: str | None
    depth: int
    over: str | None
    def end(self, reason: str) -> None: ...

class Envelope(Generic[H]):
    def __init__(
        self, operation: str, team: WatchedTeam | None, number: int | None = None, value: H = ...
    ) -> None: ...
    def __enter__(self) -> H: ...
    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None: ...
