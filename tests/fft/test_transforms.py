"""Transforms of tensors: results, layouts, plans, backends, and what is refused."""

import sys
from itertools import product

import autograd
import autograd.numpy as anp
import numpy as np
import pytest
import scipy.fft

import meshcomm as mc
from meshcomm.core._tracing import untraced
from meshcomm.errors import CollectiveMismatch, DTypeError, LayoutError, MeshcommError, ShapeError
from meshcomm.fft import backends, local, search
from meshcomm.fft.kinds import KINDS, Transform
from meshcomm.fft.steps import LocalStep, RelayoutStep, ShardedStep
from support.reference import on_ranks
from support.sampling import sampled

U = "unsharded"
REAL, COMPLEX = ("rfft", "ihfft", "dct", "idct", "dst", "idst"), ("fft", "ifft", "irfft", "hfft")


def numbers(shape, dtype="f8", seed=0):
    rng = np.random.default_rng(seed)
    a = rng.standard_normal(shape)
    if np.dtype(dtype).kind == "c":
        a = a + 1j * rng.standard_normal(shape)
    return a.astype(dtype)


def run(program, ranks=4, dims=None):
    """Return what *program* returns on the first rank; it is called with a mesh."""
    with mc.simulate(ranks) as world:
        return world.run(lambda: program(mc.create_mesh(dims or [("x", ranks)])))[0]


def on_mesh(ranks=4, dims=None):
    """Return a decorator for a program that is given a mesh, as `on_ranks`."""
    return on_ranks(ranks, mesh=lambda: mc.create_mesh(dims or [("x", ranks)]))


def check(found, expected):
    whole = found.to_numpy()
    assert (whole.dtype, whole.shape) == (expected.dtype, expected.shape)
    eps = np.finfo(expected.dtype).eps
    assert np.abs(whole - expected).max(initial=0) <= 20 * eps * np.abs(expected).max(initial=1)


# -- results ----------------------------------------------------------------------------------------------------------


def one_axis(kind, length, spec, ranks, **options):
    a = numbers((length,), "f8" if KINDS[f"{kind}n"].change in ("halves", "same_dtype") else "c16")

    def program(mesh):
        found = getattr(mc.fft, kind)(mc.distribute(a, mc.Layout([spec], mesh)), **options)
        check(found, getattr(scipy.fft, kind)(a, **{key: value for key, value in options.items() if key != "layout"}))
        return found.layout.sharding_specs[0]

    return run(program, ranks)


@pytest.fixture
def never_gathered(monkeypatch):
    monkeypatch.setattr(search, "GATHERED_FFT", 0)
    search._cheapest_steps.cache_clear()
    yield
    search._cheapest_steps.cache_clear()


@pytest.mark.usefixtures("never_gathered")
@pytest.mark.parametrize(
    ("kind", "n"), sampled(product(["fft", "ifft", "rfft", "irfft", "hfft", "ihfft"], [48, 45, 47]))
)
@pytest.mark.parametrize("ranks", [3, 4])
def test_the_only_axis_stays_sharded(kind, n, ranks):
    one_axis(kind, n, "x", ranks)
    one_axis(kind, n, "x", ranks, layout="same", norm="ortho")
    one_axis(kind, n, mc.Cyclic("x", 4), ranks)
    one_axis(kind, n, "x", ranks, n=n + 7)


@pytest.mark.usefixtures("never_gathered")
@pytest.mark.parametrize(("kind", "variant"), sampled(product(["dct", "idct", "dst", "idst"], [1, 2, 3, 4])))
@on_mesh(3)
def test_cosines_and_sines_of_the_only_axis_stay_sharded(kind, variant, mesh):
    """All norms, real and complex numbers, lengths for four steps and for a convolution, cyclic blocks."""
    for n, dtype, spec in [(35 + variant, "f8", "x"), (37, "c8", "x"), (24, "f4", mc.Cyclic("x", 2))]:
        a = numbers(n, dtype)
        t = mc.distribute(a, mc.Layout([spec], mesh))
        plan = mc.fft.plan(a.shape, a.dtype, t.layout, kind=kind, type=variant)
        assert [type(step) for step in plan.steps] == [ShardedStep]
        combinations = [("ortho", None)]
        if dtype == "f8":
            combinations += [("forward", True), ("ortho", False)]
        for norm, orthogonalize in combinations:
            options = {"type": variant, "norm": norm, "orthogonalize": orthogonalize}
            check(getattr(mc.fft, kind)(t, **options), getattr(scipy.fft, kind)(a, **options))
        check(getattr(mc.fft, kind)(t, variant, n + 5), getattr(scipy.fft, kind)(a, variant, n + 5))


