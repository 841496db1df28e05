"""Bad input, item by item: it works, or every rank raises one clear error and the mesh is still usable."""

import os
import sys

import numpy as np
import pytest

import meshcomm as mc
from meshcomm import Layout, LayoutError, MeshError
from support.patience import run
from support.reference import blocks_of, numbered, same_bits, simulated

U = "unsharded"
RANKS = 4


def usable(rank, mesh):
    """A right relayout and a right collective, after whatever went wrong."""
    rows, columns = Layout(["x", U], mesh), Layout([U, ("y", "x")], mesh)
    array = numbered((7, 5))
    moved = mc.relayout(mc.distribute(array, rows), columns)
    return same_bits(moved.local, blocks_of(array, columns)[rank]) and mc.all_reduce([rank], None).tolist() == [6]


def refused(call, error, text):
    """Run *call* on all ranks: each raises the *error*, twice, and can go on. Returns what they say."""

    def program(rank):
        mesh = mc.create_mesh([("x", 2), ("y", 2)])
        said = []
        for _ in range(2):
            with pytest.raises(error, match=text) as caught:
                call(rank, mesh)
            assert isinstance(caught.value, mc.MeshcommError)
            said.append((type(caught.value), len(str(caught.value)) < 1000))
            assert usable(rank, mesh)
        assert said[0] == said[1] == (said[0][0], True)
        return said[0][0]

    assert len(set(simulated(RANKS, program))) == 1


def tensor_of(mesh, specs=("x", "y"), shape=(6, 4)):
    return mc.distribute(numbered(shape), Layout(list(specs), mesh))


# -- layouts, meshes and tensors that do not fit ----------------------------------------------------------------------


def test_a_mesh_of_another_world():
    with mc.simulate(RANKS):
        foreign = mc.create_mesh([("x", RANKS)])
    refused(lambda rank, mesh: mc.relayout(tensor_of(mesh), Layout(["x", U], foreign)), MeshError, "in different ones")


# -- dtypes and memory ------------------------------------------------------------------------------------------------


MEMORIES = {
    "Fortran order": lambda a: np.asfortranarray(a),
    "read-only": lambda a: read_only(a.copy()),
    "every second element": lambda a: np.repeat(np.repeat(a, 2, 0), 2, 1)[::2, ::2],
    "reversed": lambda a: a[::-1, ::-1].copy()[::-1, ::-1],
    "transposed": lambda a: a.T.copy().T,
    "repeated by broadcasting": lambda a: np.broadcast_to(a[:1], a.shape),
    "a list": lambda a: a.tolist(),
    "unaligned": lambda a: np.frombuffer(b"\0" + a.tobytes(), a.dtype, offset=1).reshape(a.shape),
}


def read_only(array):
    array.flags.writeable = False
    return array


@pytest.mark.parametrize("memory", MEMORIES)
def test_any_memory_works_and_stays(memory):
    given = MEMORIES[memory](numbered((8, 4)))
    values = np.array(given)

    def program(rank):
        mesh = mc.create_mesh([("x", 2), ("y", 2)])
        rows, columns = Layout(["x", U], mesh), Layout([U, "x"], mesh)
        block = given[:4]
        for tensor, whole in [
            (mc.distribute(given, rows), values),
            (mc.distribute(given if rank == 3 else None, rows, root=3), values),
            (mc.relayout(given, rows), values),
            (mc.from_local(block, rows), np.concatenate([values[:4]] * 2)),
        ]:
            assert same_bits(mc.relayout(tensor, columns).local, blocks_of(whole, columns)[rank])
            assert same_bits(tensor.to_numpy(), whole)
            assert same_bits(tensor.to_numpy(root=0), whole) if rank == 0 else tensor.to_numpy(root=0) is None
        assert same_bits(mc.all_gather(given, [[3, 1], [0, 2]], 1), np.concatenate([values] * 2, 1))
        assert same_bits(mc.all_to_all(given, None, 1, 0, 4), np.tile(values[2 * rank : 2 * rank + 2], (1, 4)))
        assert same_bits(mc.all_reduce(given, None, "max"), values)
        assert same_bits(mc.broadcast(given, None, 2), values)
        assert same_bits(mc.collective_permute(given, [(i, i ^ 1) for i in range(4)]), values)
        assert same_bits(mc.reduce_scatter(given, None, 0), 4 * values[2 * rank : 2 * rank + 2])

    simulated(RANKS, program)
    assert same_bits(np.array(given), values)


