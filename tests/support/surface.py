"""The public names, and how they may be called; tests/data/surface.json records what callers rely on.

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
RETURNED_CLASSES = {
    "DevicePlan": "device 1 of between",
    "Candidate": "Candidate",
    "WrongRank": "WrongRank",
    "LayoutType": "LayoutType",
}
"""Classes that are public because public calls return them, and the name of a value of each in `values`."""
INTERNAL = [
    *("DTensor.partner", "Plan.copy_step", "RelayoutRequest", "SimulatedWorld.arrive", "SimulatedWorld.events"),
    *("SimulatedWorld.here", "SimulatedWorld.meet", "Layout.dims_along", "Layout.insert", "Layout.only"),
    *("Layout.replace", "Layout.sharding_dims", "Layout.take", "Layout.default_cut", "Layout.as_consecutive"),
    *(f"Count.{name}" for name in vars(Listener) if not name.startswith("_")),
]
"""Public members that only other modules of the package call."""


def public(twice=False):
    """Return the public objects by name: "relayout", "fft.fft", "DTensor.sum". If *twice*, use all names of each."""
    objects = {name: getattr(mc, name) for name in mc._module_of}
    for module_name in MODULES:
        module = importlib.import_module(f"meshcomm.{module_name}")
        module_objects = {name: getattr(module, name) for name in module.__all__}
        objects |= {
            f"{module_name}.{name}": value
            for name, value in module_objects.items()
            if twice or value is not getattr(mc, name, None)
        }
    for name, value in [item for item in objects.items() if inspect.isclass(item[1])]:
        objects |= {f"{name}.{member}": getattr(value, member) for member in members(value)}
    return objects


def members(cls):
    """Return the public members of a class that come from this package, a named tuple or a mapping."""
    bases = [base for base in cls.__mro__ if base.__module__.partition(".")[0] in ("meshcomm", "collections")]
    return sorted({name for base in bases for name in vars(base) if not name.startswith("_")})


def called():
    """Return the public functions, classes and methods, but for errors."""
    objects = {name: value for name, value in public().items() if callable(value)}
    is_function_or_class = {
        name: inspect.isroutine(value) or inspect.isclass(value) for name, value in objects.items()
    }
    return {
        name: value
        for name, value in objects.items()
        if is_function_or_class[name] and not hasattr(value, "with_traceback")
    }


def is_collective(value, first=True):
    """Return whether a docstring says Collective: in its first paragraph, or anywhere."""
    doc = inspect.getdoc(value) or ""
    return re.search(r"\bCollective\b", doc.partition("\n\n")[0] if first else doc) is not None


def surface():
    """Return for each public name "attribute", or its call text."""
    objects, instances = public(twice=True), values()
    instances = {name: instances[key] for name, key in RETURNED_CLASSES.items()} | {"SimulatedWorld": mc.simulate(1)}
    for name, value in instances.items():
        cls = type(value)
        objects |= {name: cls} | {f"{name}.{member}": getattr(cls, member) for member in members(cls)}
        objects |= {f"{name}.{attribute}": None for attribute in getattr(value, "__dict__", ()) if attribute[0] != "_"}
    texts = {name: call_text(value) for name, value in objects.items()}
    for name, value in objects.items():
        if inspect.isclass(value):
            texts |= {f"{name}.{field}": "attribute" for field in fields(value)}
    return {name: text for name, text in texts.items() if name not in INTERNAL}


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
    bare_parameters = [
        parameter.replace(annotation=inspect.Parameter.empty) for parameter in signature.parameters.values()
    ]
    text = str(signature.replace(parameters=bare_parameters, return_annotation=inspect.Signature.empty))
    return re.sub(r"<.*? at 0x[0-9a-f]+>", "<...>", text)


def accepts(new_text, old_text):
    """Return whether every call that fits the call text *old_text* fits *new_text*.

    >>> accepts("(a, *, b=1, c=2)", "(a, *, b=1)"), accepts("(a, b)", "(a)"), accepts("(b, a)", "(a, b)")
    (True, False, False)
    >>> accepts("(a=None)", "(a)"), accepts("(a)", "(a=None)"), accepts("(a=2)", "(a=1)")
    (True, False, False)
    >>> accepts("(a, *args, **more)", "(a, *args)"), accepts("(a)", "(a, **more)"), accepts("(a)", "attribute")
    (True, False, False)
    >>> accepts("(a, *, b=1)", "(a, b=1)"), accepts("(a, b=1, *, c)", "(a, b=1)"), accepts("(a, b)", "(a, *, b)")
    (False, False, True)
    """
    if new_text == old_text or "(...)" in (new_text, old_text) or "(" not in new_text or "(" not in old_text:
        return new_text == old_text
    (old_parameters, old_stars), (new_parameters, new_stars) = parameters(old_text), parameters(new_text)
    in_order = [name for name, (keyword_only, _) in old_parameters.items() if not keyword_only]
    if not old_stars <= new_stars or list(new_parameters)[: len(in_order)] != in_order:
        return False
    stays = all(
        name in new_parameters
        and new_parameters[name][0] <= old_parameter[0]
        and old_parameter[1] in (None, new_parameters[name][1])
        for name, old_parameter in old_parameters.items()
    )
    return stays and all(
        default is not None for name, (_, default) in new_parameters.items() if name not in old_parameters
    )


def parameters(text):
    """Return the parameters of a call text, whether each is keyword-only, and its default; and its * and **."""
    arguments = ast.parse(f"def f{re.sub('<.*?>', '0', text)}: 0").body[0].args
    positional = [*arguments.posonlyargs, *arguments.args]
    defaults = [None] * (len(positional) - len(arguments.defaults)) + arguments.defaults + arguments.kw_defaults
    names = [(argument.arg, False) for argument in positional] + [
        (argument.arg, True) for argument in arguments.kwonlyargs
    ]
    result = {
        name: (keyword_only, default and ast.unparse(default))
        for (name, keyword_only), default in zip(names, defaults, strict=True)
    }
    return result, {mark for mark, argument in (("*", arguments.vararg), ("**", arguments.kwarg)) if argument}


if __name__ == "__main__":
    recorded = json.loads(FILE.read_text())
    recorded["calls"] = surface() | recorded["calls"]
    says = {name for name, value in public().items() if is_collective(value)}
    recorded["collective"] = sorted(says | set(recorded.get("collective", ())))
    FILE.write_text(json.dumps(recorded, indent=0) + "\n")
