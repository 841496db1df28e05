"""The pages of docs/coming-from are whole; tests/jobs/test_coming_from.py runs the code of the other side."""

from support.side_by_side import FOLDER, SYSTEMS, sections


def test_every_page_is_tested_and_listed():
    pages = {path.stem for path in FOLDER.glob("*.md")} - {"index"}
    assert pages == set(SYSTEMS)
    index = (FOLDER / "index.md").read_text(encoding="utf-8")
    assert [page for page in pages if f"({page}.md)" not in index] == []


def test_every_page_has_tasks_to_compare_and_the_same_last_sections():
    for page in SYSTEMS:
        found = sections(page)
        tasks = [section for section in found if section.is_task]
        assert 5 <= len(tasks) <= 8, page
        assert [task.title for task in tasks if not task.results] == [], page
        text = (FOLDER / f"{page}.md").read_text(encoding="utf-8")
        titles = [line.removeprefix("## ") for line in text.splitlines() if line.startswith("## ")]
        assert [titles[0], *titles[-3:-1]] == ["Words", "What is different", "What meshcomm does not have"], page
        assert titles[-1].startswith("Data to and from "), page
        assert found[-1].theirs, page  # it runs with the other side
