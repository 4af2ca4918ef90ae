// Prepared documents on disk: read back as written, and refused where they are not whole.
#include "llm/train/dataset.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "training_files.hpp"

namespace attend::llm::test {
namespace {

const std::vector<std::vector<std::int32_t>> kDocuments = {{1, 2, 3}, {}, {~4, ~5, 6, 7}, {9}};

class DatasetFiles : public testing::Test {
 protected:
  DatasetFiles() { write_dataset(path(), kDocuments, 10); }
  fs::path path() const { return place_.path() / "data"; }
  // What reading every document says.
  std::string refusal() const {
    return refusal_of([&] {
      const Dataset data(path());
      for (std::int64_t n = 0; n < data.count(); ++n) (void)data.document(n);
    });
  }
  // Element n of a file of numbers becomes value.
  template <class T>
  void put(const char* file, std::size_t n, T value) const {
    std::string bytes = read_text(path() / file);
    std::memcpy(bytes.data() + n * sizeof value, &value, sizeof value);
    write_text(path() / file, bytes);
  }
  void replace_in_info(const std::string& old, const std::string& now) const {
    std::string text = read_text(path() / "data.json");
    const std::size_t at = text.find(old);
    ASSERT_NE(at, std::string::npos) << text;
    write_text(path() / "data.json", text.replace(at, old.size(), now));
  }

 private:
  TempFolder place_;
};

TEST_F(DatasetFiles, AreReadBackAsTheyWereWritten) {
  const Dataset data(path());
  ASSERT_EQ(data.count(), std::ssize(kDocuments));
  for (std::int64_t n = 0; n < data.count(); ++n) {
    const DocumentTokens tokens = data.document(n);
    EXPECT_EQ(std::vector<std::int32_t>(tokens.begin(), tokens.end()), kDocuments[static_cast<std::size_t>(n)]) << n;
  }
  EXPECT_EQ(data.info().tokens, 8);
  EXPECT_EQ(data.info().learnt, 6);
  EXPECT_EQ(data.info().vocabulary, 10);
  EXPECT_EQ(token_of(data.document(2)[1]), 5);
}

TEST_F(DatasetFiles, KeepWhatTheirMakerTold) {
  DataInfo info;
  info.kind = DataKind::chat, info.vocabulary = 7, info.bytes = 123, info.skipped = 4, info.nats = 1.0 / 3;
  info.tokenizer = "abc";
  DatasetWriter writer(path(), true);
  writer.add(std::vector<std::int32_t>{1, ~2});
  writer.commit(info);
  const DataInfo read = Dataset(path()).info();
  EXPECT_EQ(read.kind, DataKind::chat);
  EXPECT_EQ(read.bytes, 123);
  EXPECT_EQ(read.skipped, 4);
  EXPECT_EQ(read.nats, 1.0 / 3);
  EXPECT_EQ(read.tokenizer, "abc");
}

TEST_F(DatasetFiles, ThatAreCutOrTooLongAreRefused) {
  for (const char* file : {"tokens.bin", "documents.bin"}) {
    const std::string whole = read_text(path() / file);
    for (const std::string& now : {whole.substr(0, whole.size() - 1), whole.substr(0, whole.size() / 2), std::string(),
                                   whole + std::string(4, '\0')}) {
      write_text(path() / file, now);
      const std::string said = refusal();
      expect_in(said, file);
      expect_in(said, "has " + std::to_string(now.size()) + " bytes, expected " + std::to_string(whole.size()));
    }
    fs::remove(path() / file);
    expect_in(refusal(), file);
    write_text(path() / file, whole);
    EXPECT_EQ(refusal(), "");
  }
  fs::remove(path() / "data.json");
  expect_in(refusal(), "holds no data.json");
}

TEST_F(DatasetFiles, WithATokenBeyondTheVocabularyAreRefused) {
  for (const std::int32_t bad : {10, ~10, 2147483647, -2147483647 - 1}) {
    put<std::int32_t>("tokens.bin", 3, bad);
    const std::string said = refusal();
    expect_in(said, "document 2 holds token " + std::to_string(token_of(bad)));
    expect_in(said, "expected less than 10");
  }
  put<std::int32_t>("tokens.bin", 3, 9);
  EXPECT_EQ(refusal(), "");
}

TEST_F(DatasetFiles, WithDocumentsOutOfOrderAreRefused) {
  for (const std::int64_t bad : {std::int64_t{-1}, std::int64_t{2}, std::int64_t{9}, INT64_MAX, INT64_MIN}) {
    put<std::int64_t>("documents.bin", 2, bad);  // where document 2 begins: 3
    expect_in(refusal(), "does not lie in tokens.bin");
    put<std::int64_t>("documents.bin", 2, 3);
  }
  EXPECT_EQ(refusal(), "");
}

TEST_F(DatasetFiles, WithWrongFactsAreRefused) {
  const std::string whole = read_text(path() / "data.json");
  for (const auto& [old, now, said] : {std::tuple{"\"text\"", "\"song\"", "\"kind\" is \"song\""},
                                       {"\"documents\": 4", "\"documents\": 5", "documents.bin"},
                                       {"\"documents\": 4", "\"documents\": 0", "\"documents\" is 0"},
                                       {"\"documents\": 4", "\"documents\": 281474976710657", "\"documents\" is"},
                                       {"\"documents\": 4", "\"documents\": 4.5", "expected a whole number"},
                                       {"\"tokens\": 8", "\"tokens\": 7", "tokens.bin"},
                                       {"\"tokens\": 8", "\"tokens\": -8", "\"tokens\" is -8"},
                                       {"\"learnt\": 6", "\"learnt\": 9", "\"learnt\" is 9"},
                                       {"\"vocabulary\": 10", "\"vocabulary\": 0", "\"vocabulary\" is 0"},
                                       {"\"vocabulary\": 10", "\"nothing\": 1", "\"vocabulary\" is missing"},
                                       {"{", "[", "data.json"}}) {
    replace_in_info(old, now);
    expect_in(refusal(), said);
    write_text(path() / "data.json", whole);
  }
}

TEST_F(DatasetFiles, OfPairsAreEvenInNumber) {
  write_dataset(path(), {{1, 2}, {1, 3}, {1, 4}}, 10, DataKind::preference, true);
  expect_in(refusal(), "an odd number of documents, expected pairs");
}

TEST(DatasetWriter, LeavesNothingUntilItIsDone) {
  const TempFolder place;
  const fs::path path = place.path() / "data";
  {
    DatasetWriter writer(path, false);
    writer.add(std::vector<std::int32_t>{1, 2});
    EXPECT_FALSE(fs::exists(path));
  }
  EXPECT_TRUE(fs::is_empty(place.path()));
  write_dataset(path, {{1, 2}}, 3);
  expect_in(refusal_of([&] { DatasetWriter(path, false); }), "is there already");
  {
    DatasetWriter writer(path, true);
    writer.add(std::vector<std::int32_t>{2, 2, 2});
    EXPECT_EQ(Dataset(path).info().tokens, 2) << "the old ones stay until the new ones are whole";
  }
  EXPECT_EQ(Dataset(path).info().tokens, 2);
  write_dataset(path, {{1, 1, 1}}, 3, DataKind::text, true);
  EXPECT_EQ(Dataset(path).info().tokens, 3);
}

}  // namespace
}  // namespace attend::llm::test
