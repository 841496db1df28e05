"""What is wrong with a call that saves or loads: all ranks raise the same error, and nothing is ignored in silence."""

import re

import ml_dtypes
import numpy as np
import pytest

import meshcomm as mc
from meshcomm import Layout
from support.reference import on_ranks
from support.saved import damage, mesh_of_4, on

U = mc.UNSHARDED
A = np.arange(7 * 5, dtype="f8").reshape(7, 5)
BIG = np.zeros((600, 50))


def rows():
    return Layout(["x", U], mesh_of_4())


def rows_of_y(layout):
    return Layout(["y", U], layout.mesh)


def raised_by_all(program, kind, text):
    """Run *program* with the rank and a layout: all ranks raise this error, and go on together.

    After a mismatch they do with a new mesh.
    """

    def run():
        layout = rows()
        with pytest.raises(kind, match=text):
            program(layout.mesh.rank, layout)
        if kind is mc.CollectiveMismatch:
            with pytest.raises(mc.MeshError, match="make it again"):
                mc.barrier(layout.mesh)
            layout.mesh.close()
        mc.barrier(mesh_of_4())

    on(4, run)


@pytest.fixture
def path(tmp_path):
    on(4, lambda: mc.save(tmp_path / "c", {"a": mc.distribute(A, rows()), "b": np.zeros(3)}))
    return tmp_path / "c"


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        *((name, "has another one. Save to .npy, ") for name in ("a.pt", "a.xyz", "a.CSV")),
        *(("a.npyy", "did you mean .npy?"), ("a.np", "did you mean .npz?"), ("a.hdf6", "did you mean .hdf?")),
        *(("a.safetensor", "did you mean .safetensors?"), ("a.zar", "did you mean .zarr?")),
    ],
)
def test_a_format_of_others(name, reason, tmp_path):
    raised_by_all(
        lambda rank, layout: mc.save(tmp_path / name, mc.ones((4, 4), float, layout)),
        mc.CheckpointError,
        f"{re.escape(name)} has no format that can be saved.* {re.escape(reason)}",
    )
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["step-000100", "run.v2", "run.5", "lr-0.05", "model.ckpt", "2026.11.23", "a.best"])
def test_names_of_checkpoints(name, tmp_path):
    on(4, lambda: mc.save(tmp_path / name, mc.ones((4, 4), float, rows())))
    assert (tmp_path / name / "manifest.json").is_file()


@pytest.mark.parametrize(
    ("index", "text"),
    [
        ([1, 3], r"axis 0 has a list of indices, but a box is read.* use numpy.take\(t, indices, axis=0\)"),
        (np.s_[:, [0, 1]], r"axis 1 has a list of indices.* axis=1\)"),
        (np.s_[1, np.array([0, 2])], "axis 1 has a list of indices"),
        ([True, False] * 3 + [True], r"axis 0 has a mask, but a box is read.* use t\[mask\]"),
        (A > 3, "axis 0 has a mask"),
        (np.s_[..., True], "axis 1 has a mask"),
    ],
)
def test_lists_and_masks_as_slices(index, text, path):
    text = f"slices of array 'a': {text}"
    raised_by_all(lambda rank, layout: mc.load(path, slices={"a": index}), IndexError, text)
    with mc.open(path) as file, pytest.raises(IndexError, match=text.partition(": ")[2]):
        file["a"][index]


def test_a_slice_whose_elements_moved_is_an_out(tmp_path):
    def program():
        t = mc.zeros((9, 4), float, Layout([mc.Cyclic("x", 2), U], mc.create_mesh([("x", 2)])))
        mc.load(tmp_path / "a.npy", out=t[1:8])
        return t.sum(axis=1).tolist()

    np.save(tmp_path / "a.npy", np.ones((7, 4)))
    with mc.simulate(2) as world:
        assert world.run(program) == [[0, *[4] * 7, 0]] * 2