@pytest.mark.usefixtures("never_gathered")
@pytest.mark.parametrize("dtype", ["c8", "G"])
@on_mesh(3)
def test_a_convolved_axis_is_computed_in_double_precision_or_better(dtype, mesh):
    a = numbers(47, "G", 1).astype(dtype)
    result = mc.fft.fft(mc.distribute(a, mc.Layout(["x"], mesh))).to_numpy()
    expected = scipy.fft.fft(a.astype("G"))
    assert result.dtype == a.dtype
    assert (
        np.abs(result - expected).max()
        <= (0.3 if dtype == "c8" else 20) * np.finfo(dtype).eps * np.abs(expected).max()
    )


@on_mesh(2)
def test_lengths_of_real_results(mesh):
    """-1 is the length of the axis, and one frequency is one point: in NumPy's functions only if the call says so."""
    for shape in [(4, 5), (4, 1), (1, 1)]:
        a = numbers(shape, "c16")
        t = mc.distribute(a, mc.Layout(["x", U], mesh))
        for name in ("irfftn", "irfft2", "hfftn", "hfft2"):
            for options in ({}, {"s": (3, -1)}, {"s": (-1,), "axes": (1,)}, {"axes": (1, 0)} if shape[0] == 1 else {}):
                check(getattr(mc.fft, name)(t, **options), getattr(scipy.fft, name)(a, **options))
        check(np.fft.irfftn(t, (3, -1), (0, 1)), np.fft.irfftn(a, (3, -1), (0, 1)))
        if shape[1] == 1:
            for refused in (np.fft.irfftn, np.fft.irfft2, np.fft.irfft, mc.fft.irfft, mc.fft.hfft):
                with pytest.raises(ShapeError, match=r"invalid number of data points \(0\)"):
                    refused(t)


def test_four_steps_leave_cyclic_blocks():
    assert one_axis("fft", 2**16, "x", 4) == mc.Cyclic("x", 64)


@pytest.mark.usefixtures("never_gathered")
@on_mesh()
def test_a_transform_and_back_of_a_cyclic_axis_takes_two_exchanges_each(mesh):
    line = mc.Layout(["x"], mesh)
    plan = mc.fft.plan(4096, "c16", line, kind="fft")
    (step,), (back,) = plan.steps, plan.steps_back
    assert isinstance(step, ShardedStep)
    assert isinstance(back, ShardedStep)
    t = mc.distribute(numbers(4096, "c16"), line)
    check(plan.backward(plan.forward(t)), t.to_numpy())


@pytest.mark.parametrize("shape", [(1, 4), (3, 2), (0, 4), (2, 5, 0), (1, 1)])
def test_few_elements(shape):
    a = numbers(shape, "c16")

    def program(mesh):
        for axis in range(len(shape)):
            if shape[axis]:
                for sharded in range(len(shape)):
                    layout = mc.Layout(["x" if b == sharded else U for b in range(len(shape))], mesh)
                    check(mc.fft.fft(mc.distribute(a, layout), axis=axis), scipy.fft.fft(a, axis=axis))

    run(program)


def test_input_stays_and_may_be_overwritten():
    a = numbers((4, 4), "c16")

    def program(mesh):
        layout = mc.Layout([U, "x"], mesh)
        t = mc.distribute(a, layout)
        mc.fft.fft(t, axis=0)
        np.testing.assert_array_equal(t.to_numpy(), a)
        assert mc.fft.fft(t, axis=0, overwrite_x=True).local is t.local

    run(program)


def test_a_slice_with_gaps_is_transformed():
    a = numbers((8, 9), "c16")

    def program(mesh):
        t = mc.distribute(a, mc.Layout(["x", U], mesh))[1:7:2, ::3]
        check(mc.fft.fftn(t), scipy.fft.fftn(a[1:7:2, ::3]))

    run(program)


# -- layouts ----------------------------------------------------------------------------------------------------------


