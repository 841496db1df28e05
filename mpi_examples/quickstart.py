"""A first look: mpiexec -n 4 python mpi_examples/quickstart.py"""

import numpy as np

import meshcomm as mc

mesh = mc.create_mesh([("x", -1)])  # all ranks, along one dimension named x
by_rows = mc.Layout(["x", mc.UNSHARDED], mesh)  # axis 0 is cut along x, axis 1 stays whole
by_columns = mc.Layout([mc.UNSHARDED, "x"], mesh)

table = np.arange(60).reshape(6, 10) % 7  # 6 rows on 4 ranks: the number of ranks need not divide a length
t = mc.distribute(table, by_rows)  # t.local is the block of this rank: some whole rows
u = mc.relayout(t, by_columns)  # now u.local is some whole columns, as a median needs them
medians = mc.from_local(np.median(u.local, axis=0), mc.Layout(["x"], mesh))

result = medians.to_numpy()
assert np.array_equal(result, np.median(table, axis=0))
if mesh.rank == 0:
    print(mc.plan_relayout(table.shape, table.dtype, by_rows, by_columns))
    for device in range(mesh.size):  # layouts are values: every rank knows what each device holds
        rows, columns = by_columns.block_slices(table.shape, device)
        print(f"rank {device} found the medians of columns {columns.start} to {columns.stop - 1}")
    print("medians:", result)