@pytest.mark.parametrize(
    ("metadata", "suffix"),
    [
        *(
            (metadata, suffix)
            for metadata in ({1: 2}, {"a": {2: 3}}, {"a": object()})
            for suffix in ("", ".h5", ".zarr", ".safetensors.index.json")
        ),
        *(({"a": float("nan")}, suffix) for suffix in ("", ".safetensors.index.json")),
    ],
)
def test_metadata_that_json_cannot_hold(metadata, suffix, tmp_path):
    if suffix == ".zarr" and str(metadata) == "{'a': nan}":
        return  # zarr writes it as NaN
    raised_by_all(
        lambda rank, layout: mc.save(tmp_path / f"a{suffix}", mc.ones((4, 4), float, layout), metadata=metadata),
        TypeError,
        "metadata",
    )
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "suffix", ["", ".npy", ".npz", ".h5", ".nc", ".zarr", ".safetensors", ".safetensors.index.json"]
)
def test_masks_are_not_lost(suffix, tmp_path):
    """Arrays in trees, metadata and attributes are refused as operands are."""
    if suffix in (".h5", ".nc"):
        pytest.importorskip("h5py")
    masked, path = np.ma.array([1.0, 2.0], mask=[False, True]), tmp_path / f"a{suffix}"

    def program():
        t = mc.ones((2,), "f8", Layout(["x"], mc.create_mesh([("x", -1)])))
        for value in (masked, np.ma.masked):
            for tree, metadata in (
                (value, None),
                ({"a": {"t": t}, "m": [value]}, None),
                ({"t": t}, {"m": value}),
                ({"t": t}, {"t": {"m": [1, value]}}),
                *([({"t": t, "m": mc.per_rank({"m": value})}, None)] if not suffix else []),
            ):
                for save in (mc.save, mc.start_save, *([mc.Checkpoints(path).save] if not suffix else [])):
                    with pytest.raises(mc.DTypeError, match="a masked array would lose its mask"):
                        save(*([1] if save not in (mc.save, mc.start_save) else [path]), tree, metadata=metadata)
            with pytest.raises(mc.DTypeError, match="a masked array would lose its mask"):
                t[0] = value if value is np.ma.masked else value[1]
        with pytest.raises(mc.DTypeError, match="a masked array would lose its mask"):
            mc.full((2,), np.ma.masked, layout=t.layout)

    for ranks in (1, 2, 3):
        on(ranks, program)
    assert not [each for each in tmp_path.iterdir() if each.is_file() or any(each.iterdir())]


def test_objects_in_a_tree_are_refused_as_operands_are(tmp_path):
    tree = {"a": A, "o": np.array([1, "a"], object)}
    raised_by_all(lambda rank, layout: mc.save(tmp_path / "run", tree), mc.DTypeError, "references to Python objects")


def test_a_name_that_no_step_has_is_no_damage(tmp_path):
    def program(rank, layout):
        run = mc.Checkpoints(tmp_path / "run")
        run.save(1, {"weight": mc.ones((4, 4), float, layout)})
        run.save(2, {"w": mc.ones((4, 4), float, layout)})
        run.restore({"weight": layout})

    raised_by_all(program, mc.CheckpointError, "has no array 'weight', which layout names")


@pytest.mark.parametrize("suffix", ["", ".safetensors.index.json"])
def test_a_data_file_that_is_gone(suffix, tmp_path):
    path = tmp_path / f"a{suffix}"
    on(4, lambda: mc.save(path, {"a": mc.distribute(A, rows())}))
    for data in tmp_path.rglob("*-*"):
        data.unlink()
    raised_by_all(lambda rank, layout: mc.load(path), mc.CheckpointError, "which is not there")


def read_only_on_one(path, rank, layout):
    out = mc.ones(A.shape, float, layout)
    out.local.flags.writeable = rank != 1
    mc.load(path, names=["a"], out={"a": out})


def test_calls_that_are_wrong_on_one_rank(path, tmp_path):
    def saving(given=lambda rank, layout: {}, value=lambda rank: 1, to=lambda rank: tmp_path / "new"):
        def program(rank, layout):
            mc.save(to(rank), {"a": mc.ones((4, 4), float, layout), "y": value(rank)}, **given(rank, layout))

        return program

    def loading(given):
        return lambda rank, layout: mc.load(path, **given(rank, layout, mc.ones(A.shape, float, layout)))

    for program, kind, text in (
        (saving(value=lambda rank: object() if rank == 1 else 1), TypeError, "object at 'y' cannot be saved"),
        (saving(lambda rank, layout: {"max_scratch_bytes": -1}), mc.ShapeError, "a limit of -1 bytes"),
        (saving(to=lambda rank: None if rank == 2 else tmp_path / "new"), TypeError, "is a text or a Path, not None"),
        (saving(lambda rank, layout: {"overwrite": rank > 0}), mc.CollectiveMismatch, "overwrite"),
        (saving(value=lambda rank: np.full(3, rank)), mc.CollectiveMismatch, "y is a plain array"),
        (saving(value=lambda rank: np.full(30_000, rank)), mc.CollectiveMismatch, "y is a plain array"),
        (lambda rank, layout: mc.save(tmp_path / "m.npy", A, metadata={"a": 1}), TypeError, "no metadata"),
        (lambda rank, layout: read_only_on_one(path, rank, layout), mc.LayoutError, "its block is read-only"),
        (lambda rank, layout: mc.load(path, "x" if rank == 1 else layout, names=["a"]), mc.LayoutError, "not 'x'"),
        (lambda rank, layout: mc.load(path, layout, names=["a"], check=rank == 1), mc.CollectiveMismatch, "check"),
        (loading(lambda rank, *_: {"dtype": "f4" if rank else "f8"}), mc.CollectiveMismatch, "dtype f4"),
        (lambda rank, layout: mc.load(path, layout), mc.LayoutError, r"array 'b' has the shape \(3,\).* for 2 axes"),
        (lambda rank, layout: mc.load(path, {"A": layout}), mc.CheckpointError, "no array 'A', which layout names"),
        (lambda rank, layout: mc.load(path, slices={"c": 1}), mc.CheckpointError, "no array 'c', which slices names"),
        (
            loading(lambda rank, layout, out: {"layout": {"a": rows_of_y(layout)}, "out": {"a": out}}),
            mc.LayoutError,
            "out for 'a' keeps its layout",
        ),
        (
            loading(lambda rank, layout, out: {"names": ["a", "b"], "out": {"a": out}}),
            mc.LayoutError,
            "out has no tensor 'b', which names asks for",
        ),
        (
            loading(lambda rank, layout, out: {"layout": layout, "names": ["a"], "out": 3 if rank == 1 else out}),
            mc.LayoutError,
            "out must be a tensor, or a tree of them, not 3",
        ),
        (lambda rank, layout: mc.load(path, names=re.compile("x")), mc.CheckpointError, "no array that matches 'x'"),
        (lambda rank, layout: mc.load(path, layout, names="a"), TypeError, "not the text 'a'"),
        (lambda rank, layout: mc.load(path, layout, names=["a"], max_scratch_bytes=0), mc.ShapeError, "limit of 0"),
    ):
        raised_by_all(program, kind, text)


