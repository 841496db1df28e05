"""What a load makes of files that are damaged, or that somebody made to do harm."""

import resource
import time
import zlib
from contextlib import contextmanager
from math import prod
from pathlib import Path

import meshcomm as mc
from meshcomm.storage.formats.known import contents
from support.patience import cpu_factor
from support.tensors import on

ERROR = "an error that is documented"
SECONDS = 1.0  # of CPU time for any small file; the first one may import a library
MEMORY = 2**29  # bytes more than before
LOADED = 2**20  # bytes: arrays that take more are described only


def outcome(path):
    """Return what a load of *path* gives, bytes and all, or `ERROR`; other errors are raised."""
    return on(1, outcome_here, path)[0]


def outcome_here(path):
    """Return the `outcome` of *path*, as the only rank of a world."""
    try:
        found = contents(path)
        if sum(prod(each.shape) * each.dtype.itemsize for each in found.arrays.values()) > LOADED:
            return "large"
        return {name: _bytes_of(each) for name, each in flat(mc.load(path)).items()}
    except (mc.CheckpointError, OSError) as error:
        assert len(str(error)) < 3000  # noqa: PT017 - most files are errors
        return ERROR


def rewrite(file, data):
    """Give *file* the content *data*. It is not made anew: file systems write new ones to the disk at once."""
    with file.open("r+b") as opened:
        opened.write(data)
        opened.truncate()


def signed(text):
    """Return the text of a manifest, as bytes, with the right checksum."""
    body = text[:-1] if isinstance(text, bytes) else text[:-1].encode(errors="surrogatepass")
    return body + b',\n"crc32": %d}\n' % zlib.crc32(body)


def _bytes_of(value):
    if not isinstance(value, mc.DTensor):
        return repr(value)
    found = value.to_numpy()
    return found.dtype.str, found.shape, found.tobytes()


def flat(tree, path=""):
    """Return the leaves of a tree by their paths."""
    if isinstance(tree, dict | list | tuple):
        pairs = tree.items() if isinstance(tree, dict) else enumerate(tree)
        return {key: leaf for name, each in pairs for key, leaf in flat(each, f"{path}/{name}").items()}
    return {path: tree}


@contextmanager
def bounded():
    """Let nobody take much more memory than there is taken now."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    old = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, old[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, old)


def checked_outcome(path, what, how=outcome):
    """Return the outcome, and check that nothing else is raised, and that it took no time worth mentioning.

    What takes long is tried once more: of a file that does harm, each load takes long.
    """
    limit = SECONDS * cpu_factor()
    found, seconds = _timed(path, what, how)
    if seconds >= limit:
        found, seconds = _timed(path, what, how)
    assert seconds < limit, f"{what!r:.2000}"
    return found


def _timed(path, what, how):
    begin = time.process_time()
    try:
        found = how(path)
    except BaseException as error:
        raise AssertionError(f"{what!r:.2000} raises {error!r:.2000}") from error
    return found, time.process_time() - begin
