"""attend as an attention implementation of Hugging Face Transformers.

>>> import attend.hf
>>> attend.hf.register()
>>> model = AutoModelForCausalLM.from_pretrained(name, attn_implementation="attend")
>>> with attend.hf.watch(model) as watch:     # what its attention looks at, while it runs
...     model(**inputs)
>>> watch.weights(layer=3, head=5)
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Callable, List, Optional, Sequence

import torch
import transformers
from transformers import AttentionInterface, AttentionMaskInterface, masking_utils

from . import masks
from ._hf_attention import Options, attend, is_traced, mask_of
from ._hf_models import check_models
from ._whole import flag
from .torch import draw_seed

try:  # says which outputs the running forward collects; some modules keep `output_attentions` to themselves
    from transformers.utils.output_capturing import _active_collector
except ImportError:
    _active_collector = None

if TYPE_CHECKING:
    from ._watched import Watch

_watches: List[Watch] = []  # those of watch() that are open


def register(name: str = "attend") -> None:
    """Makes ``attn_implementation=name`` known to Transformers, with its masks. Calling it twice does no harm.

    Padding, caches, windows, GQA, sinks, soft caps, position biases and dropout work as with "eager"; passing
    ``output_attentions=True`` to the model or to generate() returns the weights (before dropout), with their gradients.
    torch.func, torch.compile(fullgraph=True) and torch.export work, too; under the latter two masks are tensors.

    The few models that do not ask Transformers for their attention (Bloom, for one) keep computing their own: a warning
    says so. Those that choose from a list of attention classes without this one (Falcon, for one) are an error.

    >>> attend.hf.register()
    >>> model = AutoModelForCausalLM.from_config(config, attn_implementation="attend")
    >>> model.generate(**inputs)
    """
    if "q_length" not in inspect.signature(masking_utils.sdpa_mask).parameters:
        raise ImportError(f"attend.hf needs a newer Transformers than {transformers.__version__}: its masks are made "
                          "another way; pip install -U transformers")
    AttentionInterface.register(name, attention_forward)
    AttentionMaskInterface.register(name, attention_mask)
    check_models(name)


def watch(model: torch.nn.Module, *, layers: Optional[Sequence[int]] = None) -> Watch:
    """Looks at the attention of a model that runs with ``attn_implementation="attend"``: a context manager.

    What its layers attend with is kept (queries, keys and values: linear memory, never the matrix of weights), and can
    be asked for statistics, maps, rows and single weights afterwards. ``layers``: these alone. The results of the model
    do not change.

    >>> with attend.hf.watch(model) as watch:
    ...     model(**inputs)
    >>> watch.statistics(tokens=inputs["input_ids"]).induction
    """
    from ._watched import Watch

    return Watch(model, layers, _watches)


# ---- Masks: Transformers describes them by functions of (batch, head, query, key); the known ones become rules. ----


class RuleMask(torch.Tensor):
    """An additive [batch, 1, queries, keys] mask kept as a rule. Code that reads it as a tensor gets the tensor that
    "eager" would have got, made then; from there on the tensor is what counts, since it may have been written to.

    A copy (copy.copy, copy.deepcopy) keeps the rule. Conversions and pickles are plain tensors.
    """

    rule: Optional[masks.Mask]

    @staticmethod
    def __new__(cls, rule: masks.Mask, shape: tuple, dtype: torch.dtype, build: Callable[[], torch.Tensor]) -> RuleMask:
        self = torch.Tensor._make_wrapper_subclass(cls, shape, dtype=dtype)
        self.rule, self._build, self._tensor = rule, build, None
        return self

    __torch_function__ = torch._C._disabled_torch_function_impl

    def tensor(self) -> torch.Tensor:
        """The mask as a plain tensor."""
        if self._tensor is None:
            self.rule, self._tensor = None, self._build().contiguous()
        return self._tensor

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        plain = lambda x: x.tensor() if isinstance(x, RuleMask) else x  # noqa: E731
        return function(*torch.utils._pytree.tree_map(plain, args),
                        **torch.utils._pytree.tree_map(plain, kwargs or {}))

    def __repr__(self) -> str:
        return f"RuleMask(shape={tuple(self.shape)})"

    def __copy__(self) -> RuleMask:
        copy = RuleMask(self.rule, tuple(self.shape), self.dtype, self._build)
        copy._tensor = None if self._tensor is None else self._tensor.clone()
        return copy

    def __deepcopy__(self, memo: dict) -> RuleMask:
        return memo.setdefault(id(self), self.__copy__())

    def __reduce_ex__(self, protocol: int) -> Any:
        return (self._build().contiguous() if self._tensor is None else self._tensor).__reduce_ex__(protocol)

    # PyTorch refuses these to subclasses without memory, or reads through a null pointer.

    def numpy(self, *, force: bool = False) -> Any:
        return self.tensor().numpy(force=force)

    def tolist(self) -> list:
        return self.tensor().tolist()

    def data_ptr(self) -> int:
        return self.tensor().data_ptr()

    def untyped_storage(self) -> torch.UntypedStorage:
        return self.tensor().untyped_storage()

    def share_memory_(self) -> torch.Tensor:
        return self.tensor().share_memory_()

    def __dlpack__(self, **options: Any) -> Any:
        return self.tensor().__dlpack__(**options)


def attention_mask(batch_size: int, q_length: int, kv_length: int, q_offset: int = 0, kv_offset: int = 0,
                   mask_function: Callable = masking_utils.causal_mask_function,
                   attention_mask: Optional[torch.Tensor] = None, dtype: torch.dtype = torch.float32,
                   use_vmap: bool = False, device: Any = "cpu", **kwargs: Any) -> torch.Tensor:
    """The mask of a forward pass, in the form of Transformers' mask interface."""
    tracing = torch.compiler.is_compiling() or torch.jit.is_tracing() or _is_wrapped(mask_function, attention_mask)
    if not tracing:
        q_offset = int(q_offset)  # a static cache hands out its own counter, which moves on
    arguments = dict(batch_size=batch_size, q_length=q_length, kv_length=kv_length, q_offset=q_offset,
                     kv_offset=kv_offset, mask_function=mask_function, attention_mask=attention_mask,
                     allow_is_bidirectional_skip=False, use_vmap=use_vmap, device=device)
    if tracing or torch.device(device).type != "cpu":
        return masking_utils.eager_mask(**arguments, dtype=dtype)
    rule = _rule(mask_function, q_length, kv_length, q_offset, kv_offset)
    if rule is None:
        rule = masks.dense(masking_utils.sdpa_mask(**arguments, allow_is_causal_skip=False).numpy())
    elif attention_mask is not None:
        visible = masking_utils.prepare_padding_mask(attention_mask, kv_length, kv_offset)
        rule = rule & _padding(visible[:, kv_offset:kv_offset + kv_length].bool())
    return RuleMask(rule, (batch_size, 1, q_length, kv_length), dtype,
                    lambda: masking_utils.eager_mask(**arguments, dtype=dtype))


