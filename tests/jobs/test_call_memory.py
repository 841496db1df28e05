"""The law of memory: a call needs three blocks and 32 MiB at most, or its row in docs/call-memory.md says why."""

import json
import re
from importlib.util import find_spec

import pytest

from support import call_memory
from support.paths import DOCS, PROGRAMS, ROOT, TESTS
from support.sampling import sampled

pytestmark = pytest.mark.any_mpi

TABLES = {"numpy": call_memory.NUMPY, "xarray": call_memory.XARRAY}
ELSEWHERE = {"busday_count", "busday_offset", "is_busday", "datetime_as_string"}  # of dates, with nothing to move
ASKED = "common_type can_cast min_scalar_type result_type isrealobj iscomplexobj isfortran einsum_path"
ASKED = {  # they compute nothing with elements
    *ASKED.split(), "tril_indices_from", "triu_indices_from", "array_repr", "array_str", "shape", "ndim", "size"
}  # fmt: skip


@pytest.mark.parametrize("name", TABLES)
def test_calls_need_what_their_rows_say(launch, tmp_path, name):
    if name == "xarray" and find_spec("xarray") is None:
        pytest.skip("xarray is not installed")
    stated = {call: float(most) for most, calls in TABLES[name].items() for call in calls}
    calls = sampled(list(stated), 30)
    (tmp_path / "calls.json").write_text(json.dumps(calls), "utf-8")
    settings = {"PYTHONPATH": f"{TESTS}:{ROOT}", "OMP_NUM_THREADS": "1"}
    job = launch(2, PROGRAMS / "call_memory.py", tmp_path / "calls.json", name, cpu=240, **settings)
    assert job.code == 0, job
    found = json.loads(next(line for line in job.text.splitlines() if line.startswith("{")))
    assert list(found) == calls
    for call, most in found.items():
        assert stated[call] - 1.5 < most <= stated[call] + 0.2, f"{call}: {most:.2f} blocks, not {stated[call]}"


def test_rows_above_the_limit_say_why():
    above = {call for table in TABLES.values() for most, calls in table.items() if float(most) > call_memory.MOST
             for call in calls}  # fmt: skip
    assert above == set(call_memory.WHYS)


def test_the_page_has_the_rows():
    assert call_memory.page() == call_memory.PAGE.read_text("utf-8"), "run python -m support.call_memory in tests/"


def test_all_functions_of_the_page_of_numpy_have_a_row():
    text = (DOCS / "numpy.md").read_text("utf-8")
    text = text.split("## Functions of samples, and others")[1].split("`mc.fromfunction(f, shape, layout)`")[0]
    named = {name for row in re.findall(r"^\|(.*?)\|", text, re.MULTILINE) for name in re.findall(r"`([\w.]+)`", row)}
    calls = " ".join(call for calls in call_memory.NUMPY.values() for call in calls)
    missing = {name for name in named - ELSEWHERE - ASKED if f"np.{name}(" not in calls}
    assert not missing
