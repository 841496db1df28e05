"""Rank 0: ipykernel's kernel, whose cells run on all ranks."""

import builtins
import json
import logging
import sys
from collections.abc import Callable
from inspect import isawaitable
from pathlib import Path
from typing import ClassVar

from ipykernel.ipkernel import IPythonKernel
from ipykernel.kernelapp import IPKernelApp
from ipykernel.zmqshell import ZMQInteractiveShell
from traitlets import Type

from meshcomm.core._files import replacing
from meshcomm.core._tracing import Value
from meshcomm.tools.interactive.cells import Job
from meshcomm.tools.interactive.outcomes import report
from meshcomm.tools.interactive.shells import RankShell

_BESIDES = "completion, inspection and widgets use rank 0 alone"


class KernelShell(RankShell, ZMQInteractiveShell):  # type: ignore[misc]
    """The shell of rank 0."""

    async def run_ast_nodes(self, nodelist: Value, cell_name: str, *args: Value, **named: Value) -> Value:
        """Run the code of a cell, which has no error of syntax: on all ranks, unless a cell of theirs runs it."""
        run = super().run_ast_nodes(nodelist, cell_name, *args, **named)
        if self.job.running or not nodelist:
            return await run
        result = named["result"]
        info, count = result.info, result.execution_count
        cell = {"text": info.raw_cell, "count": count, "store": info.store_history, "silent": info.silent}
        self.job.begin(cell)
        with self.job.cell():
            await run
            self.note_error(result)
        return self._show_outcomes(result)

    def _show_outcomes(self, result: Value) -> bool:
        """Show what the other ranks have to show, and the error of the cell; return whether there is one."""
        output, error = report(self.job.outcomes(lambda text: self._write("stderr", f"meshcomm: {text}\n")))
        for stream, text in output:
            self._write(stream, text)
        if error is None:
            return False
        name, text, lines = error
        kind: type[Exception] = type(name, (RuntimeError,), {})
        if lines:  # else IPython has said so
            self._showtraceback(kind, kind(text), lines)
        result.error_in_exec = result.error_in_exec or kind(text)
        return True

    @staticmethod
    def _write(stream: str, text: str) -> None:
        shown = sys.stderr if stream == "stderr" else sys.stdout
        shown.write(text)
        shown.flush()

    def user_expressions(self, expressions: Value) -> Value:
        """Return what a frontend asks for after a cell, without other ranks."""
        with self.job.gates.alone(_BESIDES):
            return super().user_expressions(expressions)


class RankKernel(IPythonKernel):  # type: ignore[misc]
    """ipykernel's kernel: what it does but for cells is done on rank 0 alone."""

    shell_class = Type(KernelShell)
    note: ClassVar[Path | None] = None
    """A file for the message whose cell runs."""
    _supports_kernel_subshells = False  # cells come one after the other

    def __init__(self, **named: Value) -> None:
        super().__init__(**named)
        for name in self.shell_handlers.keys() - {"execute_request"}:
            self.shell_handlers[name] = self._alone(self.shell_handlers[name])

    def _alone(self, handle: Callable[..., Value]) -> Callable[..., Value]:
        async def handle_alone(*args: Value) -> None:
            with self.shell.job.gates.alone(_BESIDES):
                answer = handle(*args)
                if isawaitable(answer):
                    await answer

        return handle_alone

    def pre_handler_hook(self) -> None:
        """Leave SIGINT to the job."""

    post_handler_hook = pre_handler_hook

    def _send_interrupt_children(self) -> None:
        self.shell.job.interrupt()

    def set_parent(self, ident: Value, parent: Value, channel: str = "shell") -> None:
        """Note which cell runs, for the launcher, which says why the job has ended."""
        super().set_parent(ident, parent, channel)
        if self.note is not None and parent and parent["header"]["msg_type"] == "execute_request":
            with replacing(self.note) as file:
                json.dump(parent, file, default=str)

    def _forward_input(self, allow_stdin: bool = False) -> None:
        super()._forward_input(allow_stdin)
        ask: Callable[[object], str] = builtins.input
        builtins.input = lambda prompt="": self.shell.job.shared("input()", lambda: ask(prompt))


def serve(job: Job, connection: Path, note: Path | None) -> None:
    """Be the kernel with this *connection* file, until it is shut down. *note* is a file for `launch`."""
    RankShell.job, RankKernel.note = job, note
    app = IPKernelApp.instance(kernel_class=RankKernel, connection_file=str(connection), log_level=logging.ERROR)
    app.initialize([])
    app.kernel.shell.begin()
    job.take_signals()  # as ipykernel has ignored them
    job.wake = lambda: app.kernel.io_loop.add_callback(lambda: None)
    try:
        app.start()
    finally:
        job.end()
