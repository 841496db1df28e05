"""Two hosts on one machine: namespaces of Linux with a network of their own, and TCP between them.

Each host is a process that waits in namespaces without names: a network with one link to the other host, a host name,
and a /dev/shm of its own. They vanish with their last process, so nothing is left of them even if this process is
killed, and hosts that are made at the same time know nothing of each other, though all have the same addresses.

MPICH's Hydra starts its ranks there with a launcher of its own, instead of ssh. It needs root.
"""

import contextlib
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import pytest

from support.jobs import SETTINGS, kill
from support.jobs import mpiexec as our_mpiexec
from support.patience import CPU, WALL, Watch, communicate, run, until

NAMES = ("host0", "host1")
ADDRESSES = ("10.77.0.1", "10.77.0.2")
NAMESPACES = ("--net", "--mount", "--uts", "--ipc")
SOON = 5.0  # seconds for the kernel to connect or to end something, on an idle machine

# UCX, below MPICH, finds the network's devices in /sys. What is mounted here is seen by this host alone.
HOST = """
echo "$0" > /proc/sys/kernel/hostname && mount -t sysfs sysfs /sys && mount -t tmpfs tmpfs /dev/shm &&
    ip link set lo up && echo ready && exec cat
"""
LAUNCHER = "/dev/shm/launcher"  # of the first host, where mpiexec runs: it vanishes with the host
LAUNCHER_TEXT = """#!/bin/sh
while [ "${{1#-}}" != "$1" ]; do shift; done
case $1 in
    {addresses[0]}) host={pids[0]} ;;
    {addresses[1]}) host={pids[1]} ;;
    *) echo "there is no host $1" >&2; exit 1 ;;
esac
shift
exec nsenter --target $host {namespaces} --wd sh -c "$*"
"""


@contextlib.contextmanager
def made():
    """Return a context with two `Hosts` for the jobs of our mpiexec, or skip the test if they cannot be made.

    At its end, everything that runs on them is killed.
    """
    mpiexec = our_mpiexec()
    _check_means(mpiexec)
    with contextlib.ExitStack() as stack:
        hosts = Hosts(mpiexec, tuple(stack.enter_context(_host(name)).pid for name in NAMES))
        stack.callback(hosts.kill)
        _connect(hosts)
        _write_launcher(hosts)
        yield hosts


class Ended(NamedTuple):
    """A job that has ended: as a `subprocess.CompletedProcess`, with the time, and the slowness of the machine."""

    returncode: int
    stdout: str
    stderr: str
    ended: float
    slowness: float


class Hosts(NamedTuple):
    """Two hosts: the mpiexec of their jobs, and the number of the process that keeps each host alive."""

    mpiexec: str
    pids: tuple[int, int]

    def run(self, program, ranks_per_host=2, args=(), env=None, cpu=CPU, in_turns=False):
        """Run a Python *program* on both hosts and return how it `Ended`.

        *ranks_per_host* is a number or one for each host. Ranks fill one host after the other; *in_turns* gives every
        second one to the second host. *env* is added to the environment. A process may use *cpu* seconds of CPU time;
        a job that hangs is killed, and raises `Stuck`.
        """
        counts = (ranks_per_host, ranks_per_host) if isinstance(ranks_per_host, int) else tuple(ranks_per_host)
        command = [*self._mpiexec(counts, in_turns), sys.executable, str(Path(program).resolve()), *map(str, args)]
        process = subprocess.Popen(
            self.on(0, *command),
            env=_environment() | (env or {}),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )
        watch = Watch(self.processes, cpu)
        try:
            output, errors = communicate(process, watch)
        except BaseException as failure:  # an interrupt, too, must not leave ranks behind
            self.kill()
            failure.add_note("\n".join(process.communicate()))
            raise
        return Ended(process.returncode, output, errors, time.time(), watch.slowness)

    def on(self, host, *command):
        """Return the command that runs *command* on a host, in the working folder of this process."""
        return ["nsenter", "--target", str(self.pids[host]), *NAMESPACES, "--wd", *command]

    def sent(self):
        """Return the number of bytes that each host has sent to the other, with the headers of packets."""
        return tuple(int((link / "statistics/tx_bytes").read_text()) for link in self._links())

    def cut(self):
        """Take the link between the hosts down: from now on nothing arrives, and no error is reported."""
        _do(self, 0, "ip", "link", "set", "link0", "down")

    def connect(self):
        """Take the link up again."""
        _do(self, 0, "ip", "link", "set", "link0", "up")

    def limit(self, gigabits):
        """Limit the link to this many Gbit/s in each direction."""
        rate = ("tbf", "rate", f"{gigabits:g}gbit", "burst", "4mb", "latency", "400ms")
        for host in (0, 1):
            _do(self, host, "tc", "qdisc", "replace", "dev", "link0", "root", *rate)

    def processes(self, hosts=(0, 1)):
        """Return the processes that run on the *hosts*, without the two that keep them."""
        networks = {os.stat(f"/proc/{self.pids[host]}/ns/net").st_ino for host in hosts}
        pids = []
        for entry in Path("/proc").glob("[0-9]*/ns/net"):
            with contextlib.suppress(OSError):  # it has ended meanwhile
                if entry.stat().st_ino in networks:
                    pids.append(int(entry.parts[2]))
        return sorted(set(pids) - set(self.pids))

    def kill(self, hosts=(0, 1)):
        """Kill all that runs on the *hosts*."""
        until(lambda: self._nothing_to_kill(hosts), SOON)

    def _nothing_to_kill(self, hosts):
        pids = self.processes(hosts)
        kill(pids)
        return not pids

    def _links(self):
        """Return the folder of the link in the /sys of each host."""
        return [Path(f"/proc/{pid}/root/sys/class/net/link0") for pid in self.pids]

    def _mpiexec(self, counts, in_turns):
        if in_turns and counts[0] != counts[1]:
            raise ValueError(f"hosts that take ranks in turns have the same number of them, not {counts}")
        slots = (1, 1) if in_turns else counts
        hosts = ",".join(f"{address}:{count}" for address, count in zip(ADDRESSES, slots, strict=True))
        launcher = ("-launcher", "ssh", "-launcher-exec", LAUNCHER)
        return [self.mpiexec, *launcher, "-hosts", hosts, "-localhost", ADDRESSES[0], "-n", str(sum(counts))]


