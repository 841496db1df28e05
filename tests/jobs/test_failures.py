"""Jobs that go wrong: each ends soon, with an error code and the culprit named, or goes on with an error on all ranks.

The programs are in programs/failures.py. They run under the mpiexec of this Python.
"""

import math
import re
import sys

import pytest

from support.forked import Forked
from support.jobs import is_openmpi
from support.paths import PROGRAMS
from support.patience import slowness

CASES = PROGRAMS / "failures.py"
RUN = ("-m", "meshcomm", "run")
SOON = 2.0  # seconds from the failure of a rank to the end of the job, on an idle machine


@pytest.fixture(scope="module")
def forked(tmp_path_factory):
    with Forked(tmp_path_factory.mktemp("forked"), CASES) as server:
        yield server


@pytest.fixture
def job(launch, forked):
    """A function that runs cases of the program: on forked ranks, but for those with words *before* the program."""

    def run(ranks, *names, before=None, **environment):
        environment |= {"CASE_RANKS": str(ranks)}
        if before is None:
            return forked.launch(launch, ranks, *names, **environment)
        finished = launch(ranks, *before, CASES, *names, **environment)
        assert finished.left == [], f"processes of the job are left: {finished}"
        return finished

    return run


@pytest.fixture
def seconds():
    """Four seconds of an idle machine, as a whole number: ranks may come that much later than others."""
    return math.ceil(4 * slowness() - 0.5)


def seconds_to_end(job):
    """Return how long the job went on after the last rank said that it is about to fail."""
    return job.ended - max(float(text) for text in re.findall(r"stamp (\S+)", job.text))


def assert_ended(job, *texts, within=SOON):
    assert job.code != 0, job
    for text in texts:
        assert text in job.text, f"{text!r} is missing in {job}"
    assert seconds_to_end(job) < within * job.slowness, job


def assert_went_on(job, ranks):
    assert job.code == 0, job
    assert job.text.count("as expected") == ranks, job


# -- tables: each row is a job ----------------------------------------------------------------------------------------

CULPRIT, BOTH = "KeyError: 'culprit'", ("0", "1G")
RANK_1, TOO_LONG = "rank 1 of {ranks} ends the job", "ends the job: it has waited"
WRONG_OUT = "LayoutError: out cannot be", f"{RANK_1}: an uncaught LayoutError"
MEMORY = "for the block (7, 2) of device 1: there is no memory for it", RANK_1
RESIZED = "rank 1 caught: a block has 8 bytes", "than rank 1, now or before"
FAILED = "MeshError: an earlier call of these ranks ended with an error"


def ends(case, *texts, ranks=(2,), shared=(None,), within=SOON):
    """Return the jobs of *case*, on *ranks* with so much *shared* memory: what they print, and how soon they end."""
    return [(case, n, memory, texts, within) for n in ranks for memory in shared]


ENDS = [
    *ends("one_raises", "Traceback", "in one_raises", CULPRIT, f"meshcomm: {RANK_1}", ranks=(2, 4)),
    *ends("one_raises_beside_a_thread", CULPRIT, RANK_1),
    *ends("one_raises_with_a_hook_of_its_own", "as shown by the program", f"{RANK_1}: an uncaught KeyError"),
    *ends("one_is_outside_of_the_mesh", "no attribute 'sum'", "outside of the mesh x=1", RANK_1),
    *ends("one_is_interrupted_while_it_ends_the_job", f"{RANK_1}: an earlier call of these ranks ended", "culprit"),
    *ends("one_closes_the_mesh", "but rank 1 has closed the mesh without it", ranks=(3,), shared=BOTH, within=6.0),
    # The others wait for the words of a slow rank, but not long for those of a stopped one.
    *ends("one_is_slow_to_say_what_is_wrong", *WRONG_OUT, ranks=(4,), shared=BOTH, within=9.0),
    *ends("one_is_stopped_before_it_says_what_is_wrong", "an uncaught CollectiveMismatch", ranks=(4,), within=4.0),
    *ends("one_finds_its_out_wrong_and_goes_on", "rank 1 caught: out cannot be", "CollectiveMismatch", shared=BOTH),
    *ends("one_block_is_resized", "ShapeError: a block has 8 bytes", RANK_1, shared=BOTH),
    *ends("one_block_is_resized_and_goes_on", *RESIZED, shared=BOTH, within=2.0 + SOON),
    *ends("no_memory_in_a_known_call", "MemoryError: ", *MEMORY, shared=BOTH),
    *ends("no_memory_in_a_known_call_and_goes_on", FAILED, *MEMORY, shared=BOTH),
    *ends("some_wait_in_different_calls_though_others_have_ended", "CollectiveM", ranks=(4,), shared=BOTH, within=6.0),
    *ends("some_wait_in_other_groups_though_others_have_ended", "CollectiveM", ranks=(4,), shared=BOTH, within=6.0),
]


