"""Rank 0: ipykernel's kernel, whose cells run on all ranks."""

import builtins
import json
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

from ipykernel.ipkernel import IPythonKernel
from ipykernel.kernelapp import IPKernelApp
from ipykernel.zmqshell import ZMQInteractiveShell
from traitlets import Type

from meshcomm.core._files import replacing
from meshcomm.core._tracing import Value
from meshcomm.tools.interactive.cells import Job
from meshcomm.tools.interactive.held import draw_pictures, key_of
from meshcomm.tools.interactive.reports import report
from meshcomm.tools.interactive.shells import OfRanks, add_magics, on_one


class Shell(OfRanks, ZMQInteractiveShell):  # type: ignore[misc]
    """The shell of rank 0."""

    _held: ClassVar[list[tuple[type, BaseException, list[str]]]] = []

    async def run_cell_async(
        self,
        raw_cell: str,
        store_history: bool = False,
        silent: bool = False,
        *args: Value,
        transformed_cell: str | None = None,
        preprocessing_exc_tuple: Value = None,
        **named: Value,
    ) -> Value:
        """Run a cell, on all ranks unless one runs already, or it has an error of syntax."""
        run = super().run_cell_async(
            raw_cell,
            store_history,
            silent,
            *args,
            transformed_cell=transformed_cell,
            preprocessing_exc_tuple=preprocessing_exc_tuple,
            **named,
        )
        text = transformed_cell or ""
        job = self.job
        if job.running or preprocessing_exc_tuple is not None or not self._is_code(text):
            return await run
        self._held.clear()
        job.begin({"text": text, "count": self.execution_count, "store": store_history, "silent": silent})
        with job.cell():
            result = await run
        errors = [(kind.__name__, str(value), key_of(value), lines) for kind, value, lines in self._held]
        error = result.error_before_exec or result.error_in_exec
        if error is not None and not errors:
            errors.append((type(error).__name__, str(error), key_of(error), []))
        job.note_end(errors)
        self._show(result, errors)
        return result

    def user_expressions(self, expressions: Value) -> Value:
        """Return what a frontend asks for after a cell, without other ranks."""
        with on_one(self.job, "expressions of a frontend are computed on rank 0 alone"):
            return super().user_expressions(expressions)

    def _is_code(self, text: str) -> bool:
        if not text.strip():
            return False
        try:
            self.compile.ast_parse(text)
        except (SyntaxError, ValueError, OverflowError, MemoryError, TypeError):
            return False
        return True

    def _show(self, result: Value, errors: list[Value]) -> None:
        """Show what the other ranks have to show, and the error of the cell."""
        shown = report(self.job.outcomes(lambda text: self._write("stderr", f"meshcomm: {text}\n")))
        for stream, text in shown.output:
            self._write(stream, text)
        if shown.error is None:
            return
        name, text, lines = shown.error
        if errors and not lines:  # such as a magic that does not exist, which has said so
            return
        own = self._held[-1][0] if self._held else None
        kind = own if own is not None and own.__name__ == name else type(name, (RuntimeError,), {})
        super()._showtraceback(kind, text, lines)
        if result.error_before_exec is None and result.error_in_exec is None:
            result.error_in_exec = kind(text)
        self.last_execution_succeeded = False

    @staticmethod
    def _write(stream: str, text: str) -> None:
        shown = sys.stderr if stream == "stderr" else sys.stdout
        shown.write(text)
        shown.flush()

    def _showtraceback(self, etype: type, evalue: BaseException, stb: list[str]) -> None:
        if self.job.running:  # until it is known whether other ranks have it, too
            self._held.append((etype, evalue, stb))
        else:
            super()._showtraceback(etype, evalue, stb)


class Kernel(IPythonKernel):  # type: ignore[misc]
    """ipykernel's kernel: what it does but for cells is done on rank 0 alone."""

    shell_class = Type(Shell)
    note: ClassVar[Path | None] = None
    """A file for the message whose cell runs."""
    _supports_kernel_subshells = False  # cells come one after the other

    def __init__(self, **named: Value) -> None:
        super().__init__(**named)
        for name in ("comm_open", "comm_msg", "comm_close"):
            self.shell_handlers[name] = self._on_rank_0(self.shell_handlers[name])

    def _on_rank_0(self, handle: Callable[..., Value]) -> Callable[..., Value]:
        def handle_alone(*args: Value) -> Value:
            with on_one(self.shell.job, "widgets call functions on rank 0 alone"):
                return handle(*args)

        return handle_alone

    def _send_interrupt_children(self) -> None:
        self.shell.job.interrupt()

    def set_parent(self, ident: Value, parent: Value, channel: str = "shell") -> None:
        """Note which cell runs, for the launcher, which says why the job has ended."""
        super().set_parent(ident, parent, channel)
        if self.note is not None and parent and parent["header"]["msg_type"] == "execute_request":
            with replacing(self.note) as file:
                json.dump(parent, file, default=str)

    def do_inspect(self, *args: Value, **named: Value) -> Value:
        """Say what a name is, without other ranks."""
        with on_one(self.shell.job, "to look at a name takes rank 0 alone"):
            return super().do_inspect(*args, **named)

    def do_complete(self, *args: Value, **named: Value) -> Value:
        """Complete a name, without other ranks."""
        with on_one(self.shell.job, "to complete a name takes rank 0 alone"):
            return super().do_complete(*args, **named)

    def _forward_input(self, allow_stdin: bool = False) -> None:
        super()._forward_input(allow_stdin)
        ask: Callable[[object], str] = builtins.input
        builtins.input = lambda prompt="": self.shell.job.shared("input()", lambda: ask(prompt))


def serve(job: Job, connection: Path, note: Path | None) -> None:
    """Be the kernel with this *connection* file, until it is shut down. *note* is a file for `launch`."""
    OfRanks.job, Kernel.note = job, note
    draw_pictures()
    app = IPKernelApp.instance(kernel_class=Kernel, connection_file=str(connection), log_level=logging.ERROR)
    app.initialize([])
    add_magics(app.kernel.shell)
    job.wake = lambda: app.kernel.io_loop.add_callback(lambda: None)
    try:
        app.start()
    finally:
        job.end()
