"""`Cuts` and `Cyclic` as values: equality, hash, text, wire form, pickle; what they refuse, and when."""

import copy
import pickle
from random import Random

import numpy as np
import pytest

import meshcomm as mc
from meshcomm import Layout, LayoutError, Mesh, ShapeError
from meshcomm.core.layouts import wire
from meshcomm.core.layouts.layout_text import LAYOUT_MESSAGE
from support.layout_cases import no_protobuf
from support.random_cases import case_of_kinds, random_boundaries
from support.reference import block_of, blocks_of, indices_of, numbered, same_bits
from support.sampling import sampled

U = "unsharded"
MESH = Mesh(range(4), {"x": 4})
GRID = Mesh(range(6), {"x": 3, "y": 2})
HUGE = 10**5000

SPECS = [
    mc.Cuts("x", (0, 1, 1, 5, 9)),
    mc.Cuts(("x",), (0, 9, 9, 9, 9)),
    mc.Cuts("x", (0, 0, 0, 0, 1)),
    mc.Cyclic("x", 1),
    mc.Cyclic("x", 3),
    mc.Cyclic("x", 3, offset=3),
    mc.Cyclic("x", 2**61),
]


def layouts(count=300):
    """Layouts of all kinds, each with the shape of an array."""
    for number in sampled(range(700_000, 720_000), count):
        case = case_of_kinds(number)
        yield from ((case.source, case.shape), (case.target, case.shape))


# -- values -----------------------------------------------------------------------------------------------------------


def test_specs_differ_from_each_other_and_from_plain_names():
    for one in SPECS:
        assert [other == one for other in SPECS] == [other is one for other in SPECS]
        assert [other != one for other in SPECS] == [other is not one for other in SPECS]
        assert one != ("x",)
        assert one != "x"
        assert one != tuple(one)
    assert len({*SPECS, ("x",)}) == len(SPECS) + 1
    assert mc.Cyclic("x", 3) != mc.Cuts("x", (0, 3))
    assert mc.Cuts("x", (3 * i for i in range(5))) == mc.Cuts(["x"], sizes=[3] * 4)
    assert mc.Cuts("x", np.array([0, 2, 4])) == mc.Cuts("x", (0, 2, 4))
    assert mc.Cyclic("x", np.int64(3)) == mc.Cyclic("x", 3, offset=0)


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_a_spec_is_a_frozen_value(spec):
    same = [pickle.loads(pickle.dumps(spec)), copy.copy(spec), copy.deepcopy(spec), eval(f"mc.{spec!r}", {"mc": mc})]
    assert all(other == spec and type(other) is type(spec) for other in same)
    assert {hash(other) for other in same} == {hash(spec)}
    before = repr(spec)
    for name in ("rule", "names", "anything"):
        with pytest.raises(AttributeError, match="frozen"):
            setattr(spec, name, (0, 1))
    with pytest.raises(AttributeError):
        del spec.rule
    assert repr(spec) == before


def test_layouts_of_all_kinds_are_values():
    for layout, shape in layouts():
        same = [
            Layout.from_string(layout.to_string()),
            Layout.from_str(layout.serialized_string()),
            Layout.from_proto(layout.as_proto()),
            pickle.loads(pickle.dumps(layout)),
            copy.deepcopy(layout),
            Layout(layout.sharding_specs, layout.mesh),
            Layout(layout.axes, layout.mesh),
        ]
        for other in same:
            assert other == layout
            assert hash(other) == hash(layout)
            assert other.axes == layout.axes
            assert repr(other) == repr(layout)
        parted = layout.to_parted()
        assert parted != layout
        assert Layout.from_string(parted.to_string()) == parted == pickle.loads(pickle.dumps(parted))
        for device in range(layout.mesh.size):
            assert layout.block_shape(shape, device) == same[0].block_shape(shape, device)