def _check_means(mpiexec):
    if os.geteuid() != 0:
        pytest.skip("two hosts need network namespaces, and those need root")
    for tool in ("ip", "unshare", "nsenter"):
        if shutil.which(tool) is None:
            pytest.skip(f"two hosts need the command {tool}, which is not installed")
    if mpiexec is None or not run([mpiexec, "--version"]).stdout.startswith("HYDRA"):
        pytest.skip(f"two hosts need the mpiexec of an MPICH, which {mpiexec} is not")


@contextlib.contextmanager
def _host(name):
    """Start the process that keeps a host. It ends when its input is closed, so at the latest with this process."""
    command = ["unshare", *NAMESPACES, "sh", "-c", HOST, name]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        line = process.stdout.readline()
        if line != "ready\n":
            pytest.skip(f"two hosts need namespaces, which are forbidden here: {line.strip()}")
        yield process


def _connect(hosts):
    """Lay a link between the hosts and wait until it is up."""
    _do(hosts, 0, "ip", "link", "add", "link0", "type", "veth", "peer", "name", "link0", "netns", str(hosts.pids[1]))
    for host, address in enumerate(ADDRESSES):
        _do(hosts, host, "ip", "address", "add", f"{address}/24", "dev", "link0")
        _do(hosts, host, "ip", "link", "set", "link0", "up")
    if not until(lambda: all((link / "operstate").read_text() == "up\n" for link in hosts._links()), SOON):
        pytest.skip(f"the link between the two hosts did not come up within {SOON:g} s")


def _do(hosts, host, *command):
    completed = run(hosts.on(host, *command))
    if completed.returncode != 0:
        pytest.skip(f"two hosts cannot be connected here: {' '.join(command)}: {completed.stderr.strip()}")


def _write_launcher(hosts):
    """Write the launcher that Hydra calls like ssh: with options, the address of a host, and a shell command."""
    launcher = Path(f"/proc/{hosts.pids[0]}/root{LAUNCHER}")
    launcher.write_text(LAUNCHER_TEXT.format(addresses=ADDRESSES, pids=hosts.pids, namespaces=" ".join(NAMESPACES)))
    launcher.chmod(0o700)


def _environment():
    """Return our environment without the variables of mpiexec and meshcomm, and with those that jobs need."""
    prefixes = ("PMI", "HYDI_", "MESHCOMM_")
    variables = {name: value for name, value in os.environ.items() if not name.startswith(prefixes)}
    # Hydra's own limit counts if we are killed while a job runs.
    return SETTINGS | variables | {"OMP_NUM_THREADS": "1", "MPIEXEC_TIMEOUT": str(int(WALL))}
