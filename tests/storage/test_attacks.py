"""Files that somebody made to do harm, one by one. Many are after those that NumPy and safetensors test themselves."""

import json
import os
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest

import meshcomm as mc
from support.damage import ERROR, bounded, checked_outcome, outcome, signed
from support.saved import on, same
from support.small_saves import prepared


def refused(path, match):
    """Check that a load raises ``CheckpointError`` with this text, with little memory and in a short time."""
    with bounded():
        assert checked_outcome(path, match) == ERROR
    with mc.simulate(2) as world, pytest.raises(mc.CheckpointError, match=match):
        world.run(mc.load, path)


# -- checkpoints ------------------------------------------------------------------------------------------------------


@pytest.fixture
def checkpoint(tmp_path):
    path = prepared(tmp_path / "f", "", True)
    manifest = json.loads((path / "manifest.json").read_bytes())
    del manifest["crc32"]
    return path, manifest


def array(**changes):
    return lambda manifest: manifest["arrays"]["a"].update(changes)


def data(**changes):
    return lambda manifest: manifest["file"].update(changes)


def deep(levels):
    node = ["array", "a"]
    for _ in range(levels):
        node = ["list", [node]]
    return node


MANIFESTS = [
    *((data(name=name), "names no data file") for name in ("../../x", "/etc/passwd", "", ".", None, 3, ["data"])),
    *((data(name=name), "names no data file") for name in ("data-5d0c96d2a8e14f30/../x", "data-5d0c96d2a8e14f30\0")),
    *((data(size=size), "names no data file") for size in (None, "8192", 8192.0, True)),
    *((data(size=size), "has 8192 bytes") for size in (8191, 8193)),
    *((data(size=size), "has not one checksum") for size in (0, -1, 2**70)),
    *((data(range=n), "ranges of") for n in (0, -1, 2**20, None)),
    (lambda manifest: manifest.update(checksums=[1, 2]), "has not one checksum"),
    (lambda manifest: manifest.update(checksums=["x"]), "is damaged"),
    *((array(offset=n), "is not in the data") for n in (-4096, 8192, 2**63, 1.0, None, True)),
    *(
        (array(shape=n), "shape")
        for n in ([-1, -24], [2**62, 2**62], [0, 2**62], [6, 4.0], None, 24, [1] * 33, ["6", 4])
    ),
    (array(shape=[6, 400]), "is not in the data"),
    (array(dtype="|O"), "dtype"),
    (array(dtype={"base": "<f8", "shape": [2]}), "are arrays themselves"),
    (array(dtype="<M8[0us]"), "steps of 0"),
    (array(dtype={"ml_dtypes": "__builtins__"}), "dtype"),
    (array(shape=[150, 4]), "overlap"),
    (lambda manifest: manifest.update(arrays=[]), "arrays"),
    (lambda manifest: manifest["arrays"].update(a=3), "arrays"),
    (lambda manifest: manifest.update(tree=["array", "c"]), "names 'c'"),
    (lambda manifest: manifest.update(tree=["value", []]), "no node"),
    (lambda manifest: manifest.update(tree=deep(200)), "more than 100 levels"),
    (lambda manifest: manifest.update(metadata=[]), "metadata"),
    (lambda manifest: manifest.update(version=2), "version 2"),
    (lambda manifest: manifest.update(kind="a web page"), "is not that of a"),
    (lambda manifest: manifest.pop("tree"), "is not that of a"),
]


@pytest.mark.parametrize(("change", "match"), MANIFESTS)
def test_a_manifest_with_the_right_checksum(change, match, checkpoint):
    path, manifest = checkpoint
    change(manifest)
    (path / "manifest.json").write_bytes(signed(json.dumps(manifest)))
    refused(path, match)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[" * 100_000 + "]",
        '{"a": ' * 100_000 + "}",
        '{"kind": 1, "kind": 2}',
        '{"a": %s}' % ("9" * 5000),
        "[]]",
    ],
    ids=lambda text: text[:10],
)
def test_a_manifest_that_is_no_json(text, checkpoint):
    (checkpoint[0] / "manifest.json").write_bytes(signed(text))
    refused(checkpoint[0], "manifest.json")


def test_data_that_are_a_link(checkpoint):
    path, manifest = checkpoint
    make_link(path / manifest["file"]["name"], path.parent / "elsewhere")
    refused(path, "is a link")


def test_an_empty_folder(tmp_path):
    refused(tmp_path, "is no checkpoint")


