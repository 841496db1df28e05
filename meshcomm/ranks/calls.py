"""Collective calls: known programs, and agreement on new ones."""

from collections.abc import Callable
from typing import Any, NamedTuple

from meshcomm.ranks import agreement
from meshcomm.ranks.teams import Place, Team


class Program(NamedTuple):
    """A call that all ranks agreed on, ready to run; *number* is the same on every rank."""

    run: Callable[..., Any]
    number: int


def run_agreed(place: Place, key: Any, call: Callable[[], str], build: Callable[[], Any], *args: Any) -> Any:
    """Return what the program of *key* makes of *args*, built and agreed on if it is new. Collective over the team.

    *call* says what the ranks agree on; *build* returns a function of *args*.
    """
    program = known_program(place.team, key) or agreed_program(place.team, key, call, build)
    return program.run(*args)


def known_program(team: Team, key: Any, exchanges: bool = False) -> Program | None:
    """Return the program of *key*, and note the call, unless it is to be agreed on. Local, now and then Collective.

    It *exchanges* blocks if it was made by `prepare`.
    """
    program: Program | None = team.known(key)
    if program is None or agreement.checks_every_call():
        return None
    agreement.chained(team, program.number, exchanges)
    return program


def agreed_program(team: Team, key: Any, call: Callable[[], str], build: Callable[[], Any]) -> Program:
    """Return the program of *key*, made by *build* if it is new, when all agree on the *call*. Collective."""
    error = None
    program = team.known(key)
    try:
        _ = team.machine  # which a plan depends on, agreed on when the team first communicates
        run = program.run if program is not None else build()
    except Exception as problem:
        error = problem
    text = call()
    agreement.agree(team, text, error)
    program = Program(run, agreement.fingerprint(text))
    team.remember(key, program)
    return program
