"""Files of the namespace: one rank writes, and each reads its block."""

import io

import numpy as np
import pytest

import meshcomm as mc
import meshcomm.numpy as namespace
from support.reference import same_bits

ARRAYS = {"small": np.arange(6.0).reshape(2, 3), "large": np.arange(30_000).reshape(300, 100), "a number": np.array(3)}


@pytest.mark.parametrize("name", ARRAYS)
def test_save_and_load(tmp_path, name):
    array = ARRAYS[name]

    def program():
        x = namespace.array(array)
        for path in (tmp_path / "a.npy", tmp_path / "b"):
            namespace.save(path, x)
        namespace.savez(tmp_path / "c.npz", x, y=x)
        namespace.savez_compressed(str(tmp_path / "d"), z=x)
        file = io.BytesIO()
        namespace.save(file, x)
        found = [namespace.load(tmp_path / "a.npy"), namespace.load(tmp_path / "b.npy", mmap_mode="r")]
        with namespace.load(tmp_path / "c.npz") as both:
            assert sorted(both) == ["arr_0", "y"]
            found += [both["arr_0"], both["y"]]
        found += [*namespace.load(tmp_path / "d.npz").values()]
        file.seek(0)
        found.append(namespace.load(file))
        x.tofile(tmp_path / "e.bin")
        found.append(namespace.fromfile(tmp_path / "e.bin", x.dtype).reshape(x.shape))
        for each in found:
            assert isinstance(each, mc.DTensor if x.nbytes >= 2**16 else np.ndarray)
            assert each.layout == x.layout
            assert same_bits(each.to_numpy(), array)

    for ranks in (1, 2, 3):
        with mc.simulate(ranks) as world:
            world.run(program)
        assert same_bits(np.load(tmp_path / "a.npy"), array)


def test_texts(tmp_path):
    def program():
        namespace.savetxt(tmp_path / "a.txt", namespace.arange(6.0).reshape(2, 3), fmt="%.1f")
        namespace.savetxt(tmp_path / "b.txt", [1, 2])
        return namespace.loadtxt(tmp_path / "a.txt").tolist()

    with mc.simulate(2) as world:
        assert world.run(program) == [[[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]] * 2


def test_errors(tmp_path):
    def program():
        with pytest.raises(FileNotFoundError):
            namespace.savez(tmp_path / "none" / "a.npz", namespace.arange(3))
        with pytest.raises(FileNotFoundError):
            namespace.load(tmp_path / "none.npy")
        with pytest.raises(TypeError, match=r"mc\.open"):
            namespace.memmap(tmp_path / "a.bin", mode="w+", shape=(2**13, 2**14))
        assert not (tmp_path / "a.bin").exists()
        with pytest.raises(TypeError, match=r"mc\.save"):
            namespace.load(tmp_path / "a.npy", mmap_mode="r+")

    with mc.simulate(2) as world:
        world.run(program)


def test_mapped_files_are_whole(tmp_path):
    def program():
        made = namespace.memmap(tmp_path / "m.bin", "f8", "w+", shape=(3, 4))
        made[1] = 5
        made.flush()
        again = namespace.memmap(tmp_path / "m.bin", dtype="f8", mode="r", offset=32)
        assert isinstance(again, namespace.memmap)
        assert type(again) is np.memmap
        return (again + namespace.ones(8)).sum()

    with mc.simulate(2) as world:
        assert world.run(program) == [28.0, 28.0]


@pytest.mark.usefixtures("scripted")
def test_objects_with_tensors_are_written(tmp_path):
    def program():
        x = namespace.arange(10_000.0)
        namespace.save(tmp_path / "o.npy", {"x": x})
        namespace.savez(tmp_path / "z", d={"x": x}, n=[1, 2], x=x)

    with mc.simulate(2) as world:
        world.run(program)
    assert np.load(tmp_path / "o.npy", allow_pickle=True).item()["x"].sum() == 49_995_000
    with np.load(tmp_path / "z.npz", allow_pickle=True) as both:
        assert both["d"].item()["x"][5] == 5
        assert both["n"].tolist() == [1, 2]
        assert both["x"].shape == (10_000,)
