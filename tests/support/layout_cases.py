"""Meshes for tests of layouts, and where layouts differ from TensorFlow's."""

import re
import sys
from contextlib import contextmanager
from typing import NamedTuple

import pytest
from hypothesis import settings
from hypothesis import strategies as st

from meshcomm.layouts import wire
from meshcomm.layouts.mesh import Mesh
from support.sampling import examples

REPEATABLE = settings(derandomize=True, database=None, deadline=None, max_examples=examples(300))


def host_devices(n):
    return [f"/job:localhost/replica:0/task:0/device:CPU:{i}" for i in range(n)]


@contextmanager
def no_protobuf():
    """Let the protobuf package be absent meanwhile."""
    with pytest.MonkeyPatch.context() as patch:
        for module in ("google.protobuf.descriptor_pool", "google.protobuf.message_factory"):
            patch.setitem(sys.modules, module, None)
        wire._pool.cache_clear()
        wire._protobuf_class.cache_clear()
        yield
    wire._pool.cache_clear()
    wire._protobuf_class.cache_clear()


@st.composite
def mutated(draw, valid, characters="|,=xy:0129+* \u0661Cms"):
    """One of *valid* with up to three slices replaced by something else, mostly of the same characters."""
    value = draw(st.sampled_from(valid))
    replacement = st.binary(max_size=3) if isinstance(value, bytes) else st.text(characters, max_size=3)
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, len(value)))
        stop = draw(st.integers(start, min(len(value), start + 3)))
        value = value[:start] + draw(replacement) + value[stop:]
    return value


MESH = Mesh(host_devices(6), [("x", 3), ("y", 2)])


class Departure(NamedTuple):
    """Where we deliberately answer otherwise than TensorFlow."""

    tensorflow: str
    ours: str
    why: str


DEPARTURES = {
    "Layout.from_string('sharding_specs:x mesh:…')": Departure(
        "drops what follows the last comma, so the layout has no axes",
        "LayoutError",
        "a spec must not vanish silently",
    ),
    "Layout.from_string('sharding_specs:any, mesh:…')": Departure(
        "accepts the wildcard `any`, on which relayout crashes", "LayoutError", "its own constructor refuses it too"
    ),
    "Layout.from_string('sharding_specs:any,any, mesh:…')": Departure(
        "accepts the wildcard `any` twice", "LayoutError", "its own constructor refuses it too"
    ),
    "Layout.from_string('empty_layout')": Departure(
        "returns a layout without a mesh", "LayoutError", "it says nothing about any device"
    ),
    "Mesh.from_string('empty_mesh')": Departure(
        "returns a mesh of no devices", "MeshError", "a mesh has at least one device"
    ),
    "Layout.shape": Departure(
        "the mesh's shape (2.21); shards per axis (2.9)",
        "shards per axis",
        "the seed's meaning; `mesh.shape()` has the other",
    ),
    "Layout.is_fully_replicated": Departure(
        "every spec is `unsharded` (2.21); one shard per axis (2.9)",
        "one shard per axis",
        "over a mesh dimension of size 1 every device holds everything",
    ),
    "negative axes": Departure(
        "crash, or are ignored",
        "count from the end in `num_shards`, `delete` and `batch_sharded`",
        "as everywhere in Python",
    ),
    "Layout.num_shards(axis out of range)": Departure("crashes the process", "LayoutError", "an error, not a crash"),
    "Layout.num_shards(axis of MATCH)": Departure("2**64 - 1 (2.21); -1 (2.9)", "-1", "the seed's answer"),
    "Layout.delete(axis out of range)": Departure("ignored", "LayoutError", "no silent errors"),
    "Layout.batch_sharded(axis or rank out of range)": Departure(
        "crashes the process", "LayoutError", "an error, not a crash"
    ),
    "Layout.batch_sharded(unknown mesh dimension)": Departure(
        "RuntimeError: Bad StatusOr access", "LayoutError", "the constructor's error"
    ),
    "Layout.replicated(negative rank)": Departure("MemoryError", "LayoutError", "an error that leaks"),
    "Layout.offset_to_shard() with MATCH": Departure("KeyError", "LayoutError", "an error that leaks"),
    "Layout.offset_tuple_to_global_index(out of range)": Departure(
        "any number, also for extra entries", "LayoutError", "no silent errors; fewer entries than axes stay legal"
    ),
    "Layout.local_shape_from_global_shape(uneven)": Departure(
        "rounds down", "ShapeError", "blocks differ in length: `block_slices` gives each one"
    ),
    "shapes with another number of axes": Departure(
        "reads garbage or crashes", "LayoutError", "an error, not a crash"
    ),
    "sharding specs that are no list": Departure("TypeError or AttributeError", "LayoutError", "errors that leak"),
    "a tuple of mesh dimensions on one axis": Departure(
        "not expressible", "accepted, and written `x+y`", "an extension, asked for by users"
    ),
    "Mesh('TPU:0', ...)": Departure(
        "the constructor takes ids and devices apart",
        "device strings or ranks, and dimensions",
        "the form the seed writes",
    ),
    "names that the text form cannot hold": Departure(
        "accepted by the constructor, then not parsed", "MeshError", "every value has a text form"
    ),
    "reserved and repeated names of mesh dimensions": Departure(
        "accepted by the constructor, refused in text", "MeshError", "one rule for both"
    ),
    "the mesh dimension name 'scalar'": Departure("allowed", "MeshError", "in the text of a layout it means no axes"),
    "more than 32 mesh dimensions": Departure("allowed", "MeshError", "NumPy's arrays have no more axes everywhere"),
    "duplicate devices": Departure(
        "allowed if all of them are one CPU", "MeshError", "a device has one location in a mesh"
    ),
    "mesh[unknown name]": Departure(
        "ValueError (2.21); KeyError (2.9)", "MeshError that is a KeyError too", "both kinds of callers keep working"
    ),
    "== with another type": Departure("TypeError", "False", "as Python's values do"),
    "repr of layouts and meshes": Departure(
        "their wire text", "specs, dimensions, and what ranks there are", "people read it; `to_string` gives the text"
    ),
    "sizes like ' 3', '+3' or '3abc' in text": Departure("read as 3", "MeshError", "no silent errors"),
    "'|x=999999999999|*CPU'": Departure(
        "makes that many device strings", "MeshError", "a text asks for at most 2**20 generated devices"
    ),
    "deprecated groups in a proto": Departure("skipped", "MeshError or LayoutError", "no proto3 writer makes them"),
    "wrong wire types in a proto": Departure("skipped as unknown", "MeshError or LayoutError", "no silent errors"),
}


def golden_key(kind, text):
    """The key in DEPARTURES of a recorded text."""
    return f"{kind}.from_string('{re.sub('mesh:.*', 'mesh:…', text)}')"