def test_layouts_are_equal_only_if_they_cut_alike():
    seen = {}
    for layout, _ in layouts():
        key = layout.to_string()
        assert (layout in seen) == (key in seen.values())
        seen[layout] = key


def test_the_wire_form_without_protobuf():
    found = [(layout, layout.serialized_string()) for layout, _ in layouts(60)]
    with no_protobuf():
        for layout, data in found:
            proto = layout.as_proto()
            assert proto.SerializeToString() == data
            assert Layout.from_proto(proto) == layout


def test_readers_of_tensorflow_see_the_mesh_dimensions():
    layout = Layout([mc.Cyclic("x", 3, 1), U], MESH)
    proto = layout.as_proto()
    assert [spec.sharding_spec for spec in proto.sharding_specs] == ["x", U]
    values = wire.decode(LAYOUT_MESSAGE, layout.serialized_string())
    for spec in values["sharding_specs"]:
        del spec["meshcomm_rule"]  # which TensorFlow's reader skips
    assert Layout.from_str(wire.encode(LAYOUT_MESSAGE, values)) == Layout(["x", U], MESH)


def test_the_usual_cuts_are_the_usual_layout():
    for length in range(14):
        for blocks in range(1, 6):
            mesh = Mesh(range(blocks), {"x": blocks})
            usual = (0, *np.cumsum([len(block) for block in np.array_split(np.arange(length), blocks)]).tolist())
            layout, plain = Layout([mc.Cuts("x", usual), U], mesh), Layout(["x", U], mesh)
            assert (layout, hash(layout), layout.to_string()) == (plain, hash(plain), plain.to_string())
            assert layout.sharding_specs == ["x", U]
            assert layout.serialized_string() == plain.serialized_string()
            assert mc.plan_relayout((length, 3), "f4", layout, plain).messages == 0


def test_one_device_takes_no_part_in_the_rule():
    mesh = Mesh(range(2), {"x": 1, "y": 2})
    assert Layout([mc.Cyclic("x", 5)], mesh) == Layout([mc.Cuts("x", (0, 7))], mesh) == Layout(["x"], mesh)
    with pytest.raises(LayoutError, match="offset 1 of 1"):
        Layout([mc.Cyclic("x", 5, 1)], mesh)


def test_a_cyclic_layout_that_cuts_as_usual_moves_nothing():
    for length in (0, 1, 2, 5, 6, 9, 12, 24):
        for blocks in range(1, 5):
            mesh = Mesh(range(blocks), {"x": blocks})
            plain = Layout(["x"], mesh)
            for block in (1, 2, 3, 6, 8):
                for offset in range(blocks):
                    layout = Layout([mc.Cyclic("x", block, offset)], mesh)
                    array = numbered((length,))
                    same = all(map(same_bits, blocks_of(array, layout), blocks_of(array, plain)))
                    for source, target in ((layout, plain), (plain, layout)):
                        plan = mc.plan_relayout((length,), "f8", source, target)
                        assert (plan.bytes_moved == 0) == same, (length, layout)
                        assert (plan.messages == 0) == same


def test_long_rules_have_short_reprs_in_messages():
    mesh = Mesh(range(10_000), {"x": 10_000})
    spec = mc.Cuts("x", sizes=range(10_000))
    with pytest.raises(LayoutError) as caught:
        Layout([spec], MESH)
    assert len(str(caught.value)) < 1000
    layout = Layout([spec], mesh)
    with pytest.raises(ShapeError) as caught:
        layout.block_shape((5,), 0)
    assert len(str(caught.value)) < 1000
    assert layout.block_slices((spec.boundaries[-1],), 9_999) == (slice(spec.boundaries[-2], spec.boundaries[-1]),)
    assert Layout.from_string(layout.to_string()) == layout


# -- blocks -----------------------------------------------------------------------------------------------------------


