"""Conversations: messages as the engine takes them, and a chat that remembers."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

from . import _arguments as arguments
from ._completion import Completion, Stream

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ._model import Model
    from ._options import Options

Message = Mapping[str, str]


def read_messages(messages: Sequence[Message], name: str) -> List[Tuple[str, str]]:
    """(role, content) of each."""
    if not isinstance(messages, (list, tuple)):
        raise TypeError(f"{name} is of type {type(messages).__name__}, expected a list of messages: "
                        '{"role": "user", "content": "..."}')
    pairs = []
    for n, message in enumerate(messages):
        if not isinstance(message, Mapping) or set(message) != {"role", "content"}:
            raise TypeError(f"{name}[{n}] is {message!r:.100}, expected a dict with role and content")
        pairs.append(tuple(arguments.text(message[key], f"{name}[{n}][{key!r}]") for key in ("role", "content")))
    return pairs


class Chat:
    """A conversation that remembers what was said. What the model has read already it does not read again.

    >>> chat = llm.Chat(model, system="You are brief.", temperature=0.7)
    >>> print(chat.ask("Why is the sky blue?"))
    >>> for piece in chat.stream("And at sunset?"):
    ...     print(piece, end="")
    >>> chat.messages[-1]["role"]
    'assistant'

    The options are those of Model.generate; ``template`` and ``thinking`` those of Model.chat. An answer that was ended
    early is remembered as far as it came; a question that got none is not.
    """

    def __init__(self, model: Model, system: Optional[str] = None, *, template: Optional[str] = None,
                 thinking: Optional[bool] = None, **options: Unpack[Options]) -> None:
        self.model = model
        self.messages: List[Dict[str, str]] = []  #: all that was said; may be changed between questions
        if system is not None:
            self.messages.append({"role": "system", "content": arguments.text(system, "system")})
        self._options: Dict[str, Any] = {"template": template, "thinking": thinking, **options}
        self._stream: Callable[[], Optional[Stream]] = lambda: None  # the last one, while somebody holds it

    def ask(self, text: str, **options: Unpack[Options]) -> Completion:
        """Says this to the model and returns its answer."""
        question = self._with(text)
        answer = self.model.chat(question, **{**self._options, **options})
        self._remember(question, answer)
        return answer

    def stream(self, text: str, **options: Unpack[Options]) -> Stream:
        """The same, as a Stream of pieces. It is remembered once it has ended, which the next question sees to."""
        question = self._with(text)
        stream = self.model.stream_chat(question, **{**self._options, **options})
        stream._ended = lambda answer: self._remember(question, answer)
        self._stream = weakref.ref(stream)
        return stream

    def _with(self, text: str) -> List[Dict[str, str]]:
        last = self._stream()
        if last is not None:
            last.close()
        return [*self.messages, {"role": "user", "content": arguments.text(text, "text")}]

    def _remember(self, question: List[Dict[str, str]], answer: Completion) -> None:
        if answer.tokens or answer.finish != "cancelled":
            self.messages = [*question, {"role": "assistant", "content": answer.text}]

    def __repr__(self) -> str:
        return f"Chat({self.model!r}, {len(self.messages)} messages)"
