"""Measure the peak memory of calls beyond their operands, for the rows of docs/call-memory.md.

The rows are in tests/data/call_memory.json, and ``python -m support.call_memory`` writes the tables of the page.
Operands are tensors of two blocks, on 2 ranks: t and u (4096 x 512 floats, rows cut), columns (as t, columns cut),
line (equally many floats on one axis), numbers (integers, as line), mask (booleans, as t). order is a permutation of
NumPy. a and b are arrays of xarray on t and columns.
"""

import gc
import json
import tracemalloc

import numpy as np

import meshcomm as mc
from meshcomm.core.memory import pools
from meshcomm.core.memory.scratch import forget_scratch
from support.paths import DATA, DOCS

PAGE = DOCS / "call-memory.md"
ROWS, COLUMNS = 4096, 512
BLOCK = ROWS * COLUMNS * 8 // 2
MOST = 4.1
"""The most blocks that a call may use: three, and 32 MiB of scratch. A row may have more if it gives a reason."""

_RECORD = json.loads((DATA / "call_memory.json").read_text("utf-8"))
NUMPY, XARRAY, WHYS = _RECORD["numpy"], _RECORD["xarray"], _RECORD["whys"]
"""Calls of docs/numpy.md and of docs/xarray.md, by the peak number of blocks that a rank allocates, with the result;
and the reasons for calls that take more than MOST."""


def operands(mesh, height, width, xarray):
    """Return the names that calls may use, for tensors of *height* rows; if *xarray*, also those of xarray."""
    rows, columns, line_layout = (
        mc.Layout(specs, mesh) for specs in (["x", mc.UNSHARDED], [mc.UNSHARDED, "x"], ["x"])
    )
    random = mc.random.default_rng(1)
    t, u = (random.random((height, width), layout=rows) for _ in range(2))
    names = {"np": np, "mc": mc, "ROWS": height, "COLUMNS": width, "t": t, "u": u}
    names["columns"] = mc.relayout(t, columns)
    names["line"] = random.random((height * width,), layout=line_layout)
    names["numbers"] = random.integers(0, 1000, (height * width,), layout=line_layout)
    names["mask"] = t > 0.5
    names["order"] = np.random.default_rng(1).permutation(height)
    return names | (_with_xarray(names) if xarray else {})


def _with_xarray(names):
    import xarray as xr

    import meshcomm.xarray

    t = names["t"]
    days = np.datetime64("2000-01-01", "ns") + np.arange(len(t)) * np.timedelta64(6, "h")
    a = xr.DataArray(t, dims=("time", "x"), coords={"time": days, "x": np.arange(t.shape[1]) * 0.5})
    return {"xr": xr, "mx": meshcomm.xarray, "a": a, "b": a.copy(data=names["columns"])}


def peak(call, names):
    """Return the peak of the bytes that this rank has allocated during a call, without those before it."""
    forget_scratch()
    gc.collect()  # what is there for good is frozen
    mc.barrier(names["t"].mesh)
    tracemalloc.start()
    initial_bytes = tracemalloc.get_traced_memory()[0]
    result = eval(call, dict(names))
    peak_bytes = tracemalloc.get_traced_memory()[1] - initial_bytes
    tracemalloc.stop()
    del result
    return peak_bytes


def measured(calls, xarray):
    """Return the peak of each call in blocks, the maximum over the ranks. Collective; ranks share no memory."""
    pools.shared, pools.allocate_unshared = None, lambda size: np.empty(size, np.uint8)  # tracemalloc sees these
    mesh = mc.create_mesh([("x", -1)])
    small_operands = operands(mesh, ROWS // 8, COLUMNS // 4, xarray)
    for call in calls:
        eval(call, dict(small_operands))  # so that nothing is imported or cached during the measurement
    names = operands(mesh, ROWS, COLUMNS, xarray)
    gc.collect()
    gc.freeze()
    return {call: float(mc.all_reduce(peak(call, names), op="max")) / BLOCK for call in calls}


# -- the page ---------------------------------------------------------------------------------------------------------


def page():
    """Return the text of the page with the tables of the rows."""
    text = PAGE.read_text("utf-8")
    for title, table in (("numpy", NUMPY), ("xarray", XARRAY)):
        lines = ["| blocks | calls |", "|---|---|"]
        lines += [f"| {float(blocks):g} | {', '.join(map(_code, sorted(calls)))} |" for blocks, calls in table.items()]
        text = _with_table(text, title, lines)
    lines = ["| call | why |", "|---|---|", *(f"| {_code(call)} | {why} |" for call, why in WHYS.items())]
    return _with_table(text, "whys", lines)


def _code(call):
    return f"`{call}`"


def _with_table(text, title, lines):
    begin, end = f"<!-- {title} -->\n", f"<!-- end of {title} -->"
    head, tail = text.split(begin)
    end_text = tail.split(end)[1]
    return f"{head}{begin}\n" + "\n".join(lines) + f"\n\n{end}{end_text}"


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