@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (3, 0), (1,), (1, 1), (0, 0), (2, 0, 3)], ids=str)
def test_scalars_and_arrays_of_no_elements_work(shape):
    array = numbered(shape, "f4")

    def program(rank):
        mesh = mc.create_mesh([("x", 2), ("y", 2)])
        specs = [[U] * len(shape)]
        for axis in range(len(shape)):
            specs.extend([name if i == axis else U for i in range(len(shape))] for name in ("x", ("y", "x")))
        layouts = [Layout(each, mesh) for each in specs]
        for source in layouts:
            for target in layouts:
                tensor = mc.relayout(mc.distribute(array, source), target)
                assert same_bits(tensor.local, blocks_of(array, target)[rank])
                assert same_bits(tensor.to_numpy(), array)
                assert rank or same_bits(tensor.to_numpy(root=0), array)
                assert rank == 0 or tensor.to_numpy(root=0) is None
            assert same_bits(mc.distribute(array if rank == 1 else None, source, root=1).to_numpy(), array)
            assert mc.from_local(blocks_of(array, source)[rank], source).shape == shape
        assert same_bits(mc.all_reduce(array, None, "max"), array)
        assert same_bits(mc.broadcast(array, None), array)
        assert same_bits(mc.collective_permute(array, [(rank, rank) for rank in range(4)]), array)
        if shape:
            assert mc.all_gather(array, None, 0).shape == (4 * shape[0], *shape[1:])

    simulated(RANKS, program)


# -- without mpiexec --------------------------------------------------------------------------------------------------

ALONE = """
import numpy as np, meshcomm as mc
mesh = mc.create_mesh([("x", 2), ("y", 2)])
layout = mc.Layout(["x", "unsharded"], mesh)
print(layout.block_slices((5, 4), 3))
try:
    mc.distribute(np.zeros((5, 4)), layout)
except mc.MeshError as error:
    print(error)
one = mc.create_mesh([("x", -1)])
t = mc.distribute(np.arange(6).reshape(2, 3), mc.Layout(["x", "unsharded"], one))
print(mc.relayout(t, mc.Layout(["unsharded", "x"], one)).to_numpy().tolist())
print(mc.all_to_all(np.arange(3), [[0]], 0, 0, 1).tolist(), mc.all_reduce(2, None).tolist())
"""


def test_a_process_launched_without_mpiexec(tmp_path):
    pytest.importorskip("mpi4py.MPI", exc_type=ImportError)
    program = tmp_path / "alone.py"
    program.write_text(ALONE)
    ran = run([sys.executable, program], env=without_launcher())
    assert ran.returncode == 0, ran.stderr
    lines = ran.stdout.splitlines()
    assert lines[0] == "(slice(3, 5, None), slice(0, 4, None))"
    assert "needs 4 ranks up to rank 3, but the world has 1" in lines[1]
    assert "mpiexec -n 4" in lines[1]
    assert lines[2:] == ["[[0, 1, 2], [3, 4, 5]]", "[0, 1, 2] 2"]


def without_launcher():
    return {name: value for name, value in os.environ.items() if not name.startswith(("PMI", "PMIX", "OMPI_COMM"))}


# -- replicas that differ ---------------------------------------------------------------------------------------------

RECORD = np.dtype({"names": ["a", "b"], "formats": ["i1", "f8"], "offsets": [0, 8], "itemsize": 16})  # with a gap


