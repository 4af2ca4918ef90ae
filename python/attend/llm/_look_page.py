"""The explorer's page around one run, in a frame that needs no server and no network."""

from __future__ import annotations

import pathlib
from typing import TYPE_CHECKING

from .. import _explorer_page
from .._errors import InvalidArgument
from . import _look_html

if TYPE_CHECKING:
    from ._look import Look


def document(look: Look, limit: int = 24 << 20) -> str:
    """One HTML document with every head, weight and cell of the run."""
    path = pathlib.Path(look.model.info.path)
    name = (path.stem if path.suffix in (".gguf", ".pth") else path.name).split(":")[-1] + (f" ({look.switches})" if look.switches else "")
    return _explorer_page.document(look._core.page_data(name, limit))


def frame(look: Look, height: int = 860) -> str:
    """What a notebook shows: the page, or, of a run too long for one, pictures of its heads."""
    try:
        return _explorer_page.frame(document(look), height)
    except InvalidArgument:  # too many weights, or no page in this build: pooled pictures are what is left
        return _look_html.page(look)
