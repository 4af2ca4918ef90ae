// Answers under /labs/v1: lists at once, runs on a thread of their own, as events while they run.
#include "apps/server/labs_api.hpp"

#include <algorithm>
#include <filesystem>
#include <map>
#include <mutex>
#include <random>

#include "apps/server/fields.hpp"
#include "apps/server/reply_queue.hpp"
#include "attend/error.hpp"
#include "io/atomic_file.hpp"
#include "io/json.hpp"
#include "io/json_text.hpp"
#include "io/temporary.hpp"
#include "labs/exercises/check.hpp"
#include "labs/exercises/drivers.hpp"
#include "labs/lab.hpp"
#include "labs/quiz/quiz.hpp"

namespace attend::server {
namespace {

constexpr std::ptrdiff_t kWaiting = 4;
constexpr std::size_t kCodeBytes = 256 << 10;

struct NobodyWaits {};  // thrown out of a run that nobody waits for

template <class Items, class Write>
std::string list_of(const Items& items, const Write& write) {
  std::string text;
  for (const auto& item : items) text += (text.empty() ? "" : ",") + write(item);
  return "[" + text + "]";
}

std::string json_of(const labs::Text& text) {
  io::JsonObject out;
  out.string("en", text.en);
  out.string("zh", text.zh);
  return out.text();
}

std::string json_of(const labs::Exercise& exercise) {
  io::JsonObject out;
  out.string("name", exercise.name);
  out.string("short_name", exercise.short_name);
  out.put("asks", json_of(exercise.asks));
  out.string("lab", exercise.lab);
  out.number("cases", static_cast<std::int64_t>(exercise.cases.size()));
  out.number("mistakes", static_cast<std::int64_t>(exercise.mistakes.size()));
  out.put("py", json_of(labs::Text{labs::python_template(exercise.short_name, false),
                                   labs::python_template(exercise.short_name, true)}));
  out.put("cpp", json_of(labs::Text{labs::cpp_template(exercise.short_name, false),
                                    labs::cpp_template(exercise.short_name, true)}));
  return out.text();
}

// Takes the same time wherever they differ.
bool same_key(const std::string& given, const std::string& key) {
  unsigned different = given.size() == key.size() && !key.empty() ? 0 : 1;
  for (std::size_t n = 0; n < std::min(given.size(), key.size()); ++n)
    different |= static_cast<unsigned char>(given[n] ^ key[n]);
  return different == 0;
}

// Numbers and texts, as the lab's own parser reads them.
std::map<std::string, std::string> parameters_of(Fields& fields) {
  std::map<std::string, std::string> given;
  const io::Json* all = fields.find("parameters");
  if (all == nullptr) return given;
  if (all->object() == nullptr) refuse_field("parameters", std::string(" is ") + all->kind() + ", expected an object");
  for (const auto& [name, value] : *all->object()) {
    if (value.string() == nullptr && value.integer() == nullptr)
      refuse_field("parameters." + name.substr(0, 60),
                   std::string(" is ") + value.kind() + ", expected a whole number or a text");
    given[name.substr(0, 60)] = value.string() != nullptr ? value.string()->substr(0, 10'000) : io::json_text(value);
  }
  return given;
}

}  // namespace

struct LabsWork {
  using Stopped = ReplyQueue::Stopped;

  explicit LabsWork(std::string secret) : key(std::move(secret)), queue(kWaiting) {}

  std::string labs_json() const {
    io::JsonObject out;
    out.put("labs", list_of(labs::all_labs(), [](const labs::Lab& lab) { return labs::to_json(lab); }));
    out.put("exercises", list_of(labs::all_exercises(), [](const labs::Exercise& e) { return json_of(e); }));
    out.number("questions", static_cast<std::int64_t>(labs::all_questions().size()));
    out.truth("checks", !key.empty());
    return out.text();
  }

  // Events: progress (a share from 0 to 1), then report, or failed with a sentence.
  void run_lab(const Request& request, const std::shared_ptr<Reply>& reply) {
    const std::string name = request.path.substr(std::string_view("/labs/v1/labs/").size());
    const labs::Lab* lab = labs::find_lab(name);
    if (lab == nullptr)
      throw RequestError({404, "there is no lab called " + io::json_quoted(name.substr(0, 60)), "", "not_found"});
    const io::Json body = parse_body(request);
    Fields fields(body);
    const std::map<std::string, std::string> given = parameters_of(fields);
    const bool quick = fields.truth("quick", false);
    fields.done();
    const labs::Arguments arguments(lab->parameters, given, quick);  // InvalidArgument becomes 400
    queue.submit(reply, [lab, arguments](Reply& to, const Stopped& stopped) {
      to.begin({.content_type = kEventStream, .body = server_sent_event("0", "progress")});
      int told = 0;
      try {
        const labs::Report report = labs::run_lab(*lab, arguments, [&](double share) {
          if (stopped()) throw NobodyWaits{};
          const int percent = static_cast<int>(share * 100);
          if (percent > told) (void)to.write(server_sent_event(std::to_string((told = percent) / 100.0), "progress"));
        });
        (void)to.write(server_sent_event(labs::to_json(report), "report"));
      } catch (const NobodyWaits&) {
        // the client has gone
      } catch (const std::exception& error) {
        (void)to.write(server_sent_event(io::json_quoted(error.what()), "failed"));
      }
      to.end();
      return true;
    });
  }

