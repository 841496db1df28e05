"""Lets Python's json write a tensor without axes as a number, as NumPy's float64; others are refused with advice."""

import json
import sys

_default = json.JSONEncoder.default


def _number_of(encoder: json.JSONEncoder, x: object) -> object:
    """Return the number, text or bool of a tensor without axes; ``TypeError`` for anything else."""
    arrays = sys.modules.get("meshcomm.core.arrays.dtensor")  # there are no tensors before this module is loaded
    if arrays is None or not isinstance(x, arrays.DTensor):
        return _default(encoder, x)
    if x.ndim:
        from meshcomm.core._arguments import quote

        raise TypeError(f"a {quote(x)} is no number for json: write t.to_numpy().tolist() (Collective)")
    return x.item()


json.JSONEncoder.default = _number_of  # type: ignore[method-assign, assignment]
