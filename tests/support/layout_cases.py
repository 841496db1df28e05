"""Meshes for tests of layouts, and documented differences between layouts and TensorFlow's."""

import re
import sys
from contextlib import contextmanager

import pytest
from hypothesis import settings
from hypothesis import strategies as st

from meshcomm import Mesh
from meshcomm.core.layouts import wire
from support.departures import departures
from support.sampling import examples

REPEATABLE = settings(derandomize=True, database=None, deadline=None, max_examples=examples(300))


def host_devices(n):
    return [f"/job:localhost/replica:0/task:0/device:CPU:{i}" for i in range(n)]


@contextmanager
def no_protobuf():
    """Return a context in which the protobuf package cannot be imported."""
    with pytest.MonkeyPatch.context() as patch:
        for module in ("google.protobuf.descriptor_pool", "google.protobuf.message_factory"):
            patch.setitem(sys.modules, module, None)
        wire._descriptor_pool.cache_clear()
        wire._protobuf_class.cache_clear()
        yield
    wire._descriptor_pool.cache_clear()
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


DEPARTURES = departures("Mesh and Layout")


def golden_key(kind, text):
    """The key in DEPARTURES of a recorded text."""
    return f"{kind}.from_string('{re.sub('mesh:.*', 'mesh:…', text)}')"
