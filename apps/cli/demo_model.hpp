// The demo's second half: a language model on the same attention.
#pragma once

#include <string>

#include "draw/terminal.hpp"

namespace attend::cli {

// Answers a question with SmolLM2 if it has been pulled, and draws where one of its heads looked; else says how to get
// it.
void demo_model(const draw::Screen& screen, const std::string& png);

}  // namespace attend::cli