def test_what_devices_hold_is_what_the_definition_says():
    for layout, shape in layouts():
        array = numbered(shape)
        for device in range(layout.mesh.size):
            indices, block = indices_of(layout, shape, device), block_of(array, layout, device)
            assert [layout.global_indices(shape, device, axis).tolist() for axis in range(-len(shape), 0)] == [
                each.tolist() for each in indices
            ]
            assert layout.block_shape(shape, device) == block.shape
            boxes = list(layout.blocks(shape, device))
            assert sum(array[box].size for box in boxes) == block.size
            assert sorted(i for box in boxes for i in array[box].ravel().tolist()) == sorted(block.ravel().tolist())
            assert bool(boxes) == bool(block.size)
            if any(isinstance(names, mc.Cyclic) for names in layout.axes):
                with pytest.raises(LayoutError, match=r"layout\.blocks\(.*layout\.global_indices\("):
                    layout.block_slices(shape, device)
            else:
                assert same_bits(array[layout.block_slices(shape, device)], block)
        assert layout.largest_block(shape) == max(block.size for block in blocks_of(array, layout))
        distinct = {block_of(array, layout, device).shape for device in range(layout.mesh.size)}
        if len(distinct) == 1:
            assert layout.local_shape_from_global_shape(shape) == distinct.pop()
        else:
            with pytest.raises(ShapeError, match=r"evenly"):
                layout.local_shape_from_global_shape(shape)


def test_layouts_of_blocks_hold_these_blocks():
    for number in sampled(range(5000), 300):
        random = Random(number)
        shape = tuple(random.randint(0, 9) for _ in range(2))
        axes = random.choice([["x", "y"], ["y", "x"], [("x", "y"), U], [U, ("y", "x")], ["x", U], [U, U]])
        sizes = {"x": 3, "y": 2, U: 1}
        specs = []
        for names, length in zip(axes, shape, strict=True):
            blocks = np.prod([sizes[name] for name in ([names] if isinstance(names, str) else names)])
            specs.append(U if names == U else mc.Cuts(names, random_boundaries(random, length, int(blocks))))
        layout = Layout(specs, GRID)
        shapes = [block.shape for block in blocks_of(numbered(shape), layout)]
        assert Layout.from_blocks(shapes, axes, GRID) == layout
        if len(set(shapes)) > 1:
            wrong = [*shapes[1:], shapes[0]]
            found = None
            try:
                found = Layout.from_blocks(wrong, axes, GRID)
            except LayoutError as error:
                assert "devices" in str(error)  # noqa: PT017 - some other orders are layouts, too
            assert found is None or [block.shape for block in blocks_of(numbered(shape), found)] == wrong


# -- what is refused --------------------------------------------------------------------------------------------------

