"""A command of the command line as a value: its texts, its arguments, and the function that runs it."""

import argparse
from collections.abc import Callable
from importlib import import_module
from typing import NamedTuple, TypeAlias

from meshcomm.core._tracing import Value

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
Action: TypeAlias = Callable[[argparse.Namespace], int]
"""From the options to the exit code."""


class Argument:
    """What `argparse.ArgumentParser.add_argument` is called with."""

    def __init__(self, *names: str, **settings: Value) -> None:
        self.names, self.settings = names, settings


PROGRAM = (
    Argument("-m", dest="module", action="store_true", help="the program is a module, not a script"),
    Argument("program", nargs=argparse.REMAINDER, help="the program and its arguments"),
)
"""A program of the user, with its arguments."""


class Command(NamedTuple):
    """A command: its line in the list of commands, its page of help, its arguments, and the function that runs it."""

    help: str
    description: str
    arguments: tuple[Argument, ...]
    action: Action
    usage: str | None = None

    def add(self, name: str, commands: Commands) -> None:
        """Add the command to the *commands* of a parser."""
        parser = commands.add_parser(name, help=self.help, description=self.description, usage=self.usage)
        for argument in self.arguments:
            parser.add_argument(*argument.names, **argument.settings)
        # --ntasks of Slurm is not --ntasks-per-node
        parser.allow_abbrev = False
        parser.set_defaults(action=self.action, parser=parser)


def imported_command(path: str, *names: str) -> Action:
    """Return an action that calls a function of this folder with the options *names*, or with all options if none.

    The function is imported when the action runs, so no rank waits for the imports of other commands.

    Parameters
    ----------
    path: module and function, such as "files:ls"
    names: names of options whose values are the arguments

    >>> imported_command("arguments:bytes_of", "size")(argparse.Namespace(size="1K"))
    1024
    """

    def action(options: argparse.Namespace) -> int:
        module, _, function = path.partition(":")
        values = [getattr(options, name) for name in names] or [options]
        return getattr(import_module(f"meshcomm.tools.cli.{module}"), function)(*values)

    return action
