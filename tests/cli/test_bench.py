"""``bench`` on simulated ranks: what it counts, what it prints, and that it sees wrong results."""

import json
import os
import sys

import numpy as np
import pytest

import meshcomm as mc
from meshcomm.core.ranks.meshes import location_in
from meshcomm.tools.cli.about import LoadedMPI
from meshcomm.tools.cli.arguments import dtype_of, layout_of
from meshcomm.tools.cli.bench import cases, command, disk, report
from meshcomm.tools.cli.bench.measure import Case, Row, measure_case
from meshcomm.tools.cli.main import main

RANKS = 3


def on_ranks(program, ranks=RANKS):
    """Return what *program* returns on each simulated rank, given the setting and the communicator of all ranks."""

    def one():
        mesh = mc.create_mesh()
        location = location_in(mesh)
        return program(cases.Setting(mesh, location.device), location.rank_set.everyone.communicator())

    with mc.simulate(ranks) as world:
        return world.run(one)


def rows_of(make, nbytes=600, ranks=RANKS, **given):
    """Return the row that each rank measures of an operation, in two rounds."""
    return on_ranks(lambda setting, all_: measure_case(all_, make(setting._replace(**given), nbytes), 2), ranks)


@pytest.fixture
def bench(monkeypatch, capsys):
    """A function that runs the command on simulated ranks, and returns exit code, output and errors."""
    monkeypatch.setattr(report.about, "library", lambda: LoadedMPI("4", "an MPI", "5.0", "MULTIPLE"))

    def run(*arguments, ranks=RANKS):
        with mc.simulate(ranks) as world:
            codes = world.run(lambda: main(["bench", *arguments]))
        assert len(set(codes)) == 1, "all ranks end alike"
        return codes[0], *capsys.readouterr()

    return run


@pytest.fixture
def clocks(monkeypatch):
    """The nanoseconds of each rank's clock, which only the calls of a test move."""
    nanoseconds = [0] * RANKS
    monkeypatch.setattr("time.perf_counter_ns", lambda: nanoseconds[mc.create_mesh().rank])
    return nanoseconds


def one_element(block):
    block.flat[1] += 1


# Each takes a function, and returns one that does it wrong.


def spoilt_on_rank_1(function):
    def run(*args, **kwargs):
        result = function(*args, **kwargs)
        if mc.create_mesh().rank == 1:
            one_element(result if isinstance(result, np.ndarray) else result.local)
        return result

    return run


def spoilt_copy(copyto):
    return lambda target, source: (copyto(target, source), one_element(target))


def of_the_first_call(relayout):
    first = {}
    return lambda t, layout: first.setdefault(t.mesh.rank, relayout(t, layout))


def nothing(update):
    return lambda halo: None


# -- operations -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", command.OPERATIONS)
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_right_results_are_right(name, ranks):
    rows = rows_of(command.OPERATIONS[name].make, ranks=ranks)
    assert {(row.wrong_elements, row.rounds) for row in rows} == {(0, 2)}
    assert all(0 < row.seconds[0] <= row.seconds[1] <= row.seconds[2] for row in rows)


@pytest.mark.parametrize("dtype", ["?", "i1", "u2", "f2", ">i4", "f4", "c8", "g"])
def test_dtypes(dtype):
    assert {row.wrong_elements for row in rows_of(cases.relayout, dtype=dtype_of(dtype))} == {0}


@pytest.mark.parametrize("dtype", ["f4", "f8", "c8", "c16"])
def test_transforms_of_all_precisions(dtype):
    assert {row.wrong_elements for row in rows_of(cases.fft, 20_000, dtype=dtype_of(dtype))} == {0}


def test_texts_cannot_be_compared():
    with pytest.raises(mc.DTypeError, match="numbers and bool"):
        rows_of(cases.relayout, dtype=np.dtype("S3"))


def test_bytes_are_those_of_the_largest_block():
    row = rows_of(cases.relayout, shape=(7, 4), ranks=2)[0]
    assert (row.block, row.moved) == (4 * 4 * 8, 7 * 2 * 8)


def test_layouts_of_the_command():
    def program(setting, communicator):
        source, target = (layout_of(text, setting.mesh) for text in ("unsharded,x=cyclic(2)", "x,unsharded"))
        case = cases.relayout(setting._replace(source=source, target=target, shape=(5, 9)), 0)
        return measure_case(communicator, case, 1).wrong_elements

    assert on_ranks(program) == [0] * RANKS