  std::string quiz() {
    const std::lock_guard lock(progress);
    return labs::quiz_json(labs::read_progress(labs::progress_file()));
  }

  std::string answer(const Request& request) {
    const io::Json body = parse_body(request);
    Fields fields(body);
    const std::string name = fields.text("question", ""), typed = fields.text("answer", "");
    fields.done();
    const labs::Question* question = labs::find_question(name);
    if (question == nullptr)
      throw RequestError({404, "there is no question " + io::json_quoted(name.substr(0, 60)), "question", "not_found"});
    const labs::Grade grade = labs::grade(*question, typed);
    if (grade == labs::Grade::unreadable)
      refuse_field("answer", " is " + io::json_quoted(typed.substr(0, 60)) +
                                 (question->kind == labs::Question::Kind::choice ? ", expected the letter of a choice"
                                                                                 : ", expected a number"));
    const std::lock_guard lock(progress);
    labs::QuizProgress all = labs::read_progress(labs::progress_file());
    labs::Tally& tally = all[question->name];
    tally.last_right = grade == labs::Grade::right;
    ++(tally.last_right ? tally.right : tally.wrong);
    labs::write_progress(labs::progress_file(), all);
    io::JsonObject out;
    out.truth("right", tally.last_right);
    out.put("answer", json_of(labs::Text{labs::right_answer(*question, labs::Language::en),
                                         labs::right_answer(*question, labs::Language::zh)}));
    out.put("why", json_of(question->why));
    out.string("lab", question->lab);
    out.truth("computed", question->computed);
    return out.text();
  }

  void check(const Request& request, const std::shared_ptr<Reply>& reply) {
    const io::Json body = parse_body(request);
    Fields fields(body);
    const std::string given = fields.text("key", ""), ending = fields.text("language", "py"),
                      code = fields.text("code", "");
    fields.done();
    if (!same_key(given, key))
      throw RequestError({403,
                          "exercises run as programs of whoever started this server: expected the key that it "
                          "printed at the terminal",
                          "key", "wrong_key"});
    if (ending != "py" && ending != "cpp")
      refuse_field("language", " is " + io::json_quoted(ending.substr(0, 20)) + ", expected \"py\" or \"cpp\"");
    if (code.empty() || code.size() > kCodeBytes)
      refuse_field("code",
                   " has " + std::to_string(code.size()) + " bytes, expected from 1 to " + std::to_string(kCodeBytes));
    queue.submit(reply, [code, ending](Reply& to, const Stopped& stopped) {
      const io::Temporary folder(std::filesystem::temp_directory_path() / "attend-exercise",
                                 io::Temporary::Kind::folder);
      const std::filesystem::path file = folder.path() / ("exercise." + ending);
      io::write_file_atomically(file, std::as_bytes(std::span(code)));
      try {
        to.send({.body = labs::to_json(labs::check_file(file, {.on_wait = [&] {
                                                          if (stopped()) throw NobodyWaits{};
                                                        }}))});
      } catch (const NobodyWaits&) {
        // the client has gone
      }
      return true;
    });
  }

  std::string key;
  std::mutex progress;  // of the quiz, in a file
  ReplyQueue queue;     // last: its thread uses all of the above
};

LabsService::LabsService(std::string key) : work_(std::make_unique<LabsWork>(std::move(key))) {}
LabsService::~LabsService() = default;

void LabsService::add_routes(Router& router) {
  LabsWork* work = work_.get();
  using Shared = const std::shared_ptr<Reply>&;
  router.add("GET", "/labs/v1/labs",
             [work](const Request&, Shared reply) { reply->send({.body = work->labs_json()}); });
  router.add("POST", "/labs/v1/labs/*",
             [work](const Request& request, Shared reply) { work->run_lab(request, reply); });
  router.add("GET", "/labs/v1/quiz", [work](const Request&, Shared reply) { reply->send({.body = work->quiz()}); });
  router.add("POST", "/labs/v1/quiz",
             [work](const Request& request, Shared reply) { reply->send({.body = work->answer(request)}); });
  router.add("POST", "/labs/v1/check", [work](const Request& request, Shared reply) { work->check(request, reply); });
}

std::string new_key() {
  static constexpr std::string_view kLetters = "abcdefghijkmnpqrstuvwxyz23456789";  // 32, none like another
  std::random_device random;
  std::string key;
  for (int n = 0; n < 12; ++n) {
    if (n == 4 || n == 8) key += '-';
    key += kLetters[random() % kLetters.size()];
  }
  return key;
}

}  // namespace attend::server
