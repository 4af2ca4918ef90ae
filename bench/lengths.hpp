// Cost against length: time and working memory of full, causal and windowed attention from 1,024 to 65,536 tokens.
#pragma once

#include <string>

namespace attend::bench {

// Prints the table; draws it too when `svg` is a path.
void run_lengths(int rounds, const std::string& svg);

}  // namespace attend::bench