@pytest.mark.parametrize(
    ("name", "holder", "function", "spoilt", "wrong"),
    [
        ("relayout", mc, "relayout", spoilt_on_rank_1, 1),
        ("relayout", mc, "relayout", of_the_first_call, 15 * 15),
        ("all_to_all", mc, "all_to_all", spoilt_on_rank_1, 1),
        ("memcpy", np, "copyto", spoilt_copy, RANKS),
        ("fft", mc.fft.FFTPlan, "forward", spoilt_on_rank_1, 1),
        ("halo", mc.Halo, "update", nothing, RANKS * (7 * 17 - 5 * 15)),  # the ghosts of blocks of 5 by 15
        ("save", mc, "load", spoilt_on_rank_1, 1),
        ("load", mc, "load", spoilt_on_rank_1, 1),
    ],
)
def test_wrong_elements_are_counted(name, holder, function, spoilt, wrong, tmp_path, monkeypatch):
    makers = {name: operation.make for name, operation in command.OPERATIONS.items()} | disk.makers(tmp_path)
    monkeypatch.setattr(holder, function, spoilt(getattr(holder, function)))
    assert {row.wrong_elements for row in rows_of(makers[name])} == {wrong}


def test_a_block_of_another_shape_is_wrong():
    indices = [np.arange(4), np.arange(3)]
    assert cases.count_differences(np.zeros((4, 2)), indices, (4, 3), 1) == 12


def test_chunks_have_the_values_of_the_whole():
    indices, shape = [np.arange(300_000), np.array([0, 2])], (400_000, 4)
    whole = np.zeros((300_000, 2))
    cases.fill(whole, indices, shape, 1)
    assert len(list(cases.expected(indices, shape, whole.dtype, 1))) == 3
    assert whole[200_000].tolist() == [(n * 40_503 + 7_919) % 999_983 for n in (800_000, 800_002)]
    assert cases.count_differences(whole, indices, shape, 1) == 0
    assert cases.count_differences(whole, indices, shape, 2) == 600_000


# -- times ------------------------------------------------------------------------------------------------------------


def test_the_slowest_rank_counts_and_the_reference_takes_turns(clocks):
    """Calls take 5 and 7 seconds on rank 1, 1 second on the others."""

    def program(setting, communicator):
        def call(seconds):
            clocks[setting.rank] += int((seconds if setting.rank == 1 else 1) * 1e9)

        case = Case(10, 20e9, lambda: call(5), lambda: call(10), lambda: setting.rank)
        return measure_case(communicator, case, 4)

    rows = on_ranks(program)
    assert rows == [Row(10, 20e9, 4, (5.0, 5.0, 5.0), pytest.approx(4.0), 0.5, 0 + 1 + 2)] * RANKS


# -- the command ------------------------------------------------------------------------------------------------------


def test_the_table(bench):
    code, out, err = bench("relayout", "memcpy", "--min", "512", "--max", "2K", "--factor", "2", "--rounds", "2")
    assert (code, err) == (0, "")
    assert out.count("meshcomm 0") == 1, "one rank prints"
    assert [line.strip() for line in out.splitlines() if line.strip() in command.NAMES] == ["relayout", "memcpy"]
    assert [line.split()[-1] for line in out.splitlines() if " B " in line or " KiB " in line] == ["ok"] * 6


def test_json(bench):
    code, out, _ = bench("halo", "fft", "--max", "4K", "--rounds", "1", "--json")
    assert code == 0
    results = json.loads(out)
    assert results["ranks"] == RANKS
    assert results["versions"]["numpy"] == np.__version__
    assert results["transport"]["mpi"] == "an MPI"
    assert [each["name"] for each in results["benches"]] == ["halo", "fft"]
    for each in results["benches"]:
        assert len(each["rows"]) == 2
        for row in each["rows"]:
            assert row["wrong"] == 0
            assert row["gigabytes_per_second"] == pytest.approx(row["moved_bytes"] / row["seconds"]["median"] / 1e9)


def test_a_wrong_result_is_an_error(bench, monkeypatch):
    def wrong_on_rank_1(setting, nbytes):
        return cases.memory(setting, nbytes)._replace(count_wrong=lambda: int(setting.rank == 1))

    monkeypatch.setitem(command.OPERATIONS, "memcpy", command.BenchOperation(wrong_on_rank_1, ""))
    code, out, err = bench("memcpy", "--max", "1K", "--rounds", "1")
    assert code == 1
    assert out.splitlines()[-1].split()[-1] == "1"
    assert err == "\nmeshcomm: 1 wrong element\n"