REFUSED = {
    "Cuts('x', (0, 0, -1))": ["1", "-1", "decrease"],
    "Cuts('x', ())": ["()"],
    "Cuts('x', (0,))": ["(0,)"],
    "Cuts('x', '05')": ["'0'", "str"],
    "Cuts('x', 5)": ["5", "int"],
    "Cuts('x', None)": ["boundaries", "sizes"],
    "Cuts('x', (0, 5), sizes=(5,))": ["boundaries", "sizes"],
    "Cuts('x', sizes=3)": ["3", "int"],
    "Cuts('x', sizes=(3, 2.5))": ["2.5", "float"],
    "Cuts('x', (0, 2**62))": [str(2**62)],
    "Cuts('x', (0, HUGE))": ["too long"],
    "Cuts('x', (0, HUGE, 5))": ["block 1", "decrease"],
    "Cuts('x', sizes=(-HUGE, HUGE))": ["sizes"],
    "Cuts(None, (0, 5))": ["None"],
    "Cuts((), (0, 5))": ["()"],
    "Cuts(('x', 3), (0, 5))": ["('x', 3)"],
    "Cuts(Cuts('x', (0, 5)), (0, 5))": ["Cuts('x', (0, 5))"],
    "Cuts({'x'}, (0, 5))": ["{'x'}"],
    "Cyclic('x', 2.0)": ["2.0", "float"],
    "Cyclic('x', 2**62)": [str(2**62)],
    "Cyclic('x', HUGE)": ["block"],
    "Cyclic('x', 2, 1.0)": ["1.0", "float"],
    "Cyclic('x', 2, HUGE)": ["offset"],
    "Cyclic(None, 2)": ["None"],
    "L(Cyclic('x', 2, 4))": ["4", "Cyclic('x', 2, offset=4)", "devices"],
    "L(Cyclic('q', 2))": ["q", "['x']"],
    "L(Cyclic('unsharded', 2))": ["unsharded"],
    "L(Cyclic('match', 2))": ["match"],
    "L(Cyclic(('x', 'x'), 2))": ["x", "repeated"],
    "L(Cuts('x', (0, 1, 2, 3, 4, 5)))": ["5", "4", "x"],
    "L(Cuts)": ["Cuts", "axis 0"],
    "Layout.from_blocks(None, ['x'], mesh)": ["None"],
    "Layout.from_blocks([None] * 4, ['x'], mesh)": ["None"],
    "Layout.from_blocks([1, 2, 3, 4], ['x'], mesh)": ["1", "int"],
    "Layout.from_blocks([(1, 2)] * 4, ['x'], mesh)": ["(1, 2)", "device 0", "1"],
    "Layout.from_blocks([(1.5,)] * 4, ['x'], mesh)": ["1.5", "float"],
    "Layout.from_blocks([(-1,)] * 4, ['x'], mesh)": ["-1"],
    "Layout.from_blocks([(1,), (2,), (3,), (4,)], [U], mesh)": ["devices 0 and 1", "1", "2", "axis 0"],
    "Layout.from_blocks([(1,)] * 4, ['match'], mesh)": ["match"],
    "Layout.from_blocks([(1,)] * 4, [Cyclic('x', 2)], mesh)": ["Cyclic('x', 2)"],
    "Layout.from_blocks([(10**400,)] * 4, ['x'], mesh)": ["too long"],
    "L(Cuts('x', (0, 1, 1, 3, 4))).global_shape_from_local_shape((3,))": ["axis 0"],
    "L(Cyclic('x', 3)).block_slices((9,), 0)": ["axis 0", "Cyclic('x', 3)", "layout.blocks", "layout.global_indices"],
    "L(Cyclic('x', 3)).global_indices((9,), 0, 1)": ["1"],
    "L(Cyclic('x', 3)).global_indices((9,), 4, 0)": ["4"],
    "L(Cyclic('x', 3)).blocks((9, 9), 0)": ["(9, 9)", "2", "1"],
    "L(Cyclic('x', 3), 'match').blocks((9, 9), 0)": ["match"],
    "L(Cyclic('x', 2), U).descriptor((4, 2**31), 0, device=0)": [str(2**31), "32"],
    "L(Cyclic('x', 2**31), U).descriptor((2**33, 4), 0, device=0)": ["32"],
    "L(Cyclic('x', 2), U).descriptor((4, 4), 2**31, device=0)": [str(2**31), "32"],
    "L(Cyclic('x', 2), U).descriptor((4, 4), 'a', device=0)": ["'a'", "str"],
    "L(Cyclic('x', 2), U).descriptor((4, 4), 0, device=4)": ["4"],
    "L(Cyclic('x', 2)).descriptor((4,), 0, device=0)": ["2", "1"],
    "Layout.from_device('CPU:0').descriptor((4, 4), 0, device=0)": ["single device"],
}


@pytest.mark.parametrize("call", REFUSED)
def test_what_is_refused(call):
    names = {"Cuts": mc.Cuts, "Cyclic": mc.Cyclic, "Layout": Layout, "mesh": MESH, "U": U, "HUGE": HUGE}
    names["L"] = lambda *specs: Layout(list(specs), MESH)
    with pytest.raises((LayoutError, ShapeError)) as caught:
        eval(call, names)
    lost = [fact for fact in REFUSED[call] if fact not in str(caught.value)]
    assert not lost, str(caught.value)
    assert len(str(caught.value)) < 800


