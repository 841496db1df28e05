from collections.abc import Callable

from meshcomm.core._tracing import Value
from meshcomm.core._types import Array

def set_buffers(kind: type, array_of: Callable[[Value], Array] | None) -> None: ...
