"""Layouts: construction, MATCH, blocks, values."""

import copy
import itertools
import pickle

import numpy as np
import pytest

import meshcomm as mc
from meshcomm import MATCH, UNSHARDED, Layout, Mesh
from meshcomm.core.layouts.mesh import bound_to
from meshcomm.errors import LayoutError, ShapeError
from support.layout_cases import MESH, host_devices

GRID = Mesh(range(24), {"x": 2, "y": 3, "z": 4})


# -- construction -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("specs", "says"),
    [
        (["q", "q"], "q: A dimension sharding must either be a valid mesh dimension or UNSHARDED. Axis 0; .*'x', 'y'"),
        (["x", "x", "q"], "Mesh dimension x was repeated"),
        (["x+y"], "x\\+y: A dimension sharding"),
        ([""], ": A dimension sharding"),
        (["\ud800"], "A dimension sharding"),
        (["x", ("y", "x")], "Mesh dimension x was repeated"),
        ([("x", "q")], "q: A dimension sharding"),
        ([(UNSHARDED,)], "axis 0: 'unsharded' in"),
        (["x", (MATCH, "y")], "axis 1: 'match' in"),
        ([MATCH, "x", MATCH], "over mesh dimension match: axes 0 and 2"),
        (["x", 3], "axis 1 has the sharding spec 3"),
        ([("x", 3)], "axis 0 has the sharding spec"),
        (None, "sharding specs are None"),
    ],
)
def test_specs_that_make_no_layout(specs, says):
    with pytest.raises(LayoutError, match=says):
        Layout(specs, MESH)


@pytest.mark.parametrize("mesh", [None, "|x=2|*CPU", 3, [("x", 2)], Mesh])
def test_mesh_is_a_mesh(mesh):
    with pytest.raises(LayoutError, match="mesh is not a valid Mesh object"):
        Layout([UNSHARDED], mesh)


@pytest.mark.parametrize(
    ("specs", "canonical", "axes", "shape"),
    [
        ([("x",)], ["x"], (("x",),), [2]),
        ([()], [UNSHARDED], ((),), [1]),
        ([[], ["y", "x"]], [UNSHARDED, ("y", "x")], ((), ("y", "x")), [1, 6]),
        (("x", ("z", "y")), ["x", ("z", "y")], (("x",), ("z", "y")), [2, 12]),
        ([MATCH, "x"], [MATCH, "x"], ((), ("x",)), [-1, 2]),
        ([np.str_("x"), (np.str_("y"),)], ["x", "y"], (("x",), ("y",)), [2, 3]),
    ],
)
def test_specs_are_canonical(specs, canonical, axes, shape):
    layout = Layout(specs, GRID)
    assert layout.sharding_specs == canonical
    assert layout.axes == axes
    assert layout.shape == shape
    assert layout == Layout(canonical, GRID)
    assert hash(layout) == hash(Layout(canonical, GRID))
    assert {type(name) for names in layout.axes for name in names} <= {str}
    for other in (
        Layout.from_string(layout.to_string()),
        Layout.from_str(layout.serialized_string()),
        Layout.from_proto(layout.as_proto()),
        pickle.loads(pickle.dumps(layout)),
    ):
        assert other == layout
        assert other.sharding_specs == canonical


def test_a_tuple_is_written_with_plus():
    layout = Layout([("z", "x"), UNSHARDED, "y"], GRID)
    assert layout.to_string().startswith("sharding_specs:z+x,unsharded,y, mesh:|x=2,y=3,z=4|0,1,")
    assert layout.as_proto().sharding_specs[0].sharding_spec == "z+x"
    assert layout != Layout([("x", "z"), UNSHARDED, "y"], GRID)


def test_batch_and_inner_sharding_take_tuples():
    assert Layout.batch_sharded(MESH, ("x", "y"), 2) == Layout([("x", "y"), UNSHARDED], MESH)
    assert Layout.inner_sharded(MESH, ("y", "x"), 2) == Layout([UNSHARDED, ("y", "x")], MESH)
    assert Layout.batch_sharded(MESH, ("x", "y"), 2).is_batch_parallel()
    assert not Layout([MATCH, "x"], MESH).is_batch_parallel()
    assert not Layout(["x", MATCH], MESH).is_batch_parallel()


