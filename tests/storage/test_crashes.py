"""A process that dies in a save, at any call of the system: the old content is there, or the new one, as a whole."""

import shutil
from pathlib import Path
from random import Random

import pytest

import meshcomm as mc
from support.sampling import sampled
from support.small_saves import SUFFIXES, found_at, listed, prepared, save, save_here
from support.system_calls import WHEN, calls_of, killed, watched

CASES = [(suffix, over, mc.save) for suffix in SUFFIXES for over in (False, True)]
CASES += [("", True, mc.start_save), (".npy", True, mc.start_save), (".zarr", False, mc.start_save)]


pytestmark = pytest.mark.usefixtures("small_files")


def kills(folder, suffix, over, how):
    """Return the calls of a save, each with when the process dies."""
    path = prepared(folder, suffix, over)
    calls = calls_of(lambda: save(path, 2, how))
    return [(at, when) for at, call in enumerate(calls) for when in WHEN if when != "half" or call.name == "pwrite"]


def kill_each(tmp_path, suffix, over, how, count):
    """Kill saves at *count* of their calls, and check that most have died there, and what is found afterwards."""
    tried = sampled(kills(tmp_path / "counted", suffix, over, how), count)
    expected = listed(tmp_path / "counted")
    old, died = prepared(tmp_path / "old", suffix, over).parent, 0
    for at, when in tried:
        path = Path(shutil.copytree(old, tmp_path / f"{at}-{when}")) / f"saved{suffix}"
        died += killed(lambda path=path: save(path, 2, how), at, when)
        assert found_at(path) in ((1, 2) if over else (None, 2)), (at, when)
        save(path, 3)
        assert found_at(path) == 3
        left = [name for name in listed(path.parent) if name not in expected]
        assert not left, (at, when, left)
        shutil.rmtree(path.parent)
    assert died > len(tried) / 2


@pytest.mark.parametrize(("suffix", "over", "how"), sampled(CASES))
def test_a_process_dies_at_any_call_of_a_save(suffix, over, how, tmp_path):
    # 500 kills over all cases; all 1,290 with --exhaustive
    kill_each(tmp_path, suffix, over, how, 40)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_many_processes_die_one_after_another(suffix, tmp_path):
    path, random, last = tmp_path / f"saved{suffix}", Random(1), None
    for number in sampled(range(1, 10)):
        killed(lambda number=number: save(path, number), random.randrange(60), random.choice(WHEN))
        found = found_at(path)
        assert found in (last, number)
        last = found
    save(path, 100)
    expected = prepared(tmp_path / "expected", suffix, True)
    assert [n for n in listed(tmp_path) if not n.startswith("expected")] == listed(expected.parent)


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("over", [False, True])
def test_all_is_on_the_disk_before_it_gets_its_name(suffix, over, tmp_path):
    path, dirty, new, renamed = prepared(tmp_path / "f", suffix, over), set(), set(), []

    def look(number, call):
        of = None if call.name == "close" else _named(call.args[0])
        result = call.run()
        if call.name in ("pwrite", "ftruncate", "_allocate"):
            dirty.add(of)
        if call.name == "mkdir" or (call.name == "open" and call.args[1] & 0o100):
            new.add(of)
        if call.name == "fsync":
            dirty.discard(of)
            new.difference_update({each for each in new if each.parent == of})
        if call.name in ("replace", "_exchange"):
            assert not dirty, call
            assert not new - {of}, call
            renamed.append(of)
            new.add(Path(call.args[1]))
        return result

    with watched(look):
        save(path, 2)
    assert len(renamed) == 1
    assert not dirty
    assert not new - set(renamed)


def _named(path_or_number):
    return Path(f"/proc/self/fd/{path_or_number}").readlink() if type(path_or_number) is int else Path(path_or_number)


def save_step(folder, step):
    """Save the content with the number of the step, and keep this step only."""
    with mc.simulate(2) as world:
        world.run(save_here, folder, step, lambda path, tree: mc.Checkpoints(path, keep=1).save(step, tree))


def test_a_process_dies_in_a_run_that_keeps_one_step(tmp_path):
    save_step(tmp_path / "old", 1)
    copy = shutil.copytree(tmp_path / "old", tmp_path / "counted")
    calls = calls_of(lambda: save_step(copy, 2))
    for at, when in sampled([(at, when) for at in range(len(calls)) for when in ("before", "after")], 12):
        folder = Path(shutil.copytree(tmp_path / "old", tmp_path / f"{at}-{when}"))
        assert killed(lambda folder=folder: save_step(folder, 2), at, when)
        run = mc.Checkpoints(folder)
        with mc.simulate(2) as world:
            assert world.run(run.latest)[0] in (1, 2)
        assert found_at(run.path_of(run.latest())) == run.latest()
        save_step(folder, 3)
        assert listed(folder) == ["step-000000003", "step-000000003/data", "step-000000003/manifest.json"]
        shutil.rmtree(folder)