LENGTHS = [0, 3, 5, 40, 2**63, 10**400, HUGE]


@pytest.mark.parametrize("length", LENGTHS, ids=lambda n: f"{n:.3g}" if n < 10**300 else "huge")
def test_boundaries_for_another_length_are_found_when_a_layout_sees_a_shape(length):
    layout, plain = Layout([mc.Cuts("x", (0, 1, 1, 3, 4))], MESH), Layout(["x"], MESH)
    calls = [
        lambda: layout.block_box((length,), 0),
        lambda: layout.block_slices((length,), 0),
        lambda: layout.block_shape((length,), 0),
        lambda: layout.blocks((length,), 0),
        lambda: layout.global_indices((length,), 0, 0),
        lambda: layout.largest_block((length,)),
        lambda: layout.local_shape_from_global_shape((length,)),
        lambda: mc.plan_relayout((length,), "f4", layout, plain),
        lambda: mc.plan_relayout((length,), "f4", plain, layout),
        lambda: mc.plan_relayout((length,), "f4", layout, layout),
    ]
    for call in calls:
        with pytest.raises(ShapeError) as caught:
            call()
        assert len(str(caught.value)) < 800
        if length < 2**63:
            facts = ("Cuts('x', (0, 1, 1, 3, 4))", "4 elements", str(length), "must")
            assert not [fact for fact in facts if fact not in str(caught.value)]


@pytest.mark.parametrize("length", [2**63 - 1, 2**63, 10**400, HUGE], ids=["int64", "2**63", "hundreds", "thousands"])
@pytest.mark.parametrize("spec", [mc.Cyclic("x", 3), mc.Cyclic("x", 2**61, 1), mc.Cyclic("x", 2**62 - 1, 3)], ids=str)
def test_a_cyclic_axis_of_any_length_has_an_answer_or_an_error_of_ours(spec, length):
    layout = Layout([spec], MESH)
    for call in (layout.block_shape, layout.block_box, layout.blocks):
        try:
            found = call((length,), 1)
        except mc.MeshcommError as error:
            assert len(str(error)) < 800  # noqa: PT017 - either is right
        else:
            if call == layout.block_shape:
                assert sum(layout.block_shape((length,), device)[0] for device in range(4)) == length, found


@pytest.mark.parametrize("block", [2**40, 2**60, 2**61, 2**62 - 1])
@pytest.mark.parametrize("offset", range(4))
def test_blocks_longer_than_any_axis(block, offset):
    layout = Layout([mc.Cyclic("x", block, offset)], MESH)
    for length in (0, 1, 5):
        shapes = [layout.block_shape((length,), device) for device in range(4)]
        assert shapes == [(length if device == offset else 0,) for device in range(4)]
        assert layout.global_indices((length,), offset, 0).tolist() == list(range(length))


# -- text -------------------------------------------------------------------------------------------------------------

TEXTS = {
    "x=cuts(0;5": "x=cuts|rule",
    "x=cuts": "rule",
    "x=cuts(1;2;3;4;5)": "begin with 0",
    "x=cuts(0;2;1;4;5)": "decrease",
    "x=cuts(0;2)": "1 blocks|4 devices",
    "x=cuts(0;;3;4;5)": "rule",
    "x=cuts(0;1;2;3;4": "rule",
    "x=cuts(0;1;2;3;4)z": "rule",
    "x=cuts(0;1;2;3;4)(": "rule",
    "x=cuts(0;1;2;3;-4)": "rule",
    "x=cuts(0;1;2;3;4.0)": "rule",
    "x=cuts(0;1;2;3;+4)": "rule",
    "x=cuts(0;1;2;3;\u0664)": "rule",
    "x=cuts(0;1;2;3;4e1)": "rule",
    "x=cuts(0;1_0;20;30;40)": "rule",
    f"x=cuts(0;1;2;3;{'9' * 19})": "too long",
    f"x=cuts(0;1;2;3;{'9' * 5000})": "rule",
    "x=cyclic()": "rule",
    "x=cyclic(3;4)": "offset 4",
    "x=cyclic(3;1;2)": "3 numbers",
    f"x=cyclic({'9' * 5000})": "rule",
    "x=CYCLIC(3)": "rule",
    "x=": "rule",
    "x==cyclic(3)": "rule",
    "x=cyclic(3)=cyclic(3)": "rule",
    "=cyclic(3)": "sharding",
    "unsharded=cyclic(3)": "unsharded",
    "match=cyclic(3)": "match",
    "scalar=cyclic(3)": "scalar|sharding",
    "x+x=cyclic(3)": "repeated",
    "q=cyclic(3)": "q",
}


