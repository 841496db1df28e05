"""Prints, as JSON, what the calls of a file use at most: see support.call_memory. The second argument adds xarray."""

import json
import sys
import warnings
from pathlib import Path

import meshcomm as mc
from support.call_memory import measured

warnings.simplefilter("ignore")
found = measured(json.loads(Path(sys.argv[1]).read_text("utf-8")), xarray=sys.argv[2] == "xarray")
if mc.create_mesh([("x", -1)]).rank == 0:
    print(json.dumps(found))
