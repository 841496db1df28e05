"""Gives layouts and plans the methods that draw them: notebooks look for ``_repr_html_`` on the class.

The classes live on floors below this wing, and import nothing from here. So the methods are written here, and given to
the classes when meshcomm is imported. The classes declare them for type checkers and readers, under ``TYPE_CHECKING``.
A tensor asks its layout, and needs nothing from here. Decision 23 says why it is not a hook.
"""

from meshcomm.layouts.layout import Layout
from meshcomm.pictures.layouts import layout_html
from meshcomm.pictures.plans import plan_html, save_plan
from meshcomm.plans.plan import Plan


def _of_layout(layout: Layout) -> str:
    return layout_html(layout)


Layout.html = layout_html  # type: ignore[assignment, method-assign]
Layout._repr_html_ = _of_layout  # type: ignore[assignment, method-assign]
Plan.save = save_plan  # type: ignore[assignment, method-assign]
Plan._repr_html_ = plan_html  # type: ignore[assignment, method-assign]
