"""Rows that ranks send each other with `migrate`, and the expected results: for simulated and for real ranks."""

import numpy as np

import meshcomm as mc

RECORD = np.dtype([("position", "f4", 2), ("name", "S3")])
KINDS = [("f8", ()), ("u1", ()), ("c16", (2, 3)), ("bool", (5,)), (RECORD, ()), ("f4", (0,)), (">i2", (1,))]


def rows_of(device, seed, size):
    """Return the arguments of a device: arrays of all kinds, and the target of each row."""
    random = np.random.default_rng([seed, device])
    count = random.integers(0, random.choice([1, 5, 300]))
    arrays = [
        random.integers(0, 2, (count, *row, np.dtype(dtype).itemsize), "u1").view(dtype)[..., 0]
        for dtype, row in KINDS
    ]
    targets = random.integers(0, random.integers(1, size + 1), count).astype(random.choice(["i8", "u1", "i4"]))
    return arrays, np.sort(targets) if seed % 3 == 0 else targets


def migrations(random, mesh):
    """Migrate arrays of all kinds, alone and together; each rank computes the arguments of all ranks."""
    for _ in range(6):
        seed = random.randrange(10**6)
        all_rows = [rows_of(device, seed, mesh.size) for device in range(mesh.size)]
        arrays, targets = all_rows[mesh.rank]
        expected = [
            np.concatenate(
                [peer_arrays[number][peer_targets == mesh.rank] for peer_arrays, peer_targets in all_rows], dtype=dtype
            )
            for number, (dtype, _) in enumerate(KINDS)
        ]
        sources = np.repeat(np.arange(mesh.size), [np.sum(peer_targets == mesh.rank) for _, peer_targets in all_rows])
        names = [str(number) for number in range(len(KINDS))]
        result = mc.migrate(dict(zip(names, arrays, strict=True)), targets, mesh)
        assert list(result.rows) == names
        number = random.randrange(len(KINDS))
        single_result = mc.migrate(arrays[number], targets.tolist(), mesh)
        first_results = mc.migrate(arrays[:number], targets, mesh) if number else result
        assert isinstance(first_results.rows, list if number else dict)
        pairs = [*zip(expected, result.rows.values(), strict=True), (expected[number], single_result.rows)]
        for expected_rows, rows in (
            pairs + list(zip(expected[:number], first_results.rows, strict=True)) if number else pairs
        ):
            assert (rows.shape, rows.dtype) == (expected_rows.shape, expected_rows.dtype)
            assert rows.tobytes() == expected_rows.tobytes()
        for migrated in (result, single_result, first_results):
            np.testing.assert_array_equal(migrated.sources, sources)
