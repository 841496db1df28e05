"""Nothing that older versions wrote is lost: pickles, texts and wire bytes recorded from them still load."""

import base64
import functools
import json
import pickle

import numpy as np
import pytest

import meshcomm as mc
from meshcomm.plans.search import Candidate
from support.recorded import DATA, PROTOCOLS, VALUES, names_in, record_of

# Two of these are never equal, so their hashes need not be.
IDENTITIES = ("PerReplica", *[name for name in VALUES if isinstance(VALUES[name](), Exception)])
RECORDS = sorted(path.name for path in DATA.glob("recorded-*.json"))


@functools.cache
def recorded(record):
    return json.loads((DATA / record).read_text())


def entries():
    return [(record, name) for record in RECORDS for name in recorded(record)]


def loaded(record, name, protocol):
    return pickle.loads(base64.b64decode(recorded(record)[name]["pickles"][str(protocol)]))


def timeless(value):
    """Return *value* without the costs of candidates: each version computes them by its own cost model."""
    if isinstance(value, Candidate):
        return value._replace(seconds=0.0)
    return tuple(map(timeless, value)) if type(value) is tuple else value


def facts(value):
    """Return what must be the same of two values that are the same, as something that `==` compares."""
    if isinstance(value, Exception):
        return type(value), value.args, str(value)
    if isinstance(value, mc.Plan):
        numbers = value.bytes_moved, value.messages, value.peak_bytes, value.seconds
        return value, repr(value), numbers, facts(value.steps), facts(value.candidates), value.ranks
    if hasattr(value, "group_assignment"):  # a step
        boxes = [facts(each(device)) for device in range(len(value.ranks)) for each in (value.sends, value.receives)]
        return type(value), value, repr(value), value.group_assignment, value.packs, value.unpacks, boxes
    if isinstance(value, mc.LayoutMap):
        names = ("dense_1.kernel", "dense.kernel2", "head", "the head", "my.bias", "C", "xaab")
        found = [value[name] if value.mode == "match" else value.report([name]) for name in names]
        return list(value.items()), value.mode, value.get_default_mesh(), found
    if isinstance(value, mc.DeviceAssignment):
        return value.topology, value.core_assignment.tolist(), value.ranks.tolist(), repr(value)
    if isinstance(value, mc.PerReplica):
        return value.values
    if isinstance(value, np.ndarray):
        return value.dtype, value.tolist()
    if callable(value):  # an initializer
        slices = (slice(1, 3), slice(0, 5))
        return value, facts(value(slices, (4, 6), np.dtype("f8"))), facts(value(slices, (4, 6), "f4"))
    if isinstance(value, Candidate):
        return type(value), value.name, facts(value.steps)
    if isinstance(value, tuple):
        return type(value), [facts(each) for each in value]
    return type(value), value, repr(value)


def test_there_is_a_record_and_every_value_of_it_can_be_made():
    assert "recorded-0.1.json" in RECORDS
    for record in RECORDS:
        assert set(recorded(record)) <= set(VALUES)


@pytest.mark.parametrize(("record", "name"), entries())
def test_old_pickles_load_and_can_be_pickled_again(record, name):
    expected = facts(VALUES[name]())
    for protocol in PROTOCOLS:
        value = loaded(record, name, protocol)
        assert facts(value) == expected, f"protocol {protocol}"
    assert facts(pickle.loads(pickle.dumps(value))) == expected


@pytest.mark.parametrize(("record", "name"), [e for e in entries() if "text" in recorded(e[0])[e[1]]])
def test_old_texts_mean_the_same(record, name):
    text, value = recorded(record)[name]["text"], VALUES[name]()
    assert value.to_string() == text
    assert type(value).from_string(text) == value


@pytest.mark.parametrize(("record", "name"), [e for e in entries() if "wire" in recorded(e[0])[e[1]]])
def test_old_bytes_mean_the_same(record, name):
    data, value = bytes.fromhex(recorded(record)[name]["wire"]), VALUES[name]()
    if isinstance(value, mc.Topology):
        assert value.serialized() == data
        assert mc.Topology(data) == value
    else:
        assert value.serialized_string() == data
        assert type(value).from_proto(data) == value


def has_hash(value):
    try:
        return hash(value) is not None
    except TypeError:
        return False


@pytest.mark.parametrize(("record", "name"), [e for e in entries() if e[1] not in IDENTITIES])
def test_hashes_are_not_remembered_by_pickles(record, name):
    """Texts hash differently in each process: a hash that a pickle brings along finds nothing in a dict."""
    value = VALUES[name]()
    if has_hash(value):
        assert hash(timeless(loaded(record, name, 5))) == hash(timeless(value))
    else:
        assert isinstance(value, mc.LayoutMap | mc.LayoutReport)


# -- what the pickles of today say ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", VALUES)
def test_new_pickles_load(name):
    value = VALUES[name]()
    expected = facts(value)
    for protocol, text in record_of(value)["pickles"].items():
        assert facts(pickle.loads(base64.b64decode(text))) == expected, protocol


def test_facts_tell_values_apart():
    """The comparison of this file can fail: no two different values have the same facts."""
    same = {frozenset(pair) for pair in SAME}
    seen = {}
    for name, make in VALUES.items():
        found = facts(make())
        for other, those in seen.items():
            if found == those:
                assert frozenset((name, other)) in same, (name, other)
        seen[name] = found


SAME = [
    ("Plan: AllToAll", "Plan: AllToAll, used"),
    ("steps of AllToAll", "steps of AllToAll, used"),
    ("LayoutMap", "LayoutMap, used"),
]


def test_names_are_read_from_pickles():
    assert names_in(pickle.dumps(mc.Machine(), 2)) == [f"{mc.Machine.__module__} Machine"]
    assert names_in(pickle.dumps((1, "meshcomm.steps Slice"), 2)) == []
