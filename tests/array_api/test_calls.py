"""The namespace of the array API standard: what it creates is NumPy's, and its devices are meshes and layouts."""

import itertools
import operator
import re
from pathlib import Path

import numpy as np
import pytest

import meshcomm as mc
import meshcomm.array_api as xp
from meshcomm import DTypeError, Layout, LayoutError, MeshError, ShapeError
from support.linalg_cases import alike, matrices, several, tensors_of
from support.numpy_law import table
from support.paths import TESTS
from support.reference import on_ranks
from support.sampling import sampled, with_seeds
from support.tensors import check, layout_of, on, on_a_mesh, tensor_of

U = mc.UNSHARDED
SEEDS = sampled(range(40), 8)


def on_default_mesh(program):
    """Make a program a test on two ranks that all are on the default mesh, which it is given."""

    def on_rank():
        with mc.default_mesh(mc.create_mesh([("x", 2)])) as mesh:
            program(mesh)

    def test():
        on(2, on_rank)

    test.__name__ = program.__name__
    return test


# -- creation against NumPy -------------------------------------------------------------------------------------------

ARANGES = [
    (5,),
    (2.5,),
    (-3,),
    (0,),
    (3, 11, 2),
    (11, 3, -2),
    (3, 11, -2),
    (0.1, 1.7, 0.1),
    (1, 0.2, -0.3),
    (2**53, 2**53 + 9, 1),
    (-(2**62), 2**62, 2**59),
]
TYPES = [None, "i1", "u1", "i8", "u8", "f2", "f4", "f8", "g"]


def device_of(random, mesh, shape):
    return random.choice([mesh, layout_of(random, mesh, shape)])


@with_seeds(on_a_mesh, SEEDS)
def test_arange_has_the_bits_of_numpy(random, mesh):
    for args in ARANGES:
        for dtype in TYPES:
            kind = None if dtype is None else np.dtype(dtype)
            if kind is not None and kind.kind in "iu" and not all(isinstance(a, int) for a in args):
                continue  # NumPy rounds the step itself
            if kind == np.float16 and max(map(abs, args)) > 1e4:
                continue
            try:
                expected = np.arange(*args, dtype=dtype)
            except OverflowError:
                continue
            check(xp.arange(*args, dtype=kind, device=device_of(random, mesh, expected.shape)), expected)


@with_seeds(on_a_mesh, SEEDS)
def test_linspace_has_the_bits_of_numpy(random, mesh):
    for _ in range(40):
        num = random.choice([0, 1, 2, 3, random.randint(0, 20)])
        start, stop = (random.choice([0, 1, -7, 0.1, 1e300, 2 - 3j, 5]) for _ in range(2))
        complexes = isinstance(start, complex) or isinstance(stop, complex)
        dtype = random.choice([None, "c16"] if complexes else [None, "f4", "f8", "i2", "f2"])
        if dtype in ("i2", "f2", "f4") and 1e300 in (start, stop):
            dtype = None
        options = {"endpoint": random.random() < 0.5, "dtype": None if dtype is None else np.dtype(dtype)}
        expected = np.linspace(start, stop, num, **options)
        device = device_of(random, mesh, expected.shape)
        check(xp.linspace(start, stop, num, device=device, **options), expected)


@with_seeds(on_a_mesh, SEEDS)
def test_filled(random, mesh):
    for _ in range(10):
        shape = tuple(random.randint(0, 6) for _ in range(random.randint(0, 3)))
        dtype = random.choice([xp.bool, xp.uint8, xp.int64, xp.float32, xp.complex128])
        device = device_of(random, mesh, shape)
        check(xp.zeros(shape, dtype=dtype, device=device), np.zeros(shape, dtype))
        check(xp.ones(shape, dtype=dtype, device=device), np.ones(shape, dtype))
        check(xp.full(shape, True, dtype=dtype, device=device), np.full(shape, 1, dtype))
        made = xp.empty(shape, dtype=dtype, device=device)
        assert (made.shape, made.dtype) == (shape, dtype)
        for like, number in ((xp.zeros_like, 0), (xp.ones_like, 1)):
            assert like(made).layout is made.layout
            check(like(made), np.full(shape, number, dtype))
            check(like(made, dtype=xp.float64, device=mesh), np.full(shape, number, "f8"))
        check(xp.full_like(made, 1), np.full(shape, 1, dtype))
        assert xp.empty_like(made, dtype=xp.int8).dtype == xp.int8
        rows, columns, k = random.randint(0, 7), random.randint(0, 7), random.randint(-4, 4)
        device = device_of(random, mesh, (rows, columns))
        check(xp.eye(rows, columns, k=k, device=device), np.eye(rows, columns, k=k))
        check(xp.eye(rows, dtype=dtype, device=mesh), np.eye(rows, dtype=dtype))


