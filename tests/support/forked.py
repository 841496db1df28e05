"""Ranks that start fast: they are forked from a process that has imported the program of a job.

Starting Python and importing take most of the time of a job that mixes up one call. So `mpiexec` launches this file,
in a Python without any modules, instead of the program. It sends its environment and its open files to the server of
`Forked`, which forks a process that runs in its place: MPI starts there, as in any rank. If one of the two ends, so
does the other.

``python forked.py serve ADDRESS PROGRAM`` is the server, ``python forked.py ADDRESS ARGUMENTS`` a rank.
"""

import os
import socket
import sys

_MAX_MESSAGE_BYTES = 2**20  # bytes of an environment and arguments
_MAX_FILES = 8
_FIRST_FREE = 100  # file descriptors from here on are free in a new rank


class Forked:
    """A server for ranks of *program*, whose function ``main`` gets the arguments of the job."""

    def __init__(self, folder, program):
        import subprocess

        self._address = str(folder / "ranks")
        command = [sys.executable, __file__, "serve", self._address, str(program)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert self._process.stdout.readline() == b"ready\n"
        self.python = (sys.executable, "-IS", __file__, self._address)

    def launch(self, launch, ranks, *arguments, **options):
        """Launch a job of such ranks, by the fixture *launch*; it leaves none of them."""
        from support.patience import until

        job = launch(ranks, *arguments, python=self.python, others=self.ranks, **options)
        assert until(lambda: not self.ranks(), 10.0), f"{self.ranks()} are left of {job}"
        return job

    def ranks(self):
        """Return the processes of all ranks."""
        from pathlib import Path

        pid = self._process.pid
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.kill()
        self._process.communicate()


def _be_rank(address, arguments):
    """Let the server fork a process in place of this one, and end with its exit code."""
    server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    server.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * _MAX_MESSAGE_BYTES)
    server.connect(address)
    files = [0, 1, 2, *([int(os.environ["PMI_FD"])] if "PMI_FD" in os.environ else [])]
    socket.send_fds(server, [repr((dict(os.environ), os.getppid(), arguments, files)).encode()], files)
    status = server.recv(64)
    if not status:
        os._exit(99)  # the server has been killed
    code = int(status)
    if code < 0:
        os.kill(os.getpid(), -code)
    os._exit(code)


class _Server:
    """Forks ranks. For each it keeps a connection to the process that the rank replaces, and a pidfd of the rank."""

    def __init__(self, address):
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(address)
        self._listener.listen(64)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)

    def serve(self):
        """Fork ranks for ever. In each of them, return its command-line arguments."""
        while True:
            for key, _ in self._selector.select():
                if self._selector.get_map().get(key.fd) is not key:
                    continue  # closed a moment ago, with the process that it belonged to
                if key.fileobj is self._listener:
                    arguments = self._fork()
                    if arguments is not None:
                        return arguments
                elif isinstance(key.fileobj, int):
                    self._end(key.fileobj, *key.data)
                else:  # the process that mpiexec launched has ended
                    self._selector.unregister(key.fileobj)
                    os.kill(key.data, signal.SIGKILL)

    def _fork(self):
        connection, _ = self._listener.accept()
        message, files, _, _ = socket.recv_fds(connection, _MAX_MESSAGE_BYTES, _MAX_FILES)
        if not message:  # it has been killed meanwhile
            connection.close()
            return None
        environment, parent, arguments, numbers = literal_eval(message.decode())
        process = os.fork()
        if not process:
            self._close(connection)
            _renumber(numbers, files)
            signal.signal(signal.SIGINT, signal.default_int_handler)  # also where tests run in the background
            os.environ.clear()
            os.environ.update(environment)
            os.getppid = lambda: parent  # the name of the job for MPICH
            return arguments
        for file in files:
            os.close(file)
        self._selector.register(os.pidfd_open(process), selectors.EVENT_READ, (process, connection))
        self._selector.register(connection, selectors.EVENT_READ, process)
        return None

    def _close(self, connection):
        """Close the files of the server in a rank.

        Also as objects: one that is freed when Python ends would close the file that has its number then, as a thread
        of Open MPI's, which prints for ever that it has lost it.
        """
        for file in [*(key.fileobj for key in self._selector.get_map().values()), connection]:
            if isinstance(file, int):
                os.close(file)
            else:
                file.close()
        self._selector.close()

    def _end(self, descriptor, process, connection):
        """Send the exit code of a rank to the process that it replaces."""
        code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        with suppress(OSError):  # there may be nobody to tell
            connection.send(str(code).encode())
        if connection in self._selector.get_map():
            self._selector.unregister(connection)
        connection.close()
        self._selector.unregister(descriptor)
        os.close(descriptor)


def _renumber(numbers, received):
    """Give the files *received* the *numbers* that they had in the other process."""
    high_descriptors = [fcntl.fcntl(file, fcntl.F_DUPFD, _FIRST_FREE) for file in received]
    for file in received:
        os.close(file)
    for file, number in zip(high_descriptors, numbers, strict=True):
        os.dup2(file, number)
        os.close(file)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        # Here, as no rank needs to wait for them.
        import fcntl
        import runpy
        import selectors
        import signal
        from ast import literal_eval
        from contextlib import suppress

        sys.path.insert(0, os.path.dirname(sys.argv[3]))
        run = runpy.run_path(sys.argv[3])["main"]
        server = _Server(sys.argv[2])
        print("ready", flush=True)
        run(*server.serve())
    else:
        _be_rank(sys.argv[1], sys.argv[2:])
