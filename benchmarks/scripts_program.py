"""One program of npbench as a script of NumPy that is timed: ``python scripts_program.py NAME SIZE CALLS``.

`scripts.py` copies it beside the package npbench and its bench_info, so that both are modules of the script. It prints
the seconds of each of so many calls after the first one, or of the first one if there are no more, and the sum of all
values, as JSON. On ranks it reads the clock at barriers: nothing is still to be computed then.
"""

import json
import sys
import time
import warnings
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

warnings.simplefilter("ignore")
name, size, calls = sys.argv[1], sys.argv[2], int(sys.argv[3])
info = json.loads((Path(__file__).parent / "bench_info" / f"{name}.json").read_text(encoding="utf-8"))["benchmark"]
module = f"npbench.benchmarks.{info['relative_path'].replace('/', '.')}.{info['module_name']}"
values: dict[str, Any] = dict(info["parameters"][size])
if begun := info.get("init"):
    results = getattr(import_module(module), begun["func_name"])(*(values[each] for each in begun["input_args"]))
    names = begun["output_args"]
    values.update(zip(names, results if len(names) > 1 else [results], strict=True))
kernel = getattr(import_module(f"{module}_numpy"), info["func_name"])
meshcomm = sys.modules.get("meshcomm")  # not there under plain NumPy


def clock() -> float:
    """Return the seconds, once all ranks are here and have computed everything."""
    if meshcomm:
        meshcomm.barrier()
    return time.perf_counter()


seconds = []
for _ in range(calls + 1):
    arguments = {each: values[each] for each in info["input_args"]}
    arguments = {each: value.copy() if hasattr(value, "copy") else value for each, value in arguments.items()}
    begin = clock()
    returned = kernel(*arguments.values())
    seconds.append(clock() - begin)
outputs = [*(returned if isinstance(returned, tuple | list) else [returned])]
outputs += [arguments[each] for each in info["output_args"] if each in arguments]
total = sum(float(abs(np.asarray(x)).sum()) for x in outputs if isinstance(x, np.ndarray))
print(json.dumps({"seconds": seconds[1:] or seconds, "sum": total}))
