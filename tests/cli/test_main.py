"""The command as a whole: its help, what it answers to words that it does not know, and what `info` says of ranks."""

import pytest

import meshcomm
from meshcomm.tools.cli import calibrate, info
from meshcomm.tools.cli.about import Host, count_by_host
from meshcomm.tools.cli.checks import PROBLEM, Finding
from meshcomm.tools.cli.main import main


@pytest.mark.parametrize(("written", "meant"), [("inof", "info"), ("Plan", "plan"), ("veryfy", "verify")])
def test_misspelt_commands(written, meant, capsys):
    with pytest.raises(SystemExit) as caught:
        main([written])
    assert caught.value.code == 2
    assert capsys.readouterr().err.endswith(f"; did you mean '{meant}'?\n")


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        (["show", "x", "--mesh", "x=4", "--shpe", "4"], "--shape"),
        (["slurm", "--ntask-per-nod", "4", "x.py"], "--ntasks-per-node"),
        (["slurm", "--ntasks", "4", "x.py"], "--ntasks-per-node"),
        (["bench", "--jsn"], "--json"),
        (["info", "--JSON"], "--json"),
        (["--vresion"], "--version"),
    ],
)
def test_misspelt_options(written, meant, capsys):
    with pytest.raises(SystemExit) as caught:
        main(written)
    assert caught.value.code == 2
    message = capsys.readouterr().err
    assert message.endswith(f"; did you mean '{meant}'?\n")
    assert f"usage: python -m meshcomm {written[0]}" in message or written[0].startswith("--"), message


def test_words_after_a_command_that_takes_none(capsys):
    with pytest.raises(SystemExit):
        main(["info", "more"])
    assert capsys.readouterr().err.endswith("meshcomm info: error: unrecognized arguments: more\n")


@pytest.mark.parametrize("command", [["trace", "none", "out.json"], ["flights", "none"]])
def test_only_the_first_rank_reads_traces_and_flights(command, monkeypatch, capsys):
    assert main(command) == 2
    assert "none" in capsys.readouterr().err
    monkeypatch.setenv("PMI_RANK", "1")
    monkeypatch.setenv("PMI_SIZE", "2")
    assert main(command) == 0
    assert capsys.readouterr() == ("", "")


def test_words_like_no_command(capsys):
    with pytest.raises(SystemExit):
        main(["xyzzy"])
    assert "invalid choice: 'xyzzy'" in (message := capsys.readouterr().err)
    assert "did you mean" not in message


def test_alone_it_prints_its_help(capsys):
    assert main([]) == 0
    assert "run" in capsys.readouterr().out


def test_version(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"meshcomm {meshcomm.__version__}\n"


@pytest.mark.parametrize("arguments", [["run"], ["run", "-m"], ["walk"], ["info", "more"], ["calibrate", "a", "b"]])
def test_wrong_arguments(arguments, capsys):
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert "usage: python -m meshcomm" in capsys.readouterr().err


def test_info_with_more_ranks_than_cores():
    assert "more ranks than cores" in str(info.rank_rows([Host("a", 2, 1)]))
    assert "more ranks than cores" not in str(info.rank_rows([Host("a", 1, 1), Host("b", 1, 1)]))
    assert info.rank_rows([Host(f"host{i}", 1, 4) for i in range(20)])[-1] == ("  ...", "and 4 more hosts")


def test_info_tells_hosts_with_one_name_from_each_other_and_counts_their_ranks():
    hosts = count_by_host([("a first", [0]), ("a second", [0, 1]), ("a first", [1])])
    assert info.rank_rows(hosts) == [
        ("ranks", "3 on 2 hosts"),
        ("  a", "2 ranks, 2 cores"),
        ("  a", "1 rank, 2 cores"),
    ]


@pytest.mark.parametrize(
    ("relayout", "problem"),
    [
        (lambda tensor, layout: meshcomm.zeros_like(tensor), "wrong values in layout [x, unsharded]"),
        (lambda tensor, layout: 1 / 0, "ZeroDivisionError: division by zero"),
    ],
)
def test_a_self_test_that_fails_is_reported(relayout, problem, monkeypatch):
    monkeypatch.setattr(meshcomm, "relayout", relayout)
    with meshcomm.simulate(1) as world:
        assert world.run(info._self_test, 0, 1) == [problem]
    assert info._self_test_findings(["", "broken"]) == [Finding(PROBLEM, "self-test", "broken", (1,))]


def test_a_file_stays_as_it_was_until_the_new_one_is_whole(tmp_path):
    file = tmp_path / "machine.json"
    file.write_text("old")
    output = calibrate._Output(str(file))
    assert (file.read_text(), output.error, list(tmp_path.iterdir())) == ("old", None, [file])
    output.write("new")
    assert (file.read_text(), output.error, list(tmp_path.iterdir())) == ("new", None, [file])


@pytest.mark.parametrize(
    ("nodes", "text"), [(0, "1"), (2, "2 ranks each, in order"), ((0, 1, 0), "2, of 1 to 2 ranks"), ((3, 3), "1")]
)
def test_info_names_the_nodes(nodes, text):
    assert info._nodes_text(meshcomm.Machine(nodes=nodes)) == text
