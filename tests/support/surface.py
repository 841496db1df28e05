"""What is public, by name, and how it may be called; tests/data/surface.json has what callers rely on.

`PYTHONPATH=tests python tests/support/surface.py` adds new names there: what is recorded stays.
"""

import ast
import importlib
import inspect
import json
import re

import meshcomm as mc
from meshcomm.core.ranks.recording import Listener
from support.paths import DATA, script
from support.values import values

FILE = DATA / "surface.json"
MODULES = [name for name in script("docs/site/assemble.py").MODULES if name != "torch"]
"""The public modules that can be imported everywhere."""
RETURNED = {
    "DevicePlan": "device 1 of between",
    "Candidate": "Candidate",
    "WrongRank": "WrongRank",
    "LayoutType": "LayoutType",
}
"""Classes that are public because public calls return them, and a value of each."""
OURS = [
    *("DTensor.partner", "Plan.copy_step", "RelayoutRequest", "SimulatedWorld.arrive", "SimulatedWorld.events"),
    *("SimulatedWorld.here", "SimulatedWorld.meet", "Layout.dims_along", "Layout.insert", "Layout.only"),
    *("Layout.replace", "Layout.sharding_dims", "Layout.take", "Layout.usual_cut"),
    *(f"Count.{name}" for name in vars(Listener) if not name.startswith("_")),
]
"""What only other modules of the package call."""


def public(twice=False):
    """Return all that is public: "relayout", "fft.fft", "DTensor.sum" and what they name; *twice* with other names."""
    found = {name: getattr(mc, name) for name in mc._module_of}
    for of in MODULES:
        module = importlib.import_module(f"meshcomm.{of}")
        named = {name: getattr(module, name) for name in module.__all__}
        found |= {
            f"{of}.{name}": value for name, value in named.items() if twice or value is not getattr(mc, name, None)
        }
    for name, value in [each for each in found.items() if inspect.isclass(each[1])]:
        found |= {f"{name}.{member}": getattr(value, member) for member in members(value)}
    return found


def members(cls):
    """Return the public members of a class that this package, a named tuple or a mapping gives it."""
    own = [base for base in cls.__mro__ if base.__module__.partition(".")[0] in ("meshcomm", "collections")]
    return sorted({name for base in own for name in vars(base) if not name.startswith("_")})


def called():
    """Return the public functions, classes and methods, but for errors."""
    found = {name: value for name, value in public().items() if callable(value)}
    kinds = {name: inspect.isroutine(value) or inspect.isclass(value) for name, value in found.items()}
    return {name: value for name, value in found.items() if kinds[name] and not hasattr(value, "with_traceback")}


def is_collective(value, first=True):
    """Return whether a docstring says Collective: in its first paragraph, or anywhere."""
    doc = inspect.getdoc(value) or ""
    return re.search(r"\bCollective\b", doc.partition("\n\n")[0] if first else doc) is not None


def surface():
    """Return everything public by name: "attribute", or how it may be called."""
    found, made = public(twice=True), values()
    made = {name: made[key] for name, key in RETURNED.items()} | {"SimulatedWorld": mc.simulate(1)}
    for name, value in made.items():
        kind = type(value)
        found |= {name: kind} | {f"{name}.{member}": getattr(kind, member) for member in members(kind)}
        found |= {f"{name}.{each}": None for each in getattr(value, "__dict__", ()) if each[0] != "_"}
    how = {name: call_text(value) for name, value in found.items()}
    for name, value in found.items():
        if inspect.isclass(value):
            how |= {f"{name}.{field}": "attribute" for field in fields(value)}
    return {name: text for name, text in how.items() if name not in OURS}


def fields(cls):
    """Return the public attributes that only instances have."""
    names = {*getattr(cls, "__dataclass_fields__", ()), *getattr(cls, "__annotations__", ())}
    return sorted(name for name in names if not name.startswith("_"))


def call_text(value):
    """Return how a function may be called, without annotations, which may become more precise; else "attribute"."""
    if not callable(value):
        return "attribute"
    try:
        signature = inspect.signature(value)
    except ValueError:
        return "(...)"
    bare = [each.replace(annotation=inspect.Parameter.empty) for each in signature.parameters.values()]
    text = str(signature.replace(parameters=bare, return_annotation=inspect.Signature.empty))
    return re.sub(r"<.*? at 0x[0-9a-f]+>", "<...>", text)


def accepts(new, old):
    """Return whether every call that fits the call text *old* fits *new*.

    >>> accepts("(a, *, b=1, c=2)", "(a, *, b=1)"), accepts("(a, b)", "(a)"), accepts("(b, a)", "(a, b)")
    (True, False, False)
    >>> accepts("(a=None)", "(a)"), accepts("(a)", "(a=None)"), accepts("(a=2)", "(a=1)")
    (True, False, False)
    >>> accepts("(a, *args, **more)", "(a, *args)"), accepts("(a)", "(a, **more)"), accepts("(a)", "attribute")
    (True, False, False)
    >>> accepts("(a, *, b=1)", "(a, b=1)"), accepts("(a, b=1, *, c)", "(a, b=1)"), accepts("(a, b)", "(a, *, b)")
    (False, False, True)
    """
    if new == old or "(...)" in (new, old) or "(" not in new or "(" not in old:
        return new == old
    (first, first_any), (second, second_any) = parameters(old), parameters(new)
    in_order = [name for name, (keyword_only, _) in first.items() if not keyword_only]
    if not first_any <= second_any or list(second)[: len(in_order)] != in_order:
        return False
    stays = all(
        name in second and second[name][0] <= how[0] and how[1] in (None, second[name][1])
        for name, how in first.items()
    )
    return stays and all(default is not None for name, (_, default) in second.items() if name not in first)


def parameters(text):
    """Return the parameters of a call text, whether each is keyword-only, and its default; and its * and **."""
    given = ast.parse(f"def f{re.sub('<.*?>', '0', text)}: 0").body[0].args
    positional = [*given.posonlyargs, *given.args]
    defaults = [None] * (len(positional) - len(given.defaults)) + given.defaults + given.kw_defaults
    names = [(each.arg, False) for each in positional] + [(each.arg, True) for each in given.kwonlyargs]
    found = {
        name: (keyword_only, default and ast.unparse(default))
        for (name, keyword_only), default in zip(names, defaults, strict=True)
    }
    return found, {mark for mark, each in (("*", given.vararg), ("**", given.kwarg)) if each}


if __name__ == "__main__":
    recorded = json.loads(FILE.read_text())
    recorded["calls"] = surface() | recorded["calls"]
    says = {name for name, value in public().items() if is_collective(value)}
    recorded["collective"] = sorted(says | set(recorded.get("collective", ())))
    FILE.write_text(json.dumps(recorded, indent=0) + "\n")
