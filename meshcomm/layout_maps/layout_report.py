"""LayoutReport: possible mistakes in a LayoutMap for some names."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from meshcomm.core._arguments import counted
from meshcomm.core.layouts.layout import Layout


class WrongRank(NamedTuple):
    """A name with *rank* axes, and its rule for *rank_of_rule* axes."""

    name: str
    rank: int
    rule: str
    rank_of_rule: int

    def __str__(self) -> str:
        return (
            f"{self.name!r} with {counted(self.rank, 'axis')}, rule {self.rule!r} for "
            f"{counted(self.rank_of_rule, 'axis')}"
        )


@dataclass(frozen=True)
class LayoutReport:
    """The rules of a LayoutMap for some names, and possible mistakes. Print it.

    Attributes
    ----------
    rules: all rules, in the order of insertion
    applied: the rule for each name that has one
    unused: the rules that match no name
    shadowed: rules that match only names with an earlier rule, with these earlier rules
    unmatched: the names without a rule
    ambiguous: the names that several rules match, where that is an error, with these rules
    wrong_ranks: the names with a rule for another number of axes
    """

    __module__ = "meshcomm"

    rules: tuple[str, ...]
    applied: dict[str, str]
    unused: tuple[str, ...]
    shadowed: dict[str, tuple[str, ...]]
    unmatched: tuple[str, ...]
    ambiguous: dict[str, tuple[str, ...]]
    wrong_ranks: tuple[WrongRank, ...]

    @property
    def is_clean(self) -> bool:
        """Whether every rule is used, and every name has one rule, for its number of axes.

        >>> import meshcomm as mc
        >>> m = LayoutMap()
        >>> m[".*bias"] = mc.Layout(["x"], mc.Mesh(range(2), {"x": 2}))
        >>> m.report(["dense.bias"]).is_clean, m.report(["dense.bias", "dense.kernel"]).is_clean
        (True, False)
        """
        return not any((self.unused, self.shadowed, self.unmatched, self.ambiguous, self.wrong_ranks))

    def __str__(self) -> str:
        n_names = len(self.applied) + len(self.unmatched) + len(self.ambiguous)
        sections = {
            "rules that match no name:": map(repr, self.unused),
            "rules that match only names that earlier rules take:": (
                f"{rule!r} behind {', '.join(map(repr, earlier))}" for rule, earlier in self.shadowed.items()
            ),
            "names that no rule matches:": map(repr, self.unmatched),
            "names that several rules match:": (
                f"{name!r} by {', '.join(map(repr, rules))}" for name, rules in self.ambiguous.items()
            ),
            "names with a rule for another number of axes:": map(str, self.wrong_ranks),
        }
        lines = [
            f"LayoutMap: {len(self.rules)} rules, {n_names} names, {n_names - len(self.unmatched)} of them matched"
        ]
        for title, entries in sections.items():
            indented = [f"  {entry}" for entry in entries]
            lines += [title, *indented] if indented else []
        return "\n".join(lines)


def report_of(
    layouts: Mapping[str, Layout],
    matches: Mapping[str, tuple[str, ...]],
    ndims: Mapping[str, int | None],
    first_counts: bool,
) -> LayoutReport:
    """Return the report on some names.

    Parameters
    ----------
    layouts: the rules, in the order of insertion
    matches: the rules that match each name
    ndims: the number of axes of each name, None if it is unknown
    first_counts: whether the first of several rules applies; otherwise several are an error, unless one is the name
        itself
    """
    ambiguous = (
        {} if first_counts else {name: rules for name, rules in matches.items() if len(rules) > 1 and rules[0] != name}
    )
    applied = {name: rules[0] for name, rules in matches.items() if rules and name not in ambiguous}
    matched_rules = {rule for rules in matches.values() for rule in rules}
    shadowed_rules = matched_rules.difference(applied.values(), *ambiguous.values())
    return LayoutReport(
        rules=tuple(layouts),
        applied=applied,
        unused=tuple(rule for rule in layouts if rule not in matched_rules),
        shadowed={rule: _first_rules(matches, rule) for rule in layouts if rule in shadowed_rules},
        unmatched=tuple(name for name, rules in matches.items() if not rules),
        ambiguous=ambiguous,
        wrong_ranks=tuple(
            WrongRank(name, ndim, rule, layouts[rule].ndim)
            for name, rule in applied.items()
            if (ndim := ndims[name]) is not None and ndim != layouts[rule].ndim
        ),
    )


def _first_rules(matches: Mapping[str, tuple[str, ...]], rule: str) -> tuple[str, ...]:
    """Return the rules that apply to the names that *rule* matches, each once."""
    return tuple(dict.fromkeys(rules[0] for rules in matches.values() if rule in rules))