def test_one_shape_is_one_size(bench):
    _, out, _ = bench("relayout", "--shape", "9,5", "--dtype", "i2", "--rounds", "1", "--json")
    assert [row["block_bytes"] for row in json.loads(out)["benches"][0]["rows"]] == [3 * 5 * 2]


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["walk"], 2, "there is no bench 'walk'; there are relayout,"),
        (["relayot"], 2, "disk; did you mean 'relayout'?"),
        (["--min", "4K", "--max", "1K"], 2, "sizes from 4096 to 1024"),
        (["--factor", "1"], 2, "--factor 2 or more"),
        (["--rounds", "0"], 2, "--rounds is 0"),
        (["--mesh", "x"], 2, "name=size"),
        (["--plot", "a.pdf"], 2, ".png or .svg"),
        (["--plot", "nowhere/a.png"], 2, "no such folder"),
        (["--mesh", "x=2"], 1, "one for each rank of the job"),
        (["--from", "q,unsharded"], 1, "q: A dimension sharding"),
        (["disk", "--folder", "/there/is/none"], 1, "no folder can be made in /there/is/none"),
    ],
)
def test_wrong_options(bench, arguments, code, text):
    found, _, err = bench(*arguments)
    assert found == code
    (line,) = set(err.splitlines())  # each simulated rank takes itself for the first of a job
    assert line.startswith("meshcomm: ")
    assert text in line


def test_sizes_end_where_a_call_takes_long(bench, clocks, monkeypatch):
    def slow(setting, nbytes):
        def call():
            clocks[setting.rank] += nbytes * 10**6  # a second for each kilobyte

        return Case(nbytes, nbytes, call, call, lambda: 0)

    monkeypatch.setitem(command.OPERATIONS, "memcpy", command.BenchOperation(slow, ""))
    _, out, _ = bench("memcpy", "--min", "500", "--rounds", "1", "--json")
    assert [row["block_bytes"] for row in json.loads(out)["benches"][0]["rows"]] == [500, 2000]


def test_sizes_end_where_memory_does(bench, monkeypatch):
    monkeypatch.setattr(command.about, "free_memory", lambda: 5000 * RANKS * 2 * command.BLOCKS)
    _, out, _ = bench("memcpy", "--rounds", "1", "--json")
    assert [row["block_bytes"] for row in json.loads(out)["benches"][0]["rows"]] == [1024, 4096]


def test_interrupted(bench, monkeypatch):
    def interrupted(setting, nbytes):
        raise KeyboardInterrupt

    monkeypatch.setitem(command.OPERATIONS, "memcpy", command.BenchOperation(interrupted, ""))
    code, _, err = bench("memcpy", ranks=1)
    assert code == 130
    assert err == "interrupted\n"


# -- files and plots --------------------------------------------------------------------------------------------------


def test_files_are_saved_and_loaded_and_nothing_stays(bench, tmp_path):
    (tmp_path / "array").write_text("mine")
    code, out, _ = bench("disk", "--max", "1K", "--rounds", "1", "--folder", str(tmp_path), "--json")
    assert code == 0
    assert [each["name"] for each in json.loads(out)["benches"]] == ["disk: save", "disk: load"]
    assert os.listdir(tmp_path) == ["array"]
    assert (tmp_path / "array").read_text() == "mine"


def test_the_stream_writes_and_reads_all_bytes(tmp_path):
    size = 2 * disk.BUFFER + 40
    disk._write(tmp_path / "stream", size)
    assert (tmp_path / "stream").read_bytes() == bytes(size)
    disk._read(tmp_path / "stream")


def test_a_full_disk_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(disk.shutil, "disk_usage", lambda path: type("", (), {"free": 10}))
    with pytest.raises(mc.MeshcommError, match="10 bytes free"):
        rows_of(disk.makers(tmp_path)["save"])


@pytest.mark.parametrize(("end", "begins"), [("png", b"\x89PNG"), ("svg", b"<?xml")])
def test_plot(bench, tmp_path, end, begins):
    pytest.importorskip("matplotlib")
    file = tmp_path / f"plot.{end}"
    assert bench("memcpy", "--max", "4K", "--rounds", "1", "--plot", str(file))[0] == 0
    assert file.read_bytes().startswith(begins)


def test_without_matplotlib(bench, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    code, out, err = bench("--plot", "a.png")
    assert (code, out) == (2, "")
    assert "pip install matplotlib" in err