@on_default_mesh
def test_numbers_choose_the_dtype(mesh):
    numbers = {True: "bool", 3: "int64", 2.5: "float64", 2j: "complex128"}
    for number, name in numbers.items():
        assert xp.full(2, number).dtype == xp.asarray(number).dtype == xp.asarray([number]).dtype == name
    assert xp.arange(3).dtype == xp.int64
    check(xp.arange(2, 9, 3, dtype=xp.complex64), np.arange(2, 9, 3, dtype="c8"))
    assert xp.arange(3, step=0.5).dtype == xp.linspace(0, 1, 3).dtype == xp.float64


# -- devices ----------------------------------------------------------------------------------------------------------


def test_on_a_mesh_the_first_axis_is_sharded_over_all_of_it():
    def program():
        mesh = mc.create_mesh([("x", 2), ("y", 2)])
        t = xp.zeros((5, 3), device=mesh)
        assert t.layout == Layout([("x", "y"), U], mesh)
        assert t.device is mesh
        assert xp.zeros((), device=mesh).layout == Layout.replicated(mesh, 0)
        columns = Layout([U, "x"], mesh)
        assert xp.zeros((5, 3), device=columns).layout is columns
        return t.local.shape

    assert on(4, program) == [(2, 3), (1, 3), (1, 3), (1, 3)]


@on_ranks(3)
def test_to_device():
    mesh, turned = mc.create_mesh([("x", 3)]), mc.create_mesh([("y", 3)], devices=[2, 1, 0])
    whole = np.arange(12.0).reshape(4, 3)
    t = xp.asarray(whole, device=Layout([U, "x"], mesh))
    assert t.to_device(t.device) is t, "on its own mesh a tensor stays as it is"
    check(t.to_device(Layout(["x", U], mesh)), whole)
    there = t.to_device(turned)
    assert there.layout == Layout(["y", U], turned)
    check(there, whole)
    check(xp.zeros_like(t, device=turned), whole * 0)
    with pytest.raises(ValueError, match="no stream"):
        t.to_device(mesh, stream=1)


@on_ranks(3)
def test_to_device_of_ranks_outside():
    inner, all_ranks = mc.create_mesh([("x", 2)]), mc.create_mesh([("y", 3)])
    t = xp.asarray(np.arange(5), device=inner)
    assert (t.local is None) == (inner.rank is None)
    assert xp.arange(5, device=inner).shape == xp.linspace(0, 1, 5, device=inner).shape == (5,)
    check(t.to_device(all_ranks), np.arange(5))


def test_what_is_no_device():
    with pytest.raises(MeshError, match="device must be a Mesh or a Layout, not 'gpu'"):
        xp.zeros(3, device="gpu")


@on_ranks(2)
def test_without_a_device_the_rule_of_creation_decides():
    assert xp.zeros(3).layout == xp.zeros(3, device="cpu").layout == Layout.replicated(xp.zeros(3).mesh, 1)
    large = xp.zeros((2, 10_000))
    assert large.layout.axes == ((), ("x",))
    assert large.mesh is xp.__array_namespace_info__().default_device()
    assert xp.full_like(large, 2).layout is large.layout


@on_default_mesh
def test_a_device_is_for_the_axes_of_the_tensor(mesh):
    with pytest.raises(LayoutError, match="1 axis"):
        xp.zeros(3, device=Layout([U, U], mesh))


# -- asarray ----------------------------------------------------------------------------------------------------------


@on_default_mesh
def test_asarray(mesh):
    t = xp.asarray([[1, 2], [3, 4], [5, 6]])
    check(t, [[1, 2], [3, 4], [5, 6]])
    assert xp.asarray(t) is t
    assert xp.asarray(t, copy=False) is t
    assert xp.asarray(t, dtype=xp.int64, device=mesh, copy=False) is t
    copy = xp.asarray(t, copy=True)
    assert not np.shares_memory(copy.local, t.local)
    check(copy, [[1, 2], [3, 4], [5, 6]])
    check(xp.asarray(2.5), np.float64(2.5))
    check(xp.asarray(np.arange(5), dtype=xp.float32), np.arange(5, dtype="f4"))
    check(xp.from_dlpack(np.arange(5)), np.arange(5))


