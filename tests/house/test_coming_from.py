"""The pages of docs/coming-from are whole; tests/jobs/test_coming_from.py runs the code of the other side."""

import pytest

from support.side_by_side import FOLDER, SYSTEMS, sections


def test_every_page_is_tested_and_listed():
    pages = {path.stem for path in FOLDER.glob("*.md")} - {"index"}
    assert pages == set(SYSTEMS)
    index = (FOLDER / "index.md").read_text(encoding="utf-8")
    assert [page for page in pages if f"({page}.md)" not in index] == []


@pytest.mark.parametrize("page", SYSTEMS)
def test_both_sides_of_a_task_have_a_result_to_compare(page):
    tasks = [section for section in sections(page) if section.is_task]
    assert 5 <= len(tasks) <= 8
    assert [task.title for task in tasks if not task.results] == []


@pytest.mark.parametrize("page", SYSTEMS)
def test_pages_say_what_differs_what_is_missing_and_how_data_go_over(page):
    text = (FOLDER / f"{page}.md").read_text(encoding="utf-8")
    titles = [line.removeprefix("## ") for line in text.splitlines() if line.startswith("## ")]
    assert titles[0] == "Words"
    assert titles[-3:-1] == ["What is different", "What meshcomm does not have"]
    assert titles[-1].startswith("Data to and from ")
    assert sections(page)[-1].theirs  # it runs with the other side
