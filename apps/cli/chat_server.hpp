// `attend chat --server`: the same conversation with a model that another process runs.
#pragma once

#include <cstdint>
#include <string>

#include "llm/model/config.hpp"

namespace attend::cli {

struct ServerChat {
  std::string url, model;  // model: one of the server's; "" for its first
  std::string system;
  llm::SamplingSettings sampling;  // the server's own where they are not given
  double presence_penalty = 0;
  std::uint64_t seed = 0;
  std::int64_t tokens = 512;
};
int chat_with_server(const ServerChat& chat);

}  // namespace attend::cli
