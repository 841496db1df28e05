from meshcomm.core._tracing import Value
from meshcomm.core._types import Shape

def sliced(
    index: object, shape: Shape, cuts: tuple[tuple[int, ...] | None, ...]
) -> tuple[tuple[object, ...], list[int]] | None: ...

class At:
    def __init__(
        self, block: tuple[slice, ...], begins: tuple[int | None, ...], lengths: Shape, steps: tuple[int, ...]
    ) -> None: ...
    def of(self, starts: list[int] | None) -> tuple[Value, ...]: ...

def with_ints(index: object) -> object: ...
