"""The command as a whole: what it answers to words that it does not know."""

import pytest

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
    told = capsys.readouterr().err
    assert told.endswith(f"; did you mean '{meant}'?\n")
    assert f"usage: python -m meshcomm {written[0]}" in told or written[0].startswith("--"), told


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
    assert "invalid choice: 'xyzzy'" in (told := capsys.readouterr().err)
    assert "did you mean" not in told
