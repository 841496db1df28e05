from collections.abc import Callable

from meshcomm.core._tracing import Value
from meshcomm.core._types import Array

def lend(kind: type, lent: Callable[[Value], Array] | None) -> None: ...
