"""The laws of the house hold for the package; and each law finds what it is for, at any depth."""

from pathlib import Path

import pytest

import meshcomm as mc
from support import laws
from support.laws import FIXED_SIGNATURES, LAWS, WAYS, Tree, functions_in

PACKAGE = Path(mc.__file__).parent
ROOT = Path(__file__).parent.parent.parent
BESIDE = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "mpi_examples").rglob("*.py")),
    *sorted((ROOT / "benchmarks").rglob("*.py")),
]


@pytest.fixture(scope="module")
def house():
    return Tree(PACKAGE, [path for path in BESIDE if "output" not in path.parts])


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
def test_the_house_keeps_the_law(house, law):
    found = list(law(house))
    shown = "\n  ".join(found[:40])
    assert not found, f"{law.__doc__}\n{len(found)} times:\n  {shown}"


def test_the_whole_tree_is_read(house):
    files = {path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py")}
    assert {module.file for module in house.modules} == files
    assert any("/" in file for file in files), "the laws are about a tree with folders"
    assert {module.folder for module in house.modules} >= set(laws.FLOORS)
    assert len(house.compiled) >= 3
    assert (PACKAGE / "_kernels.pyx") in house.compiled


def test_ways_and_choice_are_files(house):
    files = {module.file for module in house.modules}
    assert {*WAYS, laws.CHOOSES} <= files


def test_exceptions_are_needed(house):
    """A name on a list of exceptions that no source needs any more comes off the list."""
    functions = {name: node for module in house.modules for name, node, _ in functions_in(module.ast)}
    for name in FIXED_SIGNATURES:
        assert len(functions[name].args.args) > laws.MOST_POSITIONAL, name


# -- each law can fail ------------------------------------------------------------------------------------------------

GOOD = {
    "__init__.py": "from pkg.arrays.dtensor import DTensor\n__all__ = ['DTensor']\n",
    "__main__.py": "from pkg.cli.main import main\nmain()\n",
    "errors.py": "class MeshError(ValueError):\n    '''A mesh is wrong.'''\n",
    "_types.py": "from typing import Any\nShape = Any\n",
    "_hooks.py": "def provides(name):\n    return print\n\ndef call(name):\n    return name\n",
    "_arguments.py": "from pkg.errors import MeshError\n\ndef integer(value, what):\n    raise MeshError(what)\n",
    "_kernels.pyx": "# Copies boxes.\ncdef int copy(int n):\n    return n\n",
    "memory/__init__.py": "",
    "memory/blocks.py": "from pkg.errors import MeshError\n",
    "memory/strided/rows.h": "/* One row after the other. */\nstatic int rows(int n) { return n; }\n",
    "layouts/__init__.py": "",
    "layouts/boxes.py": "Box = tuple\n",
    "layouts/mesh.py": (
        "from pkg import _hooks\nfrom pkg._arguments import integer\n\ndef world():\n    return _hooks.call('world')\n"
    ),
    "plans/__init__.py": "",
    "plans/plan.py": "from pkg.layouts.mesh import world\n",
    "ranks/__init__.py": "",
    "ranks/communicator.py": (
        "import os\nfrom pkg import _hooks\nfrom pkg.memory import blocks\n\n@_hooks.provides('world')\n"
        "def here():\n    from mpi4py import MPI\n    return MPI.COMM_WORLD.Dup(), os.environ\n\n"
        "class Team:\n    shares_memory = False\n\n    def opens(self):\n        return self.shares_memory\n"
    ),
    "transport/__init__.py": "",
    "transport/packed.py": "from pkg.layouts.boxes import Box\n\n\nclass Packed:\n    pass\n",
    "transport/in_place.py": "class InPlace:\n    pass\n",
    "transport/choose.py": (
        "from pkg.transport.in_place import InPlace\nfrom pkg.transport.packed import Packed\n\n"
        "def choose(team):\n    return InPlace() if team.shares_memory else Packed()\n"
    ),
    "arrays/__init__.py": "",
    "arrays/dtensor.py": (
        "from pkg.plans.plan import world\nfrom pkg.transport.choose import choose\n\nclass DTensor:\n    pass\n"
    ),
    "ops/__init__.py": "",
    "ops/random.py": "from pkg.arrays.dtensor import DTensor\n",
    "training/__init__.py": "",
    "training/variables.py": "from pkg.ops.random import DTensor\n",
    "cli/__init__.py": "",
    "cli/main.py": (
        "import pkg\nfrom pkg.training import variables\n\ndef main():\n    return variables, pkg.DTensor\n"
    ),
}


def tree_of(tmp_path, changes=None, beside=None):
    """Return a tree of the files of a good house with *changes*: new texts, or text to be added after ``+``."""
    files = dict(GOOD)
    for name, text in (changes or {}).items():
        files[name] = files.get(name, "") + text[1:] if text.startswith("+") else text
    for name, text in files.items():
        path = tmp_path / "pkg" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    outside = []
    for name, text in (beside or {}).items():
        outside.append(tmp_path / name)
        outside[-1].write_text(text)
    return Tree(tmp_path / "pkg", outside)


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
def test_a_good_house_keeps_the_law(tmp_path, law):
    assert list(law(tree_of(tmp_path, beside={"README.md": "Blocks are sharded in place.\n"}))) == []


def lines(count):
    return "".join(f"x{n} = {n}\n" for n in range(count))


PLANTED = [
    # imports
    ("imports_go_down", {"layouts/mesh.py": "+from pkg.plans import plan\n"}, "layouts/mesh.py:6 imports plans"),
    ("imports_go_down", {"memory/deep/down/er.py": "import pkg.layouts.mesh\n"}, "memory/deep/down/er.py:1"),
    ("imports_go_down", {"plans/plan.py": "+from pkg.ranks.communicator import here\n"}, "imports ranks.communicator"),
    (
        "imports_go_down",
        {"plans/plan.py": "+from pkg.memory import blocks\n"},
        "plans/plan.py:2 imports memory.blocks",
    ),
    ("imports_go_down", {"transport/relay.py": "from pkg.layouts.mesh import world\n"}, "imports layouts.mesh"),
    ("imports_go_down", {"transport/relay.py": "from pkg.layouts import mesh\n"}, "imports layouts.mesh"),
    ("imports_go_down", {"transport/relay.py": "from pkg.plans.plan import world\n"}, "imports plans.plan"),
    ("imports_go_down", {"arrays/dtensor.py": "+from pkg.ops import random\n"}, "imports ops.random"),
    ("imports_go_down", {"ops/linalg.py": "from pkg.training import variables\n"}, "imports training.variables"),
    (
        "imports_go_down",
        {"training/layout_map.py": "from pkg.ops.linalg import x\n", "ops/linalg.py": ""},
        "ops.linalg",
    ),
    (
        "imports_go_down",
        {"_arguments.py": "+from pkg.layouts import boxes\n"},
        "_arguments.py:5 imports layouts.boxes",
    ),
    ("imports_go_down", {"_arguments.py": "+from pkg import _kernels\n"}, "imports _kernels"),
    ("imports_go_down", {"arrays/dtensor.py": "+from pkg import DTensor\n"}, "imports __init__"),
    ("imports_go_down", {"arrays/dtensor.py": "+def f():\n    import pkg\n"}, "imports __init__"),
    ("imports_go_down", {"arrays/x.py": "from pkg import gradients\n", "gradients.py": ""}, "imports gradients"),
    ("imports_go_down", {"arrays/x.py": "from . import dtensor\n"}, "relative"),
    ("imports_go_down", {"attic/x.py": ""}, "the house has no folder attic"),
    ("imports_go_down", {"__main__.py": "+from pkg.arrays import dtensor\n"}, "__main__.py:3 imports arrays.dtensor"),
    (
        "imports_go_down",
        {"layouts/mesh.py": "+try:\n    import pkg.arrays.dtensor\nexcept ImportError:\n    pass\n"},
        ":7",
    ),
    (
        "imports_go_down",
        {"adapters/autograd.py": "from pkg.training import variables\n"},
        "imports training.variables",
    ),
    # circles
    (
        "no_circles_of_files",
        {"layouts/boxes.py": "+from pkg.layouts import mesh\n", "layouts/mesh.py": "from pkg.layouts import boxes\n"},
        "circle of layouts.boxes, layouts.mesh",
    ),
    (
        "no_circles_of_files",
        {"memory/a/b.py": "import pkg.memory.c\n", "memory/c.py": "from pkg.memory.a.b import x\n"},
        "circle of memory.a.b, memory.c",
    ),
    (
        "no_circles_of_files",
        {
            "layouts/__init__.py": "from pkg.layouts.mesh import world\n",
            "layouts/mesh.py": "def f():\n    from pkg.layouts import world\n",
        },
        "circle of layouts, layouts.mesh",
    ),
    ("no_circles_of_folders", {"ops/linalg.py": "import pkg.training.variables\n"}, "circle of ops, training"),
    (
        "no_circles_of_folders",
        {
            "ops/a/x.py": "import pkg.ops.b.x\n",
            "ops/b/x.py": "",
            "ops/b/y.py": "import pkg.ops.a.y\n",
            "ops/a/y.py": "",
        },
        "circle of ops.a, ops.b",
    ),
    # hooks
    ("hooks_are_few_and_known", {"layouts/mesh.py": "+_hooks.call('rank')\n"}, "layouts/mesh.py:6: the hook rank"),
    (
        "hooks_are_few_and_known",
        {"plans/plan.py": "+from pkg import _hooks\n_hooks.call('world')\n"},
        "plans/plan.py:3 calls the hook world",
    ),
    (
        "hooks_are_few_and_known",
        {"arrays/x.py": "from pkg._hooks import provides\n@provides('world')\ndef f(): pass\n"},
        "arrays/x.py:2 provides the hook world",
    ),
    ("hooks_are_few_and_known", {"layouts/mesh.py": "+def f(n):\n    return _hooks.call(n)\n"}, "not written out"),
    (
        "hooks_are_few_and_known",
        {"plans/deep/x.py": "from pkg import _hooks\n_hooks.world()\n"},
        "plans/deep/x.py:2 calls the hook world",
    ),
    ("hooks_are_few_and_known", {"plans/x.py": "from pkg import _hooks\n_hooks.other = print\n"}, "the hook other"),
    # MPI and the environment
    (
        "only_ranks_know_mpi",
        {"arrays/dtensor.py": "+def f():\n    from mpi4py.MPI import COMM_WORLD\n"},
        "arrays/dtensor.py:7 imports mpi4py.MPI",
    ),
    ("only_ranks_know_mpi", {"cli/sub/info.py": "import mpi4py.MPI as MPI\n"}, "cli/sub/info.py:1"),
    (
        "only_ranks_know_mpi",
        {"transport/packed.py": "+def f(comm):\n    return comm.Split_type(1)\n"},
        "calls Split_type",
    ),
    (
        "only_ranks_know_mpi",
        {"memory/strided/rows.h": "+int f() { return MPI_Barrier(0); }\n"},
        "memory/strided/rows.h:3",
    ),
    ("only_ranks_know_mpi", {"memory/_pool.pyx": "cimport numpy\n"}, "memory/_pool.pyx:1"),
    ("nothing_is_pickled", {"arrays/x.py": "def f():\n    import pickle\n"}, "arrays/x.py:2 imports pickle"),
    ("nothing_is_pickled", {"ranks/x.py": "from mpi4py.util import pkl5\n"}, "ranks/x.py:1 imports mpi4py.util"),
    ("nothing_is_pickled", {"ranks/x.py": "from mpi4py import futures\n"}, "ranks/x.py:1 imports mpi4py"),
    ("nothing_is_pickled", {"ranks/x.py": "def f(self):\n    self._comm.bcast(1)\n"}, "x.py:2 calls self._comm.bcast"),
    ("nothing_is_pickled", {"ranks/x.py": "def f(c):\n    c.Dup().isend(1, 2)\n"}, "calls c.Dup().isend"),
    ("nothing_is_pickled", {"ranks/x.py": "def f(m):\n    m.pickle.loads(b'')\n"}, "calls m.pickle.loads"),
    ("nothing_is_pickled", {"cli/x.py": "import numpy\nnumpy.load('a', allow_pickle=True)\n"}, "passes allow_pickle"),
    ("nothing_is_pickled", {"memory/_pool.pyx": "import pickle\n"}, "memory/_pool.pyx pickles"),
    (
        "only_ranks_read_the_environment",
        {"memory/deep/x.py": "import os\nos.environ['A']\n"},
        "memory/deep/x.py:2 uses os.environ",
    ),
    ("only_ranks_read_the_environment", {"cli/main.py": "+from os import getenv\n"}, "imports os.getenv"),
    ("only_ranks_read_the_environment", {"memory/_pool.pyx": "cdef extern char* getenv(char*)\n"}, "memory/_pool.pyx"),
    # the way of the bytes
    (
        "only_one_file_chooses_the_way",
        {"arrays/deep/x.py": "from pkg.transport.packed import Packed\nPacked()\n"},
        "arrays/deep/x.py:2 makes a Packed",
    ),
    (
        "only_one_file_chooses_the_way",
        {"transport/packed.py": "+from pkg.transport import in_place\nin_place.InPlace()\n"},
        "transport/packed.py:7 makes a InPlace",
    ),
    (
        "only_one_file_chooses_the_way",
        {"arrays/dtensor.py": "+def f(team):\n    return team.shares_memory\n"},
        "asks for shares_memory",
    ),
    (
        "only_one_file_chooses_the_way",
        {"ranks/x.py": "def f(team):\n    return getattr(team, 'shares_memory', False)\n"},
        "ranks/x.py:2",
    ),
    (
        "only_one_file_chooses_the_way",
        {"plans/x.py": "from pkg._tuning import ROUND_BYTES\n", "_tuning.py": "ROUND_BYTES = 1\n"},
        "plans/x.py:1 imports what a way is chosen by",
    ),
    # private names
    (
        "private_names_stay_private",
        {"arrays/x.py": "from pkg.layouts.mesh import _dims\n"},
        "arrays/x.py:1 reaches layouts.mesh._dims",
    ),
    (
        "private_names_stay_private",
        {"arrays/deep/x.py": "from pkg.layouts import mesh\nmesh._dims()\n"},
        "arrays/deep/x.py:2 reaches layouts.mesh._dims",
    ),
    (
        "private_names_stay_private",
        {"arrays/x.py": "import pkg.layouts.mesh\npkg.layouts.mesh._dims()\n"},
        "arrays/x.py:2",
    ),
    (
        "nothing_is_freed_by_the_garbage_collector",
        {"memory/deep/x.py": "class A:\n    def __del__(self): pass\n"},
        "memory/deep/x.py:2",
    ),
    (
        "nothing_is_freed_by_the_garbage_collector",
        {"memory/x.py": "import weakref\nweakref.finalize(1, 2)\n"},
        "memory/x.py:2",
    ),
    # sizes
    ("files_are_short", {"plans/deep/x.py": lines(401)}, "plans/deep/x.py has 401 code lines"),
    ("files_are_short", {"memory/strided/x.h": "int a;\n" * 401}, "memory/strided/x.h has 401"),
    ("files_are_short", {"memory/_pool.pyx": "a = 1\n" * 401}, "memory/_pool.pyx has 401"),
    ("functions_are_short", {"plans/deep/x.py": "def f():\n" + "    a = 1\n" * 40}, "plans/deep/x.py:1 f has 41"),
    (
        "functions_are_short",
        {"plans/x.py": "class A:\n  class B:\n    def f(self):\n" + "      a = 1\n" * 40},
        "A.B.f has 41",
    ),
    ("functions_take_few_arguments", {"plans/deep/x.py": "def f(a, b, c, d, e, g): pass\n"}, "f takes 6"),
    (
        "functions_take_few_arguments",
        {"plans/x.py": "class A:\n    def f(self, a, b, c, d, e, g): pass\n"},
        "A.f takes 6",
    ),
    ("functions_take_few_arguments", {"plans/x.py": "def f(a, b, /, c, d, e, g): pass\n"}, "f takes 6"),
    ("functions_take_few_arguments", {"plans/x.py": "def f():\n    def g(a, b, c, d, e, g): pass\n"}, "f.g takes 6"),
    (
        "functions_take_few_arguments",
        {"plans/x.py": "class A:\n    @staticmethod\n    def f(a, b, c, d, e, g): pass\n"},
        "A.f",
    ),
    ("any_is_rare", {"plans/deep/x.py": "from typing import Any\n" + "a: Any\n" * 149}, "152 times Any"),
    # words
    ("words_are_those_of_the_field", {"plans/deep/x.py": "place_of = 1\n"}, "plans/deep/x.py:1 place_of: not place"),
    ("words_are_those_of_the_field", {"plans/x.py": "class FarBlocks: pass\n"}, "FarBlocks: not far"),
    (
        "words_are_those_of_the_field",
        {"plans/x.py": "def f(x):\n    return x.parts\n"},
        "plans/x.py:2 parts: not parts",
    ),
    (
        "words_are_those_of_the_field",
        {"plans/x.py": "a = 1\n# One line,\n# and its room.\n"},
        "plans/x.py:3 not 'room'",
    ),
    (
        "words_are_those_of_the_field",
        {"plans/x.py": "'''Doc.\n\nIts place in\nthe row.'''\n"},
        "plans/x.py:3 not 'place'",
    ),
    (
        "words_are_those_of_the_field",
        {"plans/x.py": "raise ValueError(f'{1} has no\\nplace')\n"},
        "plans/x.py:1 not 'place'",
    ),
    (
        "words_are_those_of_the_field",
        {"plans/x.py": "'''The bound\non scratch.'''\n"},
        "plans/x.py:1 not 'bound\\non scratch'",
    ),
    ("words_are_those_of_the_field", {"plans/x.py": "'''An array of rank 2.'''\n"}, "not 'array of rank'"),
    ("words_are_those_of_the_field", {"memory/_pool.pyx": "cdef int mate_of(int n)\n"}, "memory/_pool.pyx:1 mate_of"),
    ("words_are_those_of_the_field", {"memory/strided/x.h": "// the place\nint room;\n"}, "x.h:2 room: not room"),
    ("words_are_those_of_the_field", {"memory/strided/x.h": "/* a\n place */\n"}, "memory/strided/x.h:2 not 'place'"),
    (
        "local_is_not_written",
        {"plans/deep/x.py": "def f():\n    '''Return it. Local.'''\n"},
        "plans/deep/x.py:2 says Local",
    ),
    ("local_is_not_written", {"plans/x.py": "'''A.\n\nLocal; ``MeshError``.'''\n"}, "plans/x.py:3 says Local"),
]


@pytest.mark.parametrize(("name", "changes", "text"), PLANTED)
def test_a_planted_violation_is_found(tmp_path, name, changes, text):
    law = getattr(laws, name)
    found = list(law(tree_of(tmp_path, changes)))
    assert any(text in each for each in found), found


def test_every_law_was_shown_to_fail():
    assert {name for name, _, _ in PLANTED} == {law.__name__ for law in LAWS}


def test_what_stands_beside_the_package_is_read(tmp_path):
    beside = {
        "page.md": "Blocks.\n\nEach has its place.\n",
        "program.py": "from pkg.layouts.mesh import _dims\n\nmates = 1\n",
    }
    tree = tree_of(tmp_path, beside=beside)
    assert list(laws.private_names_stay_private(tree)) == ["program.py:1 reaches layouts.mesh._dims"]
    found = list(laws.words_are_those_of_the_field(tree))
    assert [each.partition(" ")[0] for each in found] == ["page.md:3", "program.py:3"]


def test_a_fifth_hook_is_one_too_many(tmp_path, monkeypatch):
    monkeypatch.setattr(laws, "HOOKS", {**laws.HOOKS, "fifth": laws.Hook("ranks", ("root",))})
    assert "5 hooks; at most 4" in list(laws.hooks_are_few_and_known(tree_of(tmp_path)))


@pytest.mark.parametrize(
    "changes",
    [
        {"plans/x.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from pkg.arrays import dtensor\n"},
        {"plans/x.py": "# A comment. " * 30 + "\n" + "\n".join(["# proof"] * 500)},
        {"plans/x.py": "def f(self, a, b, c, d): pass\nclass A:\n    def f(self, a, b, c, d, e, *, g, **h): pass\n"},
        {"plans/x.py": "from itertools import chain\nx = chain([1])\n"},
        {"plans/x.py": "'''Copies in place; as far as possible; not divided by 3.'''\n"},
        {"plans/x.py": "import numpy as np\nx = np.shares_memory(1, 2).replace(1)\nin_place = displacement = 1\n"},
        {"plans/x.py": "def f():\n    '''Return `t.Local` and localhost.'''\n"},
        {"training/modules.py": "class Module:\n    def parts(self): pass\n"},
    ],
)
def test_what_is_allowed_is_not_found(tmp_path, changes):
    tree = tree_of(tmp_path, changes)
    assert [each for law in LAWS for each in law(tree)] == []
