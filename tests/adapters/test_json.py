"""Tensors without axes are numbers for json, as NumPy's float64 is."""

import json

import numpy as np
import pytest

import meshcomm as mc


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_json_writes_the_number_that_a_tensor_without_axes_is(ranks):
    def program():
        t = mc.distribute(np.arange(4.0), mc.Layout(["x"], mc.create_mesh([("x", -1)])))
        record = {"loss": t.mean(), "count": np.count_nonzero(t), "any": (t > 2).any(), "float": np.float64(0.5)}
        with pytest.raises(TypeError, match=r"no number for json: write t\.to_numpy\(\)\.tolist\(\)"):
            json.dumps(t)
        with pytest.raises(TypeError, match="Object of type object is not JSON serializable"):
            json.dumps(object())
        return json.dumps(record)

    with mc.simulate(ranks) as world:
        assert set(world.run(program)) == {'{"loss": 1.5, "count": 3, "any": true, "float": 0.5}'}
