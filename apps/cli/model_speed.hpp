// How fast models are on this machine: measured, or estimated from the rate at which it reads memory.
#pragma once

#include <cstdint>
#include <string>

namespace attend::cli {

// Bytes a second that all threads together read from memory, measured for some 50 ms; 0 if there is no memory for that.
double memory_read_rate();

// Tokens a second that a model of so many bytes may generate: a token reads every weight once. An estimate.
double estimated_tokens_per_second(double read_rate, std::int64_t model_bytes);

// Loads the model and runs it: "210 tokens/s, prompts 1300 tokens/s", or the texts a second of an encoder.
std::string measured_speed(const std::string& model);

}  // namespace attend::cli
