"""Random programs that make views of arrays, write to them and read them, in NumPy and on tensors, side by side."""

from math import prod

import numpy as np

import meshcomm as mc
from support.tensors import layout_of

RECORDS = np.dtype([("a", "f8"), ("b", "i4"), ("c", "i4")])
DTYPES = ["f8", "i8", "c16", RECORDS]
LENGTHS = [1, 2, 3, 4, 5, 6, 8, 12]


class Program:
    """One random program: its lines up to now, and its variables as NumPy's arrays and as tensors."""

    def __init__(self, random, mesh):
        self.random, self.lines, self.names = random, [], []
        self.is_inside = mesh.size == mesh.world.size
        self.arrays, self.tensors = {"np": np}, {"np": np}
        for name in "ab"[: random.randint(1, 2)]:
            shape = tuple(random.choice(LENGTHS) for _ in range(random.randint(1, 3)))
            dtype = np.dtype(random.choice(DTYPES[:2] if random.random() < 0.6 else DTYPES))
            array = np.arange(prod(shape) * dtype.itemsize // 4, dtype="i4").astype("f8")[: prod(shape)]
            array = np.zeros(shape, dtype) if dtype.names else array.reshape(shape).astype(dtype)
            layout = layout_of(random, mesh, shape)
            self.lines.append(f"{name} = {shape} {dtype} in {layout.specs_text}")
            self.names.append(name)
            self.arrays[name], self.tensors[name] = array.copy(), mc.distribute(array, layout)

    def run(self, steps):
        """Make *steps* steps. ``AssertionError`` with the text of the program if a value differs from NumPy's."""
        for _ in range(steps):
            kind = self.random.choices([self.view, self.write, self.read], [4, 4, 3])[0]
            kind()
        for name in self.random.sample(self.names, len(self.names)):
            self._compare(name, name)

    # -- steps --------------------------------------------------------------------------------------------------------

    def view(self):
        """Make a view, if NumPy's result is a view, too."""
        if len(self.names) > 9:
            return
        base = self.random.choice(self.names)
        text = self.random.choice(VIEWS)(self.random, self.arrays[base]).replace("$", base)
        if not text:
            return
        with np.errstate(all="ignore"):
            try:
                view = eval(text, dict(self.arrays))  # a text of ours
            except (ValueError, TypeError, IndexError, np.exceptions.AxisError):
                return
        if not isinstance(view, np.ndarray) or not np.may_share_memory(view, self.arrays[base]) or view.size > 5000:
            return
        name = f"v{len(self.names)}"
        self._say(f"{name} = {text}")
        self.arrays[name], self.tensors[name] = view, self._on_tensors(lambda: eval(text, dict(self.tensors)))
        self.names.append(name)

    def write(self):
        """Write to the elements of a view, or of a whole array."""
        names = [name for name in self.names if self.arrays[name].flags.writeable]
        name = self.random.choice(names)
        text = self.random.choice(WRITES)(self.random, self.arrays[name], self).replace("$", name)
        if not text:
            return
        copies = {name: self.arrays[name].copy() for name in self.names}
        try:
            with np.errstate(all="ignore"):
                exec(text, dict(self.arrays))  # a text of ours
        except (ValueError, TypeError, IndexError, OverflowError):
            for array_name in self.names[:2]:  # what was written before the error
                if self.arrays[array_name].flags.owndata:
                    self.arrays[array_name][...] = copies[array_name]
            return
        self._say(text)
        self._on_tensors(lambda: exec(text, dict(self.tensors)))

    def read(self):
        """Compare what a random function makes of a view."""
        name, text = self.random.choice(self.names), self.random.choice(READS)
        is_for_numbers = text in ON_MEMBERS and self.arrays[name].dtype.names is not None
        if text not in ON_MEMBERS or (self.is_inside and not is_for_numbers):
            self._compare(name, text.replace("$", name))

    # -- comparison ---------------------------------------------------------------------------------------------------

    def _say(self, line):
        self.lines.append(line)

    def _on_tensors(self, call):
        try:
            with np.errstate(all="ignore"):
                return call()
        except Exception as error:
            raise AssertionError("\n".join([*self.lines, f"{type(error).__name__}: {error}"])) from error

    def _compare(self, name, text):
        try:
            expected = np.asarray(eval(text, dict(self.arrays)))
        except (ValueError, TypeError, IndexError, np.exceptions.AxisError):
            return
        self._say(text)
        tensor = self._on_tensors(lambda: eval(text, dict(self.tensors)))
        if self.tensors[name].mesh.rank is None:
            return
        result = self._on_tensors(lambda: tensor.to_numpy() if isinstance(tensor, mc.DTensor) else np.asarray(tensor))
        is_sum = "sum" in text and expected.dtype.kind in "fc"  # of any order
        equal = np.allclose if is_sum else np.array_equal
        is_nan = {"equal_nan": True} if expected.dtype.kind in "fc" else {}
        if result.shape != expected.shape or not equal(result.astype(expected.dtype), expected, **is_nan):
            raise AssertionError("\n".join([*self.lines, f"found {result!r}", f"expected {expected!r}"]))


# -- views: each returns a text in which $ is the array ---------------------------------------------------------------


def _slice(random, n):
    start, stop = (random.choice([None, random.randint(-n, n)]) for _ in range(2))
    return f"{_text(start)}:{_text(stop)}:{_text(random.choice([None, 1, 2, 3, -1, -1, -2]))}"


def _text(number):
    return "" if number is None else str(number)


def _index(random, x):
    lengths = x.shape[: random.randint(0, x.ndim)]
    items = [str(random.randint(-n, n - 1)) if n and random.random() < 0.3 else _slice(random, n) for n in lengths]
    if random.random() < 0.2:
        items.append("...")
    if random.random() < 0.15:
        items.insert(0, "None")
    return ", ".join(items) or "..."


def _sliced(random, x):
    return f"$[{_index(random, x)}]"


def _reversed(random, x):
    return random.choice(["$[::-1]", "np.flip($)", "np.flip($, -1)", "np.flipud($)", "np.fliplr($)", "np.rot90($, 2)"])


def _shaped(random, x):
    shapes = ["-1", f"{x.size}"]
    for n in range(1, 13):
        if x.size and x.size % n == 0:
            shapes += [f"({n}, -1)", f"(-1, {n})"]
    return random.choice(
        ["$.ravel()", f"$.reshape({random.choice(shapes)})", f"np.reshape($, {random.choice(shapes)})"]
    )


def _turned(random, x):
    return random.choice(
        [
            "$.T",
            "np.swapaxes($, 0, -1)",
            "np.moveaxis($, 0, -1)",
            "np.rot90($)",
            "$[..., None]",
            "$[None]",
            "np.squeeze($)",
            "np.expand_dims($, 0)",
            "np.atleast_2d($)",
            "np.diagonal($)",
        ]
    )


def _windows(random, x):
    n = random.randint(1, max(1, min(x.shape, default=1)))
    return f"np.lib.stride_tricks.sliding_window_view($, {n}, axis={random.randint(0, x.ndim - 1)})" if x.ndim else ""


def _components(random, x):
    if x.dtype.names:
        return random.choice(["$['a']", "$['b']", "$[['a', 'b']]"])
    return random.choice(["$.real", "$.imag"]) if x.dtype.kind == "c" else ""


def _split(random, x):
    return f"np.array_split($, {random.randint(1, 4)})[{random.randint(0, 0)}]" if x.ndim else ""


def _row(random, x):
    return f"list($)[{random.randint(0, len(x) - 1)}]" if x.ndim > 1 and len(x) else ""


def _as_dtype(random, x):
    if x.dtype.names or not x.ndim:
        return ""
    return random.choice(["$.view(np.uint8)", "$.view(float)", "$.view('i4')", "$.view('u8')"])


VIEWS = [
    _sliced,
    _sliced,
    _sliced,
    _reversed,
    _reversed,
    _shaped,
    _shaped,
    _turned,
    _windows,
    _components,
    _split,
    _row,
    _as_dtype,
]

# -- writes -----------------------------------------------------------------------------------------------------------


def _number(random):
    return str(random.randint(-99, 99))


def _assigned(random, x, program):
    return (
        f"$[{_index(random, x)}] = {_number(random)}" if not x.dtype.names else f"$[{_index(random, x)}] = (1, 2, 3)"
    )


def _in_place(random, x, program):
    return f"$ {random.choice(['+=', '-=', '*='])} {_number(random)}" if not x.dtype.names else ""


def _part_in_place(random, x, program):
    return f"$[{_index(random, x)}] += {_number(random)}" if not x.dtype.names else ""


def _name_of_alike(random, x, program):
    """Return the name of a view of the same shape and dtype."""
    names = [n for n in program.names if program.arrays[n].shape == x.shape and program.arrays[n].dtype == x.dtype]
    return random.choice(names)


def _assigned_from_other(random, x, program):
    other_name = _name_of_alike(random, x, program)
    texts = [f"$[...] = {other_name}", f"np.copyto($, {other_name})"]
    if not x.dtype.names:
        texts += [
            f"$ += {other_name}",
            f"np.add($, {other_name}, out=$)",
            f"np.maximum({other_name}, 3, out=$)" if x.dtype.kind != "c" else "",
        ]
    return random.choice(texts)


def _by_functions(random, x, program):
    if x.dtype.names:
        return f"$['{random.choice('abc')}'] = {_number(random)}"
    texts = [
        f"$.fill({_number(random)})",
        f"$[$ > {_number(random)}] = {_number(random)}" if x.ndim or program.is_inside else "",
        f"np.put($, [0, -1], {_number(random)})",
        f"np.copyto($, {_number(random)})",
        "np.negative($, out=$)",
    ]
    if x.ndim and len(x):
        texts += ["$.sort()", "$.sort(axis=0)", f"np.add.at($, [0, {len(x) - 1}], 2)", f"$[[0, {len(x) - 1}]] = 5"]
        i, j = random.randint(0, len(x) - 1), random.randint(0, len(x) - 1)
        texts += [
            f"$[{i}], $[{j}] = $[{j}], $[{i}]",
            "for row in $[::-1]:\n    row[...] = row + 1" if x.ndim > 1 else "",
        ]
    return random.choice(texts)


WRITES = [
    _assigned,
    _assigned,
    _in_place,
    _part_in_place,
    _part_in_place,
    _assigned_from_other,
    _assigned_from_other,
    _by_functions,
    _by_functions,
]

READS = [
    "$",
    "$",
    "$ + 0",
    "$[...]",
    "np.sum($)",
    "$.copy()",
    "np.concatenate([$, $])",
    "np.asarray($)",
    "np.sort($, axis=-1)",
    "np.where($ > 3, $, 0)",
    "np.cumsum($)",
    "$.max()",
    "np.stack([$, $])",
    "$.astype('c16')",
    "np.array(list($))",
    "np.roll($, 1)",
    "$[0]",
    "$[-1]",
]
ON_MEMBERS = {"np.asarray($)", "np.array(list($))"}
"""Texts that a rank outside of the mesh cannot compute."""
