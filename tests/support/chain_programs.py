"""Random programs of elementwise operations, slices and writes, on arrays and on tensors: see `Program`."""

from random import Random

import numpy as np

import meshcomm as mc

BINARY = (
    "$ + $",
    "$ - $",
    "$ * $",
    "$ / $",
    "np.minimum($, $)",
    "np.where($ > $, $, 0.5)",
    "2.5 * $ - $",
    "$ % 3 + $",
)
UNARY = ("-$", "np.sqrt(abs($))", "$ * 0.5", "1 - $", "np.tanh($)", "$.astype('f4')", "($ > 0.3) * 1.5", "$ ** 2")
REDUCTIONS = (
    "$.sum(axis=1)",
    "$.max(axis=-1)",
    "$.max()",
    "np.any($ > 0.9, axis=1)",
    "$.min(axis=0)",
    "$.argmin(axis=1)",
)
SHIFTED = ("$[2:] + $[:-2]", "$[1:-1] - $[2:]", "$[:-2] * 2", "$[1:-1, ::-1] + $[2:]", "$[1:-1] + $[1]")
WRITES_TO_MIDDLE = ("$[1:-1] = @", "$[1:-1] += @", "$[2:] = @", "$[:-2] -= @", "$[:-2] = @ * 0.5 + @")
WRITES_TO_ALL = (
    "$[...] = @",
    "$ += @",
    "$ *= 0.5",
    "np.add($, @, out=$)",
    "$[3] = 7",
    "$[:, 0] = 1",
    "$[$ > 1] = 0.25",
)


class Program:
    """A program of random lines on arrays of one shape: each line runs on NumPy's arrays and on tensors.

    Values are compared only now and then, because a comparison computes operations that wait.
    """

    def __init__(self, random: Random, layout: mc.Layout):
        self.random, self.lines = random, []
        rng = np.random.default_rng(random.randrange(2**32))
        self.arrays = {name: rng.random((13, 5)) for name in "abc"}
        self.tensors = {name: mc.distribute(x, layout).copy() for name, x in self.arrays.items()}

    def run(self, steps: int) -> None:
        """Make and run *steps* lines, and compare all variables in the end."""
        for _ in range(steps):
            self._run(self._line())
            if self.random.random() < 0.1:
                self._compare(self.random.choice([*self.arrays]))
        for name in self.arrays:
            self._compare(name)

    def _line(self) -> str:
        random = self.random
        kind = random.randrange(12)
        if kind < 4:
            return f"{random.choice('abcde')} = {self._whole()}"
        if kind < 6:
            return self._filled(random.choice(WRITES_TO_MIDDLE), self._middle)
        if kind < 8:
            return self._filled(random.choice(WRITES_TO_ALL), self._whole)
        if kind < 10:
            return f"r = {self._filled(random.choice(REDUCTIONS), None, self._whole)}"
        if kind < 11:
            return f"v = {self._name()}; {self._filled(random.choice(WRITES_TO_ALL), self._whole, lambda: 'v')}; del v"
        return f"local({self._name()})"

    def _name(self) -> str:
        return self.random.choice([name for name, x in self.arrays.items() if x.shape == (13, 5)])

    def _whole(self, depth: int = 0) -> str:
        if depth == 3 or self.random.random() < 0.3:
            return self._name()
        text = self.random.choice(BINARY + UNARY)
        return f"({self._filled(text, None, lambda: self._whole(depth + 1))})"

    def _middle(self) -> str:
        text = f"({self._filled(self.random.choice(SHIFTED))})"
        return text if self.random.random() < 0.5 else f"({text} * 0.75 + {self._filled('$[1:-1]')})"

    def _filled(self, text: str, value=None, name=None) -> str:
        while "$" in text:
            text = text.replace("$", (name or self._name)(), 1)
        while "@" in text:
            text = text.replace("@", value(), 1)
        return text

    def _run(self, line: str) -> None:
        self.lines.append(line)
        for names, local in ((self.arrays, _write), (self.tensors, _write_local)):
            with np.errstate(all="ignore"):
                exec(line, {"np": np, "local": local}, names)

    def _compare(self, name: str) -> None:
        expected, tensor = self.arrays[name], self.tensors[name]
        result = np.asarray(tensor.to_numpy() if isinstance(tensor, mc.DTensor) else tensor)
        is_equal = result.dtype == expected.dtype and (
            np.allclose(result, expected, equal_nan=True)
            if name == "r"
            else np.array_equal(result, expected, equal_nan=True)
        )
        assert is_equal, "\n".join([*self.lines, f"{name}: {result!r}", f"expected {expected!r}"])


def _write(x):
    x *= 1.25


def _write_local(t):
    """Write to the block without a call of the library."""
    block = t.local
    if block is not None:
        block *= 1.25
    t.written()
