"""From a figure to the picture that a page shows, and stays in a notebook for those who read it without a kernel."""

import io

import ipywidgets
from matplotlib.figure import Figure

DPI = 100
"""Sharp enough at the width that a page gives it; twice as many take twice as long to draw."""

FAST_COMPRESSION = 1
"""Of zlib: a tenth larger and a few milliseconds sooner."""


def png(figure: Figure) -> bytes:
    """The figure as PNG."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=DPI, pil_kwargs={"compress_level": FAST_COMPRESSION})
    return buffer.getvalue()


def frame() -> ipywidgets.Image:
    """Where pictures are shown one after the other. As wide as the page, so replacing one does not move what is around
    it."""
    return ipywidgets.Image(format="png", layout={"width": "100%", "max_width": "1200px", "height": "auto"})
