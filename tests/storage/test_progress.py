"""The line on a terminal: by one rank, for long saves and loads only, and gone at the end."""

import io
import re
from contextlib import redirect_stderr
from types import SimpleNamespace

import numpy as np
import pytest

import meshcomm as mc
from meshcomm import Layout
from meshcomm.storage import files, progress
from support.saved import mesh_of_4, on, same

BIG = np.arange(400 * 300, dtype="f8").reshape(400, 300)


class Terminal(io.StringIO):
    """A text file that says it is a terminal."""

    def isatty(self):
        return True


@pytest.fixture
def clock(monkeypatch):
    """A clock that each look moves on by so many seconds."""
    steps = [0.0, 0.1]

    def now():
        steps[0] += steps[1]
        return steps[0]

    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=now))
    return steps


def shown(monkeypatch, path, stream):
    """Return what a save and a load show on *stream*."""

    def program():
        mc.save(path, mc.distribute(BIG, Layout(["x", "y"], mesh_of_4())))
        same(mc.load(path, Layout([mc.UNSHARDED, ("x", "y")], mesh_of_4())), BIG)

    monkeypatch.setattr(progress, "PROGRESS_BYTES", 2000)
    with redirect_stderr(stream):
        on(4, program)
    return stream.getvalue()


def test_a_long_save_and_load(tmp_path, monkeypatch, clock):
    text = shown(monkeypatch, tmp_path / "t.npy", Terminal())
    lines = [line for line in text.split("\r") if line.strip()]
    assert "\n" not in text
    assert text.endswith("\r")
    assert {line.partition(" ")[0] for line in lines} == {"saving", "loading"}
    found = [re.fullmatch(r"\w+ing .*/t\.npy: (\d+\.\d) of 937\.5 KiB, \d+\.\d KiB/s *", line) for line in lines]
    assert all(found)
    done = [float(match[1]) for line, match in zip(lines, found, strict=True) if line.startswith("saving")]
    assert done == sorted(done)
    assert done[-1] > 900
    assert len(lines) < 110, "it is written every 0.2 s, and not in the first 2 s"
    assert text.split("\r")[-2].strip() == "", "the line is cleared"


@pytest.mark.parametrize(("step", "stream"), [(0.001, Terminal()), (0.1, io.StringIO())], ids=["short", "no terminal"])
def test_nothing_is_shown(step, stream, tmp_path, monkeypatch, clock):
    clock[1] = step
    assert shown(monkeypatch, tmp_path / "t.npy", stream) == ""


def test_checksums_do_not_depend_on_it(tmp_path, monkeypatch, clock):
    shown(monkeypatch, tmp_path / "c", Terminal())
    assert on(2, lambda: mc.load(tmp_path / "c", check=True).shape) == [BIG.shape] * 2


def test_the_line_is_cleared_after_an_error(tmp_path, monkeypatch, clock):
    def full(self, data, offset):
        if offset > 100_000:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.File, "write", full)
    stream = Terminal()
    with pytest.raises(OSError, match="No space left"):
        shown(monkeypatch, tmp_path / "t.npy", stream)
    assert stream.getvalue().endswith("\r")
