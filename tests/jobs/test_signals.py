"""Signals that ask for a checkpoint, on real ranks: all save at the same step, whichever ranks get them."""

from support.paths import PROGRAMS


def test_all_ranks_save_at_the_step_at_which_any_of_them_was_asked(launch, tmp_path):
    job = launch(4, PROGRAMS / "asked.py", tmp_path, "2", "0,1,2,3", "0,3")
    assert job.code == 0, job
    assert sorted(job.text.splitlines()) == [f"rank {rank} saved [3, 6, 9]" for rank in range(4)]