@on_ranks(4)
def test_a_path_may_be_a_text_on_some_ranks(path):
    layout = rows()
    found = mc.load(path if layout.mesh.rank else str(path), {"a": layout})["a"]
    assert np.array_equal(found.to_numpy(), A)


@pytest.mark.parametrize("array", [A, BIG])
def test_plans_check_layouts(array, tmp_path):
    np.save(tmp_path / "a.npy", array)
    mesh = mc.Mesh(range(4), {"x": 4})
    for specs in (["x"], ["x", U, U]):
        with pytest.raises(mc.LayoutError, match=r"for \d ax[ei]s"):
            mc.plan_load(tmp_path / "a.npy", Layout(specs, mesh))
    with pytest.raises(mc.ShapeError, match="Cuts"):
        mc.plan_load(tmp_path / "a.npy", Layout([mc.Cuts("x", (0, 0, 1, 2, 4)), U], mesh))


@pytest.mark.parametrize(
    ("name", "tree", "kind", "text"),
    [
        ("m.safetensors", {"__metadata__": A}, mc.CheckpointError, "__metadata__"),
        ("m.zarr", {"a": A, "a/b": A}, mc.CheckpointError, "'a/b' would be in 'a'"),
        ("m.h5", {"a": A, "a/b": A}, mc.CheckpointError, "'a/b' would be in 'a'"),
        ("m.h5", {"con\0": A}, mc.CheckpointError, "is no path of an array"),
        ("m.h5", {"w": A.astype(ml_dtypes.bfloat16)}, mc.DTypeError, "bfloat16, of array 'w'"),
        ("m.npy", {"w": A, "b": A}, mc.CheckpointError, "one array, not 2"),
        ("m.npy", {"w": 3}, TypeError, "holds arrays only"),
        ("c", {1.5: A}, TypeError, "not 1.5 at the top of the tree"),
    ],
)
def test_what_a_format_cannot_hold(name, tree, kind, text, tmp_path):
    if name.endswith("h5"):
        pytest.importorskip("h5py")
    raised_by_all(lambda rank, layout: mc.save(tmp_path / name, tree), kind, text)
    assert not (tmp_path / name).exists()


def test_a_save_that_began_earlier_does_not_replace_a_later_one(tmp_path):
    def program():
        t = mc.distribute(A, rows())
        early = mc.start_save(tmp_path / "m.npy", t)
        mc.save(tmp_path / "m.npy", t + 1)
        with pytest.raises(mc.CheckpointError, match="began later is complete"):
            early.wait()
        first, second = (mc.start_save(tmp_path / "n.npy", t + number) for number in range(2))
        first.wait()
        second.wait()

    on(4, program)
    assert np.array_equal(np.load(tmp_path / "m.npy"), A + 1)
    assert np.array_equal(np.load(tmp_path / "n.npy"), A + 1)
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.filterwarnings("ignore:.*is passed over:RuntimeWarning")
def test_a_run_whose_steps_are_all_damaged_does_not_begin_again(tmp_path):
    run = mc.Checkpoints(tmp_path / "run")
    for step in range(2):
        on(4, lambda step=step: run.save(step, {"a": mc.distribute(A, rows())}))
        damage(run.path_of(step))
    raised_by_all(lambda rank, layout: run.restore(layout), mc.CheckpointError, "none can be read")


@pytest.mark.parametrize("half", ["\ud800", "file-\udcff.txt"])
def test_texts_that_are_no_unicode(half, tmp_path):
    def program():
        t = mc.ones((4, 4), float, rows())
        with pytest.raises(TypeError, match=r"a text of a saved tree is Unicode text, not '.*\\ud"):
            mc.save(tmp_path / "c", {"t": t, "from": half})
        with pytest.raises(TypeError, match=r"metadata are what JSON can hold: .*surrogates not allowed"):
            mc.save(tmp_path / "c", {"t": t}, metadata={"from": half})

    on(4, program)
    assert not list(tmp_path.iterdir())