@pytest.mark.parametrize(("case", "ranks", "shared", "texts", "within"), ENDS)
def test_the_job_ends(job, case, ranks, shared, texts, within):
    environment = {} if shared is None else {"MESHCOMM_SHARED_MEMORY": shared}
    assert_ended(job(ranks, case, **environment), *(text.format(ranks=ranks) for text in texts), within=within)


@pytest.mark.parametrize(
    ("case", "ranks", "more", "texts", "late"),
    [
        ("one_raises", 2, 0, (CULPRIT, f"rank 0 of 2 {TOO_LONG}"), SOON),
        ("the_first_rank_is_stopped", 3, 3, ("rank 0 does not answer: it is stopped or lost",), 2 * SOON),
        # Another rank tells why.
        ("the_rank_that_tells_why_is_too_slow", 4, 0, (TOO_LONG, "longer than MESHCOMM_TIMEOUT"), 3.0 + 2 * SOON),
    ],
)
def test_the_job_ends_after_the_timeout(job, seconds, case, ranks, more, texts, late):
    limit = seconds + more
    ended = job(ranks, case, MESHCOMM_ABORT="0" if case == "one_raises" else "1", MESHCOMM_TIMEOUT=f"{limit}")
    assert_ended(ended, *(text.format(limit=limit) for text in texts), within=limit + late)


@pytest.mark.parametrize(
    ("name", "operation"),
    [("one_returns_early", "relayout"), ("one_returns_early_on_another_communicator", "to_numpy")],
)
def test_run_ends_the_job_if_others_wait_for_a_rank_that_has_ended(job, name, operation):
    ended = job(3, name, before=RUN)
    assert_ended(ended, f"s in {operation}", "but rank 1 has ended without it", within=3 + SOON)


GO_ON = [
    (2, ("cached_calls_differ",), {"MESHCOMM_CHECK": "1"}),
    *((3, ("one_has_errors_that_are_no_refusals",), {"MESHCOMM_SHARED_MEMORY": shared}) for shared in BOTH),
    (3, ("meshes_are_asked_for_in_any_order",), {}),
    (2, ("child_is_forked", "children_end_in_all_ways", "mpi_is_finalised"), {}),
]


@pytest.mark.parametrize(("ranks", "cases", "environment"), GO_ON)
def test_the_job_goes_on(job, ranks, cases, environment):
    assert_went_on(job(ranks, *cases, **environment), ranks * len(cases))


# -- ranks that do not come -------------------------------------------------------------------------------------------


def test_one_never_joins(job, seconds):
    ended = job(3, "one_never_joins", MESHCOMM_TIMEOUT=f"{seconds}")
    assert_ended(ended, "s in relayout (its call 2) with 3 ranks", "in one_never_joins", within=seconds + SOON)
    assert "goes on waiting" in ended.text, "the warning comes first"
    says = rf"rank [02] of 3 ends the job: it has waited {seconds} s .*MESHCOMM_TIMEOUT={seconds}"
    assert re.search(says, ended.text), ended
    lines = re.split(says, ended.text)[-1].split("\n")
    assert re.fullmatch(
        r"  rank 1 has not arrived: it has been outside meshcomm for \d+ s, after call 1 on these ranks,", lines[1]
    ), ended
    assert re.fullmatch(rf"    now at {CASES}:\d+ in one_never_joins", lines[2]), ended
    assert re.fullmatch(
        rf"  This rank is at {CASES}:\d+ in exchange, called by {CASES}:\d+ in one_never_joins, .*", lines[3]
    ), ended
    assert re.match(r"(Current t|T)hread 0x", lines[4]), "without flight files, the stacks come last"


