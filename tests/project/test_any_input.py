"""Any input to a parser: a value or a documented error, in a time that its length bounds.

``make fuzz INPUTS=1000000`` tries so many inputs for each parser; without ``--count`` there are a few thousand.
"""

import json
import os
import time
from itertools import islice

import pytest

import meshcomm as mc
from meshcomm.core.failures import abort
from meshcomm.core.layouts.dtype_text import dtype_of_text, dtype_text
from meshcomm.core.ranks import hosts, rendezvous, sizes
from support.inputs import texts, wires
from support.patience import cpu_factor
from support.sampling import counted
from support.strategies import DTYPES

MESHES = [
    mc.Mesh(range(4), [("x", 2), ("y", 2)]),
    mc.Mesh(
        [f"/job:w/replica:0/task:{i}/device:TPU:{i}" for i in range(6)], [("batch", 3), ("model", 2)], mesh_name="m"
    ),
    mc.Mesh(["CPU:0"], [("x", 1)]),
]
LAYOUTS = [
    mc.Layout(["x", mc.UNSHARDED], MESHES[0]),
    mc.Layout([("x", "y"), mc.UNSHARDED], MESHES[0]),
    mc.Layout(["model", "batch"], MESHES[1]),
    mc.Layout([], MESHES[2]),
    mc.Layout([mc.Cuts("x", (0, 3, 11)), mc.Cyclic("y", 64, 1)], MESHES[0]),
    mc.Layout([mc.Cyclic(("model", "batch"), 3, offset=5), mc.UNSHARDED], MESHES[1]),
    mc.Layout([mc.Cuts(("x", "y"), (0, 0, 5, 5, 2**61))], MESHES[0]),
]
TOPOLOGIES = [
    mc.Topology(mesh_shape=[2, 1, 1, 2], device_coordinates=[[[i, 0, 0, j] for j in range(2)] for i in range(2)]),
    mc.Topology(mesh_shape=[1, 3, 1, 1], device_coordinates=[[[0, i, 0, 0]] for i in range(3)], ranks=[[2], [0], [1]]),
]
MESH_TEXTS = [
    *(mesh.to_string() for mesh in MESHES),
    "|x=4|*CPU",
    "m|x=2,y=2|0,1,2,3|0,1|CPU:0,CPU:1|CPU:0,CPU:1,CPU:2,CPU:3",
    "CPU:0",
]
DEVICES = ["/job:mpi/replica:0/task:3/device:CPU:0", "TPU:0", "/job:w/task:12/device:GPU:7", "device:CPU:1", "cpu:0"]
SIZES = ["500M", "2G", "0", "1.5 GiB", "12 kb", "", "inf", "nan", "1e3", "1_0", "600", "0x10"]
MACHINE = json.dumps({"alpha_within": 1e-6, "gamma": 0, "beta_between": 2e-10})

SECONDS = 0.05  # of CPU time for any input, and
SECONDS_PER_ELEMENT = 1e-5  # for each character, byte or device of it


def setting(name, read):
    def parse(text):
        os.environ[name] = text
        read()

    return parse


def machine_file(text):
    with open(os.environ["MESHCOMM_MACHINE"], "w", encoding="utf-8", errors="replace") as file:
        file.write(text)
    hosts.stored_constants()


PARSERS = {
    "layout text": (
        mc.Layout.from_string,
        texts(
            [*(each.to_string() for each in LAYOUTS), "maximal:true, mesh:CPU:0"],
            [
                *("unsharded", "match", "scalar", "mesh:", "sharding_specs:", "parted:", "maximal:true,"),
                *("=cuts(0;", "=cyclic(1)", "cyclic(2;1)", "=cuts(", ";", "(", ")", ";0", "=foo(3)", "=cuts()"),
            ],
        ),
    ),
    "mesh text": (mc.Mesh.from_string, texts(MESH_TEXTS, ["*CPU", "use_xla_spmd", "x=", "device:"])),
    "device strings": (
        lambda text: mc.Mesh([text, "CPU:7"], [("x", 2)]),
        texts(DEVICES, ["job:", "task:", "device:", "replica:"]),
    ),
    "single device": (mc.Mesh.from_device, texts(DEVICES, ["job:", "task:", "device:"])),
    "rule of a spec": (
        lambda text: mc.Layout.from_string(f"sharding_specs:{text}, mesh:|x=2,y=2|*CPU"),
        texts(
            ["x=cuts(0;3;7)", "x+y=cuts(0;1;1;1;9)", "y=cyclic(64)", "y+x=cyclic(3;2)", "x"],
            ["=cuts(0;", "=cyclic(", ";;", "=", ")", "0;0", "x+y", ";9223372036854775807"],
        ),
    ),
    "layout wire form": (mc.Layout.from_proto, wires([each.serialized_string() for each in LAYOUTS])),
    "mesh wire form": (mc.Mesh.from_proto, wires([each.serialized_string() for each in MESHES])),
    "layout of bytes": (mc.Layout.from_str, wires([each.serialized_string() for each in LAYOUTS])),
    "topology wire form": (mc.Topology, wires([each.serialized() for each in TOPOLOGIES])),
    "dtype text": (
        dtype_of_text,
        texts(
            [dtype_text(dtype) for dtype in DTYPES],
            [
                '"|O"',
                '"i4,f8"',
                '{"ml_dtypes": "finfo"}',
                '{"base":',
                '"names": ["a"]',
                *["null", "true", "NaN", "[[", "{}"],
            ],
        ),
    ),
    "MESHCOMM_SHARED_MEMORY": (
        setting("MESHCOMM_SHARED_MEMORY", rendezvous.shared_limit),
        texts(SIZES, ["K", "GiB", "T"]),
    ),
    "MESHCOMM_WHOLE_BELOW": (setting("MESHCOMM_WHOLE_BELOW", sizes.whole_below), texts(SIZES, ["KiB", "T"])),
    "MESHCOMM_TIMEOUT": (setting("MESHCOMM_TIMEOUT", abort.timeout_seconds), texts(SIZES, ["e", "inf", "nan"])),
    "MESHCOMM_MACHINE": (
        machine_file,
        texts(
            [MACHINE, "{}", "[]", "null", '{"gamma": NaN}'],
            ['"nodes":', "NaN", "Infinity", "true", "null", "[[", '"wait_within"'],
        ),
    ),
}


def seconds_of(parse, value):
    """Return the CPU time that *parse* takes, after checking that it raises nothing but errors of ours."""
    started = time.process_time()
    try:
        parse(value)
    except mc.MeshcommError as error:
        assert len(str(error)) < 3000, (value, str(error)[:200])  # noqa: PT017 - most inputs are errors
    except Exception as error:
        raise AssertionError(f"{value!r} raises {error!r}") from error
    return time.process_time() - started


@pytest.mark.parametrize("name", PARSERS)
def test_any_input_is_a_value_or_a_documented_error(name, monkeypatch, tmp_path):
    monkeypatch.setattr(os, "environ", os.environ | {"MESHCOMM_MACHINE": str(tmp_path / "machine.json")})
    parse, generated = PARSERS[name]
    for value in islice(generated, counted(2000)):
        most = (SECONDS + SECONDS_PER_ELEMENT * len(value)) * cpu_factor()
        if name in ("layout text", "mesh text"):
            most += 2.0 * cpu_factor()  # |x=1000000|*CPU
        if seconds_of(parse, value) > most:
            assert min(seconds_of(parse, value) for _ in range(3)) <= most, value
