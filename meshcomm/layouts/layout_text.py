"""The text of layouts."""

from meshcomm.layouts.layout import Layout


def specs(layout: Layout) -> str:
    """Return the sharding specs of *layout* as text. Local."""
    return "[" + ", ".join("+".join(s) if isinstance(s, tuple) else s for s in layout.sharding_specs) + "]"
