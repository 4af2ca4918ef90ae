// OpenAI's API, and what people look at besides: health, metrics, tokens, the description of it all.
#pragma once

#include <atomic>
#include <string>

#include "apps/server/fields.hpp"
#include "apps/server/listener.hpp"
#include "apps/server/router.hpp"
#include "apps/server/served_model.hpp"

namespace attend::server {

// What the API needs to know of the process it runs in.
struct ApiContext {
  Models& models;
  std::atomic<const Listener*> listener{nullptr};  // once there is one: for /metrics
  std::atomic<bool> stopping{false};
  Log* log = nullptr;             // for fields that are ignored; null: none
  bool accept_token_ids = false;  // in /v1/embeddings
};

// Adds every path of the API. The context must outlive the router.
void add_api(Router& router, ApiContext& context);

// The header that names the fields without effect, which the log gets, too; no header where there are none.
Headers note_ignored(const ApiContext& context, const Request& request, const IgnoredFields& ignored);
// Fields by which clients say who asks: known, and nothing depends on them.
void read_labels(Fields& fields);

// The parts of it, a file each.
void chat_completions(ApiContext& context, const Request& request, const std::shared_ptr<Reply>& reply);
void completions(ApiContext& context, const Request& request, const std::shared_ptr<Reply>& reply);
void embeddings(ApiContext& context, const Request& request, const std::shared_ptr<Reply>& reply);
std::string metrics_text(const ApiContext& context);
const std::string& openapi_document();

}  // namespace attend::server
