"""Errors keep their class and their substance, however their prose is written: what, where, both values, the rule."""

import builtins
import json
from pathlib import Path

import numpy as np

import meshcomm as mc
from support.bad_calls import RUNNERS, names_of_rank, outcome, says

ENTRIES = json.loads((Path(__file__).parent.parent / "data" / "errors.json").read_text())


def classes(names):
    found = {**vars(builtins), "LinAlgError": np.linalg.LinAlgError}
    return [getattr(mc, name, None) or found[name] for name in names.split()]


def complaints(entry, outcomes):
    """Yield what is wrong with the *outcomes* of a bad call, one on each rank."""
    expected = classes(entry["error"])
    if len({kind for kind, _ in outcomes}) > 1:
        yield f"ranks raise different things: {outcomes}"
    for kind, message in outcomes:
        if kind is None:
            yield "nothing is raised"
        elif kind not in expected and not (
            not (hasattr(mc, kind.__name__) or hasattr(builtins, kind.__name__))
            and all(issubclass(kind, each) for each in expected)
        ):
            yield f"{kind.__name__} is raised, not {entry['error']}: {message}"
        else:
            lost = [fact for fact in entry["facts"] if not says(message, fact)]
            if lost:
                yield f"{lost} is not in: {message}"


def test_errors_say_what_where_both_values_and_the_rule():
    found = [
        f"{entry['call']}: {complaint}"
        for entry in ENTRIES
        for complaint in complaints(entry, RUNNERS[entry["on"]](entry["call"]))
    ]
    assert not found, "\n".join(found)


MOVE_NOTHING = (
    *("mc.from_callback(", "mc.zeros(", "mc.ones(", "mc.full(", "mc.empty(", "mc.Variable(", "mc.DVariable("),
    *("bool(", "np.asarray(", "pickle.dumps(", "t.item(", "mc.create_mesh(", "mc.matmul(array, "),
    *("mc.distribute(array, ", "mc.distribute(np", "mc.distribute([", "mc.distribute(None", "mc.distribute(t"),
    *("rules.distribute(", "strategy().", "mc.Strategy(", "mc.Topology.", "mc.transpose(t, (0, 0))"),
    *("mc.from_local(array[:3], L(mc.Cuts", "mc.from_local(array[:1], rows, mesh", 'mc.from_local(array[:1], "cut")'),
)
"""Bad calls that begin so are local, or have no mesh on which other ranks could make the same call."""

JOIN = ("root=",)
"""What is in calls of these names that are not local."""

ALONE = [
    *("t[9]", "t[0, 0, 0]", "t.__setitem__(99, 1)", "t.cumsum(axis=4)", "t.sort(axis=9)", "t.repeat(-1)"),
    *("t.reshape(7)", "t.to_device(3)", "t.squeeze(0)", "t.relayout(3)"),
    *("np.histogram(t, bins=-1)", "np.quantile(t, 3)", "np.pad(t, -1)", "np.where(t, 1)", "np.roll(t, 1, axis=9)"),
    *("mc.reshape(t, (5, 5))", "mc.concatenate([t, t], axis=9)", "mc.stack([t, t[:3]])"),
    *("mc.fft.fft(t, axis=7)", 'mc.fft.fft(t, n="x")', "mc.fft.fftn(t, axes=(0, 0))", "mc.fft.dct(t, type=9)"),
    *("mc.fft.fftshift(t, axes=9)", 'mc.fft.plan((6, 4), "c16", rows, kind="fftn").forward(t)'),
    *("mc.fft.pad_spectrum(t, 3)", "mc.halo(t, -1)", "mc.map_overlap(3, t, 1)", "mc.update_halos([t])"),
    *("mc.linalg.scalapack.matmul(t, 3)", "mc.linalg.qr(t, 3)", 'mc.Checkpoints("run").save("x", {"a": t})'),
    *("mc.Variable(t).assign(t[:3])", "mc.Variable(t.astype(int)).assign(t)", "mc.ndimage.sobel(t, 9)"),
    *("mc.Variable(t).assign(np.ones((3, 3)))", 'mc.Variable(t).assign_add("abc")', "mc.call_with_layout(abs, 3, t)"),
    *('np.add(t, mc.zeros(t.shape, float, columns), dtype="zz")', 'np.matmul(t, t.T, dtype="zz")'),
    *("t.__iand__(mc.zeros(t.shape, float, columns))", 'mc.fft.fft(t, backend="nmupy")'),
    *("np.where(t > 3, t, object())", 'np.clip(t, "a", "b")', 'np.isclose(t, "a")'),
    *('mc.ndimage.gaussian_filter(t, "x")', "mc.array_api.unstack(t, axis=9)"),
    *("mc.array_api.cumulative_sum(t, axis=9)", "mc.array_api.asarray(t, device=3)", "mc.transpose(t, (0, 0), rows)"),
    *("strategy().experimental_split_to_logical_devices(t, [3, 1])",),
]
"""More bad calls."""