def test_a_folder_of_checkpoints(tmp_path):
    on(1, lambda: mc.save(tmp_path / "step-000007", {"a": np.ones(3)}))
    refused(tmp_path, "is no checkpoint.* It has checkpoints, such as .*step-000007")


# -- safetensors ------------------------------------------------------------------------------------------------------


def safetensors_file(header, data=b"", length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def entry(begin, end, shape=None, dtype="F32"):
    return {"dtype": dtype, "shape": [(end - begin) // 4] if shape is None else shape, "data_offsets": [begin, end]}


SAFETENSORS = {
    "empty": (b"", "header"),
    "too short": (b"\x01\0\0", "header"),
    "zeros": (b"\0" * 100, "JSON"),
    "header too long": (safetensors_file({}, length=2**63), "a header of"),
    "header longer than the file": (safetensors_file({}, length=3), "a header of"),
    "header larger than they may be": (safetensors_file(b" " * 10, length=100_000_001), "a header of"),
    "header is a list": (safetensors_file([]), "must be an object"),
    "header is no UTF-8": (safetensors_file(b'{"\xff": 1}'), "JSON"),
    "header is not all JSON": (safetensors_file(b"{}xx"), "JSON"),
    "nested": (safetensors_file(b'{"a":' * 100_000), "JSON"),
    "one key twice": (
        safetensors_file(b'{"a": %s, "a": %s}' % ((json.dumps(entry(0, 8)).encode(),) * 2), b"\0" * 8),
        "twice",
    ),
    "overlap": (safetensors_file({"a": entry(0, 8), "b": entry(4, 12)}, b"\0" * 12), "begins at byte 4"),
    "the same data": (safetensors_file({"a": entry(0, 8), "b": entry(0, 8)}, b"\0" * 8), "begins at byte 0"),
    "hole": (safetensors_file({"a": entry(0, 8), "b": entry(12, 16)}, b"\0" * 16), "begins at byte 12"),
    "hole at the beginning": (safetensors_file({"a": entry(8, 16)}, b"\0" * 16), "begins at byte 8"),
    "more data": (safetensors_file({"a": entry(0, 8)}, b"\0" * 9), "has"),
    "less data": (safetensors_file({"a": entry(0, 8)}, b"\0" * 7), "has"),
    "end before begin": (safetensors_file({"a": entry(8, 0, [-2])}, b"\0" * 8), "no integer"),
    "negative offset": (safetensors_file({"a": entry(-8, 0)}, b""), "no two offsets"),
    "offsets of another kind": (
        safetensors_file({"a": entry(0, 8) | {"data_offsets": [0.0, 8]}}, b"\0" * 8),
        "offsets",
    ),
    "three offsets": (safetensors_file({"a": entry(0, 8) | {"data_offsets": [0, 4, 8]}}, b"\0" * 8), "offsets"),
    "other size": (safetensors_file({"a": entry(0, 8, [3])}, b"\0" * 8), "needs 12 bytes"),
    "shape that overflows": (safetensors_file({"a": entry(0, 8, [2**32, 2**32])}, b"\0" * 8), "too large"),
    "empty and too large": (safetensors_file({"a": entry(0, 0, [0, 2**61, 2**61])}), "too large"),
    "shape with a bool": (safetensors_file({"a": entry(0, 4, [True])}, b"\0" * 4), "no integer"),
    "unknown dtype": (safetensors_file({"a": entry(0, 4, dtype="F4")}, b"\0" * 4), "is none that NumPy has"),
    "entry is a list": (safetensors_file({"a": [0, 4]}, b"\0" * 4), "has the entry"),
    "no shape": (safetensors_file({"a": {"dtype": "F32", "data_offsets": [0, 4]}}, b"\0" * 4), "has the entry"),
    "other metadata": (safetensors_file({"__metadata__": {"a": 1}}), "must be texts"),
}


@pytest.mark.parametrize("name", SAFETENSORS)
def test_safetensors(name, tmp_path):
    content, match = SAFETENSORS[name]
    path = tmp_path / "a.safetensors"
    path.write_bytes(content)
    refused(path, match)


@pytest.mark.parametrize(
    ("name", "match"),
    [
        *((name, "names the file") for name in ("../a.safetensors", "/etc/passwd", "..", "", "a/../a.safetensors")),
        *((name, "names the file") for name in ("a\0.safetensors", "x.safetensors.index.json", "\ud800.safetensors")),
        ("a.safetensors", r"a\.safetensors.*not there"),
    ],
)
def test_an_index_that_names_other_files(name, match, tmp_path):
    path = tmp_path / "x.safetensors.index.json"
    path.write_bytes(json.dumps({"weight_map": {"w": name}}).encode())
    refused(path, match)


# -- .npy -------------------------------------------------------------------------------------------------------------


def npy_file(header, version=(1, 0), magic=b"\x93NUMPY", data=b"\0" * 64, length=None):
    size = len(header) if length is None else length
    return magic + bytes(version) + struct.pack("<H" if version[0] == 1 else "<I", size) + header + data


HEADER = b"{'descr': '<f8', 'fortran_order': False, 'shape': (8,)}\n"
NPY = {
    "empty": b"",
    "nothing but the magic": b"\x93NUMPY",
    "no length": b"\x93NUMPY\x01\0",
    "other magic": npy_file(HEADER, magic=b"\x93NUMPX"),
    "another first byte": npy_file(HEADER, magic=b"\x92NUMPY"),
    **{f"version {v}": npy_file(HEADER, v) for v in ((0, 0), (0, 1), (1, 1), (2, 1), (4, 0), (255, 255))},
    "header longer than the file": npy_file(HEADER, length=60_000),
    "header of 4 GB": npy_file(HEADER, (2, 0), length=2**32 - 1),
    "header that is too long": npy_file(HEADER + b" " * 20_000, (2, 0)),
    "header of version 3 that is too long": npy_file(HEADER + b" " * 20_000, (3, 0)),
    "no dict": npy_file(b"[1, 2]"),
    "another key": npy_file(HEADER.replace(b"{", b"{'x': 1, ")),
    "no descr": npy_file(b"{'fortran_order': False, 'shape': (8,)}"),
    "keys of other kinds": npy_file(HEADER.replace(b"'shape'", b"1")),
    "order of another kind": npy_file(HEADER.replace(b"False", b"'False'")),
    "shape is a list": npy_file(HEADER.replace(b"(8,)", b"[8]")),
    "shape of floats": npy_file(HEADER.replace(b"(8,)", b"(8.0,)")),
    "shape of bools": npy_file(HEADER.replace(b"(8,)", b"(True,)")),
    "negative shape": npy_file(HEADER.replace(b"(8,)", b"(-8,)")),
    "shape that overflows": npy_file(HEADER.replace(b"(8,)", b"(4294967296, 4294967296)")),
    "empty and too large": npy_file(HEADER.replace(b"(8,)", b"(0, 4611686018427387904)")),
    "no data": npy_file(HEADER, data=b"\0" * 63),
    "dtype that is none": npy_file(HEADER.replace(b"<f8", b"<f3")),
    "Python objects": npy_file(HEADER.replace(b"<f8", b"|O")),
    "Python objects in a field": npy_file(HEADER.replace(b"'<f8'", b"[('x', '|O')]")),
    "elements that are arrays": npy_file(HEADER.replace(b"<f8", b"2f4")),
    "dates in steps of 0": npy_file(HEADER.replace(b"<f8", b"<M8[0us]")),
    "dates in steps of 0 in a field": npy_file(HEADER.replace(b"'<f8'", b"[('x', '<m8[0D]', (2,))]")),
    "more axes than NumPy broadcasts": npy_file(HEADER.replace(b"(8,)", repr((1,) * 33).encode())),
    "code": npy_file(HEADER.replace(b"(8,)", b"(__import__('os').getpid(),)")),
    "nested": npy_file(b"(" * 9000),
    "nested in version 3": npy_file(b"(" * 9000, (3, 0)),
    "zeros": npy_file(b"\0" * 100),
    "no UTF-8": npy_file(HEADER.replace(b"descr", b"\xff\xfe"), (3, 0)),
    "a key twice": npy_file(HEADER.replace(b"{", b"{'shape': (4,), ")),
    "a key twice in version 3": npy_file(HEADER.replace(b"{", b"{'descr': '<i4', "), (3, 0)),
    "fields that overlap": npy_file(HEADER.replace(b"'<f8'", b"[('x', '<f8'), ('x', '<f8')]")),
}


@pytest.mark.parametrize("name", NPY)
def test_npy(name, tmp_path):
    path = tmp_path / "a.npy"
    path.write_bytes(NPY[name])
    refused(path, r"its array ends at byte" if name == "no data" else r"a\.npy")


@pytest.mark.parametrize(
    "descr", ["[('x', '<f8'), ('', '|V4'), ('y', '>i4', (2,))]", "'<M8[25s]'", "'|S4'", "'<U2'", "'>c16'"]
)
@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_npy_as_numpy_reads_it(descr, version, tmp_path):
    path = tmp_path / "a.npy"
    header = f"{{'descr': {descr}, 'fortran_order': True, 'shape': (2, 1)}}\n".encode()
    path.write_bytes(npy_file(header, version, data=bytes(range(64))))
    on(2, lambda: same(mc.load(path), np.load(path)))


# -- folders, links, pipes --------------------------------------------------------------------------------------------


def make_link(path, to):
    path.rename(to)
    path.symlink_to(to)


@pytest.mark.parametrize("linked", ["a/c/0/0", "a/c/0", "a/c", "a"])
def test_chunks_that_are_links(linked, tmp_path):
    path = prepared(tmp_path / "f", ".zarr", True)
    make_link(path / linked, tmp_path / "elsewhere")
    if linked == "a":  # an array that is a link is not there
        assert list(outcome(path)) == ["/more/b"]
    else:
        refused(path, "is a link")


@pytest.mark.parametrize("version", [2, 3])
def test_compressed_chunks_that_are_links(version, tmp_path):
    zarr = pytest.importorskip("zarr")
    path = tmp_path / "a.zarr"
    zarr.open_group(path, mode="w", zarr_format=version).create_array("a", data=np.arange(8.0), chunks=(4,))
    assert list(outcome(path)) == ["/a"]
    make_link(path / "a" / ("0" if version == 2 else "c/0"), tmp_path / "elsewhere")
    refused(path, "is a link")


class _Harm:
    def __reduce__(self):
        return Path.touch, (Path("harm"),)


@pytest.mark.parametrize("where", ["filters", "compressor"])
def test_chunks_of_pickles(where, tmp_path, monkeypatch):
    zarr, path = pytest.importorskip("zarr"), tmp_path / "a.zarr"
    monkeypatch.chdir(tmp_path)
    zarr.create_array(path, data=np.arange(8.0), chunks=(8,), zarr_format=2)
    codec, metadata = {"id": "pickle", "protocol": 4}, json.loads((path / ".zarray").read_bytes())
    codecs = {"filters": None, "compressor": None, where: [codec] if where == "filters" else codec}
    (path / ".zarray").write_text(json.dumps(metadata | codecs))
    (path / "0").write_bytes(pickle.dumps(_Harm()))
    refused(path, "pickle")
    assert not Path("harm").exists()


@pytest.mark.parametrize("where", ["filters", "compressors", "shards"])
def test_codecs_that_nobody_knows(where, tmp_path):
    zarr, numcodecs, decoded = pytest.importorskip("zarr"), pytest.importorskip("numcodecs"), []

    class Old(numcodecs.GZip):
        codec_id = "harm"

        def decode(self, *args):
            decoded.append(1)
            return super().decode(*args)

    class New(zarr.codecs.GzipCodec):
        @classmethod
        def from_dict(cls, data):
            return cls(**data.get("configuration", {}))

        def to_dict(self):
            return {"name": "harm"}

        async def _decode_single(self, *args):
            decoded.append(1)
            return await super()._decode_single(*args)

    numcodecs.register_codec(Old)
    zarr.registry.register_codec("harm", New)
    with zarr.config.set({"codecs.harm": f"{New.__module__}.{New.__qualname__}"}):
        version, codec = (2, Old()) if where == "filters" else (3, New())
        options = {"filters": [codec], "compressors": None} if where == "filters" else {"compressors": [codec]}
        options |= {"shards": (8,)} if where == "shards" else {}
        path, whole = tmp_path / "a.zarr", np.arange(8.0)
        zarr.create_array(path, data=whole, chunks=(4,), zarr_format=version, **options)
        np.testing.assert_array_equal(zarr.open(path)[...], whole)
        assert decoded
        decoded.clear()
        refused(path, "has the codec 'harm'")
    assert not decoded


@pytest.mark.parametrize("size", [0, 1, 191, 193])
def test_a_chunk_of_another_size(size, tmp_path):
    path = prepared(tmp_path / "f", ".zarr", True)
    (path / "a/c/0/0").write_bytes(b"\0" * size)
    refused(path, "a chunk of this array has 192")


def test_chunks_of_no_rows(tmp_path):
    path = prepared(tmp_path / "f", ".zarr", True)
    metadata = json.loads((path / "a/zarr.json").read_bytes())
    metadata["chunk_grid"]["configuration"]["chunk_shape"] = [0, 4]
    (path / "a/zarr.json").write_text(json.dumps(metadata))
    assert outcome(path) == ERROR


def test_virtual_datasets_of_hdf5(tmp_path):
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "secret.h5", "w") as file:
        file["s"] = np.arange(8.0)
    for name, where in (("other", str(tmp_path / "secret.h5")), ("same", ".")):
        layout = h5py.VirtualLayout((8,), "f8")
        layout[:] = h5py.VirtualSource(where, "s", (8,))
        with h5py.File(tmp_path / f"{name}.h5", "w") as file:
            file["s"] = np.arange(8.0) + 1
            file.create_virtual_dataset("w", layout)
    with pytest.warns(UserWarning, match="'w' .it has its data in other files: .*secret.* is left out"):
        assert list(on(1, lambda: mc.load(tmp_path / "other.h5"))[0]) == ["s"]
    with pytest.raises(mc.CheckpointError, match=r"'w' cannot be loaded: it has its data in other files: .*secret"):
        on(2, lambda: mc.load(tmp_path / "other.h5", names=["w"]))
    assert on(2, lambda: mc.load(tmp_path / "same.h5")["w"].to_numpy()[0]) == [1.0, 1.0]


def test_hdf5_datasets_that_overlap(tmp_path):
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["a"], file["b"] = np.arange(24.0), np.arange(4)
        at, other = (file[name].id.get_offset() for name in "ab")
    data = (tmp_path / "a.h5").read_bytes()
    assert data.count(other.to_bytes(8, "little")) == 1
    (tmp_path / "a.h5").write_bytes(data.replace(other.to_bytes(8, "little"), (at + 32).to_bytes(8, "little")))
    refused(tmp_path / "a.h5", "arrays 'a' and 'b' overlap")


def named_in_bytes(h5py, file):
    h5py.h5a.create(file.id, b"k\xff", h5py.h5t.STD_I32LE, h5py.h5s.create(h5py.h5s.SCALAR))


HDF5 = {
    "data in another file": (
        lambda h5py, file: file.create_dataset("usual", (8,), "f8", external=[(f"{file.filename}.secret", 0, 64)]),
        "nothing that can be loaded: 'usual' .it has its data in other files",
    ),
    "a name that is no text": (lambda h5py, file: file.create_dataset(b"more\xff", (8,), "f8"), "no text in UTF-8"),
    "an attribute's name that is no text": (named_in_bytes, "no text in UTF-8"),
    "dates in steps of 0": (
        lambda h5py, file: file.create_dataset("a", (8,), h5py.opaque_dtype(np.dtype("M8[0us]"))),
        "steps of 0",
    ),
}


@pytest.mark.parametrize("name", HDF5)
def test_hdf5(name, tmp_path):
    h5py, (write, match), path = pytest.importorskip("h5py"), HDF5[name], tmp_path / "a.h5"
    (tmp_path / "a.h5.secret").write_bytes(b"x" * 64)
    with h5py.File(path, "w") as file:
        write(h5py, file)
        if "usual" not in file:
            file["usual"] = np.arange(3)
    refused(path, match)


@pytest.mark.parametrize(
    "suffix", [".npy", ".safetensors", ".h5", ".safetensors.index.json", "/manifest.json", ".zarr/zarr.json"]
)
def test_a_pipe_does_not_block(suffix, tmp_path):
    path = tmp_path / f"a{suffix}"
    path.parent.mkdir(exist_ok=True)
    os.mkfifo(path)
    refused(path.parent if "/" in suffix else path, "no regular file|is no zarr store|manifest|zarr")


def test_a_folder_instead_of_a_file_and_the_other_way_round(tmp_path):
    for suffix in (".npy", ".safetensors", ".h5", ".safetensors.index.json"):
        (tmp_path / f"a{suffix}").mkdir()
        refused(tmp_path / f"a{suffix}", "no regular file")
    for suffix in ("", ".zarr"):
        (tmp_path / f"a{suffix}").write_bytes(b"x")
        refused(tmp_path / f"a{suffix}", "no format|no zarr store|no checkpoint")


@pytest.mark.parametrize("suffix", ["", ".npy", ".safetensors", ".h5", ".zarr"])
def test_nothing_is_there(suffix, tmp_path):
    with mc.simulate(2) as world, pytest.raises(FileNotFoundError, match="saved"):
        world.run(mc.load, tmp_path / f"saved{suffix}")
