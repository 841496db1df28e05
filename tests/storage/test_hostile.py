"""Files that are damaged, or that somebody made to do harm: an error that is documented, or the right data."""

import json
import shutil
import struct
import warnings
import zlib
from collections import Counter
from functools import partial
from itertools import islice

import pytest

import meshcomm as mc
from support.damage import ERROR, bounded, checked_outcome, outcome, outcome_here, rewrite, signed
from support.inputs import documents, texts, wires
from support.sampling import counted, sampled
from support.small_saves import prepared
from support.tensors import on

WITH_ONE_WORLD = 500  # inputs: each makes a mesh, which lives as long as its world
FORMATS = ("", ".npy", ".npz", ".safetensors", ".h5", ".zarr")


@pytest.fixture(autouse=True)
def libraries():
    pytest.importorskip("h5py")
    pytest.importorskip("zarr")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of NumPy and zarr, about files that others have made
        yield


def files_of(path):
    return [path] if path.is_file() else sorted(each for each in path.rglob("*") if each.is_file())


def each_outcome(path, file, variants):
    """Return what loads find with each of the *variants* of the file."""
    data = file.read_bytes()

    def program():
        found = []
        for variant in variants(data):
            rewrite(file, variant)
            found.append(outcome_here(path))
        return found

    with mc.simulate(1) as world:
        found = world.run(program)[0]
    rewrite(file, data)
    return found


def flipped(data, count=None):
    """Yield data with one byte changed: each byte, or *count* of them."""
    for at in sampled(range(len(data)), count):
        yield data[:at] + bytes([data[at] ^ (1 << at % 8)]) + data[at + 1 :]


def cut(data, count=None):
    """Yield the beginning of data: in all lengths, or in *count* of them."""
    for size in sampled(range(len(data)), count):
        yield data[:size]


@pytest.mark.parametrize("variants", [flipped, cut])
def test_a_damaged_checkpoint_is_an_error(variants, tmp_path):
    path = prepared(tmp_path / "f", "", True)
    whole = outcome(path)
    for file in files_of(path):
        found = each_outcome(path, file, variants)
        assert set(found) == {ERROR}, found.index(next(each for each in found if each != ERROR))
    assert outcome(path) == whole


@pytest.mark.parametrize("suffix", FORMATS[1:])
def test_a_file_that_ends_early_is_an_error(suffix, tmp_path):
    path = prepared(tmp_path / "f", suffix, True)
    whole = outcome(path)
    for file in files_of(path):
        for found in each_outcome(path, file, lambda data: cut(data, 500)):
            assert found in (ERROR, whole)


@pytest.mark.parametrize("suffix", ["", ".zarr"])
def test_a_file_that_is_missing(suffix, tmp_path):
    path = prepared(tmp_path / "f", suffix, True)
    for file in files_of(path):
        copy = shutil.copytree(path, tmp_path / f"copy{suffix}")
        (copy / file.relative_to(path)).unlink()
        found = outcome(copy)
        assert found == ERROR or suffix == ".zarr"  # a chunk that is missing has the fill value
        shutil.rmtree(copy)


@pytest.mark.parametrize("suffix", [each for each in FORMATS if each != ".npz"])  # it has that of .npy
def test_any_header_gives_an_error_or_data(suffix, tmp_path):
    path = prepared(tmp_path / "f", suffix, True)
    write, generated = HEADERS[suffix](path)
    count, kinds = counted(400), Counter()
    values = islice(generated, count)

    def program():
        for value in islice(values, WITH_ONE_WORLD):
            write(value)
            kinds[type(checked_outcome(path, value, outcome_here))] += 1

    with bounded():
        for _ in range(0, count, WITH_ONE_WORLD):
            on(1, program)
    print(f"{count} inputs for {suffix or 'checkpoints'}: {kinds[str]} errors or large, {kinds[dict]} with data")
    assert kinds.total() == count
    assert kinds[str] > kinds[dict] > 0


# -- headers: each function returns what writes one, and headers without end ------------------------------------------


def as_json(value):
    return json.dumps(value).encode(errors="surrogatepass")


def checkpoint_headers(path):
    file = path / "manifest.json"
    manifest = json.loads(file.read_bytes())
    del manifest["crc32"]
    more = manifest | {"tree": ["list", [["array", "a"], ["dict", {"x": ["value", 1.5]}], ["tuple", []]]]}
    words = ["a", "array", "<i4", {"base": "<f8", "shape": [2**31, 2**31]}, {"base": "<f8", "shape": 3}, 4096, 8192]

    def write(value):
        rewrite(file, signed(as_json(value if isinstance(value, dict) and value else {"kind": value})))

    return write, documents([manifest, manifest, more], words)


def npy_file(header, version=(1, 0), data=b"\0" * 192):
    text = header.encode(errors="surrogatepass") if isinstance(header, str) else header
    size = struct.pack("<H" if version[0] == 1 else "<I", len(text) & 0xFFFF)
    return b"\x93NUMPY" + bytes(version) + size + text + data


def npy_headers(path):
    seeds = [
        "{'descr': '<f8', 'fortran_order': False, 'shape': (6, 4), }\n",
        "{'descr': [('x', '<f8'), ('y', '>i4', (2,))], 'fortran_order': True, 'shape': (4, 3)}",
        "{'shape': (), 'fortran_order': False, 'descr': '|S3'}",
        "{'descr': '<M8[us]', 'fortran_order': False, 'shape': (0, 24)}",
    ]
    words = ["'|O'", "(2L, 3)", "True", "2**63", "__import__('os')", "-", "descr", "(" * 300, "lambda: 0", "'\\d'"]
    versions = ((1, 0), (2, 0), (3, 0), (4, 0))

    def write(value):
        rewrite(path, npy_file(value, versions[zlib.crc32(value.encode(errors="surrogatepass")) % 4]))

    return write, texts(seeds, [*words, "9" * 20])


def safetensors_file(header, data):
    text = header if isinstance(header, bytes) else as_json(header)
    return struct.pack("<Q", len(text)) + text + data


def safetensors_headers(path):
    data = path.read_bytes()
    first = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:first])
    more = header | {"__metadata__": {"by": "me"}, "none": {"dtype": "BF16", "shape": [0, 3], "data_offsets": [0, 0]}}

    def write(value):
        rewrite(path, safetensors_file(value, data[first:]))

    words = ["F32", "F8_E8M0", "F4", "dtype", "shape", "data_offsets", "__metadata__", 208]
    return write, documents([header, more], words)


def zarr_headers(path):
    found = [json.loads(file.read_bytes()) for file in path.rglob("zarr.json")]
    arrays = [each for each in found if each["node_type"] == "array"]
    words = [
        *[
            "int8",
            "float64",
            "complex128",
            "string",
            "array",
            "group",
            "regular",
            "bytes",
            "gzip",
            "default",
            "v2",
            "big",
        ],
        *({"name": "gzip", "configuration": {"level": 1}}, {"name": "transpose", "configuration": {"order": [1, 0]}}),
        *({"name": "sharding_indexed", "configuration": {}}, {"name": "r128"}, "NaN", "0x7ff", [6, 4], [3, 4]),
    ]

    def write(value):
        rewrite(path / "a" / "zarr.json", as_json(value))

    return write, documents(arrays, words)


def hdf5_headers(path):
    return partial(rewrite, path), wires([path.read_bytes()])


HEADERS = {
    "": checkpoint_headers,
    ".npy": npy_headers,
    ".safetensors": safetensors_headers,
    ".h5": hdf5_headers,
    ".zarr": zarr_headers,
}
