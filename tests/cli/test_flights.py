"""Flight files, as the command reads them: which are refused, what is shown, and the first difference."""

import json
import os

import pytest

from meshcomm.errors import MeshcommError
from meshcomm.tools.cli.flight_files import first_difference, read
from meshcomm.tools.cli.flights import flights, summary

# -- the first difference ---------------------------------------------------------------------------------------------


def flight(rank, *calls):
    """Return the flight of a rank that made these *calls*: an operation, the digest after it, and what it is about."""
    flown = [
        {
            "operation": operation,
            "ranks": "0-2",
            "number": number,
            "began": 10.0 * rank + number,
            "digests": digests.split(),
            "about": about[0] if about else "",
            "rank_set": "0-2 #1",
        }
        for number, (operation, digests, *about) in enumerate(calls, 1)
    ]
    return {"rank": rank, "calls": flown}


BEFORE = ("barrier", "b")
ARGUMENTS = "with different arguments (layouts, shape, dtype, root ...)"
UNSURE = ", or after different calls, or after an error on one of them"
SEE = "; run again with MESHCOMM_CHECK=1 to see which"


@pytest.mark.parametrize(
    ("calls", "text"),
    [
        ([[BEFORE, ("relayout", "c")]] * 2, ""),
        ([[BEFORE, ("relayout", "c")], [BEFORE]], ""),
        ([[BEFORE, ("relayout", "c")], [BEFORE, ("relayout", "")]], ""),
        ([[BEFORE, ("relayout", "c d")], [BEFORE, ("relayout", "c")]], ""),
        (
            [[BEFORE, ("relayout", "c"), ("sum", "e")], [BEFORE, ("relayout", "d"), ("sum", "f")]],
            f"call 2 on ranks 0-2: rank 0 and rank 1 made relayout {ARGUMENTS}{SEE}",
        ),
        (
            [
                [BEFORE, ("relayout", "c", "(4, 6)")],
                [BEFORE, ("relayout", "c", "(4, 6)")],
                [BEFORE, ("relayout", "d")],
            ],
            f"call 2 on ranks 0-2: ranks 0, 1 and rank 2 made relayout {ARGUMENTS}\n"
            "  ranks 0, 1: (4, 6)\n  rank 2: not known",
        ),
        (
            [[("relayout", "c")], [("relayout", "d")]],
            f"call 1 on ranks 0-2: rank 0 and rank 1 made relayout {ARGUMENTS}{UNSURE}{SEE}",
        ),
        (
            [[BEFORE, ("relayout", "c", "(4, 6)")], [BEFORE, ("relayout", "d", "(4, 6)")]],
            f"call 2 on ranks 0-2: rank 0 and rank 1 made relayout {ARGUMENTS}{UNSURE}{SEE}",
        ),
        (
            [[("sort", "c d")], [("sort", "c e")]],
            f"call 1 on ranks 0-2: rank 0 and rank 1 made sort {ARGUMENTS}{SEE}",
        ),
        (
            [[BEFORE, ("sort", "c"), ("sum", "x")], [BEFORE, ("sort", "c d"), ("sum", "y")]],
            f"call 3 on ranks 0-2: rank 0 and rank 1 made sum {ARGUMENTS}{SEE}",
        ),
        (
            [[("sort", "c"), ("sum", "x")], [("sort", "c d"), ("sum", "y")]],
            f"call 2 on ranks 0-2: rank 0 and rank 1 made sum {ARGUMENTS}{UNSURE}{SEE}",
        ),
        (
            [[BEFORE, ("relayout", "c")], [BEFORE, ("sum", "d")], [BEFORE, ("relayout", "c")]],
            "call 2 on ranks 0-2: ranks 0, 2 made relayout, rank 1 made sum",
        ),
        ([[("relayout named 'a'", "c")], [("relayout named 'b'", "c")]], ""),
    ],
)
def test_the_first_difference(calls, text):
    assert first_difference(flight(rank, *its) for rank, its in enumerate(calls)) == text


def test_the_first_difference_is_that_of_the_first_number_on_the_same_ranks():
    """Digests differ in all later calls, and clocks of hosts differ, too."""
    flights_of_all = [flight(rank, BEFORE, *[("relayout", f"{rank}{n}") for n in range(5)]) for rank in range(3)]
    for number, call in enumerate(flights_of_all[0]["calls"]):
        call["began"] = -float(number)
    assert first_difference(flights_of_all).startswith("call 2 on ranks 0-2: rank 0 and rank 1 and rank 2 made")


