"""Which of Transformers' models use the attention implementation that they are given. Those that do not are reported."""

from __future__ import annotations

import functools
import inspect
import sys
import warnings
import weakref
from types import CodeType, FunctionType
from typing import Any, Iterator, Set

import torch
from transformers import AttentionInterface, PreTrainedModel

from ._errors import InvalidArgument

_implementations: Set[str] = set()  # the names under which attend is registered
_reported: Any = weakref.WeakSet()  # models that a warning has named


def check_models(name: str) -> None:
    """From now on a model that is built with, or set to, the implementation `name` is checked."""
    if not _implementations:
        _run_around("__init__", after=_explain_missing_classes)
        _run_around("post_init", after=_warn_if_unused)
        _run_around("set_attn_implementation", after=_warn_if_unused)
    _implementations.add(name)


def _run_around(method: str, after: Any) -> None:
    original = getattr(PreTrainedModel, method)

    @functools.wraps(original)
    def wrapped(self, *args, **kwargs):
        result = original(self, *args, **kwargs)
        if self.config._attn_implementation in _implementations:
            after(self)
        return result

    setattr(PreTrainedModel, method, wrapped)


# ---- Models that choose from a dictionary of attention classes ----


class _AttentionClasses(dict):
    """A model's attention classes by implementation. Asked for attend, which none of them is, it says so."""

    def __missing__(self, key: str) -> Any:
        if key not in _implementations:
            raise KeyError(key)
        model = sys.modules[next(iter(self.values())).__module__].__name__.rsplit(".modeling_", 1)[-1]
        known = ", ".join(f'"{name}"' for name in self)
        hint = '. With "sdpa", attend.torch.patched() makes them use it' if "sdpa" in self else ""
        raise InvalidArgument(f'attn_implementation is "{key}", expected one of {known}: the model {model} has its own attention '
                              f"classes, which do not call attend{hint}")


def _explain_missing_classes(model: PreTrainedModel) -> None:
    for kind in type(model).__mro__[:-len(PreTrainedModel.__mro__)]:
        module = sys.modules.get(kind.__module__)
        for name, value in list(vars(module).items()) if module else ():
            if type(value) is dict and "eager" in value and all(_is_module_class(x) for x in value.values()):
                setattr(module, name, _AttentionClasses(value))


def _is_module_class(x: Any) -> bool:
    return isinstance(x, type) and issubclass(x, torch.nn.Module)


# ---- Models that compute their attention themselves ----


def _warn_if_unused(model: PreTrainedModel) -> None:
    modules = list(model.modules())
    if any(module in _reported for module in modules):
        _reported.add(model)
        return
    kinds = {type(module) for module in modules}
    if any(map(_is_attention, kinds)) and not any(map(_asks_for_attention, kinds)):
        _reported.add(model)
        warnings.warn(f'{type(model).__name__} computes its attention itself: attn_implementation='
                      f'"{model.config._attn_implementation}" has no effect, the model runs as with "eager"', stacklevel=3)


def _is_attention(kind: type) -> bool:
    return "attention" in kind.__name__.lower() or "attn" in kind.__name__.lower()


@functools.lru_cache(maxsize=None)
def _asks_for_attention(kind: type) -> bool:
    """Whether code of the class, or a function of its file that this code calls, looks into Transformers' table of attention
    functions."""
    for base in kind.__mro__:
        if base in PreTrainedModel.__mro__:
            continue
        for value in vars(base).values():
            function = _function(value)
            if function and _reads_table(function):
                return True
    return False


def _function(value: Any) -> Any:
    value = inspect.unwrap(value) if callable(value) else getattr(value, "__func__", value)
    return value if isinstance(value, FunctionType) else None


def _reads_table(function: FunctionType, nested: bool = True) -> bool:
    for name in _names(function.__code__):
        value = function.__globals__.get(name)
        if isinstance(value, AttentionInterface) or name == "ALL_ATTENTION_FUNCTIONS":  # as an attribute of its module
            return True
        inner = _function(value) if nested and value is not None else None
        if inner is not None and inner.__module__ == function.__module__ and _reads_table(inner, nested=False):
            return True
    return False


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