@pytest.mark.parametrize("ways", ["relayout", "to_numpy", "many", "plan", "start"])
@pytest.mark.usefixtures("every_call_is_checked")
def test_a_check_compares_replicas(ways):
    def moved(t):
        target = Layout([U, t.mesh.dim_names[-1]], t.mesh)
        if ways == "plan":
            return mc.plan_relayout(t.shape, t.dtype, t.layout, target).execute(t)
        if ways == "to_numpy":
            return t.to_numpy()
        if ways == "start":
            return mc.start_relayout(t, target).wait()
        return mc.relayout(t if ways == "relayout" else [t, t], target)

    def program(rank, mesh):
        block = np.zeros((2, 3), RECORD)
        block.view("u1")[:, 1] = rank  # in the gap
        block["b"][1] = rank in (1, 3)  # with (2, 2) devices, 0 and 1 hold the same rows, 2 and 3 too
        return moved(mc.from_local(block, Layout(["x", U], mesh), (4, 3)))

    refused(program, LayoutError, "ranks 0 and 1 hold the same block, but the values differ")
    simulated(
        RANKS, lambda rank: moved(mc.zeros((4, 3), RECORD, Layout([U, U], mc.create_mesh([("x", 2), ("y", 2)]))))
    )


# -- arguments whose reprs say where they are in memory ---------------------------------------------------------------


class Mistake:
    """An argument that no call takes. Its repr is another one on each rank."""


MISTAKES = {
    "op of all_reduce": lambda its, t, path: mc.all_reduce([1], op=its),
    "op of reduce_scatter": lambda its, t, path: mc.reduce_scatter([1, 2], op=its),
    "root of broadcast": lambda its, t, path: mc.broadcast([1], root=its),
    "root of distribute": lambda its, t, path: mc.distribute([1.0], Layout([U], t.mesh), root=its),
    "root of to_numpy": lambda its, t, path: t.to_numpy(its),
    "groups": lambda its, t, path: mc.all_gather([1], its),
    "rank in groups": lambda its, t, path: mc.all_gather([1], [[its]]),
    "pairs": lambda its, t, path: mc.collective_permute([1], its),
    "rank in pairs": lambda its, t, path: mc.collective_permute([1], [(its, 0)]),
    "dimension": lambda its, t, path: mc.all_gather([1], None, its),
    "split_count": lambda its, t, path: mc.all_to_all([1, 2], None, 0, 0, its),
    "barrier": lambda its, t, path: mc.barrier(t.mesh, its),
    "names of load": lambda its, t, path: mc.load(path, t.layout, names=its),
    "slices of load": lambda its, t, path: mc.load(path, t.layout, slices=its),
    "dtype of load": lambda its, t, path: mc.load(path, t.layout, dtype=its),
    "order of norm": lambda its, t, path: np.linalg.norm(t, its),
    "mode of pad": lambda its, t, path: np.pad(t, 1, mode=its),
}
RIGHT = {"barrier"}  # any object names a barrier


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("name", MISTAKES)
def test_a_right_call_follows_a_wrong_one_whose_argument_has_an_address(name, ranks, tmp_path):
    def program(rank):
        mesh = mc.create_mesh([("x", -1)])
        t = mc.distribute(np.arange(6.0), Layout(["x"], mesh))
        mc.save(tmp_path / "saved", {"a": t}, overwrite=True)
        try:
            MISTAKES[name](Mistake(), t, tmp_path / "saved")
            said = None
        except (TypeError, ValueError, IndexError, mc.MeshcommError) as error:
            said = type(error)
        assert (said is None) == (name in RIGHT)
        assert mc.all_reduce([1]).tolist() == [ranks]
        assert t.to_numpy().tolist() == [0, 1, 2, 3, 4, 5]
        return said

    assert len(set(simulated(ranks, program))) == 1