def test_delete():
    layout = Layout(["x", MATCH, ("y", "z"), UNSHARDED], GRID)
    assert layout.delete(1) == Layout(["x", ("y", "z"), UNSHARDED], GRID)
    assert layout.delete(0) == Layout([MATCH, ("y", "z"), UNSHARDED], GRID)
    assert layout.delete((0, -1, 3)).match_axis == 0
    assert layout.delete([]) == layout
    assert layout.delete(range(4)) == Layout([], GRID)


def test_layouts_made_of_another_one_by_its_axes():
    layout = Layout([mc.Cyclic("x", 2), UNSHARDED, mc.Cuts(("y", "z"), range(13))], GRID)
    cyclic, _, cuts = layout.axes
    assert layout.take([2, 0]) == Layout([cuts, cyclic], GRID)
    assert layout.insert(1, ()) == Layout([cyclic, UNSHARDED, UNSHARDED, cuts], GRID)
    assert layout.replace(-1, ()) == layout.only([0]) == Layout([cyclic, UNSHARDED, UNSHARDED], GRID)
    assert layout.delete(0).replace(0, ("x",)) == Layout(["x", cuts], GRID)
    assert layout.default_cut([0, -1]) == Layout(["x", UNSHARDED, ("y", "z")], GRID)
    assert layout.sharding_dims == layout.dims_along([0, 2]) == ("x", "y", "z")
    assert layout.dims_along(1) == Layout(["x"], Mesh(range(1), {"x": 1})).sharding_dims == ()
    with pytest.raises(LayoutError, match="Mesh dimension x was repeated"):
        layout.replace(1, ("x",))
    for call in (layout.only, layout.default_cut, layout.dims_along, lambda axis: layout.replace(axis, ())):
        with pytest.raises(LayoutError, match="axis 3 of a layout for 3 axes"):
            call(3)


# -- MATCH ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "target", "result"),
    [
        (["x", UNSHARDED], [MATCH, UNSHARDED], ["x", UNSHARDED]),
        (["x", UNSHARDED], [UNSHARDED, MATCH], [UNSHARDED, UNSHARDED]),
        (["x", UNSHARDED], [MATCH, "y"], ["x", "y"]),
        (["x", UNSHARDED], ["x", MATCH], ["x", UNSHARDED]),
        (["x", UNSHARDED], ["y", MATCH], ["y", UNSHARDED]),
        (["x", "y"], [MATCH, UNSHARDED], ["x", UNSHARDED]),
        (["x", "y"], [MATCH, "y"], ["x", "y"]),
        (["x", UNSHARDED], [MATCH, "x"], [UNSHARDED, "x"]),
        ([("x", "y"), UNSHARDED], [MATCH, UNSHARDED], [("x", "y"), UNSHARDED]),
        ([("x", "y"), UNSHARDED], [MATCH, "z"], [("x", "y"), "z"]),
        ([("x", "y"), UNSHARDED], [MATCH, "y"], [UNSHARDED, "y"]),
        ([("x", "y"), UNSHARDED], [MATCH, ("z", "x")], [UNSHARDED, ("z", "x")]),
        (["x", "y"], ["y", "x"], ["y", "x"]),
    ],
)
def test_matched(source, target, result):
    layout = Layout(target, GRID).matched(Layout(source, GRID))
    assert layout == Layout(result, GRID)
    assert layout.match_axis is None


def test_what_has_no_match_is_returned_as_it_is():
    layout = Layout(["x"], GRID)
    assert layout.matched(Layout([], GRID)) is layout


@pytest.mark.parametrize(
    ("source", "says"),
    [
        (Layout(["x"], GRID), "2 axes cannot match one for 1"),
        (Layout(["x", UNSHARDED], MESH), "cannot match one on"),
        (Layout([MATCH, UNSHARDED], GRID), "axis 0 is 'match'"),
        (None, "NoneType"),
    ],
)
def test_sources_that_cannot_be_matched(source, says):
    with pytest.raises(LayoutError, match=says):
        Layout([MATCH, "y"], GRID).matched(source)


