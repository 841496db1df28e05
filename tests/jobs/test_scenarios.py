"""Scenarios in which ranks wait in vain: each ends within MESHCOMM_TIMEOUT and a second, and says why.

The programs are in programs/scenarios.py. A sample runs each scenario once, half of them with each MPI, the settings
spread evenly over them. With ``--exhaustive`` each runs with 2, 4 and 8 ranks, with shared memory and without. With
``--count 20`` each runs twenty times, in the settings by turns.
"""

import math
import re
from itertools import product
from random import Random

import pytest

from support.forked import Forked
from support.jobs import dozing, is_openmpi
from support.paths import PROGRAMS
from support.patience import slowness
from support.sampling import counted, spread

PROGRAM = PROGRAMS / "scenarios.py"
TIMEOUT = 3  # seconds, of an idle machine
LONGEST = 120  # seconds, if the machine was very busy for a moment, or has been for long
ENDING = 1.0  # seconds more until the job is gone
DOZE = 2e-3  # seconds that a rank sleeps longer between two looks

RANKS = (2, 4, 8)
MEMORY = ("", "0")

ABSENT = r"rank 1 has not arrived: it has (been outside meshcomm|waited)"
AT = rf"{ABSENT} .*\n +now at .*/scenarios\.py:\d+ in "
ENDED = r"rank 1 has ended without it"
SILENT = r"rank 1 does not answer"
CALL = r"it has waited \d+ s in {operation} \(its call \d+\) with \d+ ranks, call {number} on these ranks"

OPERATIONS = {  # what the others wait in, and its number
    "relayout": ("relayout", 7),
    "to_numpy": ("to_numpy", 7),
    "barrier": ("barrier", 7),
    "all_reduce": ("all_reduce", 7),
    "all_sum": (r"sum over axes .*", 7),
    "request": ("wait for a relayout", 7),
    "polling": ("tests of a relayout", 7),
    "polling_with_pauses": ("tests of a relayout", 7),
    "agreement": ("relayout", 4),
    "close": ("the end of its communicators", 7),
    "gather_by_rank_0": ("(to_numpy|barrier)", "[78]"),  # the others have sent their blocks, and go on
    "distribute_from_rank_0": ("distribute", 7),
}

WAYS = {  # what rank 1 does: what the job says, and whether it names the operation
    "sleeps": (AT + "sleeps", True),
    "computes": (AT + "computes", True),
    "returns": (ENDED, True),
    "exits_with_0": (ENDED, True),
    "exits_with_3": (ENDED, True),
    "raises": (r"rank 1 of \d+ ends the job: an uncaught KeyError", False),
    "raises_in_a_thread": (r"rank 1 of \d+ ends the job: an uncaught KeyError in thread", False),
    "is_killed": (r"(?i)signal:? 9|killed", False),
    "is_stopped": (SILENT, True),
    "leaves_at_once": ("", False),  # the launcher ends the job, and MPICH's does so without a word
    "reads_a_pipe": (AT + "reads_a_pipe", True),
    "waits_for_a_lock": (AT + "waits_for_a_lock", True),
    "receives_from_nobody": (AT + "receives_from_nobody", True),
    "waits_on_another_mesh": (f"{ABSENT}|CollectiveMismatch", False),  # over two ranks it is the same mesh
    "makes_another_call": (r"CollectiveMismatch|is in a different|makes a call that it has made before", False),
    "finalises": (ENDED, True),
    "is_interrupted": (r"rank 1 of \d+ ends the job: an uncaught KeyboardInterrupt", False),
}

ALONE = {
    "interrupted_while_waiting": r"rank 0 of \d+ ends the job: (an uncaught )?KeyboardInterrupt",
    "forked_child_exits": ABSENT,
    "forked_child_raises": ABSENT,
    # Of two ranks that wait for each other, one ends the job.
    "deadlock_across_meshes": r"rank (1|(0)) has not arrived: it has waited \d+ s in barrier on ranks 0-(?(2)[37]|1)",
    "makes_one_call_less": r"CollectiveMismatch: (ranks made different collective calls|rank 1 makes a call)",
    "makes_a_new_call_instead_of_a_known_one": r"CollectiveMismatch",
    "makes_one_call_more": r"CollectiveMismatch|made another call|different",
    "raises_before_the_first_mesh": r"rank 1 of \d+ ends the job: an uncaught KeyError",
    "exits_before_the_first_mesh": r"start_mpi_with_all_ranks|process rank 1",  # Open MPI notices it
    "has_another_setting": r"MeshError: MESHCOMM_CHECK must be the same on all ranks, but it is .*'1' on rank 1",
}