@pytest.mark.parametrize("rank_set", ["0-2 #2", ""])
def test_only_calls_on_one_mesh_are_compared(rank_set):
    one, other = flight(0, ("relayout", "c")), flight(1, ("relayout", "d"))
    one["calls"][0]["rank_set"] = rank_set
    assert first_difference([one, other]) is None
    other["calls"][0]["rank_set"] = rank_set
    assert (first_difference([one, other]) is None) == (rank_set == "")
    assert first_difference([one]) is None


# -- files ------------------------------------------------------------------------------------------------------------


CALL = {
    "operation": "barrier",
    "ranks": "0-1",
    "number": 1,
    "began": 0.5,
    "digests": ["5a"],
    "about": "",
    "rank_set": "t",
}


def write(folder, rank=1, call=CALL, **entries):
    """Write the flight file of a rank that has made one *call*, with these *entries*."""
    folder.mkdir(exist_ok=True)
    its = {"rank": rank, "size": 2, "host": "h", "process": 3, "reason": "", "written": 1, "waits": "", "since": 0}
    text = json.dumps(its | {"at": "", "calls": [call], "stack": "here"} | entries)
    (folder / f"rank-{rank}.json").write_text(text)


def test_what_is_written_is_read(tmp_path):
    write(tmp_path)
    write(tmp_path, 0, CALL | {"about": "(4, 6)"})
    first, second = read(tmp_path)
    assert (first["rank"], first["since"], second["calls"]) == (0, 0.0, [CALL])
    assert "    barrier, call 1 on ranks 0-1, 0.500 s ago: (4, 6)" in summary([first, second])
    write(tmp_path, 0, CALL | {"rank_set": ""})
    assert "calls cannot be compared: no two of these ranks remember the same call" in summary(read(tmp_path))


def test_what_a_file_says_does_not_steer_the_terminal(tmp_path):
    write(tmp_path, reason="\x1b[2J\nmore", stack="a\n\x07b", waits="relayout\r", call=CALL | {"about": "\x1b[2J"})
    text = summary(read(tmp_path))
    assert text.replace("\n", "").isprintable()
    assert "  \\x1b[2J" in text
    assert "ago: \\x1b[2J" in text


WRONG = [
    *("", "[]", "{}", '{"rank": 1}', "\0", "[" * 100_000),
    *({"rank": 2}, {"size": 10**12}, {"size": "2"}, {"host": None}, {"written": "now"}, {"since": 10**400}),
    *({"calls": {}}, {"calls": [1]}, {"calls": [{}]}, {"stack": ["here"]}, {"at": 1}),
    *({"call": CALL | its} for its in ({"digests": "5a"}, {"digests": [5]}, {"digests": [["5a"]]}, {"digests": {}})),
    *({"call": CALL | its} for its in ({"about": 7}, {"rank_set": None})),
]


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: str(wrong)[:40])
def test_what_is_no_flight_is_refused(tmp_path, wrong):
    if isinstance(wrong, str):
        (tmp_path / "rank-0.json").write_text(wrong)
    else:
        write(tmp_path, **wrong)
    with pytest.raises(MeshcommError, match="is no flight file"):
        read(tmp_path)


def test_a_flight_file_that_is_too_large_or_no_file_is_refused(tmp_path):
    write(tmp_path / "large", stack="x" * 2**24)
    (tmp_path / "pipe").mkdir()
    os.mkfifo(tmp_path / "pipe" / "rank-0.json")
    for name in ("large", "pipe"):
        with pytest.raises(MeshcommError, match="it must be a file of at most"):
            read(tmp_path / name)


def test_a_folder_without_flights_is_refused(tmp_path):
    with pytest.raises(MeshcommError, match="there are no flight files"):
        read(tmp_path)


def test_calls_that_are_alike_are_reported_to_be_so(tmp_path):
    for rank in range(2):
        write(tmp_path, rank)
    text = summary(read(tmp_path))
    assert "remember are the same, and so are arguments as far as they are known" in text


def test_a_damaged_file_is_reported_beside_the_others(tmp_path, capsys):
    write(tmp_path, 0)
    (tmp_path / "rank-1.json").write_text('{"rank": 1, "si')
    assert flights(tmp_path) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "1 of 2 ranks wrote what they did last"
    assert lines[3] == "rank 1 wrote nothing that can be read"
    assert lines[4].startswith(f"{tmp_path}/rank-1.json is no flight file: JSONDecodeError")
    (tmp_path / "rank-0.json").unlink()
    assert flights(tmp_path) != 0
