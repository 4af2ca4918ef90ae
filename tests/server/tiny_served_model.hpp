// A model of a few thousand parameters behind the API, and a reply that keeps what it is given.
#pragma once

#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <string>

#include "apps/server/api.hpp"
#include "io/json.hpp"
#include "support/golden.hpp"

namespace attend::server::test {

class KeptReply : public Reply {
 public:
  void send(Response response) override { set(std::move(response), true); }
  void begin(Response head) override { set(std::move(head), false); }
  bool write(std::string piece) override {
    const std::lock_guard lock(mutex_);
    response_.body += piece;
    return true;
  }
  void end() override {
    const std::lock_guard lock(mutex_);
    done_ = true;
    wake_.notify_all();
  }
  // A client that has gone before anything came.
  void when_gone(std::function<void()> call) override {
    if (gone) call();
  }
  bool gone = false;

  // The whole answer; status 0 after a minute without one.
  Response wait() {
    std::unique_lock lock(mutex_);
    if (!wake_.wait_for(lock, std::chrono::minutes(1), [&] { return done_; })) return {.status = 0};
    return response_;
  }

 private:
  void set(Response response, bool done) {
    const std::lock_guard lock(mutex_);
    response_ = std::move(response);
    done_ = done;
    wake_.notify_all();
  }
  std::mutex mutex_;
  std::condition_variable wake_;
  Response response_;
  bool done_ = false;
};

// The golden llama with a token for each character that JSON is written with, as tiny_model.py has it.
inline std::filesystem::path write_tiny_model() {
  namespace fs = std::filesystem;
  std::string name = (fs::temp_directory_path() / "attend-tiny-XXXXXX").string();
  if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("no temporary folder");
  const fs::path folder = name, golden = attend::test::golden_folder() / "models/llama";
  fs::copy_file(golden / "model.safetensors", folder / "model.safetensors");
  std::ifstream in(golden / "config.json");
  std::string config((std::istreambuf_iterator<char>(in)), {});
  config.erase(config.rfind('}'));
  for (const char* key : {"\"bos_token_id\"", "\"eos_token_id\"", "\"max_position_embeddings\""})
    if (const std::size_t at = config.find(key); at != std::string::npos)
      config[at + 2] = '_';  // another key, which nobody reads
  std::ofstream(folder / "config.json") << config << R"(, "eos_token_id": 63, "max_position_embeddings": 1024})";
  const std::string letters = "abcdefghijklmnopqrstuvwxyz0123456789{}[]\":,.-_<>/\\!?'#=()|+;";
  std::string vocabulary;
  int id = 0;
  for (const char c : letters) vocabulary += io::json_quoted(std::string(1, c)) + ": " + std::to_string(id++) + ", ";
  vocabulary += "\"\\u0120\": " + std::to_string(id) + ", \"\\u010a\": " + std::to_string(id + 1);
  const std::string level =
      R"({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true})";
  const auto added = [](int number, const char* text) {
    return "{\"id\": " + std::to_string(number) + ", \"content\": \"" + text +
           R"(", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true})";
  };
  std::ofstream(folder / "tokenizer.json")
      << R"({"version": "1.0", "added_tokens": [)" << added(62, "<|im_start|>") << ", " << added(63, "<|im_end|>")
      << R"(], "normalizer": null, "pre_tokenizer": )" << level << R"(, "post_processor": null, "decoder": )" << level
      << R"(, "model": {"type": "BPE", "vocab": {)" << vocabulary << R"(}, "merges": []}})";
  std::ofstream(folder / "tokenizer_config.json")
      << R"({"chat_template": "{% for m in messages %}{{'<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"})";
  return folder;
}

struct TinyServer {
  // `generation`: its generation_config.json; "" for none.
  explicit TinyServer(const std::string& generation = "") : folder(write_tiny_model()) {
    if (!generation.empty()) std::ofstream(folder / "generation_config.json") << generation;
    models.add(std::make_unique<ServedModel>("tiny", llm::OpenModel(folder.string(), 0),
                                             ServeLimits{.parallel = 4, .queue = 4}));
    add_api(router, context);
  }
  ~TinyServer() {
    std::error_code ignored;
    std::filesystem::remove_all(folder, ignored);
  }
  static Request post(const std::string& path, const std::string& body) {
    return {.method = "POST",
            .path = path,
            .headers = {{"host", "localhost"}, {"content-type", "application/json"}},
            .body = body};
  }
  Response ask(const Request& request) const {
    const auto reply = std::make_shared<KeptReply>();
    router.handle(request, reply);
    return reply->wait();
  }

  std::filesystem::path folder;
  Models models;
  ApiContext context{.models = models};
  Router router;
};

}  // namespace attend::server::test