def _is_wrapped(function: Callable, padding: Optional[torch.Tensor]) -> bool:
    """Whether torch.func may be working on the values that the mask depends on: they cannot be read then."""
    if not torch._C._are_functorch_transforms_active():
        return False
    return ((padding is not None and torch._C._functorch.is_functorch_wrapped_tensor(padding))
            or any(_distance_rule(leaf, 0) is None for leaf in _leaves(function)))


def _leaves(function: Callable) -> list:
    """The functions that `function` is the conjunction of."""
    if function.__qualname__ == "and_masks.<locals>.and_mask":
        parts = inspect.getclosurevars(function).nonlocals["mask_functions"]
        return [leaf for part in parts for leaf in _leaves(part)]
    return [function]


def _rule(function: Callable, q_length: int, kv_length: int, q_offset: int, kv_offset: int) -> Optional[masks.Mask]:
    """The rule that a mask function stands for; None for one that is not known."""
    result = masks.no_mask()
    whole = q_offset == 0 and kv_offset == 0 and q_length == kv_length
    document_starts, position_breaks = set(), set()
    for leaf in _leaves(function):
        kind, values = _kind(leaf)
        if kind == "packed_sequence_mask_function":
            documents = values["packed_sequence_mask"]
            if documents.shape[0] != 1 or not whole:
                return None
            document_starts.update(_breaks(documents[0], 0))
            rules = [masks.segments([0, *sorted(document_starts), q_length])]
        elif kind == "remap_positions_for_packed_sequence":
            # Over positions within documents: where they rise by one, distances are those of the indices.
            positions = values["position_ids"]
            if positions.shape[0] != 1 or not whole:
                return None
            position_breaks.update(_breaks(positions[0], 1))
            rules = [_distance_rule(part, 0) for part in _leaves(values["mask_function"])]
        else:
            rules = [_distance_rule(leaf, q_offset - kv_offset)]
        for rule in rules:
            if rule is None:
                return None
            result = result & rule
    return result if position_breaks <= document_starts else None