@on_default_mesh
def test_asarray_that_cannot_be(mesh):
    t = xp.zeros((2, 2))
    for large, device in ((np.zeros(10_000), None), (np.zeros(3), mesh)):
        with pytest.raises(ValueError, match="does not share memory with a ndarray; copy=False"):
            xp.asarray(large, device=device, copy=False)
    with pytest.raises(ValueError, match="dtype float32 is a copy"):
        xp.asarray(t, dtype=xp.float32, copy=False)
    with pytest.raises(ValueError, match=r"layout \[unsharded, x\] on the .* is a copy"):
        xp.asarray(t, device=Layout([U, "x"], mesh), copy=False)
    with pytest.raises(OverflowError):
        xp.asarray([300], dtype=xp.uint8)
    with pytest.raises(DTypeError, match="Python objects"):
        xp.asarray([object()], device=mesh)


@on_default_mesh
def test_numbers_that_cannot_be_made(mesh):
    with pytest.raises(ZeroDivisionError):
        xp.arange(1, 3, 0)
    with pytest.raises(TypeError, match="only supported for booleans when"):
        xp.arange(3, dtype=xp.bool)
    with pytest.raises(ValueError, match="must be non-negative"):
        xp.linspace(0, 1, -1)
    with pytest.raises(ValueError, match="negative dimensions"):
        xp.eye(-2)


# -- dtypes and the namespace -----------------------------------------------------------------------------------------


@on_default_mesh
def test_dtypes(mesh):
    t = xp.zeros(3, dtype=xp.float32)
    assert xp.can_cast(t, xp.float64)
    assert not xp.can_cast(t, xp.int32)
    assert xp.can_cast(xp.int8, xp.int16)
    assert xp.result_type(t, xp.float64) == xp.float64
    assert xp.result_type(t, 1) == xp.float32
    assert xp.finfo(t) == xp.finfo(xp.float32) == xp.finfo(xp.complex64)
    assert [type(x) for x in xp.finfo(t)[:5]] == [int, float, float, float, float]
    assert xp.finfo(xp.float64).max == np.finfo(float).max
    assert xp.iinfo(xp.zeros(1, dtype=xp.uint8)) == (8, 255, 0, xp.uint8)
    assert xp.isdtype(t.dtype, "real floating")


@on_default_mesh
def test_info(mesh):
    info = xp.__array_namespace_info__()
    assert info.devices() == (mesh,)
    assert info.default_device() is mesh
    assert set(info.dtypes(kind=("bool", "unsigned integer"))) == {"bool", "uint8", "uint16", "uint32", "uint64"}
    assert {dtype: name for name, dtype in info.dtypes().items()}[xp.zeros(1).dtype] == "float64"
    assert len(info.dtypes()) == 13
    assert info.capabilities()["data-dependent shapes"] == hasattr(xp, "nonzero") == hasattr(xp, "unique_values")
    assert xp.zeros(1).dtype == info.default_dtypes()["real floating"]


@on_default_mesh
def test_tensors_name_the_namespace(mesh):
    t = xp.zeros(3)
    for version in (None, "2021.12", "2025.12"):
        bound = t.__array_namespace__(api_version=version)
        assert bound.__name__ == xp.__name__
        assert bound is t.__array_namespace__()
    with pytest.raises(ValueError, match=r"follows version 2025\.12 .*, not '2031\.12'"):
        t.__array_namespace__(api_version="2031.12")


@on_ranks(3)
def test_a_mesh_has_one_namespace():
    mesh, pair = mc.create_mesh([("x", 3)]), mc.create_mesh([("x", 2)], devices=[0, 1])
    rows, columns = mc.ones((4, 3), int, Layout(["x", U], mesh)), mc.ones((4, 3), int, Layout([U, "x"], mesh))
    bound = rows.__array_namespace__()
    assert bound is columns.__array_namespace__()
    equal = mc.ones(3, int, Layout(["x"], mc.create_mesh([("x", 3)]))).__array_namespace__()
    assert len({bound, equal}) == 1, "libraries put the namespaces of all arguments in a set"
    other = mc.ones(3, int, Layout(["x"], pair)).__array_namespace__()
    assert len({bound, other}) == 2
    assert other.__array_namespace_info__().default_device() == pair


CREATED = {
    "asarray": ([[1, 2], [3, 4]],),
    "zeros": ((3, 2),),
    "ones": (4,),
    "full": ((2, 2), 7),
    "arange": (2, 9, 3),
    "linspace": (0.0, 1.0, 5),
    "eye": (3, 2),
    "from_dlpack": (np.arange(3.0),),
    "fft.fftfreq": (5,),
    "fft.rfftfreq": (5,),
    "array": ([1.5, 2],),
    "identity": (3,),
    "tri": (3, 4, 1),
    "fromfunction": (lambda i, j: i + 2 * j, (2, 3)),
}


