"""The recorded layout maps of tf_keras, and the layouts in them."""

import json

from meshcomm import Layout, LayoutMap, Mesh
from support.paths import DATA

GOLDEN = json.loads((DATA / "layout_map.json").read_text())
MESH = Mesh(["CPU:0", "CPU:1", "CPU:2", "CPU:3"], [("X", 2), ("Y", 2)])
LAYOUTS = {name: Layout(specs, MESH) for name, specs in GOLDEN["layouts"].items()}
X, X_U, U, U_U = LAYOUTS["x"], LAYOUTS["x_u"], LAYOUTS["u"], LAYOUTS["u_u"]


def golden_map(name, mode="match"):
    m = LayoutMap(mode=mode)
    m.update((key, LAYOUTS[layout]) for key, layout in GOLDEN["maps"][name])
    return m


def small():
    return golden_map("test_get")
