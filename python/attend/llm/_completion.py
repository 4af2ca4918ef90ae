"""Answers: whole, and as they grow."""

from __future__ import annotations

from typing import Any, Callable, Iterator, List, NamedTuple, Optional, Tuple


class TokenLogprob(NamedTuple):
    """A token of an answer, what the model itself thought of it (before temperature and the like), and of others."""

    token: int
    logprob: float
    likeliest: List[Tuple[int, float]]


class Completion(str):
    """A text that a model wrote: a str, and how it came about.

    >>> answer = model.generate("Once upon", max_tokens=5)
    >>> print(answer, len(answer), answer.finish, answer.tokens)
    """

    tokens: List[int]  #: the ids of the text
    finish: str  #: why it ended: "stop token", "stop text", "length", "context" or "cancelled"; "running" if it has not
    prompt_tokens: int  #: how many tokens the prompt had
    logprobs: List[TokenLogprob]  #: one for each token, where the option logprobs asked for them

    def __new__(cls, text: str = "", tokens: Optional[List[int]] = None, finish: str = "running", prompt_tokens: int = 0,
                logprobs: Optional[List[TokenLogprob]] = None) -> Completion:
        made = super().__new__(cls, text)
        made.tokens, made.finish, made.prompt_tokens, made.logprobs = tokens or [], finish, prompt_tokens, logprobs or []
        return made

    @property
    def text(self) -> str:
        """The text as a plain str."""
        return str.__str__(self)


class Draft:
    """An answer that is being written."""

    def __init__(self, prompt_tokens: int, logprobs: int) -> None:
        self._prompt_tokens, self._wants_logprobs = prompt_tokens, logprobs > 0
        self._texts: List[str] = []
        self._tokens: List[int] = []
        self._logprobs: List[TokenLogprob] = []
        self.finish = "running"

    def take(self, event: tuple) -> str:
        """What is new of the text."""
        _, text, token, logprob, likeliest, finish = event
        if text:
            self._texts.append(text)
        if token is not None:
            self._tokens.append(token)
            if self._wants_logprobs:
                self._logprobs.append(TokenLogprob(token, logprob, likeliest))
        if finish is not None:
            self.finish = finish
        return text

    def completion(self) -> Completion:
        return Completion("".join(self._texts), list(self._tokens), self.finish, self._prompt_tokens, list(self._logprobs))


class Stream:
    """An answer as it grows: iterating gives pieces of its text, in whole characters, which joined are the whole.

    The model works when a piece is asked for. Leaving the loop, close() or the end of a with block ends the answer; so
    does an exception.

    >>> with model.stream("Once upon a time", max_tokens=5) as stream:
    ...     for piece in stream:
    ...         print(piece, end="")
    >>> stream.completion.finish
    'length'
    """

    def __init__(self, answers: Any, draft: Draft, ended: Optional[Callable[[Completion], None]] = None) -> None:
        self._answers, self._draft, self._ended = answers, draft, ended

    @property
    def completion(self) -> Completion:
        """The answer so far; once it has ended, all of it."""
        return self._draft.completion()

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        try:
            while self._answers.open:
                piece = "".join([self._draft.take(event) for event in self._answers.step()])
                if piece:
                    return piece
        except BaseException:
            self.close()
            raise
        self.close()
        raise StopIteration

    def close(self) -> None:
        """Ends the answer where it is."""
        self._answers.cancel()
        if self._draft.finish == "running":
            self._draft.finish = "cancelled"
        ended, self._ended = self._ended, None
        if ended is not None:
            ended(self.completion)

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_ended"):
            self.close()