@pytest.mark.slow
def test_without_threads_in_mpi_the_missing_rank_is_not_named(job, seconds):
    ended = job(2, "one_never_joins", MESHCOMM_TIMEOUT=f"{seconds}", MPI4PY_RC_THREAD_LEVEL="serialized")
    assert_ended(ended, f"MESHCOMM_TIMEOUT={seconds}. The other ranks cannot be asked", within=seconds + SOON)
    assert "has not arrived" not in ended.text


def test_an_error_that_the_others_do_not_hear_of_is_reported(job, seconds):
    ended = job(2, "one_is_wrong_in_a_known_call", MESHCOMM_TIMEOUT=f"{1 + seconds}", MESHCOMM_SHARED_MEMORY="0")
    # The rank that has the error asks at once, again after a second, and then it is certain that the calls differ.
    assert_ended(ended, "rank 1 of 2 has to raise DTypeError", within=2.0 + SOON)
    says = r"all_reduce(, call 2 on these ranks)?; it has to raise DTypeError"
    assert re.search(says, ended.text), ended


@pytest.mark.parametrize("case", ["one_is_wrong_in_a_known_call", "one_makes_a_new_call"])
def test_ranks_that_share_memory_see_that_another_one_agrees(job, case):
    ended = job(3, case)
    says = "this rank makes a call that it has made before, but rank 1 makes one for the first time, on which"
    assert_ended(ended, says)
    assert ended.text.count(f"CollectiveMismatch: {says}") == 1, ended
    if case == "one_is_wrong_in_a_known_call":  # the others do not hear of its error, but wait until it is reported
        says = rf"rank 1 of 3 has to raise DTypeError: .*\n  This rank is at .*failures\.py:\d+ in {case}"
        assert len(re.findall(says, ended.text)) == 1, ended


@pytest.mark.parametrize("shared", BOTH)
def test_an_out_that_one_rank_finds_wrong_in_a_known_call(job, shared):
    ended = job(4, "one_finds_its_out_wrong", MESHCOMM_SHARED_MEMORY=shared)
    assert_ended(ended, "LayoutError: out cannot be written to: its block is read-only", "rank 1 of")
    assert re.search(r"line \d+, in one_finds_its_out_wrong\n", ended.text), ended
    assert not re.search(r'meshcomm/(ranks|transport)/\w+\.py", line \d+, in ', ended.text), ended


def test_an_error_that_all_raise_is_printed_by_the_rank_that_has_seen_it_though_it_is_slow(job):
    ended = job(4, "one_is_slow_to_say_what_all_raise")
    assert_ended(ended, "rank 1 of 4 ends the job: an uncaught ", ", on all 4 ranks alike", within=9.0)
    assert ended.text.count("Traceback") == 1, ended


@pytest.mark.parametrize("shared", BOTH)
@pytest.mark.parametrize("call", ["sum", "index", "to_numpy", "relayout", "fft", "matmul", None])
def test_a_call_that_one_rank_refuses_counts(job, call, shared):
    """So does the relayout of an array, though nothing moves."""
    case = "ranks_refuse_a_call_at_different_times"
    case, call = (case, call) if call else ("ranks_relayout_an_array_in_place_of_a_tensor_at_different_times", "")
    ended = job(2, case, MESHCOMM_SHARED_MEMORY=shared, CASE_CALL=call)
    assert_ended(ended, "CollectiveMismatch: ")
    assert "AssertionError" not in ended.text, ended


@pytest.mark.parametrize("check", ["0", "1"])
@pytest.mark.parametrize("call", ["sum", "to_numpy", "root", "fft"])
def test_ranks_go_on_after_a_mismatch_at_different_times(job, call, check):
    case = "ranks_refuse_a_call_at_different_times_and_go_on_after_each_error"
    ended = job(2, case, MESHCOMM_CHECK=check, CASE_CALL=call)
    assert_ended(ended, "ends the job: an earlier call of these ranks ended with an error (CollectiveMismatch: ")
    assert "AssertionError" not in ended.text, ended
    assert re.search(r"(did not make a call: |, after )\w+ raised \w+Error: ", ended.text), ended