@on_ranks(3)
def test_the_namespace_of_a_mesh_creates_whole_tensors_there():
    for name, devices in itertools.product(CREATED, ([0, 1, 2], [2, 0])):  # the second one without rank 1
        mesh = mc.create_mesh([("x", len(devices))], devices=devices)
        bound = mc.zeros(5, "f4", Layout(["x"], mesh)).__array_namespace__()
        made = operator.attrgetter(name)(bound)(*CREATED[name])
        assert made.layout == Layout.replicated(mesh, made.ndim)
        assert made.mesh is mesh
        expected = operator.attrgetter(name)(np)(*CREATED[name])
        if mesh.rank is None:
            assert (made.local, made.shape, made.dtype) == (None, expected.shape, expected.dtype)
        else:
            check(made, expected)


@on_ranks(2)
def test_the_namespace_of_a_mesh_takes_devices():
    mesh = mc.create_mesh([("x", 2)])
    t = mc.zeros((4, 2), "f4", Layout([U, "x"], mesh))
    bound = t.__array_namespace__()
    assert bound.zeros(5, device=t.device).layout == Layout(["x"], mesh)
    assert bound.empty((3, 4), device=t.layout).layout is t.layout
    assert bound.asarray(t) is t
    assert bound.zeros_like(t).layout is t.layout
    assert bound.astype(t, "f8").layout is t.layout


@on_ranks(3)
def test_the_namespace_of_a_mesh_has_the_functions_of_numpy():
    whole = np.random.default_rng(0).random((6, 5))
    t = mc.distribute(whole, Layout(["x", U], mc.create_mesh([("x", 3)])))
    bound = t.__array_namespace__()
    for name in ("pad", "transpose", "einsum", "gradient", "nanmean", "percentile", "erf", "save", "ndarray"):
        assert hasattr(bound, name) == (name in dir(bound)) == (name not in {"erf", "save", "ndarray"}), name
    assert set(xp.__all__) < set(dir(bound))
    assert set(xp.linalg.__all__) | {"cond", "multi_dot"} <= set(dir(bound.linalg))
    assert set(xp.fft.__all__) | {"fft2"} <= set(dir(bound.fft))
    assert [getattr(bound, name) for name in dir(bound)]
    check(bound.pad(t, 1), np.pad(whole, 1))
    assert np.allclose(bound.einsum("ij->i", t).to_numpy(), np.einsum("ij->i", whole))
    assert np.allclose(bound.fft.fft2(t).to_numpy(), np.fft.fft2(whole))
    # NumPy's arguments of a function that the standard has, too
    assert np.allclose(bound.std(t, 0, ddof=1).to_numpy(), np.std(whole, 0, ddof=1))
    check(bound.round(t, decimals=1), np.round(whole, decimals=1))
    check(bound.where(t > 0.5)[0], np.where(whole > 0.5)[0])
    with pytest.raises(AttributeError, match="did you mean 'linspace'"):
        getattr(bound, "linspase")  # noqa: B009 - a name that nobody has
    with pytest.raises(TypeError):
        bound.sum(t, axes=0)


def test_array_api_compat_knows_tensors():
    compat = pytest.importorskip("array_api_compat")
    extra = pytest.importorskip("array_api_extra")

    def program():
        mesh = mc.create_mesh([("x", 2)])
        t = mc.distribute(np.arange(12.0).reshape(4, 3), Layout(["x", U], mesh))
        assert compat.is_array_api_obj(t)
        assert compat.array_namespace(t, t[0], 3.0) == t.__array_namespace__()
        assert compat.device(t) is mesh
        assert compat.size(t) == 12
        for function in (extra.cov, lambda a: extra.pad(a, 2), lambda a: extra.kron(a, a[:2]), extra.sinc):
            check(function(t), function(np.arange(12.0).reshape(4, 3)))

    on(2, program)


def test_all_is_what_is_public():
    assert sorted(xp.__all__) == sorted(set(xp.__all__))
    files = {path.stem for path in Path(xp.__file__).parent.glob("*.py")} - {"fft", "linalg"}
    assert set(xp.__all__) == {n for n in vars(xp) if not n.startswith("_")} - files | {
        "__array_api_version__",
        "__array_namespace_info__",
    }


def test_elementwise_functions_are_those_of_numpy():
    for name in ("abs", "acos", "atan2", "bitwise_invert", "bitwise_left_shift", "conj", "floor_divide", "pow"):
        assert getattr(xp, name) is getattr(np, name)


