// `attend chat --server`: the same conversation with a model that another process runs.
#pragma once

#include <cstdint>
#include <string>

#include "attend/llm/sampling.hpp"

namespace attend::cli {

struct ServerChat {
  std::string url, model;  // model: one of the server's; "" for its first
  std::string system;
  llm::Sampling sampling;
  std::int64_t tokens = 512;
};
int chat_with_server(const ServerChat& chat);

}  // namespace attend::cli
