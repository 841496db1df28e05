"""The command as a whole: what it answers to words that it does not know."""

import pytest

from meshcomm.cli.main import main


@pytest.mark.parametrize(("written", "meant"), [("inof", "info"), ("Plan", "plan"), ("veryfy", "verify")])
def test_misspelt_commands(written, meant, capsys):
    with pytest.raises(SystemExit) as caught:
        main([written])
    assert caught.value.code == 2
    assert capsys.readouterr().err.endswith(f"; did you mean '{meant}'?\n")


def test_words_like_no_command(capsys):
    with pytest.raises(SystemExit):
        main(["xyzzy"])
    assert "invalid choice: 'xyzzy'" in (told := capsys.readouterr().err)
    assert "did you mean" not in told
