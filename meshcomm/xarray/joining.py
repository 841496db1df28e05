"""Several files as one dataset: xarray joins what all ranks have opened."""

from typing import Any, NamedTuple

import xarray

from meshcomm.core._arguments import quote


class Joining(NamedTuple):
    """How datasets are joined; the fields are parameters of `xarray.open_mfdataset`."""

    combine: str
    concat_dim: object
    compat: str
    data_vars: object
    coords: object
    join: str
    combine_attrs: object

    def check(self) -> None:
        """Raise ``ValueError`` for another way to combine, and for a dimension that it has no use for."""
        if self.combine != "nested" and (self.combine != "by_coords" or self.concat_dim is not None):
            raise ValueError(f"combine={quote(self.combine)}: it is 'by_coords', or 'nested', which has a concat_dim")

    def joined(self, datasets: list[Any]) -> xarray.Dataset:
        """Return datasets as one. They may be in lists of lists for ``combine="nested"``."""
        how: Any = {name: value for name, value in self._asdict().items() if name not in ("combine", "concat_dim")}
        along: Any = self.concat_dim
        nested = self.combine == "nested"
        found = xarray.combine_nested(datasets, along, **how) if nested else xarray.combine_by_coords(datasets, **how)
        assert isinstance(found, xarray.Dataset)  # of arrays without names it would be another one
        return found
