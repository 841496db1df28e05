"""How a rank of a job that `jobs.py` launched obeys commands, and waits for them without using a processor.

Each rank reads commands, one JSON text a line, from its own named pipe in the directory *pipes*; a rank that waits
there sleeps. Rank 0 writes the answers into another pipe. No rank waits for another one between two commands.
"""

import json
from pathlib import Path


def obey(server: object, rank: int, pipes: Path) -> None:
    """Call the methods of *server* that the commands name, until there are no more."""
    with (
        open(pipes / f"rank-{rank}", encoding="utf-8") as commands,
        open(pipes / "answers", "w", encoding="utf-8") as answers,
    ):
        for line in iter(commands.readline, ""):
            name, *arguments = json.loads(line)
            if name == "end":
                break
            answer = getattr(server, name)(*arguments)
            if rank == 0:
                print(json.dumps(answer), file=answers, flush=True)
