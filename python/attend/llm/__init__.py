"""attend.llm: language models on attend.

>>> from attend import llm
>>> print(llm.Model().generate("Once upon a time"))           # a small model inside the package: it tells stories
>>> llm.pull("smollm2")                                       # once: 92 MB
>>> model = llm.Model("smollm2")                              # a pulled name, a .gguf or .pth file, a Hugging Face folder
>>> print(model.generate("The capital of France is", max_tokens=20))
>>> for piece in model.stream("Once upon a time"):
...     print(piece, end="", flush=True)
>>> model.chat([{"role": "user", "content": "Why is the sky blue?"}])

Training, from nothing or from any of them:

>>> data = llm.prepare(llm.stories(20000), "data")
>>> run = llm.train("pretrain", data, "run", shape="storyteller", steps=500, on_step=lambda s: print(s.loss))
>>> run.model().generate("Once upon a time")

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
from ._look import (Change, Changes, HeadChange, HeadType, InductionProbe, KindScore, Look, LookStep, NextToken, PredictionChange,
                    TokenChange, look)
from ._model import MemoryPlan, Model, ModelInfo, Perplexity, free_memory, model_info, plan_memory
from ._options import Options
from ._store import default_model, known_models, models, pull
from ._tokenizer import Tokenizer
from ._training import Data, Learner, Run, Step, prepare, resume, stories, train, train_tokenizer, training_settings

__all__ = [
    "Change", "Changes", "Chat", "Completion", "Data", "FileError", "HeadChange", "HeadType", "InductionProbe", "KindScore",
    "Learner", "Look", "LookStep", "MemoryPlan", "Model", "ModelInfo", "NextToken", "Options", "Perplexity",
    "PredictionChange", "Run", "Step", "Stream", "TokenChange", "TokenLogprob", "Tokenizer", "default_model", "free_memory", "known_models", "look", "model_info", "models",
    "plan_memory", "prepare", "pull", "resume", "stories", "train", "train_tokenizer", "training_settings",
]
