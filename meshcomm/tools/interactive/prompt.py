"""Rank 0: IPython's prompt in the terminal of ``meshcomm shell``. Its lines run on all ranks."""

from pathlib import Path

from IPython.terminal.interactiveshell import TerminalInteractiveShell

from meshcomm.tools.interactive.cells import Job
from meshcomm.tools.interactive.shells import RankShell, RootShell
from meshcomm.tools.interactive.terminal import take_terminal


class PromptShell(RootShell, TerminalInteractiveShell):
    """The shell of a prompt."""


def serve(job: Job, address: Path) -> None:
    """Run the lines that are typed in the terminal lent at the socket *address*, until Ctrl-D."""
    RankShell.job = job
    file = take_terminal(job, address)
    shell = PromptShell.instance(confirm_exit=False)
    shell.begin()
    if file:
        shell.run_cell(f"%run -i {file!r}", store_history=False)
    shell.mainloop()
    job.end()
