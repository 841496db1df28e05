"""One program of npbench as a script of NumPy, which prints its values: ``python programs_script.py NAME SIZE``.

`programs.py --script` copies it beside the package npbench and its bench_info, so that both are modules of the script.
"""

import json
import sys
import warnings
from importlib import import_module
from pathlib import Path
from typing import Any

warnings.simplefilter("ignore")
name, size = sys.argv[1:]
info = json.loads((Path(__file__).parent / "bench_info" / f"{name}.json").read_text(encoding="utf-8"))["benchmark"]
module = f"npbench.benchmarks.{info['relative_path'].replace('/', '.')}.{info['module_name']}"
values: dict[str, Any] = dict(info["parameters"][size])
if made := info.get("init"):
    found = getattr(import_module(module), made["func_name"])(*(values[each] for each in made["input_args"]))
    names = made["output_args"]
    values.update(zip(names, found if len(names) > 1 else [found], strict=True))
given = {each: values[each] for each in info["input_args"]}
print(getattr(import_module(f"{module}_numpy"), info["func_name"])(*given.values()))
for each in info["output_args"]:
    if each in given:
        print(each, given[each])