def test_layouts_of_results():
    a = numbers((8, 8))

    def program(mesh):
        rows, columns = mc.Layout(["x", U], mesh), mc.Layout([U, "x"], mesh)
        t = mc.distribute(a, rows)
        assert mc.fft.fft(t).layout == rows
        assert mc.fft.fftn(t).layout == columns
        assert mc.fft.fftn(t, layout="same").layout == rows
        cut = mc.Layout([mc.Cuts("x", (0, 1, 2, 3, 8)), U], mesh)
        assert mc.fft.fftn(t, layout=cut).layout == cut
        assert mc.fft.fft(mc.relayout(t, cut)).layout == cut
        assert mc.fft.rfft(mc.relayout(t, cut), axis=0, layout="same").layout == rows
        check(mc.fft.fftn(mc.relayout(t, cut), layout=cut), scipy.fft.fftn(a))

    run(program)


@on_mesh()
def test_axes_that_are_whole_need_no_exchange(mesh):
    plan = mc.fft.plan((8, 8, 8), "f8", mc.Layout(["x", U, U], mesh), axes=(1, 2))
    assert [type(step) for step in plan.steps] == [LocalStep]
    assert plan.bytes_moved == 0


def test_slabs_take_one_exchange_and_pencils_two():
    mesh = mc.Mesh(range(16), {"x": 4, "y": 4})
    slabs = mc.fft.plan((64,) * 3, "c16", mc.Layout([("x", "y"), U, U], mesh), kind="fftn")
    assert [type(step) for step in slabs.steps] == [LocalStep, RelayoutStep, LocalStep]
    pencils = mc.fft.plan((8192, 16, 8192), "c16", mc.Layout(["x", "y", U], mesh), kind="fftn")
    assert [type(step) for step in pencils.steps].count(LocalStep) == 2 + (len(pencils.steps) == 5)


# -- plans ------------------------------------------------------------------------------------------------------------


def test_a_plan_says_what_it_does():
    plan = mc.fft.plan((8, 8, 6), "f4", mc.Layout(["x", "y", U], mc.Mesh(range(4), {"x": 2, "y": 2})))
    text = str(plan)
    assert "rfftn over axes (2,) of 6 on each device" in text
    assert "relayout [x, y, unsharded] -> " in text
    assert "predicted" in text
    assert plan.flops > 0
    assert plan.seconds > 0
    assert plan.peak_bytes > 0
    assert (plan.spectrum_shape, plan.spectrum_dtype) == ((8, 8, 4), np.dtype("c8"))


@pytest.mark.parametrize("kind", KINDS)
def test_forward_and_backward(kind):
    real = KINDS[kind].change in ("halves", "same_dtype")
    a = numbers((6, 5, 9), "f8" if real else "c16")

    def program(mesh):
        source = mc.Layout(["x", "y", U], mesh)
        plan = mc.fft.plan(a.shape, a.dtype, source, kind=kind)
        t = mc.distribute(a, source)
        out = mc.empty(plan.spectrum_shape, plan.spectrum_dtype, plan.target)
        assert plan.forward(t, out=out) is out
        check(out, getattr(scipy.fft, kind)(a))
        back = plan.backward(out)
        assert back.layout == source
        if KINDS[kind].change != "doubles":  # such an input has no Hermitian spectrum
            check(back, a)
        first, second = plan.forward([t, mc.fft.fft(t, axis=0, layout="same") if not real else t])
        check(first, getattr(scipy.fft, kind)(a))
        assert second.layout == plan.target
        into = [back.copy(), back.copy()]
        assert plan.backward([first, second], out=into)[1] is into[1]
        assert plan.forward([]) == []

    run(program, 4, [("x", 2), ("y", 2)])


def test_fields_of_a_list_share_exchanges():
    a = numbers((8, 8, 8), "c16")

    def program(mesh):
        source = mc.Layout(["x", U, U], mesh)
        plan = mc.fft.plan(a.shape, a.dtype, source, kind="fftn")
        fields = [mc.distribute(a * k, source) for k in (1, 2, 3)]
        together = exchanges(mesh, lambda: plan.forward(fields))
        assert together == exchanges(mesh, lambda: plan.forward(fields[0]))
        for k, found in zip((1, 2, 3), plan.forward(fields), strict=True):
            check(found, scipy.fft.fftn(a * k))

    run(program)