@pytest.mark.parametrize("text", TEXTS, ids=lambda text: text[:30])
def test_text_of_no_rule(text):
    with pytest.raises(LayoutError, match=TEXTS[text]) as caught:
        Layout.from_string(f"sharding_specs:{text}, mesh:|x=4|*CPU")
    assert len(str(caught.value)) < 1000
    names, _, rule = text.partition("=")
    values = {"sharding_spec": names, "meshcomm_rule": rule} if rule else {"sharding_spec": text}
    data = {"sharding_specs": [values], "mesh_config": MESH._wire_values(), "type": 1}
    with pytest.raises(LayoutError):
        Layout.from_str(wire.encode(LAYOUT_MESSAGE, data))


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("x=cuts(0;0;0;0;7)", mc.Cuts("x", (0, 0, 0, 0, 7))),
        ("x=cuts(0;2;4;6;8)", "x"),
        ("x=cuts(00;01;1;3;4)", mc.Cuts("x", (0, 1, 1, 3, 4))),
        ("x=cyclic(64)", mc.Cyclic("x", 64)),
        ("x=cyclic(64;0)", mc.Cyclic("x", 64)),
        ("x=cyclic(64;3)", mc.Cyclic("x", 64, offset=3)),
    ],
)
def test_text_of_a_rule(text, spec):
    layout = Layout.from_string(f"sharding_specs:{text}, mesh:|x=4|*CPU")
    assert layout == Layout([spec], Mesh.from_string("|x=4|*CPU"))


# -- descriptors ------------------------------------------------------------------------------------------------------


def test_descriptors_are_those_of_the_transpose():
    """ScaLAPACK's own rule, NUMROC, gives the local shape of the descriptor's blocks."""
    for number in sampled(range(3000), 200):
        random = Random(number)
        m, n, mb, nb = (random.randint(1, 40) for _ in range(4))
        row, column = random.randrange(3), random.randrange(2)
        layout = Layout([mc.Cyclic("x", mb, row), mc.Cyclic("y", nb, column)], GRID)
        for device in range(6):
            one, context, *rest = layout.descriptor((m, n), 7, device=device)
            assert (one, context) == (1, 7)
            rows, columns, row_block, column_block, first_row, first_column, leading = rest
            assert (rows, columns) == (n, m)
            x, y = divmod(device, 2)
            local = numroc(rows, row_block, y, first_row, 2), numroc(columns, column_block, x, first_column, 3)
            assert layout.block_shape((m, n), device) == local[::-1], (number, device)
            assert leading == max(1, local[0])


def numroc(n, block, process, first, processes):
    """TOOLS/numroc.f of ScaLAPACK."""
    distance = (processes + process - first) % processes
    blocks = n // block
    local = blocks // processes * block
    extra = blocks % processes
    if distance < extra:
        return local + block
    return local + n % block if distance == extra else local


def test_the_largest_descriptor():
    most = 2**31 - 1
    layout = Layout([mc.Cyclic("x", 2), U], MESH)
    assert layout.descriptor((4, most), 0, device=0)[2] == most