FEW = ("relayout", "barrier", "request", "polling")
SCENARIOS = [
    *product(("sleeps", "is_stopped"), OPERATIONS),
    *product(["returns"], [operation for operation in OPERATIONS if operation != "close"]),
    *product([way for way in WAYS if way not in ("sleeps", "returns", "is_stopped")], FEW[:2]),
    ("exits_with_0", "polling"),
    ("computes", "request"),
    ("raises", "polling"),
    *((way, None) for way in ALONE),
]
IN_THE_FIRST_CALL = ("has_another_setting",)  # ranks go wrong in the call that connects them, which takes long
AT_THE_IMPORT = ("raises_before_the_first_mesh", "exits_before_the_first_mesh")  # of meshcomm, under a launcher
TWO_RANKS_ON_ONE_MESH = ("deadlock_across_meshes", None, 2)  # the two meshes are the same one, and nothing is wrong


def cases(turn=0):
    """Return the scenarios and settings of a *turn*. Without ``--count``, each MPI has half of the scenarios."""
    settings = list(product(RANKS, MEMORY))
    first = turn % len(settings)
    some = (0, 1) if counted(0) else (is_openmpi(), 2)
    found = spread(SCENARIOS, settings[first:] + settings[:first], *some)
    every = [(*scenario, *setting) for scenario, setting in found]
    return [case for case in every if case[:3] != TWO_RANKS_ON_ONE_MESH]


def pytest_generate_tests(metafunc):
    if "scenario" in metafunc.fixturenames:
        turns = [(turn, cases(turn)) for turn in range(counted(0) or 1)]
        found = [(case, turn) for turn, every in turns for case in Random(turn).sample(every, len(every))]
        ids = ["-".join(str(part) for part in (*case, turn) if part) for case, turn in found]
        metafunc.parametrize("scenario", [case for case, _ in found], ids=ids)


@pytest.fixture(scope="module")
def forked(tmp_path_factory):
    """Ranks of the program that begin in a moment."""
    with dozing(DOZE):
        server = Forked(tmp_path_factory.mktemp("scenarios"), PROGRAM)
    with server:
        yield server


def run(launch, forked, arguments, ranks, memory):
    """Return the job and its MESHCOMM_TIMEOUT. One that ends before ranks go wrong is tried again with more time.

    The calls before that take seconds on a busy machine, on which one rank may begin them long after another.
    """
    for patience in (1, 4, 16):
        timeout = math.ceil(min(TIMEOUT * patience * slowness(), LONGEST) - 0.5)
        environment = {"MESHCOMM_TIMEOUT": f"{timeout}"} | ({"MESHCOMM_SHARED_MEMORY": memory} if memory else {})
        if arguments[0] in AT_THE_IMPORT:
            with dozing(DOZE):
                job = launch(ranks, PROGRAM, *arguments, **environment)
        else:
            job = forked.launch(launch, ranks, *arguments, **environment)
        too_late = arguments[0] in IN_THE_FIRST_CALL and "longer than MESHCOMM_TIMEOUT" in job.text
        if "stamp " in job.text and not too_late:
            break
    return job, timeout


def test_the_job_ends_and_says_why(launch, forked, scenario):
    way, operation, ranks, memory = scenario
    job, timeout = run(launch, forked, [way] if operation is None else [way, operation], ranks, memory)
    assert job.left == [], job
    assert job.code != 0, job
    says, names_operation = (ALONE[way], False) if operation is None else WAYS[way]
    assert re.search(says, job.text), f"{says!r} is missing in {job}"
    if names_operation:
        text, number = OPERATIONS[operation]
        called = CALL.format(operation=text, number=number)
        assert re.search(called, job.text), f"{called!r} is missing in {job}"
    began = max(float(text) for text in re.findall(r"stamp (\S+)", job.text))
    assert job.ended - began < (timeout + ENDING) * job.slowness, job
