// Language models on attend: everything of libattend_llm.
#pragma once

#include "attend/llm/chat_template.hpp"
#include "attend/llm/compute.hpp"
#include "attend/llm/engine.hpp"
#include "attend/llm/look.hpp"
#include "attend/llm/model.hpp"
#include "attend/llm/sampling.hpp"
#include "attend/llm/store.hpp"
#include "attend/llm/tokenizer.hpp"
#include "attend/llm/training.hpp"
