// All that a run needs to go on to the same bits: weights, optimiser, position in the data.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "llm/train/adamw.hpp"
#include "llm/train/packing.hpp"

namespace attend::llm {

struct TrainState {
  std::int64_t step = 0;                  // done
  PackingState data{};                    // of the next batch
  double best = 0;                        // validation loss, where best_step > 0
  std::int64_t best_step = 0, worse = 0;  // validations since then
  std::int64_t tokens = 0;                // seen so far
  double seconds = 0;                     // of training, over all sittings
  bool operator==(const TrainState&) const = default;
};

// One file, replaced at once: killed at any moment, the old one or the new one is there, whole. `settings` is the
// run's own description: a checkpoint of another one is refused.
void write_checkpoint(const std::filesystem::path& path, const TrainState& state, const std::string& settings,
                      const ParameterLayout& layout, View parameters, const Moments& moments);
// FileError if it is damaged, or belongs to other settings or another model.
TrainState read_checkpoint(const std::filesystem::path& path, const std::string& settings,
                           const ParameterLayout& layout, MutableView parameters, Moments& moments);

}  // namespace attend::llm