CALLS = table("array_api_calls.txt")
OTHERS = {
    "astype": (lambda t: xp.astype(t, xp.int8), lambda x: x.astype("i1")),
    "broadcast_arrays": (lambda t: xp.broadcast_arrays(t[0], t)[0], lambda x: np.broadcast_arrays(x[0], x)[0]),
    "concat of all": (lambda t: xp.concat([t, t[1]], axis=None), lambda x: np.concatenate([x, x[1]], axis=None)),
    "cumulative_sum": (lambda t: xp.cumulative_sum(t, axis=-1), lambda x: x.cumsum(axis=1)),
    "cumulative_sum of a line": (lambda t: xp.cumulative_sum(t[1]), lambda x: x[1].cumsum()),
    "cumulative_prod": (
        lambda t: xp.cumulative_prod(t, axis=0, include_initial=True),
        lambda x: np.concatenate([np.ones((1, 5)), x.cumprod(axis=0)]),
    ),
    "argsort": (
        lambda t: xp.argsort(t, axis=0, descending=True),
        lambda x: np.argsort(-x, axis=0, stable=True),
    ),
    "std": (lambda t: xp.round(16 * xp.std(t, axis=0, correction=1)), lambda x: np.round(16 * x.std(axis=0, ddof=1))),
    "var": (lambda t: xp.var(t[:2], axis=0), lambda x: x[:2].var(axis=0)),
    "unstack": (lambda t: xp.unstack(t, axis=1)[3].copy(), lambda x: x[:, 3]),
}
"""Where a name or an argument is not that of NumPy."""


@on_default_mesh
def test_cumulative_sums_need_an_axis(mesh):
    with pytest.raises(ShapeError, match=r"shape \(2, 2\) has 2 axes: pass the axis to go along"):
        xp.cumulative_sum(xp.zeros((2, 2)))
    with pytest.raises(ShapeError, match="out of range"):
        xp.cumulative_prod(xp.zeros(2), axis=1)


@with_seeds(on_a_mesh, SEEDS[:3])
def test_functions_are_those_of_numpy(random, mesh, seed):
    for call in CALLS["functions"]:
        t, whole = tensor_of(random, mesh, (4, 5), seed)
        with mc.default_mesh(mesh):
            check(eval(call, {"xp": xp, "t": t}), eval(call, {"xp": np, "t": whole}))
    for ours, numpys in OTHERS.values():
        t, whole = tensor_of(random, mesh, (4, 5), seed)
        check(ours(t), numpys(whole))


@with_seeds(on_a_mesh, SEEDS[:3])
def test_linalg_is_that_of_numpy(random, mesh, seed):
    a = matrices(np.random.default_rng(seed), 4, 4)
    (t,) = tensors_of(random, mesh, [a])
    for call in CALLS["linalg"]:
        expected, found = eval(call, {"xp": np, "a": a}), eval(call, {"xp": xp, "a": t})
        if re.search(r"eig(vals)?\(", call):
            found = several(found)
            assert {each.dtype for each in found} == {np.dtype("c16")}
            alike(found, tuple(np.asarray(each, "c16") for each in several(expected)))
        else:
            alike(found, expected)
    names = re.findall(r"xp\.linalg\.(\w+)", " ".join(CALLS["linalg"]))
    assert sorted(names) == xp.linalg.__all__


def test_transposed_matrices():
    def program(random, mesh):
        t, whole = tensor_of(random, mesh, (2, 3, 4))
        check(t.mT, whole.swapaxes(1, 2))
        with pytest.raises(ShapeError, match=r"a tensor of shape \(4,\) has 1"):
            xp.matrix_transpose(t[0, 0])

    on_a_mesh(1, program)


@on_default_mesh
def test_integers_are_indices(mesh):
    assert operator.index(xp.asarray(3)) == [0, 1, 2, 3][xp.asarray(3)] == 3
    for wrong in (xp.asarray([3]), xp.asarray(3.0), xp.asarray(True)):
        with pytest.raises(TypeError, match="only an integer"):
            operator.index(wrong)


def test_failures_that_are_expected_have_reasons():
    text = (TESTS / "array_api" / "expected_failures.txt").read_text()
    introduction, *groups = text.strip().split("\n\n")
    assert introduction.startswith("#")
    for reason, *tests in (group.splitlines() for group in groups):
        assert reason.startswith("# ")
        assert reason.endswith(".")
        assert tests
        assert all(test.startswith("array_api_tests/test_") and "::" in test for test in tests)
