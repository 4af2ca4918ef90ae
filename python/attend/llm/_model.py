"""A language model: opened by its name or its path, then asked."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Callable, List, NamedTuple, Optional, Sequence, Union, overload

import numpy as np

from .. import _core
from .._errors import InvalidArgument
from . import _arguments as arguments
from ._chat import Message, read_messages
from ._completion import Completion, Draft, Stream
from ._options import read_options
from ._store import default_model
from ._tokenizer import Tokenizer

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ._options import Options

Prompt = Union[str, Sequence[int], np.ndarray]


@dataclass(frozen=True)
class ModelInfo:
    """What a model is, from the headers of its files."""

    path: str
    family: str  #: as the file names it: "llama", "qwen3", "bert", ...
    generates: bool  #: else it embeds texts
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    context: int  #: tokens it was made for
    parameters: int
    file_bytes: int  #: of all tensors
    quantised: bool  #: some weights of the file are
    compute: str  #: "file" or "f32", as Model(compute=...)
    rounds_rows: bool  #: quantised, and compute is "file": weights and logits differ from those of an f32 pass


@dataclass(frozen=True)
class MemoryPlan:
    """Bytes by what they are for, known before anything is loaded."""

    weights: int
    cache: int  #: keys and values
    working: int

    @property
    def total(self) -> int:
        """All of it."""
        return self.weights + self.cache + self.working


class Perplexity(NamedTuple):
    """How well a model predicts a text."""

    loss: float  #: mean of -log p(token), in nats
    perplexity: float  #: exp(loss)
    error: float  #: of the perplexity: its standard error over tokens
    predicted: int  #: tokens


def model_info(name_or_path: Any) -> ModelInfo:
    """What a model is; reads the headers of its files alone.

    >>> llm.model_info("model.gguf").parameters
    """
    return ModelInfo(**_core.model_info(arguments.path_bytes(name_or_path, "name_or_path")))


def plan_memory(name_or_path: Any, *, context: Optional[int] = None, cache: str = "auto", keep_last: int = 0,
                compute: str = "file") -> MemoryPlan:
    """What Model() with the same arguments would take; reads the headers of the files alone.

    >>> llm.plan_memory("model.gguf", context=4096).total < llm.free_memory()
    """
    return MemoryPlan(**_core.plan_memory(arguments.path_bytes(name_or_path, "name_or_path"),
                                          *_sizes(context, cache, compute, keep_last)))


def free_memory() -> int:
    """What the machine, and the container this may run in, still have to give, in bytes; -1 if the system does not tell."""
    return _core.free_memory()


def _sizes(context: Optional[int], cache: str, compute: str, keep_last: int) -> tuple:
    return (0 if context is None else arguments.number(context, "context", 1), arguments.text(cache, "cache"),
            arguments.text(compute, "compute"), arguments.number(keep_last, "keep_last", 0))


class Model:
    """A language model: one that continues texts, or one that embeds them.

    >>> model = llm.Model()                                # the small one inside the package
    >>> print(model.generate("Once upon a time", max_tokens=100))
    >>> model = llm.Model("smollm2")

    name_or_path: a pulled model's name (llm.models()), a .gguf or .pth file, or a Hugging Face folder; "storyteller" is the
        model inside the package. None: of the pulled ones that generate text the last, else "storyteller".
    context: the longest sequence, prompt and answer together; None: what the model was made for.
    cache: keys and values are kept as "f32", "f16", "bf16" or "int8"; "auto": f32 with f32 weights or
        compute="f32", else f16.
    keep_last: for text without end: of each sequence the first tokens and the last so many are kept. 0: all.
    compute: "file": weights keep the format of their file; with quantised ones, rows are rounded to int8 before each
        product. "f32": they are dequantised on loading and products are computed in f32: more memory, no such rounding.
    check_memory: refuse, before loading, what the machine has no memory for (RuntimeError).
    progress: called with the bytes loaded so far and all of them; an exception in it ends the loading.

    What is wrong with its files is an llm.FileError; what is odd and does not matter is a warning.

    **Threads.** Any number may use one model. Calls release the GIL; what several ask for at the same time runs as one
    batch, and every answer is the one it would be alone. Ctrl-C ends a call on the main thread.
    **Memory.** It holds its weights, and from the first answer on a cache of ``context`` tokens that all answers share;
    what does not fit waits. ``del model`` frees it all.
    """

    def __init__(self, name_or_path: Any = None, *, context: Optional[int] = None, cache: str = "auto", keep_last: int = 0,
                 compute: str = "file", check_memory: bool = True,
                 progress: Optional[Callable[[int, int], None]] = None) -> None:
        named = default_model() if name_or_path is None else name_or_path
        self._core = _core.open_model(arguments.path_bytes(named, "name_or_path"),
                                      *_sizes(context, cache, compute, keep_last), bool(check_memory), progress, lambda text: warnings.warn(text, stacklevel=3))
        self._tokenizer = Tokenizer(self._core.tokenizer)

    # --- what it is ---

    @property
    def info(self) -> ModelInfo:
        """Family, shape, vocabulary, parameters."""
        return ModelInfo(**self._core.info)

    @property
    def memory(self) -> MemoryPlan:
        """What it was planned to take, in bytes."""
        return MemoryPlan(**self._core.memory)

    @property
    def context(self) -> int:
        """The longest sequence, as it was opened."""
        return self._core.context

    @property
    def tokenizer(self) -> Tokenizer:
        """Its tokenizer."""
        return self._tokenizer

    def __repr__(self) -> str:
        info = self.info
        return (f"Model({info.path!r}: {info.family}, {info.parameters:,} parameters, {info.layers} layers, "
                f"hidden {info.hidden}, vocabulary {info.vocabulary:,}, context {self.context:,}, "
                f"{self.memory.total / 1e6:,.0f} MB)")

    # --- texts ---

    @overload
    def generate(self, prompt: Prompt, **options: Unpack[Options]) -> Completion: ...
    @overload
    def generate(self, prompt: Sequence[Prompt], **options: Unpack[Options]) -> List[Completion]: ...

    def generate(self, prompt: Any, **options: Unpack[Options]) -> Union[Completion, List[Completion]]:
        """Continues a text, or token ids; a list of such runs as one batch and gives a list.

        The answer is a str that also knows its ``tokens`` and why it ended (``finish``). Every answer of a batch is the
        one its prompt has alone. What earlier calls left in the cache is reused where a prompt begins alike.

        >>> model.generate("Once upon a time", max_tokens=50, temperature=0.8, top_p=0.95, seed=7, stop=["The end"])
        >>> for answer in model.generate(["One, two,", "Red, green,"], max_tokens=8):
        ...     print(answer)

        Options, all by name: max_tokens (256), temperature (0: the likeliest), top_k, top_p, min_p, repetition_penalty,
        presence_penalty, seed, stop, stop_tokens, logprobs; help(llm.Options) says what each is.
        """
        many = arguments.is_many(prompt, "prompt")
        prompts = [self._tokens(p, f"prompt[{n}]") for n, p in enumerate(prompt)] if many else [self._tokens(prompt, "prompt")]
        answers = self._answer(prompts, self._core.stop_tokens(None), options)
        return answers if many else answers[0]

    def stream(self, prompt: Prompt, **options: Unpack[Options]) -> Stream:
        """Continues one text, or token ids, piece by piece. Options as for generate().

        >>> for piece in model.stream("Once upon a time", max_tokens=50):
        ...     print(piece, end="", flush=True)
        """
        return self._stream(self._tokens(prompt, "prompt"), self._core.stop_tokens(None), options)

    @overload
    def chat(self, messages: Sequence[Message], *, template: Optional[str] = ..., thinking: Optional[bool] = ...,
             **options: Unpack[Options]) -> Completion: ...
    @overload
    def chat(self, messages: Sequence[Sequence[Message]], *, template: Optional[str] = ..., thinking: Optional[bool] = ...,
             **options: Unpack[Options]) -> List[Completion]: ...

    def chat(self, messages: Any, *, template: Optional[str] = None, thinking: Optional[bool] = None,
             **options: Unpack[Options]) -> Union[Completion, List[Completion]]:
        """Answers the last of the messages by the model's chat template; a list of chats runs as one batch.

        template: one of llm's own by name ("chatml", "qwen3", ...) instead of the model's. thinking: whether the answer
        begins with thoughts, where the template leaves the choice. Options as for generate(). Special tokens inside a
        message are plain text: no message can forge another.

        >>> model.chat([{"role": "user", "content": "Why is the sky blue?"}], max_tokens=128)
        """
        chat = self._template(template, thinking)
        many = isinstance(messages, (list, tuple)) and len(messages) > 0 and isinstance(messages[0], (list, tuple))
        chats = [read_messages(m, f"messages[{n}]") for n, m in enumerate(messages)] if many else [
            read_messages(messages, "messages")]
        prompts = [chat.encode(self._core.tokenizer, pairs) for pairs in chats]
        answers = self._answer(prompts, self._core.stop_tokens(chat), options)
        return answers if many else answers[0]

    def stream_chat(self, messages: Sequence[Message], *, template: Optional[str] = None, thinking: Optional[bool] = None,
                    **options: Unpack[Options]) -> Stream:
        """Answers the last of the messages piece by piece; as chat(), for one chat."""
        chat = self._template(template, thinking)
        prompt = chat.encode(self._core.tokenizer, read_messages(messages, "messages"))
        return self._stream(prompt, self._core.stop_tokens(chat), options)

    # --- numbers ---

    def logits(self, prompt: Any, *, last: bool = False) -> Union[np.ndarray, List[np.ndarray]]:
        """The logits of every token of a text, or of token ids: float32 [tokens, vocabulary].

        Row n is about the token after token n. ``last``: of the last token alone, [vocabulary]. A list of prompts gives a
        list of arrays, since they differ in length.

        >>> model.logits("The capital of France is").argmax(axis=1)
        """
        many = arguments.is_many(prompt, "prompt")
        rows = [self._core.logits(self._tokens(p, f"prompt[{n}]" if many else "prompt"), bool(last))
                for n, p in enumerate(prompt if many else [prompt])]
        rows = [r[0] for r in rows] if last else rows
        return rows if many else rows[0]

    def embed(self, texts: Union[str, Sequence[str]]) -> np.ndarray:
        """Vectors of length 1 that lie close when the texts mean the same: float32 [texts, hidden]; of one str, [hidden].

        For models that embed, such as minilm. A text longer than the model can read is cut.

        >>> vectors = model.embed(["a cat", "a kitten", "a tax form"])
        >>> vectors @ vectors.T
        """
        if isinstance(texts, str):
            return self._core.embed([arguments.text(texts, "texts")])[0]
        return self._core.embed(arguments.texts(texts, "texts"))

    def perplexity(self, text: Prompt, *, window: int = 512) -> Perplexity:
        """How well the model predicts a text, or token ids, in windows of so many tokens that begin afresh."""
        return Perplexity(*self._core.perplexity(self._tokens(text, "text"), arguments.number(window, "window")))

    # --- parts ---

    def _tokens(self, prompt: Any, name: str) -> List[int]:
        if isinstance(prompt, str):
            return self._core.tokenizer.encode(arguments.text(prompt, name), True, True)
        if arguments.is_many(prompt, name):
            raise InvalidArgument(f"{name} is a list of prompts, expected one: a text, or token ids")
        return arguments.token_ids(prompt, name)

    def _template(self, name: Optional[str], thinking: Optional[bool]) -> Any:
        chat = self._core.chat_template("" if name is None else arguments.text(name, "template"))
        if thinking is not None:
            chat.set_thinking(bool(thinking))
        return chat

    def _answer(self, prompts: List[List[int]], stops: List[int], options: Any) -> List[Completion]:
        read = read_options(options, stops)
        answers = self._core.start(prompts, **read)
        drafts = [Draft(len(prompt), read["logprobs"]) for prompt in prompts]
        try:
            while answers.open:
                for event in answers.step():
                    drafts[event[0]].take(event)
        finally:
            answers.cancel()
        return [draft.completion() for draft in drafts]

    def _stream(self, prompt: List[int], stops: List[int], options: Any) -> Stream:
        read = read_options(options, stops)
        return Stream(self._core.start([prompt], **read), Draft(len(prompt), read["logprobs"]))
