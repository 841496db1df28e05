from collections.abc import Callable

from meshcomm.core._tracing import Value
from meshcomm.core._types import Array, DType, Shape
from meshcomm.core.arrays._expressions import Pieces
from meshcomm.core.arrays._indices import At
from meshcomm.core.arrays.spec import TensorSpec

class Recipe:
    def __init__(self, run: Callable[..., object]) -> None: ...

class OnBlocks(Recipe):
    def __init__(
        self,
        run: Callable[..., object],
        spec: TensorSpec,
        takes_out: bool = False,
        guarded: bool = False,
        is_lazy: bool = False,
    ) -> None: ...

class OfView(Recipe):
    def __init__(self, run: Callable[[Array], Array], spec: TensorSpec, strides: Shape, first: int = 0) -> None: ...

class OfSlice(OfView):
    def __init__(
        self, run: At, spec: TensorSpec, strides: Shape, first: int, lengths: Shape, steps: Shape
    ) -> None: ...

class Assignment(Recipe):
    def __init__(self, run: At, lengths: Shape) -> None: ...

class Call:
    def __init__(self, recipe: Recipe, operands: tuple[object, ...], out: object | None = None) -> None: ...
    @property
    def recipe(self) -> Recipe: ...
    @property
    def operands(self) -> tuple[object, ...]: ...
    def run(self) -> Value: ...

def completed(made: Value) -> Value: ...
def waiting(
    function: Callable[..., object], operands: list[Value], owners: list[Value], spec: TensorSpec
) -> Value: ...
def can_wait(operands: list[Value], lengths: Shape, dtypes: list[DType]) -> bool: ...
def write_pieces(block: Array, pieces: Pieces, tensor: Value) -> None: ...
def let_wait_from(size: int) -> int: ...
