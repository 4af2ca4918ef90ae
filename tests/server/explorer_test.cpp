// The explorer without sockets: models and runs that are forgotten under way, memory that stays within its limit, and
// clients that read slowly or leave.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "apps/server/explore_runs.hpp"
#include "explorer_client.hpp"
#include "io/json_text.hpp"

namespace attend::server::test {
namespace {

const std::string kText = "the cat sat on the mat. the cat sat on the mat.";

std::string body(const std::string& text, const std::string& more = "") {
  return "{\"text\": \"" + text + "\"" + more + "}";
}
std::string long_text(int words) {
  std::string text;
  for (int n = 0; n < words; ++n) text += "word ";
  return text;
}
std::string code_of(const Response& response) {
  const io::Json json = io::parse_json(response.body, "answer");
  const io::Json* error = json.find("error");
  return error == nullptr ? "" : *error->find("code")->string();
}

// A map's rows by plane, from however many frames.
std::vector<float> map_of(const std::string& bytes) {
  std::vector<float> map;
  for (const Frame& frame : frames_of(bytes)) {
    const auto& shape = *frame.head.find("shape")->array();
    const std::int64_t planes = *shape[0].integer(), rows = *shape[1].integer(), columns = *shape[2].integer();
    const std::int64_t all = *frame.head.find("all_rows")->integer(),
                       first = *(*frame.head.find("rows")->array())[0].integer();
    map.resize(static_cast<std::size_t>(planes * all * columns));
    for (std::int64_t plane = 0; plane < planes; ++plane)
      std::memcpy(map.data() + (plane * all + first) * columns,
                  frame.numbers.data() + plane * rows * columns * static_cast<std::int64_t>(sizeof(float)),
                  static_cast<std::size_t>(rows * columns) * sizeof(float));
  }
  return map;
}
// Sums of bands are rounded elsewhere; what is hidden is hidden in both.
void expect_same_map(const std::vector<float>& a, const std::vector<float>& b, const std::string& where) {
  ASSERT_EQ(a.size(), b.size()) << where;
  for (std::size_t n = 0; n < a.size(); ++n) {
    ASSERT_EQ(std::isnan(a[n]), std::isnan(b[n])) << where << ", " << n;
    if (!std::isnan(a[n])) {
      ASSERT_NEAR(a[n], b[n], 1e-6) << where << ", " << n;
    }
  }
}

constexpr llm::PieceLimits kSmall{.weights = 200, .bytes = 300};

// ---- what is forgotten under way ----

TEST(Explorer, AMapEndsEarlyWhereItsModelWasClosed) {
  const TinyExplorer explorer({.models = 2, .piece = kSmall}, {1, 2, 3, 4, 5});
  const std::string id = explorer.run(body(kText, R"(, "step": 1)"));
  const auto slow = std::make_shared<SlowReply>();
  slow->reading = false;
  explorer.begin(TinyExplorer::get("runs/" + id + "/map?layer=1&head=2&queries=0:40&keys=0:40&cells=40x40"), slow);
  for (int step = 2; step <= 5; ++step)
    EXPECT_EQ(explorer.ask(TinyExplorer::post("runs", body(kText, ", \"step\": " + std::to_string(step)))).status, 200);
  slow->reading = true;
  const Response map = slow->wait();
  EXPECT_EQ(map.status, 200);
  EXPECT_EQ(slow->pieces, 0) << "pieces of a run that is forgotten";
  EXPECT_EQ(frames_of(map.body).size(), 1U);
  EXPECT_EQ(code_of(explorer.ask(TinyExplorer::get("runs/" + id + "/values?layer=0&head=0"))), "no_run");
}

TEST(Explorer, AMapEndsEarlyWhereItsRunWasForgotten) {
  const TinyExplorer explorer({.runs = 2, .piece = kSmall});
  const std::string id = explorer.run(body(kText));
  const auto slow = std::make_shared<SlowReply>();
  slow->reading = false;
  explorer.begin(TinyExplorer::get("runs/" + id + "/tensors?layer=0"), slow);
  for (const char* text : {"one", "two", "three"}) (void)explorer.run(body(text));
  slow->reading = true;
  EXPECT_EQ(slow->wait().status, 200);
  EXPECT_EQ(slow->pieces, 0);
}

TEST(Explorer, AMapEndsEarlyWhereItsRunBecameShorter) {
  const TinyExplorer explorer({.piece = kSmall});
  const std::string id = explorer.run(body("abc", R"(, "generated": [1, 2, 3, 4, 5, 6, 7, 8])"));
  const auto slow = std::make_shared<SlowReply>();
  slow->reading = false;
  explorer.begin(TinyExplorer::get("runs/" + id + "/map?layer=0&head=0&queries=0:11&keys=0:11&cells=11x11"), slow);
  EXPECT_EQ(explorer.run(body("abc", R"(, "generated": [1])")), id);
  slow->reading = true;
  EXPECT_EQ(slow->wait().status, 200);
  EXPECT_EQ(frames_of(slow->wait().body).size(), 1U);
}

TEST(Explorer, AnIdNeverMeansAnotherRun) {
  const TinyExplorer explorer({.models = 1}, {1, 2});
  const std::string first = explorer.run(body("one text", R"(, "step": 1)"));
  (void)explorer.run(body("another", R"(, "step": 2)"));
  const std::string again = explorer.run(body("a third text", R"(, "step": 1)"));
  EXPECT_NE(first, again);
  EXPECT_EQ(code_of(explorer.ask(TinyExplorer::get("runs/" + first + "/values?layer=0&head=0"))), "no_run");
}

// ---- memory ----

// Next tokens before the switches, wherever the run without them was computed.
TEST(Explorer, SwitchesNeedNoRoomForTheRunWithoutThem) {
  const std::string text = long_text(40),
                    switched = body(text, R"(, "switches": ["temperature=2"], "generated": [3, 4])");
  const io::Json expected = TinyExplorer().json(TinyExplorer::post("runs", switched));
  ASSERT_NE(expected.find("kl"), nullptr);
  int answered = 0, refused = 0;
  for (std::int64_t bytes = 1 << 20; bytes < 6 << 20; bytes += 64 << 10) {
    const TinyExplorer explorer({.bytes = bytes});
    (void)explorer.ask(TinyExplorer::post("runs", body(text)));  // there before it, and forgotten for it
    const Response response = explorer.ask(TinyExplorer::post("runs", switched));
    const io::Json got = io::parse_json(response.body, "answer");
    if (response.status != 200) {
      EXPECT_TRUE(response.status == 413 || code_of(response) == "bad_argument") << response.body;
      ++refused;
      continue;
    }
    ++answered;
    for (const char* list : {"next", "before"})
      EXPECT_EQ(io::json_text(*got.find(list)), io::json_text(*expected.find(list))) << bytes;
    EXPECT_EQ(io::json_text(*got.find("kl")), io::json_text(*expected.find("kl"))) << bytes;
    // The run itself is there still.
    const std::string path = "runs/" + *got.find("run")->string();
    EXPECT_EQ(explorer.ask(TinyExplorer::get(path + "/thumbs?layers=0:2&cells=4")).status, 200) << bytes;
  }
  EXPECT_GT(answered, 8);
  EXPECT_GT(refused, 8);
}

struct Runs {
  explicit Runs(const ExploreLimits& given) : limits(given), folder(write_tiny_model()) {}
  ~Runs() {
    std::error_code ignored;
    std::filesystem::remove_all(folder, ignored);
  }
  static bool never() { return false; }
  std::shared_ptr<ExploreRun> run(const RunWish& wish) { return runs.run(runs.model(-1), wish, never); }

