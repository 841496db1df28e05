"""Rank 0: ipykernel's kernel, whose cells run on all ranks."""

import json
import logging
from collections.abc import Callable
from inspect import isawaitable
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

from ipykernel.ipkernel import IPythonKernel
from ipykernel.kernelapp import IPKernelApp
from ipykernel.zmqshell import ZMQInteractiveShell
from traitlets import Type

from meshcomm.core._files import replacing
from meshcomm.tools.interactive.cells import Job
from meshcomm.tools.interactive.shells import RankShell, RootShell
from meshcomm.tools.interactive.streams import share_input

Message: TypeAlias = Any
"""A message of Jupyter's protocol, or a part of one."""

_RANK_0_ONLY = "completion, inspection and widgets use rank 0 alone"


class KernelShell(RootShell, ZMQInteractiveShell):
    """The shell of a kernel."""

    def user_expressions(self, expressions: Message) -> Message:
        """Return the values of expressions that a frontend asks for after a cell, on rank 0 alone."""
        with self.job.gates.without_others(_RANK_0_ONLY):
            return super().user_expressions(expressions)


class RootKernel(IPythonKernel):
    """ipykernel's kernel: all requests except the execution of cells are handled on rank 0 alone."""

    shell_class = Type(KernelShell)
    request_path: ClassVar[Path | None] = None
    """A file for the message of the cell that runs."""
    _supports_kernel_subshells = False  # cells come one after the other

    def __init__(self, **kwargs: Message) -> None:
        super().__init__(**kwargs)
        for name in self.shell_handlers.keys() - {"execute_request"}:
            self.shell_handlers[name] = self._without_others(self.shell_handlers[name])

    def _without_others(self, handle: Callable[..., Message]) -> Callable[..., Message]:
        async def handle_alone(*args: object) -> None:
            with self.shell.job.gates.without_others(_RANK_0_ONLY):
                reply = handle(*args)
                if isawaitable(reply):
                    await reply

        return handle_alone

    def pre_handler_hook(self) -> None:
        """Leave SIGINT to the job."""

    post_handler_hook = pre_handler_hook

    def _send_interrupt_children(self) -> None:
        self.shell.job.interrupt()

    def set_parent(self, ident: Message, parent: Message, channel: str = "shell") -> None:
        """Write the message of the cell that runs to a file: if the job ends, the launcher replies to it."""
        super().set_parent(ident, parent, channel)
        if self.request_path is not None and parent and parent["header"]["msg_type"] == "execute_request":
            with replacing(self.request_path) as file:
                json.dump(parent, file, default=str)

    def _forward_input(self, allow_stdin: bool = False) -> None:
        super()._forward_input(allow_stdin)
        share_input(self.shell.job)


def serve(job: Job, connection: Path, request_path: Path | None) -> None:
    """Run the kernel with this *connection* file until it is shut down. *request_path* is a file for `keep_kernel`."""
    RankShell.job, RootKernel.request_path = job, request_path
    app = IPKernelApp.instance(kernel_class=RootKernel, connection_file=str(connection), log_level=logging.ERROR)
    app.initialize([])
    app.kernel.shell.begin()
    job.take_signals()  # as ipykernel has ignored them
    job.wake = lambda: app.kernel.io_loop.add_callback(lambda: None)
    try:
        app.start()
    finally:
        job.end()
