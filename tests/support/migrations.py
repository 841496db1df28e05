"""Rows that ranks send each other with `migrate`, and what comes: for simulated and for real ranks."""

import numpy as np

import meshcomm as mc

RECORD = np.dtype([("position", "f4", 2), ("name", "S3")])
KINDS = [("f8", ()), ("u1", ()), ("c16", (2, 3)), ("bool", (5,)), (RECORD, ()), ("f4", (0,)), (">i2", (1,))]


def rows_of(device, seed, size):
    """What a device passes: arrays of all kinds, and where their rows go."""
    random = np.random.default_rng([seed, device])
    count = random.integers(0, random.choice([1, 5, 300]))
    arrays = [
        random.integers(0, 2, (count, *row, np.dtype(dtype).itemsize), "u1").view(dtype)[..., 0]
        for dtype, row in KINDS
    ]
    to = random.integers(0, random.integers(1, size + 1), count).astype(random.choice(["i8", "u1", "i4"]))
    return arrays, np.sort(to) if seed % 3 == 0 else to


def migrations(random, mesh):
    """Arrays of all kinds, alone and together; each rank knows what all pass."""
    for _ in range(6):
        seed = random.randrange(10**6)
        passed = [rows_of(device, seed, mesh.size) for device in range(mesh.size)]
        arrays, to = passed[mesh.rank]
        expected = [
            np.concatenate([theirs[number][their_to == mesh.rank] for theirs, their_to in passed], dtype=dtype)
            for number, (dtype, _) in enumerate(KINDS)
        ]
        sources = np.repeat(np.arange(mesh.size), [np.sum(their_to == mesh.rank) for _, their_to in passed])
        names = [str(number) for number in range(len(KINDS))]
        together = mc.migrate(dict(zip(names, arrays, strict=True)), to, mesh)
        assert list(together.rows) == names
        number = random.randrange(len(KINDS))
        alone = mc.migrate(arrays[number], to.tolist(), mesh)
        few = mc.migrate(arrays[:number], to, mesh) if number else together
        assert isinstance(few.rows, list if number else dict)
        found = [*zip(expected, together.rows.values(), strict=True), (expected[number], alone.rows)]
        for wanted, rows in found + list(zip(expected[:number], few.rows, strict=True)) if number else found:
            assert (rows.shape, rows.dtype) == (wanted.shape, wanted.dtype)
            assert rows.tobytes() == wanted.tobytes()
        for each in (together, alone, few):
            np.testing.assert_array_equal(each.sources, sources)
