"""``python -m meshcomm show`` and ``plan``: what they print, and what they say about wrong arguments."""

import re
import shlex
import sys
from contextlib import redirect_stdout
from xml.etree import ElementTree

import pytest

import meshcomm as mc
from meshcomm.core.plans.costs import predicted_seconds, relay_pays
from meshcomm.tools.cli import plan as plan_command
from meshcomm.tools.cli.main import main
from meshcomm.tools.cli.plan import scale_sizes
from meshcomm.tools.cli.terminal import terminal
from support.paths import ROOT
from support.patience import run

U = mc.UNSHARDED
PLAN = ["plan", "--shape", "4096,4096", "--mesh", "x=64", "--from", "x,unsharded", "--to", "unsharded,x"]


@pytest.fixture(autouse=True)
def patience(request, monkeypatch):
    """Seconds for all rows of the table: it has them all, however slow the machine is."""
    monkeypatch.setattr(plan_command, "PATIENCE", getattr(request, "param", float("inf")))


@pytest.mark.parametrize(
    ("arguments", "specs", "shape"),
    [
        ("x,unsharded --shape 10,7", ["x", U], (10, 7)),
        ("x+y,unsharded --shape 10,7", [("x", "y"), U], (10, 7)),
        ("x=cuts(0;3;3;9;10),y=cyclic(2) --shape 10,7", [mc.Cuts("x", (0, 3, 3, 9, 10)), mc.Cyclic("y", 2)], (10, 7)),
        ("x,unsharded", ["x", U], None),
        ("scalar --shape=", [], ()),
    ],
)
def test_show_prints_what_the_function_returns(arguments, specs, shape, capsys):
    assert main(["show", *arguments.split(), "--mesh", "x=4,y=2"]) == 0
    mesh = mc.Mesh(range(8), {"x": 4, "y": 2})
    assert capsys.readouterr().out == mc.show(mc.Layout(specs, mesh), shape) + "\n"


@pytest.mark.parametrize("command", [["show", "x,unsharded", "--mesh", "x=64", "--shape", "10,7"], PLAN])
def test_svg_files(command, tmp_path, capsys):
    path = tmp_path / "picture.svg"
    assert main([*command, "--svg", str(path)]) == 0
    assert ElementTree.parse(path).getroot().tag.endswith("svg")
    assert main([*command, "--svg", str(tmp_path / "picture.png")]) == 2
    assert main([*command, "--svg", str(tmp_path / "no" / "picture.svg")]) == 1
    assert "must end in .svg" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("show z --mesh x=2", "the mesh has the dimensions ['x']"),
        ("show x --mesh x", "'x' has no size; it is written name=size"),
        ("show x --mesh x=2|y=3", "is not written name=size"),
        ("show x --mesh x=1000000000", "at most 1048576"),
        ("show x,,x --mesh x=2", "empty sharding spec"),
        ("show x=cuts(0;3) --mesh x=2", "one block for each"),
        ("show x=fold(3) --mesh x=2", "cuts(0;...;LENGTH) or cyclic(BLOCK;OFFSET)"),
        ("show x --mesh x=2 --shape 3,4", "2 axes, but the layout is for 1"),
        ("show x --mesh x=2 --shape 3x4", "not written as lengths with commas"),
        ("plan --shape 4 --mesh x=2 --from x --to x --dtype O", "Python objects"),
        ("plan --shape 4 --mesh x=2 --from x --to x --dtype f9", "is not a dtype"),
        ("plan --shape 4 --mesh x=2 --from x --to x --nodes 3", "--nodes 3 for 2 ranks"),
        ("plan --shape 4 --mesh x=2 --from x --to x --scratch 1X", "is not a number of bytes"),
        ("plan --shape 4,4 --mesh x=2 --from x,unsharded --to unsharded,x --scratch 1", "the minimum is"),
    ],
)
def test_wrong_arguments_are_reported_in_one_line(arguments, says, capsys):
    assert main(arguments.split()) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert says in err
    assert re.fullmatch("meshcomm: .*\n", err)


def test_under_mpiexec_the_first_rank_prints(launched_as, capsys):
    for rank in (0, 1):
        launched_as(rank, 2)
        assert main(["show", "x", "--mesh", "x=2"]) == 0
        assert bool(capsys.readouterr().out) == (rank == 0)


