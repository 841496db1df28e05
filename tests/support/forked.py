"""Ranks that begin in a moment: forked from a process that has imported the program of a job.

Python and its imports take most of the time of a job that mixes up one call. So `mpiexec` launches this file, in a
Python without any modules, instead of the program. It hands its environment and its open files to the server of
`Forked`, which forks a process that goes on in its name: MPI starts there, as in any rank. If one of the two ends, so
does the other.

``python forked.py serve ADDRESS PROGRAM`` is the server, ``python forked.py ADDRESS ARGUMENTS`` a rank.
"""

import os
import socket
import sys

_LONGEST = 2**20  # bytes of an environment and arguments
_MOST_FILES = 8
_FREE = 100  # file descriptors from here on are free in a new rank


class Forked:
    """A server for ranks of *program*, whose function ``main`` gets the arguments of the job."""

    def __init__(self, folder, program):
        import subprocess

        self._address = str(folder / "ranks")
        command = [sys.executable, __file__, "serve", self._address, str(program)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert self._process.stdout.readline() == b"ready\n"
        self.python = (sys.executable, "-IS", __file__, self._address)

    def ranks(self):
        """Return the processes of all ranks."""
        from pathlib import Path

        number = self._process.pid
        return [int(each) for each in Path(f"/proc/{number}/task/{number}/children").read_text().split()]

    def close(self):
        self._process.kill()
        self._process.communicate()


def _be_rank(address, arguments):
    """Let the server fork a process in the name of this one, and end as it does."""
    server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    server.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * _LONGEST)
    server.connect(address)
    files = [0, 1, 2, *([int(os.environ["PMI_FD"])] if "PMI_FD" in os.environ else [])]
    socket.send_fds(server, [repr((dict(os.environ), arguments, files)).encode()], files)
    status = server.recv(64)
    if not status:
        os._exit(99)  # the server has been killed
    code = int(status)
    if code < 0:
        os.kill(os.getpid(), -code)
    os._exit(code)


def _serve(address, program):
    """Fork ranks for ever. In each of them, return what it has to run."""
    import runpy
    import selectors
    import signal
    from ast import literal_eval
    from contextlib import suppress

    sys.path.insert(0, os.path.dirname(program))
    main = runpy.run_path(program)["main"]
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(address)
    listener.listen(64)
    print("ready", flush=True)
    selector = selectors.DefaultSelector()
    selector.register(listener, selectors.EVENT_READ)
    while True:
        for key, _ in selector.select():
            if key.fileobj is listener:
                rank, _ = listener.accept()
                said, received, _, _ = socket.recv_fds(rank, _LONGEST, _MOST_FILES)
                if not said:  # it has been killed meanwhile
                    rank.close()
                    continue
                environment, arguments, files = literal_eval(said.decode())
                process = os.fork()
                if not process:
                    for each in [key.fileobj for key in selector.get_map().values()] + [rank]:
                        os.close(each if isinstance(each, int) else each.detach())
                    _take(files, received)
                    os.environ.clear()
                    os.environ.update(environment)
                    return lambda: main(*arguments)
                for file in received:
                    os.close(file)
                end = os.pidfd_open(process)
                selector.register(end, selectors.EVENT_READ, (process, rank))
                selector.register(rank, selectors.EVENT_READ, (process, None))
            elif isinstance(key.fileobj, int):  # a rank has ended
                process, rank = key.data
                code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
                with suppress(OSError):  # its process was killed
                    rank.send(str(code).encode())
                if rank.fileno() in selector.get_map():
                    selector.unregister(rank)
                rank.close()
                selector.unregister(key.fileobj)
                os.close(key.fileobj)
            else:  # the process that mpiexec launched has ended
                selector.unregister(key.fileobj)
                os.kill(key.data[0], signal.SIGKILL)


def _take(numbers, received):
    """Give the files *received* the *numbers* that they had in the other process."""
    import fcntl

    above = [fcntl.fcntl(file, fcntl.F_DUPFD, _FREE) for file in received]
    for file in received:
        os.close(file)
    for file, number in zip(above, numbers, strict=True):
        os.dup2(file, number)
        os.close(file)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        _serve(*sys.argv[2:])()
    else:
        _be_rank(sys.argv[1], sys.argv[2:])
