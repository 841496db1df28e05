"""Arrays of other libraries in calls that take arrays: read in place, or refused with the copy to make."""

from types import SimpleNamespace

import numpy as np
import pytest

import meshcomm as mc
from meshcomm import DTypeError
from meshcomm.core.memory.pools import allocate_unshared
from support.reference import on_ranks
from support.tensors import numbers

U = mc.UNSHARDED


class OnHost:
    """An array of a library that has DLPack and no other way to NumPy."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


class OnGPU(OnHost):
    """An array of a GPU, which NumPy must not be given."""

    device = "<CUDA Device 0>"

    def __dlpack__(self, **options):
        raise AssertionError("this would wait for the GPU, and copy")

    __array__ = __dlpack__

    def __dlpack_device__(self):
        return (2, 0)


class OfNumba:
    """An array of a GPU, of a library that has no DLPack."""

    __cuda_array_interface__ = {"shape": (4,)}  # noqa: RUF012


def layouts():
    mesh = mc.create_mesh([("x", 2)])
    return mc.Layout(["x", U], mesh), mc.Layout([U, "x"], mesh), mc.Layout.replicated(mesh, 2)


def every_call(x):
    """The calls that take an array."""
    rows, columns, whole = layouts()
    return {
        "distribute": lambda: mc.distribute(x, rows).to_numpy(),
        "distribute from a root": lambda: mc.distribute(x if rows.mesh.rank == 1 else None, rows, root=1).to_numpy(),
        "from_local": lambda: mc.from_local(x, whole).local,
        "from_local with a shape": lambda: mc.from_local(x, whole, (4, 3)).local,
        "from_local with cuts": lambda: mc.from_local(x, "cuts", mesh=rows.mesh).to_numpy()[:4],
        "relayout": lambda: mc.relayout(x, columns).to_numpy(),
        "relayout of a list": lambda: mc.relayout([x, x], [rows, columns])[1].to_numpy(),
        "all_gather": lambda: mc.all_gather(x)[:4],
    }


@on_ranks(2)
def test_every_call_takes_an_array_with_dlpack():
    array = numbers(4, 3)
    for name, call in every_call(OnHost(array)).items():
        assert np.array_equal(call(), array), name


@on_ranks(2)
def test_a_block_is_wrapped_without_a_copy():
    array = numbers(4, 3)
    _, columns, whole = layouts()
    assert np.shares_memory(mc.from_local(OnHost(array), whole, (4, 3)).local, array)
    strided = numbers(4, 6)[:, ::2]
    t = mc.from_local(OnHost(strided), whole, (4, 3))
    assert t.local.flags.c_contiguous
    assert np.array_equal(t.local, strided)
    assert np.array_equal(mc.relayout(t, columns).to_numpy(), strided)


@pytest.mark.parametrize(
    ("library", "copy"),
    [("cupy", "x.get()"), ("torch", "x.detach().cpu()"), ("jaxlib", "jax.device_get(x)"), ("other", "a copy that is")],
)
def test_an_array_of_a_gpu_is_refused_with_the_copy_to_make(library, copy):
    kind = type("Array", (OnGPU,), {"__module__": f"{library}._core"})

    def program():
        for name, call in every_call(kind(None)).items():
            with pytest.raises(DTypeError) as caught:
                call()
            assert copy in str(caught.value), name
            assert f"{library}.Array is on <CUDA Device 0>" in str(caught.value), name

    with mc.simulate(2) as world:
        world.run(program)


def test_an_array_of_a_gpu_without_dlpack_is_refused():
    with pytest.raises(DTypeError, match="OfNumba is, not in the memory of the host"):
        mc.distribute(OfNumba(), mc.Layout(["x"], mc.create_mesh([("x", 1)])))


def test_a_tensor_is_still_no_array():
    layout = mc.Layout(["x"], mc.create_mesh([("x", 1)]))
    with pytest.raises(DTypeError, match="this is a DTensor"):
        mc.distribute(mc.zeros(3, float, layout), layout)
    with pytest.raises(DTypeError, match="this is a DTensor"):
        mc.distribute(mc.Variable(mc.zeros(3, float, layout)), layout)


def test_an_attribute_with_the_name_layout_makes_no_tensor():
    array = np.arange(3).view(type("Laid", (np.ndarray,), {"layout": SimpleNamespace(name="C")}))
    layout = mc.Layout(["x"], mc.create_mesh([("x", 1)]))
    assert mc.distribute(array, layout).to_numpy().tolist() == [0, 1, 2]


# -- PyTorch ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def torch():
    return pytest.importorskip("torch", exc_type=ImportError)


TORCH_DTYPES = "bool uint8 int8 int16 int32 int64 float16 float32 float64 complex64 complex128 bfloat16 float8_e5m2"


@pytest.mark.parametrize("dtype", TORCH_DTYPES.split())
def test_every_call_takes_a_tensor_of_torch(torch, dtype):
    if dtype in ("bfloat16", "float8_e5m2"):
        pytest.importorskip("ml_dtypes")
    x = torch.arange(12.0).reshape(4, 3).to(getattr(torch, dtype))

    def program():
        for name, call in every_call(x).items():
            result = call()
            assert result.dtype.name == dtype, name
            assert np.array_equal(result.astype("c16"), x.to(torch.complex128).numpy()), name

    with mc.simulate(2) as world:
        world.run(program)


@on_ranks(2)
def test_blocks_of_torch_share_memory(torch):
    _, columns, whole = layouts()
    x = torch.zeros(4, 3, dtype=torch.bfloat16)
    block = mc.from_local(x, whole, (4, 3)).local
    x[1, 2] = 7
    assert float(block[1, 2]) == 7
    out = torch.zeros(4, 3 // 2 + (columns.mesh.rank == 0))
    target = mc.from_local(out, columns, (4, 3))
    assert mc.relayout(numbers(4, 3).astype("f4"), columns, out=target) is target
    assert np.array_equal(out.numpy(), numbers(4, 3).astype("f4")[target.slices])
    transposed = mc.from_local(torch.arange(12.0).reshape(3, 4).T, whole, (4, 3))
    assert np.array_equal(transposed.local, np.arange(12.0).reshape(3, 4).T)
    lazy = torch.full((4, 3), 1 + 2j).conj()
    assert mc.distribute(lazy, whole).local[0, 0] == 1 - 2j
    assert mc.distribute(lazy.imag, whole).local[0, 0] == -2


def test_tensors_of_torch_that_are_refused(torch):
    class Distributed(torch.Tensor):
        def to_local(self):
            raise AssertionError("nobody asked for it")

    layout = mc.Layout([U, U], mc.create_mesh([("x", 1)]))
    for x, why in (
        (torch.zeros(2, 2, requires_grad=True), r"pass x\.detach\(\), or use meshcomm\.torch"),
        (torch.nn.Parameter(torch.zeros(2, 2)), r"pass x\.detach\(\)"),
        (torch.zeros(2, 2).to_sparse(), r"x\.to_dense\(\)"),
        (torch.zeros(2, 2, device="meta"), "is on meta, not in the memory of the host"),
        (torch.zeros(2, 2).as_subclass(Distributed), r"x\.to_local\(\)"),
    ):
        for call in (mc.distribute, mc.from_local, mc.relayout):
            with pytest.raises(DTypeError, match=why):
                call(x, layout)
    with torch.no_grad():
        assert mc.distribute(torch.ones(2, 2, requires_grad=True).detach(), layout).local.tolist() == [[1, 1], [1, 1]]


@on_ranks(2)
def test_torch_reads_blocks_in_place(torch):
    """Also those of a pool, whose memory must not go to another block as long as PyTorch holds it."""
    rows, columns, _ = layouts()
    for n in (4, 2000):
        t = mc.relayout(mc.distribute(numbers(n, 30), rows), columns)
        x = torch.from_dlpack(t.local)
        assert x.data_ptr() == t.local.ctypes.data
        x[0, 0] = 5
        assert t.local[0, 0] == 5
        expected = t.local.copy()
        del t
        for _ in range(3):
            assert not np.shares_memory(mc.relayout(mc.zeros((n, 30), float, rows), columns).local, x.numpy())
        assert np.array_equal(x.numpy(), expected)


# -- JAX --------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def jax():
    return pytest.importorskip("jax", exc_type=ImportError)


@pytest.mark.parametrize("dtype", ["float32", "int32", "bfloat16", "bool"])
def test_every_call_takes_an_array_of_jax(jax, dtype):
    x = jax.numpy.arange(12.0).reshape(4, 3).astype(dtype)

    def program():
        for name, call in every_call(x).items():
            result = call()
            assert result.dtype == x.dtype, name
            assert np.array_equal(result, np.asarray(x)), name

    with mc.simulate(2) as world:
        world.run(program)


@on_ranks(2)
def test_blocks_of_jax_are_read_in_place_and_not_written(jax):
    rows, columns, whole = layouts()
    x = jax.numpy.arange(12.0).reshape(4, 3)
    t = mc.from_local(x, whole, (4, 3))
    assert t.local.ctypes.data == x.unsafe_buffer_pointer()
    assert np.array_equal(mc.relayout(t, rows).to_numpy(), np.asarray(x))
    with pytest.raises(mc.LayoutError, match="read-only"):
        mc.relayout(mc.zeros((4, 3), "f4", columns), whole, out=t)


def test_jax_reads_large_blocks_in_place(jax):
    """JAX copies what does not begin at 64 bytes, as small blocks do."""
    layout = mc.Layout([U], mc.create_mesh([("x", 1)]))
    block = allocate_unshared(1 << 20).view("f4")
    t = mc.from_local(block, layout)
    x = jax.dlpack.from_dlpack(t.local)
    assert x.unsafe_buffer_pointer() == t.local.ctypes.data