  ExploreLimits limits;
  std::filesystem::path folder;
  ExploreRuns runs{{.name = "tiny", .open = [this](std::int64_t) { return llm::Model::open(folder.string()); }},
                   limits};
};

TEST(ExploreRuns, StayWithinTheirBytes) {
  for (const std::int64_t bytes : {3 << 20, 4 << 20, 6 << 20}) {
    Runs all({.runs = 100, .bytes = bytes});
    for (int n = 1; n < 60; ++n) {
      const std::shared_ptr<ExploreRun> made =
          all.run({.text = long_text(1 + n * 7 % 50),
                   .switches = n % 3 == 0 ? std::vector<std::string>{"scale=off"} : std::vector<std::string>{}});
      (void)all.runs.json(made, nullptr, Runs::never);
      ASSERT_LE(all.runs.bytes(), bytes);
      ASSERT_EQ(all.runs.find(made->id), made);
    }
  }
}

TEST(ExploreRuns, StayWithinTheirNumber) {
  Runs all({.runs = 3});
  std::vector<std::string> ids;
  for (const char* text : {"a", "b", "c", "d"}) {
    ids.push_back(all.run({.text = text})->id);
    if (ids.size() == 3) (void)all.runs.find(ids[0]);
  }
  EXPECT_THROW((void)all.runs.find(ids[1]), RequestError);  // asked for before all others
  for (const std::size_t n : {0U, 2U, 3U}) EXPECT_EQ(all.runs.find(ids[n])->id, ids[n]);
  EXPECT_EQ(all.run({.text = "c"})->id, ids[2]);
}

// The next token is refused before it is computed, and what was there stays; other runs go first.
TEST(ExploreRuns, GrowWithinTheBudget) {
  const auto budget = std::make_shared<MemoryBudget>(8 << 20);
  Runs all({.memory = budget});
  const std::string other = all.run({.text = "another"})->id;
  const std::shared_ptr<ExploreRun> run = all.run({.text = long_text(20)});
  MemoryShare unread(budget);  // of other clients
  ASSERT_TRUE(unread.resize(budget->limit() - all.runs.bytes() - (200 << 10)));
  std::int64_t length = 0;
  try {
    for (;;) {
      length = run->look.length();
      (void)all.runs.step(*run, {.generated = run->generated, .token = 5});
      ASSERT_LE(run->bytes(), run->share.bytes()) << length;
      ASSERT_EQ(budget->reserved(), unread.bytes() + all.runs.bytes());
      ASSERT_LT(run->look.length(), 1000);
    }
  } catch (const RequestError& error) {
    EXPECT_EQ(error.error.status, 503) << error.what();
  }
  EXPECT_EQ(run->look.length(), length);
  EXPECT_GT(length, 150);
  EXPECT_THROW((void)all.runs.find(other), RequestError);
  EXPECT_EQ(all.runs.find(run->id), run);
  unread.clear();
  EXPECT_EQ(all.runs.step(*run, {.generated = run->generated, .token = 5}).position, length);
}

TEST(ExploreRuns, GiveBackWhatTheyReserved) {
  const auto budget = std::make_shared<MemoryBudget>(4 << 20);
  {
    Runs all({.memory = budget});
    for (int n = 1; n < 20; ++n) {
      const RunWish wish{.text = long_text(n * 5), .switches = {"scale=off"}};
      const std::shared_ptr<ExploreRun> made = all.run(wish);
      (void)all.runs.json(made, nullptr, Runs::never);
      ASSERT_EQ(budget->reserved(), all.runs.bytes());
      EXPECT_THROW(all.runs.run(all.runs.model(-1), {.text = "stopped " + wish.text}, [] { return true; }),
                   RequestError);
      ASSERT_EQ(budget->reserved(), all.runs.bytes());
    }
    EXPECT_GT(budget->reserved(), 0);
  }
  EXPECT_EQ(budget->reserved(), 0);
}

TEST(ExploreRuns, ARunInUseIsNotForgotten) {
  Runs all({.runs = 1});
  const std::shared_ptr<ExploreRun> held = all.run({.text = "held"});
  EXPECT_THROW(all.run({.text = "another"}), RequestError);
  EXPECT_EQ(all.runs.find(held->id), held);
}

TEST(ExploreRuns, ATextBeyondTheLimitIsRefused) {
  Runs all({.bytes = 1 << 20});
  try {
    (void)all.run({.text = long_text(200)});
    ADD_FAILURE() << "expected an error";
  } catch (const RequestError& error) {
    EXPECT_EQ(error.error.status, 413);
    EXPECT_NE(error.error.message.find("--memory"), std::string::npos) << error.error.message;
  }
  EXPECT_EQ(all.runs.bytes(), 0);
}

// ---- pieces ----

TEST(Explorer, PiecesMakeUpTheWhole) {
  const TinyExplorer whole, pieces({.piece = kSmall});
  const std::string a = "runs/" + whole.run(body(kText)), b = "runs/" + pieces.run(body(kText));
  for (const char* what : {"/thumbs?layers=0:2&cells=5", "/thumbs?layers=1:2&cells=7", "/thumbs?layers=0:1&cells=128",
                           "/tensors?layer=0", "/tensors?layer=1"}) {
    const std::string expected = whole.ask(TinyExplorer::get(a + what)).body;
    EXPECT_EQ(pieces.ask(TinyExplorer::get(b + what)).body, expected) << what;
    EXPECT_FALSE(frames_of(expected).empty());
  }
  for (const char* area : {"queries=0:47&keys=0:47&cells=47x47", "queries=3:44&keys=5:47&cells=41x42",
                           "queries=0:47&keys=0:47&cells=7x9", "queries=1:46&keys=0:40&cells=20x40"}) {
    const std::string what = std::string("/map?layer=1&head=3&") + area;
    const std::string one = whole.ask(TinyExplorer::get(a + what)).body,
                      many = pieces.ask(TinyExplorer::get(b + what)).body;
    EXPECT_GT(frames_of(many).size(), frames_of(one).size()) << area;
    expect_same_map(map_of(many), map_of(one), area);
  }
}

// A pooled map is that of the single weights: the mass of a row of cells is divided by its queries, the last one may
// have fewer, and what no query of a cell sees is NaN.
TEST(Explorer, MapsPoolTheSingleWeights) {
  const TinyExplorer explorer;
  const std::string path =
      "runs/" + explorer.run(body(kText, R"(, "switches": ["mask=window:9"])")) + "/map?layer=1&head=2&";
  const auto map = [&](int q0, int q1, int k0, int k1, int rows, int columns) {
    const auto pair = [](int a, const char* between, int b) { return std::to_string(a) + between + std::to_string(b); };
    const std::string body =
        explorer
            .ask(TinyExplorer::get(path + "queries=" + pair(q0, ":", q1) + "&keys=" + pair(k0, ":", k1) +
                                   "&cells=" + pair(rows, "x", columns)))
            .body;
    return frames_of(body).empty() ? std::vector<float>() : map_of(body);
  };
  const std::vector<float> weights = map(0, 47, 0, 47, 47, 47);
  for (int i = 0; i < 47; ++i)
    for (int j = 0; j < 47; ++j)
      ASSERT_EQ(std::isnan(weights[static_cast<std::size_t>(i * 47 + j)]), j > i || j <= i - 9);
  struct Area {
    int q0, q1, k0, k1, rows, columns;
  };
  for (const Area& a : {Area{0, 47, 0, 47, 5, 6}, Area{0, 47, 0, 47, 46, 47}, Area{3, 40, 7, 46, 4, 11},
                        Area{46, 47, 0, 47, 9, 3}, Area{10, 31, 5, 6, 7, 1}}) {
    const int queries = a.q1 - a.q0, keys = a.k1 - a.k0,
              step = (queries + std::min(a.rows, queries) - 1) / std::min(a.rows, queries);
    const int rows = (queries + step - 1) / step, columns = std::min(a.columns, keys);
    const std::vector<float> got = map(a.q0, a.q1, a.k0, a.k1, a.rows, a.columns);
    const bool exact = step == 1 && columns == keys;
    ASSERT_EQ(got.size(), static_cast<std::size_t>((exact ? 1 : 2) * rows * columns));
    for (int r = 0; r < rows; ++r)
      for (int c = 0; c < columns; ++c) {
        double mass = 0, peak = 0;
        int seen = 0;
        const int last = std::min(queries, (r + 1) * step);
        for (int i = r * step; i < last; ++i)
          for (int j = c * keys / columns; j < (c + 1) * keys / columns; ++j) {
            const float w = weights[static_cast<std::size_t>((a.q0 + i) * 47 + a.k0 + j)];
            if (std::isnan(w)) continue;
            ++seen;
            mass += static_cast<double>(w) / (last - r * step);
            peak = std::max(peak, static_cast<double>(w));
          }
        const auto n = static_cast<std::size_t>(r * columns + c), second = n + static_cast<std::size_t>(rows * columns);
        ASSERT_EQ(std::isnan(got[n]), seen == 0) << r << ", " << c;
        if (seen == 0) continue;
        ASSERT_NEAR(got[n], mass, 1e-5) << r << ", " << c;
        if (!exact) {
          ASSERT_NEAR(got[second], peak, 1e-6) << r << ", " << c;
        }
      }
  }
}

TEST(Explorer, NoPieceIsLargerThanItsLimit) {
  const TinyExplorer explorer({.piece = {.weights = 1 << 20, .bytes = 4000}});
  const std::string path = "runs/" + explorer.run(body(long_text(100)));
  for (const char* what : {"/map?layer=0&head=0&queries=0:500&keys=0:500&cells=500x500", "/tensors?layer=0",
                           "/thumbs?layers=0:2&cells=60"}) {
    const auto slow = std::make_shared<SlowReply>();
    explorer.begin(TinyExplorer::get(path + what), slow);
    const std::size_t bytes = slow->wait().body.size();
    EXPECT_GE((slow->pieces + 1) * 4500, static_cast<std::ptrdiff_t>(bytes)) << what;  // a head is in it too
  }
}

TEST(Explorer, ClientsThatDoNotReadGetOnePieceAndHoldNobodyUp) {
  const TinyExplorer explorer({.waiting = 4, .piece = kSmall});
  const std::string path = "runs/" + explorer.run(body(kText));
  std::vector<std::shared_ptr<SlowReply>> slow;
  for (int n = 0; n < 32; ++n) {
    slow.push_back(std::make_shared<SlowReply>());
    slow.back()->reading = false;
    explorer.begin(TinyExplorer::get(path + "/map?layer=0&head=0&queries=0:47&keys=0:47&cells=47x47"), slow.back());
    EXPECT_EQ(explorer.ask(TinyExplorer::get(path + "/values?layer=0&head=0")).status, 200);
  }
  for (const auto& one : slow) EXPECT_EQ(one->pieces, 0);
  slow[0]->reading = true;
  EXPECT_EQ(frames_of(slow[0]->wait().body).size(), 47U);
  slow[1]->leave();
  for (std::size_t n = 2; n < slow.size(); ++n) slow[n]->reading = true;
  for (std::size_t n = 2; n < slow.size(); ++n)
    expect_same_map(map_of(slow[n]->wait().body), map_of(slow[0]->wait().body), "slow");
}

TEST(Explorer, EndsWithAnswersUnderWay) {
  const auto slow = std::make_shared<SlowReply>();
  slow->reading = false;
  {
    const TinyExplorer explorer({.piece = kSmall});
    const std::string path = "runs/" + explorer.run(body(kText));
    explorer.begin(TinyExplorer::get(path + "/map?layer=0&head=0&queries=0:47&keys=0:47&cells=47x47"), slow);
    (void)explorer.ask(TinyExplorer::get("about"));
  }
  EXPECT_EQ(slow->pieces, 0);
}

}  // namespace
}  // namespace attend::server::test