def test_match_says_nowhere_where_elements_live():
    layout = Layout(["x", MATCH], GRID)
    assert (layout.match_axis, layout.num_shards(1), layout.is_fully_replicated()) == (1, -1, False)
    asked = [
        lambda: layout.block_slices((4, 4), 0),
        lambda: layout.block_shape((4, 4), 0),
        lambda: layout.block_numbers(0),
        lambda: layout.offset_to_shard(),
        lambda: layout.offset_tuple_to_global_index((0, 0)),
        lambda: layout.global_shape_from_local_shape((4, 4)),
        lambda: layout.local_shape_from_global_shape((4, 4)),
    ]
    for ask in asked:
        with pytest.raises(LayoutError, match=r"axis 1 is 'match'; matched\(source\)"):
            ask()


# -- blocks -----------------------------------------------------------------------------------------------------------


SPECS = [UNSHARDED, "x", "y", "z", ("x", "z"), ("z", "x"), ("y", "x"), ("z", "y", "x"), ("x", "y", "z")]


@pytest.mark.parametrize("spec", SPECS, ids=str)
@pytest.mark.parametrize("length", [0, 1, 2, 5, 7, 12, 23, 24, 25, 48])
def test_blocks_are_those_of_array_split(spec, length):
    layout = Layout([spec], GRID)
    names = layout.axes[0]
    blocks = np.array_split(np.arange(length), layout.num_shards(0))
    coordinates = [dict(zip("xyz", np.unravel_index(device, (2, 3, 4)), strict=True)) for device in range(24)]
    for device, at in enumerate(coordinates):
        number = 0
        for name in names:  # the first name is slowest
            number = number * GRID.dim_size(name) + at[name]
        assert layout.block_numbers(device) == (number,)
        assert np.arange(length)[layout.block_slices((length,), device)].tolist() == blocks[number].tolist()
        assert layout.block_shape((length,), device) == blocks[number].shape
        (interval,) = layout.block_box((length,), device)
        assert layout.block_slices((length,), device) == (slice(*interval),)


@pytest.mark.parametrize("specs", list(itertools.permutations(["x", UNSHARDED, ("z", "y")])))
def test_offsets_are_block_numbers(specs):
    layout = Layout(specs, GRID)
    indices = [layout.offset_tuple_to_global_index(shard) for shard in layout.offset_to_shard()]
    assert sorted(indices) == list(range(24))
    assert indices == [np.ravel_multi_index(shard, layout.shape) for shard in layout.offset_to_shard()]


@pytest.mark.parametrize(
    ("specs", "shown"),
    [
        ([], "[]"),
        (["x", UNSHARDED], "['x', UNSHARDED]"),
        ([MATCH, ("x", "y")], "[MATCH, ('x', 'y')]"),
        ([mc.Cuts("x", (0, 3, 9))], "[Cuts('x', (0, 3, 9))]"),
        ([mc.Cuts(("x", "y"), (0, 3, 4, 4, 9))], "[Cuts(('x', 'y'), (0, ..., 9))]"),
        ([mc.Cyclic("y", 3, 1)], "[Cyclic('y', 3, offset=1)]"),
    ],
)
def test_the_repr_is_short(specs, shown):
    assert repr(Layout(specs, Mesh(range(4), {"x": 2, "y": 2}))) == f"Layout({shown}, Mesh(x=2, y=2))"


@pytest.mark.parametrize(
    ("mesh", "shown"),
    [
        (Mesh(range(6), [("x", 3), ("y", 2)]), "Mesh(x=3, y=2)"),
        (Mesh(range(6), {"x": 6}, "pod"), "Mesh('pod', x=6)"),
        (Mesh(range(4, 10), {"x": 6}), "Mesh(x=6, ranks=range(4, 10))"),
        (Mesh([2, 0], {"x": 2}), "Mesh(x=2, ranks=(2, 0))"),
        (Mesh([5, 3, 4, 1, 0], {"x": 5}), "Mesh(x=5, ranks=(5, ..., 0))"),
        (Mesh([f"TPU:{i}" for i in range(8)], {"x": 8}), "Mesh(x=8, devices=['TPU:0', ..., 'TPU:7'])"),
        (Mesh(["TPU:0"], {"x": 1}, use_xla_spmd=True), "Mesh(x=1, devices=['TPU:0'], use_xla_spmd=True)"),
        (Mesh.from_string("|x=100|*TPU"), "Mesh(x=100, devices='*TPU')"),
        (
            Mesh.from_string("far|x=2|4,5|5|GPU:1|GPU:0,GPU:1"),
            "Mesh('far', x=2, devices=['GPU:0', 'GPU:1'], local_ids=[5])",
        ),
        (Mesh.from_device("GPU:1"), "Mesh.from_device('GPU:1')"),
    ],
)
def test_the_repr_of_a_mesh_says_where_it_is(mesh, shown):
    assert repr(mesh) == shown


