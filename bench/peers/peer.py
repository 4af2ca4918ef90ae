"""What a rival is to the harness: a name, a version, and ways to compute a case."""

from __future__ import annotations

import contextlib
from typing import Callable, NamedTuple


class Unsupported(Exception):
    """The peer has no way to compute this case; the text says why."""


class Call(NamedTuple):
    """One way to compute a case. Only `run` is timed; `read` turns what it returned into float32 arrays in our layout:
    (out,) forward, (dq, dk, dv) backward. `context` surrounds a whole series of calls."""

    run: Callable[[], object]
    read: Callable[[object], tuple]
    context: Callable[[], contextlib.AbstractContextManager] = contextlib.nullcontext


class Peer:
    """A library under test. The constructor imports it and raises where it can't be used."""

    name = ""
    version = ""

    def __init__(self, threads):
        self.threads = threads

    def variants(self, case, data):
        """Ways to compute the case, as {name: function that builds a Call}; the fastest right one is timed.
        Raises Unsupported when there is none."""
        raise NotImplementedError

    def settings(self):
        """What was set on the library beyond the number of threads, for the machine card."""
        return {}
