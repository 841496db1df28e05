from collections.abc import Callable
from typing import Any

import numpy as np

from meshcomm.core._tracing import Value

class Operated(np.ndarray[Any, Any]): ...

def set_kind(
    kind: type, grown: Callable[..., Value], cut: Callable[[Any], Value], item: Callable[[Any, Any], Value]
) -> None: ...
def array_wrap(self: Any, array: Any, context: Any = None, return_scalar: bool = False) -> Value: ...
def array_function(self: Any, function: Any, types: Any, args: Any, kwargs: Any) -> Value: ...