@pytest.mark.any_mpi
def test_each_rank_writes_what_it_did_last_and_the_command_merges_it(job, launch, seconds, tmp_path):
    limit = 4 * seconds  # ranks get an eighth of it to write, which must be more than a look of their watchdogs
    ended = job(3, "one_never_joins", MESHCOMM_TIMEOUT=f"{limit}", MESHCOMM_FLIGHTS=str(tmp_path))
    assert_ended(ended, f"python -m meshcomm flights {tmp_path}", within=limit + SOON)
    assert "most recent call first" not in ended.text, "stacks are in the flight files"
    assert ended.text.count("ends the job") == 1, "the two ranks that wait know the same"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rank-0.json", "rank-1.json", "rank-2.json"]
    merged = launch(None, "-m", "meshcomm", "flights", tmp_path)
    assert merged.code == 0, merged
    for text in (
        "3 of 3 ranks wrote what they did last",
        "rank 0: waits in relayout, call 2 on ranks 0-2 for",
        "rank 1: is outside meshcomm for",
        "the operations that all of them remember are the same",
        "in one_never_joins",
    ):
        assert text in merged.text, merged
    for rank, at in enumerate(("exchange", "one_never_joins", "exchange")):
        assert re.search(rf"^rank {rank}: .* s, at .*failures\.py:\d+ in {at}$", merged.text, re.M), merged
    assert "_record_end" not in merged.text, "the watchdog leaves itself out"


@pytest.mark.slow
def test_calls_on_a_mesh_are_not_compared_with_those_on_one_that_was_closed(job, launch, seconds, tmp_path):
    limit = 2 * seconds
    case = "one_never_joins_a_mesh_that_is_made_again"
    ended = job(3, case, MESHCOMM_TIMEOUT=f"{limit}", MESHCOMM_FLIGHTS=str(tmp_path))
    assert_ended(ended, "barrier 'of the new mesh'", within=limit + SOON)
    merged = launch(None, "-m", "meshcomm", "flights", tmp_path)
    assert "the operations that all of them remember are the same" in merged.text, merged


@pytest.mark.any_mpi
def test_the_command_finds_that_arguments_differ(job, launch, tmp_path):
    case = "some_wait_in_other_groups_though_others_have_ended"
    ended = job(4, case, MESHCOMM_FLIGHTS=str(tmp_path), MESHCOMM_SHARED_MEMORY="0")
    assert_ended(ended, "CollectiveMismatch", within=6.0)
    merged = launch(None, "-m", "meshcomm", "flights", tmp_path)
    assert merged.code == 0, merged
    # Ranks 0 and 1 have made this call, and may have ended before they could write.
    difference = (
        r"first difference: call 7 on ranks 0-3: (rank|ranks 0,|ranks 1,|ranks 0, 1,) 2 and rank 3 made all_gather "
        r"with different arguments \(layouts, shape, dtype, root \.\.\.\)\n"
        r"  ranks? [012, ]+: \(\(0, 1\), \(2, 3\)\), \(0,\), \(1,\), int64\n"
        r"  rank 3: \(\(0, 2\), \(1, 3\)\), \(0,\), \(1,\), int64\n"
    )
    assert re.search(difference, merged.text), merged


@pytest.mark.parametrize("name", ["one_gets_a_longer_message", "one_gets_a_longer_message_by_a_request"])
def test_a_message_of_another_call_is_a_mismatch_and_the_end_if_it_was_written_over_other_memory(job, name):
    ended = job(2, name, MESHCOMM_SHARED_MEMORY="0")
    if is_openmpi():
        assert_ended(ended, "rank 1 of 2 ends the job: CollectiveMismatch", "over other memory of this process")
        assert "rank 1 raised" not in ended.text, ended
    else:
        assert_ended(ended, "rank 1 raised CollectiveMismatch: rank 1 made another collective call than others")


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells which signals are handled")
def test_a_crash_ends_without_a_report_of_mpi_which_may_wait_for_ever(job):
    assert_went_on(job(2, "crashes_end_the_process", before=()), 2)
    assert_went_on(job(2, "crashes_are_reported_by_python", before=()), 2)
    if is_openmpi():
        assert_went_on(job(2, "crashes_are_reported_by_open_mpi", before=(), OMPI_MCA_opal_signal="6,11"), 2)