def _kind(leaf: Callable) -> tuple:
    """The name of Transformers' function that made `leaf`, and what it holds."""
    if getattr(leaf, "__module__", "") != masking_utils.__name__:
        return None, {}
    name = getattr(leaf, "__qualname__", "").removesuffix(".<locals>.inner_mask")
    return name, inspect.getclosurevars(leaf).nonlocals


def _distance_rule(leaf: Callable, offset: int) -> Optional[masks.Mask]:
    """The rule of a mask function that looks at the distance of query and key alone; None for others."""
    kind, values = _kind(leaf)
    if kind == "causal_mask_function":
        return masks.causal(offsets=offset)
    if kind == "sliding_window_overlay":
        return masks.window(values["sliding_window"] - 1, masks.UNLIMITED, offsets=offset)
    if kind == "sliding_window_bidirectional_overlay":
        return masks.window(values["sliding_window"], values["sliding_window"], offsets=offset)
    return masks.no_mask() if kind == "bidirectional_mask_function" else None


def _breaks(row: torch.Tensor, step: int) -> list:
    """Where an element is not the one before it plus `step`."""
    return ((row.diff() != step).nonzero()[:, 0] + 1).tolist()


def _padding(visible: torch.Tensor) -> masks.Mask:
    """[batch, keys], true for real tokens: left and right padding are rules, holes need the array itself."""
    N, counts = visible.shape[1], visible.sum(-1)
    if bool((counts == N).all()):
        return masks.no_mask()
    first = visible.int().argmax(-1)
    last = N - 1 - visible.flip(-1).int().argmax(-1)
    if bool(((last - first + 1 == counts) | (counts == 0)).all()):
        return masks.left_padding(first.tolist()) & masks.padding((first + counts).tolist())
    return masks.dense(visible[:, None, None, :].numpy())


# ---- Attention ----


def attention_forward(module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
                      attention_mask: Optional[torch.Tensor], dropout: float = 0.0, scaling: Optional[float] = None,
                      is_causal: Optional[bool] = None, softcap: Optional[float] = None,
                      s_aux: Optional[torch.Tensor] = None, position_bias: Optional[torch.Tensor] = None,
                      sliding_window: Optional[int] = None, **kwargs: Any):
    """Attention in the form of Transformers' attention interface: query [batch, heads, queries, dim], key and value
    with as many or fewer heads; gives [batch, queries, heads, dim] and the weights if they are asked for, else None."""
    if kwargs.get("cache") is not None:
        raise ValueError('attn_implementation="attend" does not work with a paged cache (continuous batching): use '
                         "generate()")
    bias, dropping, tracing = position_bias, module.training and dropout > 0, is_traced(query)
    rule = visible = None
    left = right = -1
    if attention_mask is None:
        is_causal = getattr(module, "is_causal", True) if is_causal is None else flag(is_causal, "is_causal")
        if is_causal and query.shape[2] > 1:  # as PyTorch's is_causal; a lone query is a decoding step and sees all
            left, right = -1 if sliding_window is None else sliding_window - 1, 0
    elif isinstance(attention_mask, RuleMask) and attention_mask.rule is not None and not tracing:
        rule = attention_mask.rule
    elif attention_mask.dtype == torch.bool:
        visible = attention_mask
    else:
        additive = attention_mask.tensor() if isinstance(attention_mask, RuleMask) else attention_mask
        bias = additive if bias is None else bias + additive
    if torch.is_autocast_enabled("cpu"):
        wanted = torch.get_autocast_dtype("cpu")
        query, key, value = query.to(wanted), key.to(wanted), value.to(wanted)
    options = Options(visible, bias, s_aux, draw_seed() if dropping else None, scaling, softcap or 0.0, left, right,
                      dropout=float(dropout) if dropping else 0.0)
    if _watches:
        _show(module, query, key, value, rule, options)
    return attend(rule, query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2), options,
                  _wants_weights(module, kwargs))


@torch.compiler.disable
def _show(module: torch.nn.Module, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, rule: Optional[masks.Mask],
          options: Options) -> None:
    """Gives a call to the watches that are open; a compiled model breaks its graph for it."""
    given = {"scale": options.scale, "softcap": options.softcap, "bias": options.bias, "sinks": options.sinks}
    for one in tuple(_watches):
        one.take(module, q, k, v, mask_of(rule, options), given)


def _wants_weights(module: torch.nn.Module, kwargs: dict) -> bool:
    if kwargs.get("output_attentions") or getattr(getattr(module, "config", None), "output_attentions", False):
        return True
    collected = None if _active_collector is None else _active_collector.get()
    return any("attentions" in key for key in collected or ())
