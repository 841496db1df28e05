"""Saves of small numbered contents, and loads that return the number of the content they find."""

import re

import numpy as np

import meshcomm as mc
from meshcomm import Layout
from support.saved import SUFFIXES as SUFFIXES
from support.tensors import on

U = mc.UNSHARDED


def arrays(number):
    """Return the two arrays of content *number*: the first element is the number, and one length depends on it."""
    return np.arange(24.0).reshape(6, 4) + number, np.full(3 + number % 2, number, "i4")


def save_here(path, number, how=mc.save):
    """Save the content with this number. Collective over two ranks."""
    mesh = mc.create_mesh([("x", 2)])
    floats, integers = arrays(number)
    tensor = mc.distribute(floats, Layout(["x", U], mesh))
    tree = {"a": tensor, "more": {"b": mc.distribute(integers, Layout([U], mesh))}}
    request = how(path, tensor if path.suffix == ".npy" else tree)
    if request is not None:
        request.wait()


def save(path, number, how=mc.save):
    """Save the content with this number from two simulated ranks."""
    on(2, save_here, path, number, how)


def found_at(path):
    """Return the number of the content at *path*, None if there is none; fail if it is incomplete."""

    def program():
        tree = mc.load(path)
        if not isinstance(tree, dict):
            return [tree.to_numpy()]
        if path.suffix:
            return [tensor.to_numpy() for tensor in tree.values()]
        return [tree["a"].to_numpy(), tree["more"]["b"].to_numpy()]

    with mc.simulate(2) as world:
        try:
            arrays_found = world.run(program)[0]
        except FileNotFoundError:
            return None
        except mc.CheckpointError:
            assert not path.suffix
            assert not (path / "manifest.json").exists()
            return None
    number = int(arrays_found[0].flat[0])
    for array, expected in zip(arrays_found, arrays(number), strict=False):
        np.testing.assert_array_equal(array, expected)
    return number


def listed(folder):
    """Return the names of all files and folders in *folder*, without the random parts of names of data files."""
    names = [str(path.relative_to(folder)) for path in folder.rglob("*")]
    return sorted(re.sub(r"-[0-9a-f]{16}", "", name) for name in names)


def prepared(folder, suffix, has_old_save):
    """Return the path to save to, in the new *folder*; if *has_old_save*, content 1 is saved there already."""
    folder.mkdir()
    path = folder / f"saved{suffix}"
    if has_old_save:
        save(path, 1)
    return path
