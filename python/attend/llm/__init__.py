"""attend.llm: language models on attend.

>>> from attend import llm
>>> print(llm.Model().generate("Once upon a time"))           # a small model inside the package: it tells stories
>>> llm.pull("smollm2")                                       # once: 92 MB
>>> model = llm.Model("smollm2")                              # a pulled name, a .gguf or .pth file, a Hugging Face folder
>>> print(model.generate("The capital of France is", max_tokens=20))
>>> for piece in model.stream("Once upon a time"):
...     print(piece, end="", flush=True)
>>> model.chat([{"role": "user", "content": "Why is the sky blue?"}])

Nothing here needs a network but pull(). The same prompt, options and seed give the same tokens, whatever the threads and
whatever else runs.
"""

from .. import _core

if not hasattr(_core, "LanguageModel"):
    raise ImportError("this attend was built without language models (ATTEND_LLM=OFF): build it with zlib, nlohmann-json and "
                      "utf8proc; on Debian: zlib1g-dev, nlohmann-json3-dev, libutf8proc-dev, pkg-config")

from .._errors import FileError
from ._chat import Chat
from ._completion import Completion, Stream, TokenLogprob
from ._model import MemoryPlan, Model, ModelInfo, Perplexity, free_memory, model_info, plan_memory
from ._options import Options
from ._store import default_model, known_models, models, pull
from ._tokenizer import Tokenizer

__all__ = [
    "Chat", "Completion", "FileError", "MemoryPlan", "Model", "ModelInfo", "Options", "Perplexity", "Stream",
    "TokenLogprob", "Tokenizer", "default_model", "free_memory", "known_models", "model_info", "models", "plan_memory", "pull",
]