def test_show_draws_a_mesh(capsys, tmp_path):
    assert main(["show", "--mesh", "x=2,y=3", "--svg", str(tmp_path / "mesh.svg")]) == 0
    assert capsys.readouterr().out == mc.show(mc.Mesh(range(6), {"x": 2, "y": 3})) + "\n"
    assert (tmp_path / "mesh.svg").read_text(encoding="utf-8").count("<title>devices") == 6


# -- plan -------------------------------------------------------------------------------------------------------------


def rows(text):
    """Return the rows of the table, each as a dict."""
    lines = text[re.search("^ *ranks  ", text, re.M).start() :].rstrip().split("\n")
    heads = re.split(r" {2,}", lines[0].strip())
    return [dict(zip(heads, re.split(r" {2,}", line.strip()), strict=False)) for line in lines[1:]]


def test_plan_prints_the_plan_its_cost_and_the_table(capsys):
    assert main([*PLAN, "--nodes", "8", "--scratch", "1M"]) == 0
    text = capsys.readouterr().out
    mesh = mc.Mesh(range(64), {"x": 64})
    layouts = mc.Layout(["x", U], mesh), mc.Layout([U, "x"], mesh)
    plan = mc.plan_relayout((4096, 4096), "f8", *layouts, 2**20, mc.Machine(nodes=8))
    assert text.startswith(
        f"{plan!r}\npredicted time: {plan_command.seconds_text(plan.seconds)}, on 8 nodes of 8 ranks"
    )
    assert "peak memory of a rank: 4.7 MiB" in text
    table = rows(text)
    assert [row["ranks"] for row in table] == ["16", "64", "256", "1,024", "4,096", "16,384", "65,536"]
    assert table[1] == {
        "ranks": "64",
        "mesh": "64",
        "nodes": "8",
        "received": "2.0 MiB",
        "messages": "63",
        "peak memory": "4.7 MiB",
        "time": plan_command.seconds_text(plan.seconds).replace("µ", "u"),
    }
    assert table[-1]["nodes"] == "8,192"


def test_plan_on_nodes_with_unequal_numbers_of_ranks(capsys):
    command = ["plan", "--shape", "64,64", "--mesh", "x=4", "--from", "x,unsharded", "--to", "unsharded,x"]
    assert main([*command, "--nodes", "3"]) == 0
    text = capsys.readouterr().out
    mesh = mc.Mesh(range(4), {"x": 4})
    layouts = mc.Layout(["x", U], mesh), mc.Layout([U, "x"], mesh)
    plan = mc.plan_relayout((64, 64), "f8", *layouts, None, mc.Machine(nodes=(0, 0, 1, 2)))
    seconds = plan_command.seconds_text(plan.seconds).replace("µ", "u")
    assert text.startswith(f"{plan!r}\npredicted time: {seconds}, on 3 nodes of 1 to 2 ranks over MPI")
    assert "assumed" not in text


def test_plan_says_how_many_ranks_it_assumes_on_a_node(capsys):
    command = ["plan", "--shape", "8,8", "--from", "x,unsharded", "--to", "unsharded,x", "--mesh"]
    for ranks, nodes in ((4, "1 node of 4 ranks"), (128, "2 nodes of 64 ranks"), (100, "2 nodes of 36 to 64 ranks")):
        assert main([*command, f"x={ranks}"]) == 0
        text = capsys.readouterr().out
        assert f", on {nodes} over MPI" in text
        assert "assumed: 64 ranks fill a node; --nodes says how many" in text
        assert "with 64 ranks on each node" in text


def test_the_page_shows_what_the_commands_print(capsys):
    page = (ROOT / "docs" / "pictures.md").read_text(encoding="utf-8")
    (shown,) = re.findall(r"^```text\n(.*?)^```$", page, re.M | re.S)
    commands = re.findall(r"^meshcomm (.*)$", page, re.M)
    assert [command.partition(" ")[0] for command in commands] == ["show", "show", "plan"]
    assert main(shlex.split(commands[2])) == 0
    assert capsys.readouterr().out == shown
    assert main(shlex.split(commands[0])) == 0
    assert capsys.readouterr().out.rstrip() in page.replace("<BLANKLINE>", "")


