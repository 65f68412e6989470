"""From a figure to the picture that a page shows, and stays in a notebook for those who read it without a kernel."""

import io
from base64 import b64encode

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


STATIC = """\
<div class="pdlab-static">
<style>
.jp-OutputArea-child:has(.jupyter-widgets.lm-Widget) ~ .jp-OutputArea-child:has(.pdlab-static) { display: none }
</style>
<img src="data:image/png;base64,%s" alt="the picture when the cell was run" style="width: 100%%; max-width: 1200px">
</div>"""


def for_readers(picture: bytes) -> str:
    """HTML of a picture that hides where the live widget before it is there."""
    return STATIC % b64encode(picture).decode()


def frame() -> ipywidgets.Image:
    """Where pictures are shown one after the other. As wide as the page, so replacing one does not move what is around
    it."""
    return ipywidgets.Image(format="png", layout={"width": "100%", "max_width": "1200px", "height": "auto"})
