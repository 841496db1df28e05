"""Values that were used in one process are pickled there, and are the same values in another."""

import base64
import os
import pickle
import sys

import meshcomm as mc
from support.paths import ROOT, TESTS
from support.patience import run
from support.values import values

PROTOCOLS = range(2, pickle.HIGHEST_PROTOCOL + 1)


def facts(value):
    """Return what must be the same of two values that are the same, as something that `==` compares."""
    if isinstance(value, Exception):
        return type(value), value.args, str(value)
    if isinstance(value, mc.PerReplica):
        return value.values
    if isinstance(value, mc.LayoutMap):
        names = ["dense_1.kernel", "my.dense_1.kernel", "the head", "norm"]
        return value, value.mode, value.get_default_mesh(), value.report(names)
    return type(value), value, str(value), getattr(value, "load", None), hash_of(value)


def hash_of(value):
    try:
        return hash(value)
    except TypeError:
        return None


def used(values):
    """Return *values*, which may remember what they were asked for."""
    return values if [facts(value) for value in values.values()] else None


def dump():
    made = used(values())
    print(base64.b64encode(pickle.dumps([pickle.dumps(made, protocol) for protocol in PROTOCOLS])).decode())


def test_pickles_of_another_process():
    """Texts hash differently there: a hash that a pickle brings along finds nothing in a dict."""
    done = run([sys.executable, __file__], env={**os.environ, "PYTHONPATH": f"{ROOT}:{TESTS}"})
    assert done.returncode == 0, done.stderr
    expected = {name: facts(value) for name, value in values().items()}
    assert len(set(map(repr, expected.values()))) == len(expected)  # no two values look the same
    for protocol, data in zip(PROTOCOLS, pickle.loads(base64.b64decode(done.stdout)), strict=True):
        found = {name: facts(value) for name, value in pickle.loads(data).items()}
        assert [name for name in expected if found[name] != expected[name]] == [], protocol


def test_pickles_of_plans_have_no_more_than_their_fields():
    made = values()
    sizes = {name: len(pickle.dumps(value)) for name, value in made.items()}
    assert {name: len(pickle.dumps(value)) for name, value in used(made).items()} == sizes


if __name__ == "__main__":
    dump()