@pytest.mark.parametrize(
    ("source", "target", "says"),
    [
        ("x,y,unsharded", "unsharded,x,y", "256,256"),
        ("x=cyclic(4),y,unsharded", "unsharded,x,y", "256,256"),
        ("x=cuts(0;10;64;64;64),y,unsharded", "unsharded,x,y", "Chosen boundaries fit one number of ranks only"),
        ("x,y,unsharded", "x,match,unsharded", "nothing moves"),
        ("x=cyclic(4;3),y,unsharded", "x,y,unsharded", "no plan: Cyclic('x', 4, offset=3): offset 3 of 2 devices"),
    ],
)
def test_tables_of_other_layouts(source, target, says, capsys, monkeypatch):
    if "offset" in says:
        monkeypatch.setattr(plan_command, "RANKS", (4, 16))
    command = ["plan", "--shape", "64,64,64", "--mesh", "x=4,y=2", "--from", source, "--to", target]
    assert main(command) == 0
    assert says in capsys.readouterr().out


@pytest.mark.parametrize("patience", [-1.0], indirect=True)
def test_rows_that_would_take_too_long_say_so(capsys):
    assert main(PLAN) == 0
    table = rows(capsys.readouterr().out)
    assert [row["received"] for row in table] == ["too many ranks to plan in seconds"] * 7


@pytest.mark.parametrize(
    ("sizes", "ranks", "expected"),
    [
        ((64,), 16, (16,)),
        ((64,), 65536, (65536,)),
        ((4, 2), 16, (4, 4)),
        ((8, 4), 16, (4, 4)),
        ((3, 5), 16, (3, 5)),
        ((3, 5), 8, (3, 5)),
        ((1, 6), 64, (1, 48)),
        ((1, 1), 16, (16, 1)),
    ],
)
def test_meshes_of_other_sizes(sizes, ranks, expected):
    assert scale_sizes(sizes, ranks) == expected


def test_the_prediction_knows_the_aggregators():
    mesh, machine = mc.Mesh(range(4096), {"x": 4096}), mc.Machine(nodes=64)
    plan = mc.plan_relayout((8192, 8192), "u1", mc.Layout(["x", U], mesh), mc.Layout([U, "x"], mesh), None, machine)
    (step,) = plan.steps
    assert relay_pays(step, machine)
    assert 0 < predicted_seconds(plan.steps, machine) < plan.seconds / 2
    one_node = mc.plan_relayout((64, 64), "u1", plan.source, plan.target)
    assert predicted_seconds(one_node.steps, one_node.machine) == pytest.approx(one_node.seconds)


# -- the terminal -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tty", "environment", "unicode", "colour"),
    [
        (True, {"TERM": "xterm", "LANG": "en_US.UTF-8"}, True, True),
        (True, {"TERM": "xterm", "LANG": "en_US.UTF-8", "NO_COLOR": "1"}, True, False),
        (True, {"TERM": "dumb", "LANG": "en_US.UTF-8"}, False, False),
        (True, {"LANG": "en_US.UTF-8"}, False, False),
        (True, {"TERM": "xterm", "LANG": "C"}, False, True),
        (True, {"TERM": "xterm", "LANG": "C", "LC_CTYPE": "C.UTF-8"}, False, True),
        (True, {"TERM": "xterm"}, False, True),
        (True, {"TERM": "xterm", "LANG": "en_US.UTF-8", "LC_ALL": "C"}, False, True),
        (True, {"TERM": "xterm", "LANG": "C.UTF-8"}, True, True),
        (False, {"TERM": "xterm", "LANG": "en_US.UTF-8"}, False, False),
    ],
)
def test_what_the_terminal_can_show(tty, environment, unicode, colour, monkeypatch):
    class Output:
        encoding = "utf-8"

        def isatty(self):
            return tty

    for name in ("TERM", "LANG", "LC_ALL", "LC_CTYPE", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {**environment, "COLUMNS": "60"}.items():
        monkeypatch.setenv(name, value)
    with redirect_stdout(Output()):
        found = terminal()
    assert found == (60, unicode, colour)


def test_the_commands_need_no_mpi():
    blocked = (
        "import sys; sys.modules['mpi4py'] = None; from meshcomm.tools.cli.main import main; "
        "sys.exit(main(sys.argv[1:]))"
    )
    done = run([sys.executable, "-c", blocked, *PLAN])
    assert done.returncode == 0, done.stderr
    assert done.stdout.isascii()
