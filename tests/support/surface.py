"""What callers may rely on: the public names, and how each function and method may be called.

`PYTHONPATH=tests python tests/support/surface.py` writes it to tests/data/surface.json. Do so only to add names: what
is recorded stays.
"""

import inspect
import json
import re
from pathlib import Path

import meshcomm as mc
import meshcomm.logical_devices
from support.values import values

DATA = Path(__file__).parent.parent / "data"
Parameter = inspect.Parameter

# Classes that are public because public calls return them.
RETURNED = {
    "DevicePlan": "device 1 of between",
    "Candidate": "Candidate",
    "WrongRank": "WrongRank",
    "LayoutType": "LayoutType",
}
# For other modules of the package, not for callers.
OURS = (
    *("DTensor.partner", "Plan.copy_step"),
    *("SimulatedWorld.arrive", "SimulatedWorld.events", "SimulatedWorld.here", "SimulatedWorld.meet"),
)
# Classes that are public for their methods: only other modules of the package make them.
NOT_MADE_BY_CALLERS = ("RelayoutRequest",)
STEPS = ("shape", "itemsize", "source", "target", "dims", "ranks", "group_assignment", "group_size")


def surface():
    """Return everything public by name: "constant", "attribute", or how it may be called."""
    found = {}
    for name in mc._home_of:
        found.update(described(name, getattr(mc, name)))
    made = values()
    for name, value in {
        **{each: made[key] for each, key in RETURNED.items()},
        "SimulatedWorld": mc.simulate(1),
    }.items():
        found.update(described(name, type(value)))
        found.update({f"{name}.{each}": "attribute" for each in getattr(value, "__dict__", ()) if each[0] != "_"})
    for name in (name for name in vars(mc.gradients) if "_vjp" in name):
        found.update(described(f"gradients.{name}", getattr(mc.gradients, name)))
    for name in meshcomm.logical_devices.__all__:
        found[f"logical_devices.{name}"] = call_text(getattr(meshcomm.logical_devices, name))
    for name in STEPS:
        found[f"step.{name}"] = "attribute"
    return {name: how for name, how in found.items() if name not in OURS}


def described(name, value):
    """Return what there is to say about a public thing and, of a class, about its members."""
    if not callable(value):
        return {name: "constant"}
    entries = {name: call_text(value)}
    if inspect.isclass(value):
        for member in members(value):
            attribute = inspect.getattr_static(value, member)
            called = callable(getattr(value, member)) and not isinstance(attribute, property)
            entries[f"{name}.{member}"] = call_text(getattr(value, member)) if called else "attribute"
        for field in fields(value):
            entries[f"{name}.{field}"] = "attribute"
    return entries


def members(cls):
    """Return the public members of a class that this package, a named tuple or a mapping gives it."""
    own = [base for base in cls.__mro__ if base.__module__.partition(".")[0] in ("meshcomm", "collections")]
    return sorted({name for base in own for name in vars(base) if not name.startswith("_")})


def fields(cls):
    """Return the public attributes that only instances have."""
    names = {*getattr(cls, "__dataclass_fields__", ()), *getattr(cls, "__annotations__", ())}
    return sorted(name for name in names if not name.startswith("_"))


def call_text(function):
    """Return how *function* may be called, without annotations, which may become more precise."""
    try:
        signature = inspect.signature(function)
    except ValueError:
        return "(...)"
    bare = [each.replace(annotation=Parameter.empty) for each in signature.parameters.values()]
    text = str(signature.replace(parameters=bare, return_annotation=inspect.Signature.empty))
    return re.sub(r"<.*? at 0x[0-9a-f]+>", "<...>", text)


def accepts(new, old):
    """Return whether every call that fits the call text *old* fits *new*.

    >>> accepts("(a, *, b=1, c=2)", "(a, *, b=1)"), accepts("(a, b)", "(a)"), accepts("(b, a)", "(a, b)")
    (True, False, False)
    >>> accepts("(a=None)", "(a)"), accepts("(a)", "(a=None)"), accepts("(a=2)", "(a=1)")
    (True, False, False)
    """
    if new == old:
        return True
    if "(...)" in (new, old) or "(" not in new + old:
        return False
    (first, first_any), (second, second_any) = parsed(old), parsed(new)
    if not first_any <= second_any or list(second)[: len(by_position(first))] != by_position(first):
        return False
    kept = all(name in second and stays(second[name], how) for name, how in first.items())
    return kept and all(how[1] is not None for name, how in second.items() if name not in first)


def stays(new, old):
    """Return whether a parameter is as before, or was required and is no longer."""
    return new[0] == old[0] and old[1] in (None, new[1])


def by_position(parameters):
    return [name for name, (keyword_only, _) in parameters.items() if not keyword_only]


def parsed(text):
    """Return the parameters of a call text, whether each is keyword-only, and its default; and its * and **."""
    parameters, catch_all, keyword_only = {}, set(), False
    for part in split(text[1:-1]):
        if part.startswith("*"):
            keyword_only = True
            catch_all |= {part.rstrip("abcdefghijklmnopqrstuvwxyz_")} if part != "*" else set()
        elif part != "/":
            name, _, default = part.partition("=")
            parameters[name] = keyword_only, default or None
    return parameters, catch_all


def split(text):
    """Return the parts of *text* between commas that stand in no brackets.

    >>> split("a, b=(1, 2), *, c='x'")
    ['a', 'b=(1, 2)', '*', "c='x'"]
    """
    parts, depth = [""], 0
    for character in text:
        depth += (character in "([{<") - (character in ")]}>")
        if character == "," and not depth:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts if part.strip()]


if __name__ == "__main__":
    (DATA / "surface.json").write_text(json.dumps({"all": mc._home_of, "calls": surface()}, indent=0) + "\n")
