"""Load files that are damaged or malicious, and check the outcome."""

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
LOADED = 2**20  # bytes: arrays that take more are not loaded


def outcome(path):
    """Return the loaded values of *path*, with their bytes, or `ERROR` for a documented error; raise other errors."""
    return on(1, outcome_here, path)[0]


def outcome_here(path):
    """Return the `outcome` of *path*, as the only rank of a world."""
    try:
        file_contents = contents(path)
        if sum(prod(array.shape) * array.dtype.itemsize for array in file_contents.arrays.values()) > LOADED:
            return "large"
        return {name: _bytes_of(array) for name, array in flat(mc.load(path)).items()}
    except (mc.CheckpointError, OSError, MemoryError) as error:
        assert len(str(error)) < 3000  # noqa: PT017 - most files are errors
        if isinstance(error, MemoryError):  # HDF5 believes the sizes in a header
            assert str(error) == f"{path} needs more memory than there is"  # noqa: PT017
        return ERROR


def rewrite(file, data):
    """Write *data* to the existing *file*: file systems write new files to the disk at once, which takes time."""
    with file.open("r+b") as output:
        output.write(data)
        output.truncate()


def signed(text):
    """Return the text of a manifest, as bytes, with the right checksum."""
    body = text[:-1] if isinstance(text, bytes) else text[:-1].encode(errors="surrogatepass")
    return body + b',\n"crc32": %d}\n' % zlib.crc32(body)


def _bytes_of(value):
    if not isinstance(value, mc.DTensor):
        return repr(value)
    array = value.to_numpy()
    return array.dtype.str, array.shape, array.tobytes()


def flat(tree, path=""):
    """Return the leaves of a tree by their paths."""
    if isinstance(tree, dict | list | tuple):
        pairs = tree.items() if isinstance(tree, dict) else enumerate(tree)
        return {key: leaf for name, subtree in pairs for key, leaf in flat(subtree, f"{path}/{name}").items()}
    return {path: tree}


@contextmanager
def bounded():
    """Return a context in which this process can allocate at most `MEMORY` bytes more."""
    used_bytes = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    old_limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used_bytes + MEMORY, old_limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, old_limits)


def checked_outcome(path, case, load=outcome):
    """Return the outcome of ``load(path)``, and check that it raises nothing and takes less than `SECONDS`.

    A slow load is tried once more: for a malicious file, each load is slow. *case* is shown if the check fails.
    """
    limit = SECONDS * cpu_factor()
    result, seconds = _timed(path, case, load)
    if seconds >= limit:
        result, seconds = _timed(path, case, load)
    assert seconds < limit, f"{case!r:.2000}"
    return result


def _timed(path, case, load):
    begin = time.process_time()
    try:
        result = load(path)
    except BaseException as error:
        raise AssertionError(f"{case!r:.2000} raises {error!r:.2000}") from error
    return result, time.process_time() - begin