def is_local(call):
    return call.startswith(MOVE_NOTHING) and call not in ALONE and not any(text in call for text in JOIN)


REFUSED = [*ALONE, *(entry["call"] for entry in ENTRIES if entry["on"] == "ranks" and not is_local(entry["call"]))]


def test_a_call_that_one_rank_refuses_is_noticed():
    """One rank makes it alone and goes on: no relayout after it may return."""

    def program(rank, call):
        given = names_of_rank(rank)
        source, target = given["L"](("x", "y"), mc.UNSHARDED), given["L"](mc.UNSHARDED, ("x", "y"))
        tensor = mc.zeros((8, 8), "f8", source)
        mc.relayout(tensor, target)  # each rank sends to each
        if rank == 2:
            kind, _ = outcome(call, given)
            assert kind is not None
        mc.relayout(tensor, target)
        raise AssertionError("the ranks did not find that they differ")

    found = {}
    for call in REFUSED:
        with mc.simulate(4) as world:
            try:
                world.run(lambda call=call: program(world.rank, call))
            except mc.CollectiveMismatch:
                continue
            except Exception as error:
                found[call] = error
    assert not found, found


def test_ranks_that_all_refuse_a_call_go_on():
    """Each in its own way: within other calls of ours, before a call and in one."""
    calls = ["t @ t", "mc.relayout_like(t, array)", "t.to_numpy(root=9)", "mc.fft.fft(t, axis=7)"]

    def program(rank):
        given = names_of_rank(rank)
        source, target = given["L"](("x", "y"), mc.UNSHARDED), given["L"](mc.UNSHARDED, ("x", "y"))
        tensor = mc.zeros((8, 8), "f8", source)
        for _ in range(2):
            mc.relayout(tensor, target)
            kind, _ = outcome(calls[rank], given)
            assert kind is not None
        return mc.relayout(tensor, target).shape

    with mc.simulate(4) as world:
        assert world.run(lambda: program(world.rank)) == [(8, 8)] * 4


def test_the_table_is_long_and_says_something_of_each():
    assert len(ENTRIES) >= 180
    assert len({entry["call"] for entry in ENTRIES}) == len(ENTRIES)
    assert all(entry["facts"] for entry in ENTRIES)
    raised = {name for entry in ENTRIES for name in entry["error"].split()}
    assert {"MeshError", "LayoutError", "ShapeError", "DTypeError", "GroupError", "CollectiveMismatch"} <= raised


LOST = [
    ([(mc.ShapeError, "axis 0 of shape [7, 4]")], None),
    ([(mc.ShapeError, "axis 0")], "not in"),
    ([(mc.ShapeError, "axis 0 of shape (17, 4)")], "not in"),
    ([(mc.MeshError, "axis 0 of shape (7, 4)")], "MeshError is raised"),
    ([(ValueError, "axis 0 of shape (7, 4)")], "ValueError is raised"),
    ([(None, "")], "nothing"),
    ([(mc.ShapeError, "axis 0 of shape (7, 4)"), (mc.MeshError, "axis 0 of shape (7, 4)")], "different"),
]


def test_lost_substance_is_seen():
    for outcomes, complaint in LOST:
        found = list(complaints({"error": "ShapeError", "facts": ["(7, 4)", "0"]}, outcomes))
        assert any(complaint in text for text in found) if complaint else not found


def test_errors_are_a_family():
    for name in ("MeshError", "LayoutError", "ShapeError", "GroupError", "DTypeError"):
        assert issubclass(getattr(mc, name), mc.MeshcommError)
        assert issubclass(getattr(mc, name), ValueError)
    assert issubclass(mc.DTypeError, TypeError)
    for name in ("CollectiveMismatch", "CollectiveTimeout"):
        assert issubclass(getattr(mc, name), mc.MeshcommError)
        assert issubclass(getattr(mc, name), RuntimeError)
