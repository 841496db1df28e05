"""The messages of docs/faq.md are those that its wrong code raises."""

import meshcomm as mc
from support.faq import complaint, errors, first_lines

IN_JOBS = {  # tests/jobs/test_faq.py
    "The mesh needs more ranks than there are",
    "There is no MPI",
    "A rank waits for others that have ended",
}
SIMULATED = [section for section in errors() if section.title not in IN_JOBS]


def raised(code):
    """Return what *code* raises on 4 ranks, as the last lines of a traceback."""
    with mc.simulate(4) as world:
        try:
            world.run(lambda: exec(compile(first_lines() + code, "faq.md", "exec"), {}))
        except Exception as error:
            return f"{type(error).__name__}: {error}"
    return "nothing is raised"


def test_wrong_code_raises_what_the_page_says():
    found = {section.title: complaint(section, raised(section.code)) for section in SIMULATED}
    assert {title: wrong for title, wrong in found.items() if wrong is not None} == {}
    assert len(SIMULATED) + len(IN_JOBS) == len(errors()) > 10