def test_blocks_of_a_mesh_of_a_million_devices(no_list):
    mesh = Mesh(range(2**20), {"x": 1024, "y": 1024})
    layout = Layout([("y", "x"), UNSHARDED], mesh)
    assert layout.block_slices((2**21 + 1, 5), 2**20 - 1) == (slice(2**21 - 1, 2**21 + 1), slice(0, 5))
    assert layout.block_slices((2**21 + 1, 5), 0) == (slice(0, 3), slice(0, 5))
    assert repr(layout) == "Layout([('y', 'x'), UNSHARDED], Mesh(x=1024, y=1024))"
    assert repr(layout.to_parted()) == f"{layout!r}.to_parted()"
    assert pickle.loads(pickle.dumps(layout)) == layout
    assert len(pickle.dumps(layout)) < 500


@pytest.mark.parametrize("device", [6, -1, 2**70, "0", 0.0, True])
def test_devices_out_of_range(device):
    with pytest.raises(LayoutError, match="device"):
        Layout(["x"], MESH).block_slices((4,), device)


@pytest.mark.parametrize(
    ("shape", "error", "says"),
    [
        ((), LayoutError, r"shape \(\) has 0 axes, but the layout is for 2"),
        ((1, 2, 3), LayoutError, "has 3 axes, but the layout is for 2"),
        (4, LayoutError, "must be a sequence"),
        (None, LayoutError, "must be a sequence"),
        ((4, -1), ShapeError, "negative length"),
        ((4, 1.0), ShapeError, "must be an integer"),
        ((4, True), ShapeError, "must be an integer"),
    ],
)
def test_shapes_that_do_not_fit(shape, error, says):
    layout = Layout(["x", UNSHARDED], MESH)
    for ask in (
        lambda: layout.block_slices(shape, 0),
        lambda: layout.local_shape_from_global_shape(shape),
        lambda: layout.global_shape_from_local_shape(shape),
    ):
        with pytest.raises(error, match=says):
            ask()


def test_shapes_may_hold_any_integers():
    assert Layout(["x"], MESH).block_slices(np.array([7]), np.int64(5)) == (slice(5, 7),)
    assert type(Layout(["x"], MESH).block_shape(np.array([7]), np.int64(5))[0]) is int


# -- a layout is a value ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [Layout(["x"], MESH), MESH])
def test_a_value_equals_nothing_else_and_cannot_be_changed(value):
    for other in (3, None, "layout", "mesh", Mesh(range(2), {"x": 2}), object()):
        assert value != other
        assert not value == other  # noqa: SIM201 - the other operator
    public = [name for name in dir(value) if name[0] != "_"]
    assert len(public) > 15
    for name in (*public, "anything"):
        with pytest.raises(AttributeError):
            setattr(value, name, 1)


def test_equality_knows_specs_and_mesh():
    layout = Layout(["x", MATCH], MESH)
    assert layout == Layout(["x", MATCH], Mesh(host_devices(6), {"x": 3, "y": 2}))
    for other in (["x", UNSHARDED], [MATCH, "x"], ["x"], ["y", MATCH]):
        assert layout != Layout(other, MESH)
    assert layout != Layout(["x", MATCH], Mesh(range(6), {"x": 3, "y": 2}))


def test_copies():
    layout = Layout(["x", ("y",)], MESH)
    assert copy.copy(layout) is copy.deepcopy(layout) is layout
    layout.sharding_specs.clear()
    layout.shape.clear()
    assert (layout.sharding_specs, layout.shape) == (["x", "y"], [3, 2])
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        assert pickle.loads(pickle.dumps(layout, protocol)) == layout


def test_a_layout_keeps_where_its_mesh_runs():
    world = object()
    bound = bound_to(world, MESH)
    assert Layout(["x"], bound).mesh is bound
    assert Layout(["x"], bound) == Layout(["x"], MESH)