@pytest.mark.parametrize(("n", "m"), sampled([(8, 12), (9, 12), (8, 13), (5, 9), (6, 7), (6, 8)]))
@pytest.mark.parametrize("specs", sampled([["x", "y"], ["y", U], [mc.Cyclic("x", 2), U], [U, U], [("x", "y"), U]]))
def test_padded_spectra(n, m, specs):
    a = numbers((n, n + 1), seed=n)

    def program(mesh):
        layout = mc.Layout(specs, mesh)
        t = mc.distribute(a, layout)
        whole, half = mc.fft.fftn(t, layout=layout), mc.fft.rfftn(t, layout=layout)
        finer = mc.fft.pad_spectrum(whole, (m, m + 1))
        also = mc.fft.pad_spectrum(half, (m, m + 1), kind="rfftn", was=a.shape)
        field = scipy.fft.ifftn(finer.to_numpy())
        assert np.abs(field.imag).max() < 1e-14
        np.testing.assert_allclose(field.real, scipy.fft.irfftn(also.to_numpy(), (m, m + 1)), atol=1e-14)
        check(mc.fft.crop_spectrum(finer, a.shape), whole.to_numpy())
        check(mc.fft.crop_spectrum(also, a.shape, kind="rfftn", was=(m, m + 1)), half.to_numpy())
        assert mc.fft.pad_spectrum(whole, a.shape).layout == layout
        doubled = mc.fft.pad_spectrum(whole, (2 * n, 2 * (n + 1)))
        check(mc.fft.ifftn(doubled)[::2, ::2], a.astype(complex))  # values at the old points stay
        forward = mc.fft.pad_spectrum(mc.fft.fftn(t, norm="forward"), (m, m + 1), norm="forward")
        check(mc.fft.ifftn(forward, norm="forward"), field)

    run(program, 4, [("x", 2), ("y", 2)])