# -- under python -m meshcomm run -------------------------------------------------------------------------------------


def test_run_ends_the_job_with_the_code_of_sys_exit(job):
    ended = job(2, "one_calls_sys_exit", before=RUN)
    assert_ended(ended, "rank 1 of 2 ends the job: it called sys.exit(3)", within=1 + SOON)
    assert ended.code == 3


def test_the_code_of_sys_exit_is_that_of_a_job_whose_ranks_wait(job):
    ended = job(3, "one_calls_sys_exit")
    assert_ended(ended, "but rank 1 has ended without it", within=SOON)
    assert ended.code == 3


def test_run_lets_all_ranks_call_sys_exit(job):
    ended = job(2, "all_call_sys_exit", before=RUN)
    assert ended.code == 3
    assert ended.text.count("as expected") == 2
    assert "ends the job" not in ended.text


@pytest.mark.parametrize(("ranks", "name"), [(4, "others_compute_for_long"), (3, "root_waits_for_a_late_rank")])
def test_run_lets_ranks_go_on_for_long_after_others_have_ended(job, ranks, name):
    assert_went_on(job(ranks, name, before=RUN), ranks)


def test_run_ends_the_job_before_there_is_a_mesh(job):
    ended = job(2, "one_raises_before_any_mesh", before=RUN)
    assert_ended(ended, "KeyError: 'culprit'", "rank 1 of 2 ends the job")
    assert "runpy" not in ended.text, "the traceback begins in the program"


# -- errors that all ranks raise --------------------------------------------------------------------------------------


DROPPED = [
    "all_drop_a_request",
    "one_drops_a_request",
    "a_request_is_dropped_and_its_mesh_closed",
    "a_request_is_dropped_with_its_communicator",
    "a_request_is_dropped_and_mpi_finalised",
]


@pytest.mark.parametrize("case", DROPPED)
def test_a_dropped_request_ends_the_job_when_the_program_ends(job, case):
    assert_ended(
        job(2, case),
        "ends the job: start_relayout was never waited for: "
        "relayout of (7, 5) float64 from [x, unsharded] to [unsharded, x]",
        "Call wait() on each request",
    )


@pytest.mark.parametrize("shared", BOTH)
@pytest.mark.parametrize("call", ["relayout", "start_relayout", "start_update", "with_root"])
def test_a_handler_that_raises_anywhere_leaves_no_wrong_data(job, call, shared, seconds):
    call = call if call == "with_root" else f"in_{call}"
    ended = job(2, f"a_handler_raises_{call}", MESHCOMM_SHARED_MEMORY=shared, MESHCOMM_TIMEOUT=f"{3 * seconds}")
    assert "AssertionError: WRONG" not in ended.text, ended
    assert_ended(ended, "rank 1", within=5 * seconds + SOON)


@pytest.mark.parametrize("shared", BOTH)
@pytest.mark.parametrize(
    ("case", "error"),
    [
        ("a_mismatch_is_caught_and_mpi_finalised", "an earlier call of these ranks ended with an error"),
        ("a_mismatch_is_caught_and_the_communicator_freed", "an earlier call of these ranks ended with an error"),
        ("a_late_difference_and_mpi_finalised", "noticed it only at the end"),
        ("a_late_difference_and_the_communicator_is_freed", "noticed it only at the end"),
        ("a_late_difference_is_caught_when_the_mesh_is_closed", "noticed it only at the end"),
    ],
)
def test_a_job_in_which_calls_differed_does_not_end_well_however_it_ends(job, case, error, shared):
    ended = job(2, case, MESHCOMM_SHARED_MEMORY=shared)
    assert ended.code != 0, ended
    assert re.search(f"ends the job: .*{error}", ended.text), ended
