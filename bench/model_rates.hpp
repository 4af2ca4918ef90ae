// A language model that is timed from outside, interleaved with another program.
#pragma once

#include <string>

namespace attend::bench {

// Loads the model and obeys lines on standard input, one JSON line on standard output each:
//   prefill N         seconds to read N tokens into an empty cache, logits of the last included
//   decode N COUNT    seconds for COUNT further tokens, one at a time, after N
//   greedy COUNT ids  the COUNT likeliest tokens after these
//   loss ids          the sum of -log p over all but the first
//   logits ids        those after the last
void serve_model(const std::string& path, const std::string& cache_dtype);

}  // namespace attend::bench
