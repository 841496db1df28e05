"""The messages of docs/faq.md that only a job of processes gives."""

import re

import pytest

from support.faq import complaint, errors, first_lines

pytestmark = pytest.mark.any_mpi

ERRORS = {section.title: section for section in errors()}


@pytest.mark.parametrize(
    ("title", "ranks", "environment"),
    [
        ("The mesh needs more ranks than there are", 4, {}),
        ("There is no MPI", None, {"MPI4PY_LIBMPI": "/not/there/libmpi.so"}),
        ("A rank waits for others that have ended", 4, {}),
    ],
)
def test_job_ends_with_what_the_page_says(launch, tmp_path, title, ranks, environment):
    section = ERRORS[title]
    program = tmp_path / "program.py"
    begin = first_lines() if ranks else "import meshcomm as mc\n"
    program.write_text(begin + section.code)
    job = launch(ranks, program, **environment)
    assert job.code != 0, job
    found = complaint(section, last_words(job.text))
    assert found is None, f"{job}\n\n{found}"


def last_words(text):
    """Return the error that a rank ended with, as the last lines of its traceback, or what the watchdog said."""
    said = re.search(r"^meshcomm: rank \d+ of \d+ ends the job: it .*\n(?:  ranks? .*\n)*", text, re.MULTILINE)
    raised = re.search(r"^meshcomm\.(\w+: .*)$", text, re.MULTILINE)
    if said:
        return re.sub(r"has waited \d+ s", "has waited 2 s", said[0])
    return raised[1] if raised else "nothing is said"
