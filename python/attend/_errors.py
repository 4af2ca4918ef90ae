"""What the package raises for wrong arguments: ValueError or TypeError, and RuntimeError, which PyTorch and
FlashAttention raise for the same; and for files that cannot be used."""


class InvalidArgument(ValueError, RuntimeError):
    """An argument that cannot be: the text says what was got and what was expected.

    >>> try:
    ...     attend.attention(q, k, v[:, :, :3])
    ... except attend.InvalidArgument as error:
    ...     print(error)
    """


class FileError(RuntimeError):
    """A model's file that cannot be used: the text says which file, what is wrong with it and what was expected.

    >>> try:
    ...     attend.llm.Model("model.gguf")
    ... except (attend.llm.FileError, attend.InvalidArgument) as error:
    ...     print(error)
    """


class WrongType(TypeError, RuntimeError):
    """An argument of a type or dtype that cannot be."""
