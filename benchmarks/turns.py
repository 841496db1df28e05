"""One MPI job of `compare.py`: runs its cases when it is told to, and waits without using a processor otherwise."""

import argparse
from pathlib import Path
from typing import Any

from cases import Case, comparison
from commands import obey
from measure import Measurement, Ranks
from ways import OTHERS, WAYS

import meshcomm as mc

WARM = 2  # calls in a turn before those that count: the first finds the data of others in the caches


class Server:
    """What the commands do; *current* is the case that was prepared last. All ranks get the same commands."""

    def __init__(self) -> None:
        self.world = Ranks(WAYS | OTHERS)
        self.cases = {case.name: case for case in comparison(self.world.ranks)}
        self.current: Measurement | None = None

    def prepare(self, name: str) -> dict[str, Any]:
        """Make the ways of a case; return the seconds of a second call of each, and which ways fail, and why."""
        self.current = None  # frees its arrays first
        case: Case = self.cases[name]
        made = self.current = Measurement(self.world, case, self.world.contenders(case), {})
        spent = made.worst([made.timed(contender) for contender in made.contenders.values()])
        seconds = {way: most.seconds * made.calls for way, most in zip(made.contenders, spent, strict=True)}
        return {"seconds": seconds, "cannot": made.cannot}

    def turn(self, calls: dict[str, int]) -> dict[str, Any]:
        """Return what each way takes: seconds and page faults of each call. *calls* is how many, by way."""
        assert self.current is not None
        found = {}
        for way, count in calls.items():
            contender = self.current.contenders[way]
            spent = [self.current.timed(contender) for _ in range(WARM + count)]
            most = self.current.worst(spent)[WARM:]
            found[way] = {"seconds": [one.seconds for one in most], "faults": [one.faults for one in most]}
        return found

    def verify(self) -> list[str]:
        """Return the ways whose results are wrong."""
        assert self.current is not None
        self.current.verify()
        return [way for way, right in self.current.right.items() if not right]

    def drop(self) -> None:
        """Free the arrays of the current case."""
        self.current = None


def main() -> None:
    """Obey the commands until there are no more."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, required=True, help="the directory that meshcomm must come from")
    parser.add_argument("--pipes", type=Path, required=True, help="directory of the named pipes")
    options = parser.parse_args()
    found = Path(mc.__file__).resolve()
    if not found.is_relative_to(options.root.resolve()):
        raise SystemExit(f"meshcomm comes from {found}, not from {options.root}")
    server = Server()
    obey(server, server.world.rank, options.pipes)


if __name__ == "__main__":
    main()
