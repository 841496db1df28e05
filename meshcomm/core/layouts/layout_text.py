"""The text and the wire form of layouts.

Source: Layout::ToString and LayoutProto of TensorFlow's DTensor. Several mesh dimensions on one axis, which TensorFlow
does not have, are joined by ``+``. The rule of a cut, if not the default, follows after ``=``. In the wire form the
rule is in a field of its own, number 1000, which other readers skip: they see the mesh dimensions only.
"""

from collections.abc import Sequence
from enum import IntEnum
from typing import TypeAlias

from meshcomm.core._arguments import listed_briefly, quote
from meshcomm.core._json import read
from meshcomm.core.layouts import wire
from meshcomm.core.layouts.mesh_text import MESH_MESSAGE
from meshcomm.core.layouts.specs import Cuts, CutSpec, parsed_rule
from meshcomm.errors import LayoutError

UNSHARDED = "unsharded"
MATCH = "match"

Spec: TypeAlias = str | tuple[str, ...]  # a mesh dimension, UNSHARDED, MATCH, or several mesh dimensions

LAYOUT_MESSAGE = wire.MessageType(
    "tensorflow.dtensor.LayoutProto",
    (
        wire.Field(
            1,
            "sharding_specs",
            wire.MessageType(
                "tensorflow.dtensor.ShardingSpec",
                (wire.Field(2, "sharding_spec", "string"), wire.Field(1000, "meshcomm_rule", "string")),
            ),
            repeated=True,
        ),
        wire.Field(2, "mesh_config", MESH_MESSAGE),
        wire.Field(3, "type", wire.EnumType("LayoutType", ("UNKNOWN", "STATIC", "PARTED", "SINGLE_DEVICE"))),
    ),
)


class LayoutType(IntEnum):
    """What kind of layout it is. Source: LayoutType of TensorFlow's DTensor."""

    STATIC = 1
    SINGLE_DEVICE = 2
    PARTED = 3


_PREFIXES = {"sharding_specs": LayoutType.STATIC, "parted": LayoutType.PARTED}
_SINGLE_DEVICE = "maximal:true,"
_WIRE_TYPES = (LayoutType.STATIC, LayoutType.STATIC, LayoutType.PARTED, LayoutType.SINGLE_DEVICE)  # 0 is an old STATIC


def spec_text(spec: Spec) -> str:
    """Return one sharding spec as text.

    >>> from meshcomm.core.layouts.specs import Cuts
    >>> spec_text(("x", "y")), spec_text(Cuts("x", (0, 2, 7)))
    ('x+y', 'x=cuts(0;2;7)')
    """
    if isinstance(spec, str):
        return spec
    names = "+".join(spec)
    return f"{names}={spec.rule_text}" if isinstance(spec, CutSpec) else names


def specs_text(specs: Sequence[Spec]) -> str:
    """Return sharding specs as text for messages, and for ranks that compare their calls.

    >>> specs_text(["x", ("y", "z")])
    '[x, y+z]'
    """
    return f"[{', '.join(map(spec_text, specs))}]"


def specs_repr(specs: Sequence[Spec]) -> str:
    """Return sharding specs as Python source; long lists of boundaries are abbreviated.

    >>> from meshcomm.core.layouts.specs import Cuts
    >>> specs_repr(["x", ("y", "z"), UNSHARDED, Cuts("v", (0, 2, 7))])
    "['x', ('y', 'z'), UNSHARDED, Cuts('v', (0, 2, 7))]"
    """
    return f"[{', '.join(map(_spec_repr, specs))}]"


def _spec_repr(spec: Spec) -> str:
    if spec in (UNSHARDED, MATCH):
        return "UNSHARDED" if spec == UNSHARDED else "MATCH"
    if isinstance(spec, Cuts):
        return spec.shown(listed_briefly(spec.boundaries))
    return repr(spec)


def to_text(layout_type: LayoutType, specs: Sequence[Spec], mesh: str) -> str:
    """Return a layout as one line of text; *mesh* is the text of its mesh."""
    if layout_type is LayoutType.SINGLE_DEVICE:
        return f"{_SINGLE_DEVICE} mesh:{mesh}"
    prefix = next(prefix for prefix, prefix_type in _PREFIXES.items() if prefix_type is layout_type)
    return f"{prefix}:{''.join(f'{spec_text(spec)},' for spec in specs)} mesh:{mesh}"


def from_text(text: str) -> tuple[LayoutType, list[str], str]:
    """Return the type, the texts of the specs and the text of the mesh; ``LayoutError`` if *text* is malformed."""
    items = text.split(" ")
    if len(items) != 2:
        raise LayoutError(f"expected 2 items but found {len(items)} in {quote(text)}; it is TYPE:SPECS, mesh:MESH")
    if not items[1].startswith("mesh:"):
        raise LayoutError(f"item 2 of a layout is {quote(items[1])}; it is mesh: and the text of a mesh")
    mesh = items[1].removeprefix("mesh:")
    if items[0] == _SINGLE_DEVICE:
        return LayoutType.SINGLE_DEVICE, [], mesh
    prefix, colon, specs = items[0].partition(":")
    if not colon or prefix not in _PREFIXES:
        raise LayoutError(f"unknown layout type prefix {quote(prefix)} in {quote(text)}; known: {list(_PREFIXES)}")
    if specs and not specs.endswith(","):
        raise LayoutError(f"specs {quote(specs)} end without a comma; every spec is followed by one")
    return _PREFIXES[prefix], specs.split(",")[:-1], mesh


def parsed_specs(texts: list[str]) -> list[Spec]:
    """Return the sharding specs that are written as *texts*; ``scalar`` alone is the spec of no axis."""
    if texts == ["scalar"]:
        return []
    if "scalar" in texts:
        raise LayoutError(f"specs {quote(texts)}: 'scalar' can only be used as the single spec of a layout")
    return [_parsed_spec(*text.partition("=")) for text in texts]


def _parsed_spec(text: str, equals: str, rule: str) -> Spec:
    names = tuple(text.split("+"))
    if equals:
        return parsed_rule(names, rule)
    return names if len(names) > 1 else text


def to_wire(layout_type: LayoutType, specs: Sequence[Spec], mesh: wire.Values) -> wire.Values:
    """Return the plain values of a LayoutProto; *mesh* are those of its MeshProto."""
    partitions = [spec_text(spec).partition("=") for spec in specs]
    return {
        "sharding_specs": [{"sharding_spec": spec, "meshcomm_rule": rule} for spec, _, rule in partitions],
        "mesh_config": mesh,
        "type": _WIRE_TYPES.index(layout_type, 1),
    }


def from_wire(values: wire.Values) -> tuple[LayoutType, list[str], wire.Values]:
    """Return the type, the texts of the specs and the values of the mesh; ``LayoutError`` for an unknown type."""
    number = read(int, values, "type")
    if not 0 <= number < len(_WIRE_TYPES):
        raise LayoutError(f"layout type {number} in a LayoutProto; known are 0 .. {len(_WIRE_TYPES) - 1}")
    texts = [
        spec["sharding_spec"] + (f"={spec['meshcomm_rule']}" if spec["meshcomm_rule"] else "")
        for spec in read(list, values, "sharding_specs")
    ]
    return _WIRE_TYPES[number], texts, read(dict, values, "mesh_config")