@pytest.mark.parametrize(("n", "m"), [(8, 12), (9, 13)])
@pytest.mark.parametrize("axis", [0, 1])
@on_mesh()
def test_spectra_move_in_one_exchange(n, m, axis, mesh):
    """As many calls as one relayout, also for several fields, and also if both axes change."""
    layout = mc.Layout(["x" if a == axis else U for a in range(2)], mesh)
    fields = [mc.distribute(numbers((n, n), "c16", seed), layout) for seed in range(3)]
    assert exchanges(mesh, lambda: mc.relayout(fields[0], layout)) == 1
    fine = mc.fft.pad_spectrum(fields, (m, m))
    half = [mc.relayout(t[:, : n // 2 + 1], layout) for t in fields]
    for call in (
        lambda: mc.fft.pad_spectrum(fields[0], (m, m)),
        lambda: mc.fft.pad_spectrum(fields, (m, m)),
        lambda: mc.fft.crop_spectrum(fine, (n, n)),
        lambda: mc.fft.pad_spectrum(half, (m, m), kind="rfftn", was=(n, n)),
    ):
        assert exchanges(mesh, call) == 1
    for t, found in zip(fields, mc.fft.crop_spectrum(tuple(fine), (n, n)), strict=True):
        check(found, t.to_numpy())
    assert mc.fft.pad_spectrum([], (m, m)) == []


@pytest.mark.parametrize(("resized", "n", "m"), [(mc.fft.pad_spectrum, 8, 12), (mc.fft.crop_spectrum, 12, 8)])
def test_an_axis_that_is_whole_on_each_device_moves_where_it_is_short(resized, n, m):
    """It grows after the exchange, and becomes shorter before it."""

    def moved(shape, *where):
        def program():
            resized(mc.zeros(shape, "c16", mc.Layout(["x", U], mc.create_mesh([("x", 4)]))), *where)

        with mc.simulate(4) as world:
            world.run(program)
            return world.bytes_moved

    assert moved((n, n), (m, m)) == moved((n, min(n, m)), m, 0) > [0] * 4


@pytest.mark.parametrize("n", [7, 8])
@on_mesh()
def test_frequencies(n, mesh):
    plan = mc.fft.plan((n, n + 1), "f4", mc.Layout(["x", U], mesh))
    spectrum = plan.forward(mc.ones((n, n + 1), "f4", plan.source))
    expected = scipy.fft.fftfreq(n, 0.5)[:, None], scipy.fft.rfftfreq(n + 1, 2)[None]
    for found in (
        plan.frequencies((0.5, 2)),
        mc.fft.frequencies(spectrum, d=(0.5, 2), s=(n, n + 1), kind="rfftn"),
    ):
        for k, values in zip(found, expected, strict=True):
            check(k, values.astype("f4"))
            assert (k * spectrum).layout == spectrum.layout
    line = mc.Layout([mc.Cyclic("x", 2)], mesh)
    check(mc.fft.fftfreq(n, layout=line), scipy.fft.fftfreq(n))
    check(mc.fft.rfftfreq(n, 3, layout=line), scipy.fft.rfftfreq(n, 3))


# -- protocols --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", [mc.fft, mc.fft.scipy_backend])
def test_scipys_functions_take_tensors(backend):
    a = numbers((4, 6))

    def program(mesh):
        t = mc.distribute(a, mc.Layout(["x", U], mesh))
        with scipy.fft.set_backend(backend):
            found = scipy.fft.dctn(t, 3, None, (0,), "ortho"), scipy.fft.fft(t, 4, 0, None, True, 1)
            np.testing.assert_array_equal(scipy.fft.fft(a), np.asarray(scipy.fft.fft(a.copy())))
        check(found[0], scipy.fft.dctn(a, 3, None, (0,), "ortho"))
        check(found[1], scipy.fft.fft(a, 4, 0))

    with mc.simulate(2) as world:
        world.run(lambda: program(mc.create_mesh([("x", 2)])))


# -- gradients --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [kind for kind in KINDS if KINDS[kind].change != "same_dtype"])
@pytest.mark.parametrize("s", sampled([None, (5, 7), (3, 3)]))
def test_gradients(kind, s):
    complexes = KINDS[kind].change in ("complex", "doubles")
    x = numbers((4, 5), "c16" if complexes else "f8")
    weights = numbers(getattr(scipy.fft, kind)(x, s=s).shape, "c16", 1)

    def loss(y, w, xp):
        return xp.sum(xp.real(y * w) + xp.real(y * xp.conj(y)) / 3)

    def program(mesh):
        layout = mc.Layout(["x", "y"], mesh)
        w = mc.distribute(weights, layout)
        found = autograd.grad(lambda t: loss(getattr(mc.fft, kind)(t, s=s), w, anp))(mc.distribute(x, layout))
        assert found.layout == layout
        return found.to_numpy()

    found = run(program, 4, [("x", 2), ("y", 2)])
    expected = difference(lambda x: loss(getattr(scipy.fft, kind)(x, s=s), weights, np), x)
    assert np.abs(found - expected).max() < 1e-6


@pytest.mark.parametrize(("kind", "variant"), sampled(product(["dctn", "idctn", "dstn", "idstn"], [1, 2, 3, 4])))
def test_gradients_of_cosines_and_sines(kind, variant):
    """The gradient of a linear function is its transposed matrix times the weights."""
    shape, function = (6, 4), getattr(scipy.fft, kind)
    weights = numbers(shape, seed=1)
    unit = np.eye(24).reshape(24, *shape)

    def program(mesh):
        layout = mc.Layout(["x", U], mesh)
        t, w = mc.distribute(numbers(shape), layout), mc.distribute(weights, layout)
        for norm, orthogonalize in product([None, "ortho", "forward"], [None, True, False]):
            options = {"type": variant, "norm": norm, "orthogonalize": orthogonalize}
            found = autograd.grad(lambda t, options=options: anp.sum(getattr(mc.fft, kind)(t, **options) * w))(t)
            matrix = function(unit, axes=(1, 2), **options)
            check(found, (matrix * weights).sum((1, 2)).reshape(shape))

    run(program)


def difference(loss, x):
    """The gradient of *loss* by differences, as autograd has it: that in the imaginary directions counts as -1j."""
    found, step = np.zeros_like(x), 1e-6
    for where in np.ndindex(*x.shape):
        for direction in (1, 1j) if x.dtype.kind == "c" else (1,):
            d = np.zeros_like(x)
            d[where] = step * direction
            found[where] += np.conj(direction) * (loss(x + d) - loss(x - d)) / (2 * step)
    return found


@pytest.mark.parametrize("kind", ["rfftn", "fftn", "irfftn", "ihfftn", "dctn"])
@pytest.mark.parametrize("s", [None, (3, 7)])
def test_plans_have_gradients(kind, s):
    x = numbers((4, 5), "c16" if KINDS[kind].change in ("complex", "doubles") else "f8")
    weights = numbers(getattr(scipy.fft, kind)(x, s=s).shape, "c16", 1)
    inverse = getattr(scipy.fft, KINDS[kind].inverse)

    def loss(forward, backward, x, w, xp):
        y = forward(x)
        return xp.sum(xp.real(y * w)) + xp.sum(xp.real(backward(y * y)) ** 3)

    def program(mesh):
        plan = mc.fft.plan(x.shape, x.dtype, mc.Layout(["x", "y"], mesh), kind=kind, s=s)
        t, w = mc.distribute(x, plan.source), mc.distribute(weights, plan.target)
        found = autograd.grad(lambda t: loss(plan.forward, plan.backward, t, w, anp))(t)
        assert found.layout == plan.source

        def of_list(t):
            fields = plan.forward([t, t * t])
            return anp.sum(anp.real(fields[0] * w)) + anp.sum(anp.real(plan.backward([fields[1] ** 2])[0]))

        together = autograd.grad(of_list)(t)
        with pytest.raises(NotImplementedError, match="cannot follow what is written to out"):
            autograd.grad(lambda t: anp.sum(plan.forward(t, out=plan.forward(untraced(t)))))(t)
        return found.to_numpy(), together.to_numpy()

    one, together = run(program, 4, [("x", 2), ("y", 2)])
    lengths = weights.shape if KINDS[kind].change == "doubles" else s or x.shape
    forward, backward = lambda x: getattr(scipy.fft, kind)(x, s=s), lambda y: inverse(y, s=lengths)
    expected = difference(lambda x: loss(forward, backward, x, weights, np), x)
    assert np.abs(one - expected).max() < 1e-6 * max(1, np.abs(expected).max())
    listed = difference(lambda x: np.sum((forward(x) * weights).real) + np.sum(backward(forward(x * x) ** 2).real), x)
    assert np.abs(together - listed).max() < 1e-6 * max(1, np.abs(listed).max())


GROWS = [("pad_spectrum", (6, 4), (8, 7)), ("crop_spectrum", (7, 8), (6, 4)), ("crop_spectrum", (6, 6), (4, 5))]


@pytest.mark.parametrize(("name", "was", "s"), GROWS)
@pytest.mark.parametrize("kind", ["fftn", "rfftn"])
def test_gradients_of_longer_and_shorter_spectra(name, was, s, kind):
    x = numbers((was[0], was[1] // 2 + 1 if kind == "rfftn" else was[1]), "c16")
    shape = (s[0], s[1] // 2 + 1 if kind == "rfftn" else s[1])
    weights = numbers(shape, "c16", 1)

    def program(mesh):
        layout = mc.Layout(["x", "y"], mesh)
        whole = mc.Layout([U, U], mesh)
        t, w = mc.distribute(x, layout), mc.distribute(weights, layout)

        def resized(t):
            return getattr(mc.fft, name)(t, s, kind=kind, was=was)

        found = autograd.grad(lambda t: anp.sum(anp.real(resized(t) * w)))(t)
        assert found.layout == layout
        values = difference(
            lambda x: np.sum((resized(mc.distribute(x, whole)).local * weights).real), x
        )  # linear, and whole on each rank: right by the other tests
        return found.to_numpy(), values

    found, expected = run(program, 4, [("x", 2), ("y", 2)])
    np.testing.assert_allclose(found, expected, atol=1e-8)


def exchanges(mesh, call):
    """Return how many exchanges *call* makes the second time."""
    call()
    rank_set = mesh.world.here().location(mesh).rank_set
    before = rank_set.noted
    call()
    return rank_set.noted - before


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        (lambda t: mc.relayout(t, mc.Layout([U, "x"], t.mesh)), LayoutError, "but the plan is for"),
        (lambda t: mc.zeros((5, 4), t.dtype, t.layout), ShapeError, r"shape \(5, 4\), but the plan is for \(4, 4\)"),
        (lambda t: mc.zeros((4, 4), "f4", t.layout), DTypeError, "float32, but the plan is for float64"),
        (lambda t: t.local, LayoutError, "takes a DTensor, not ndarray"),
    ],
)
@on_mesh()
def test_tensors_that_do_not_fit_a_plan(change, error, text, mesh):
    source = mc.Layout(["x", U], mesh)
    plan = mc.fft.plan((4, 4), "f8", source)
    t = mc.ones((4, 4), "f8", source)
    wrong = change(t)
    with pytest.raises(error, match=text):
        plan.forward([wrong])
    with pytest.raises((LayoutError, ShapeError, DTypeError)):
        plan.backward(t)
    with pytest.raises((LayoutError, ShapeError, DTypeError)):
        plan.forward(t, out=t)
    check(plan.backward(plan.forward(t)), np.ones((4, 4)))


# -- what is refused --------------------------------------------------------------------------------------------------


@on_mesh(2)
def test_text_and_records_are_no_numbers(mesh):
    t = mc.distribute(np.array(["a", "b"]), mc.Layout(["x"], mesh))
    with pytest.raises(DTypeError, match="transforms numbers, not <U1"):
        mc.fft.fft(t)


@pytest.mark.parametrize("other", [lambda t: mc.fft.ifft(t, axis=0), lambda t: mc.fft.fft(t, axis=0, norm="ortho")])
def test_ranks_that_transform_otherwise_find_out(other):
    """The ranks would exchange the same bytes: without the name in the digest of calls, nobody would notice."""

    def program(mesh):
        t = mc.ones((4, 4), "c16", mc.Layout(["x", U], mesh))
        for call in (lambda: mc.fft.fft(t, axis=0), lambda: other(t)):
            call()  # known calls
        return (other(t) if mesh.rank == 1 else mc.fft.fft(t, axis=0)).to_numpy()

    with mc.simulate(2) as world, pytest.raises(CollectiveMismatch):
        world.run(lambda: program(mc.create_mesh([("x", 2)])))


# -- backends ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [kind for kind in KINDS if KINDS[kind].change != "same_dtype"])
@pytest.mark.parametrize("norm", sampled([None, "ortho", "forward"]))
def test_numpy_is_a_backend(kind, norm):
    a = numbers((6, 5), "f4" if KINDS[kind].change == "halves" else "c8")

    def program(mesh):
        t = mc.distribute(a, mc.Layout(["x", U], mesh))
        check(getattr(mc.fft, kind)(t, norm=norm, backend="numpy"), getattr(scipy.fft, kind)(a, norm=norm))

    run(program)


@on_mesh(1)
def test_numpy_has_no_cosines(mesh):
    with pytest.raises(MeshcommError, match=r"'numpy' has no dct; SciPy has it: backend='scipy', pip install"):
        mc.fft.dct(mc.ones((4,), float, mc.Layout([U], mesh)), backend="numpy")


def test_without_scipy_numpy_transforms(monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy", None)
    assert backends._backend.__wrapped__(None).name == "numpy"


def test_a_library_that_is_not_installed():
    missing = [name for name in ("pyfftw", "mkl_fft", "ducc0") if backends.find_spec(name) is None]
    for name in missing:
        with pytest.raises(MeshcommError, match=f"pip install {name}"):
            backends.backend_of(name)


def test_pieces_cover_a_block_once():
    for shape, axes in [
        ((3, 5, 700), (1,)),
        ((600, 500, 3), (0,)),
        ((4, 1000, 1000), (1, 2)),
        ((7,), (0,)),
        ((2,), ()),
    ]:
        count = np.zeros(shape, int)
        found = list(local.pieces(shape, axes, 16))
        for piece in found:
            count[piece] += 1
            assert all(piece[axis] == slice(0, shape[axis]) for axis in axes)
        assert (count == 1).all()
    assert len(list(local.pieces((64, 256, 256), (1, 2), 16))) == 64


def test_a_stage_of_a_half_spectrum():
    whole = Transform("rfftn", (0, 2), (4, 6))
    assert str(whole.stage(frozenset({2}))) == "rfftn over axes (2,) of 6"
    assert str(whole.stage(frozenset({0}))) == "fftn over axes (0,) of 4"


@pytest.mark.parametrize(
    "call",
    [
        lambda t: mc.fft.fft(t, n=2**62),
        lambda t: mc.fft.pad_spectrum(t, 2**62),
        lambda t: mc.halo(t, 2**62, "periodic"),
    ],
)
def test_results_larger_than_any_memory(call):
    def program():
        call(mc.ones(6, "f8", mc.Layout(["x"], mc.create_mesh([("x", 1)]))))

    with (
        mc.simulate(1) as world,
        pytest.raises(MemoryError, match=r"a block of shape \(\d+,\) .* more than any memory"),
    ):
        world.run(program)
