// .pth: real files of PyTorch give their tensors; pickles that want anything else are refused by name.
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "io/pickle.hpp"
#include "io/pth.hpp"
#include "support/golden.hpp"
#include "support/make_zip.hpp"

namespace attend::io {
namespace {

namespace fs = std::filesystem;
using test::little_endian;

std::span<const std::byte> bytes_of(const std::string& s) {
  return std::as_bytes(std::span(s.data(), s.size()));
}

std::string golden_bytes() {
  std::ifstream file(test::golden_folder() / "tiny.pth", std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::string around(const std::string& pickle, const std::string& storage = std::string(80, 's')) {
  return test::make_zip({{"m/data.pkl", pickle}, {"m/byteorder", "little"}, {"m/data/0", storage}});
}
std::string refusal_of_file(const std::string& file) {
  try {
    (void)parse_pth(bytes_of(file), "f");
  } catch (const FileError& error) {
    return error.what();
  }
  return "";
}
std::string refusal(const std::string& pickle) {
  return refusal_of_file(around(pickle));
}

// Parts of pickles.
const std::string kStart = "\x80\x02";
std::string text(const std::string& s) {
  return std::string("X") + little_endian(s.size(), 4) + s;
}
std::string number(std::int64_t x) {
  return std::string("\x8A\x08") + little_endian(static_cast<std::uint64_t>(x), 8);
}
std::string global(const std::string& module, const std::string& name) {
  return std::string("c") + module + "\n" + name + "\n";
}
std::string tuple(const std::vector<std::int64_t>& values) {
  std::string out = "(";
  for (const std::int64_t x : values) out += number(x);
  return out + "t";
}
std::string storage(const std::string& type = "FloatStorage", const std::string& key = "0", std::int64_t count = 20) {
  return std::string("(") + text("storage") + global("torch", type) + text(key) + text("cpu") + number(count) + "tQ";
}
std::string tensor(const std::string& shape, const std::string& strides, std::int64_t offset = 0,
                   const std::string& from = storage()) {
  return global("torch._utils", "_rebuild_tensor_v2") + "(" + from + number(offset) + shape + strides + "\x89" +
         global("collections", "OrderedDict") + ")RtR";
}
std::string dict_of(const std::string& value, const std::string& key = "w") {
  return kStart + "}" + text(key) + value + "s.";
}

template <class T>
std::vector<T> values_of(const StoredTensor* tensor) {
  std::vector<T> values(tensor->data.size() / sizeof(T));
  std::memcpy(values.data(), tensor->data.data(), values.size() * sizeof(T));
  return values;
}

TEST(Pth, ReadsAFileOfTorch) {
  const fs::path path = test::golden_folder() / "tiny.pth";
  const Pth pth(path);
  std::vector<std::string> names;
  for (const StoredTensor& t : pth.tensors()) names.push_back(t.name);
  EXPECT_EQ(names,
            (std::vector<std::string>{"embed.weight", "head.weight", "rows.weight", "norm.weight", "steps", "none"}));
  const StoredTensor* embed = pth.find("embed.weight");
  EXPECT_EQ(embed->dtype, "F16");
  EXPECT_EQ(embed->shape, (std::vector<std::int64_t>{5, 4}));
  EXPECT_EQ(values_of<std::uint16_t>(embed)[3], 0x4200);  // 3
  EXPECT_EQ(pth.find("head.weight")->data.data(), embed->data.data());
  const StoredTensor* rows = pth.find("rows.weight");
  EXPECT_EQ(rows->dtype, "F32");
  EXPECT_EQ(rows->shape, (std::vector<std::int64_t>{3, 3}));
  EXPECT_EQ(values_of<float>(rows), (std::vector<float>{6, 7, 8, 9, 10, 11, 12, 13, 14}));
  EXPECT_EQ(pth.find("norm.weight")->dtype, "BF16");
  EXPECT_EQ(values_of<std::uint16_t>(pth.find("norm.weight")), (std::vector<std::uint16_t>{0, 0x3F80, 0x4000}));
  EXPECT_EQ(pth.find("steps")->dtype, "I64");
  EXPECT_TRUE(pth.find("steps")->shape.empty());
  EXPECT_EQ(values_of<std::int64_t>(pth.find("steps")), (std::vector<std::int64_t>{7}));
  EXPECT_TRUE(pth.find("none")->data.empty());
  EXPECT_EQ(pth.find("optimizer.state.0.exp_avg"), nullptr);  // the state dict alone
}

TEST(Pth, ReadsTensorsThatItsOwnPicklesDescribe) {
  const std::string file = around(dict_of(tensor(tuple({2, 3}), tuple({3, 1}), 4)));
  const Pth pth = parse_pth(bytes_of(file), "f");
  ASSERT_EQ(pth.tensors().size(), 1U);
  EXPECT_EQ(pth.find("w")->data.size(), 24U);
  const std::string one = tensor(tuple({1}), tuple({1}));
  EXPECT_EQ(refusal(dict_of(tensor(tuple({4, 1, 5}), tuple({5, 77, 1})))), "");  // the stride of one row is no matter
  EXPECT_EQ(refusal(dict_of(tensor(tuple({0, 3}), tuple({9, 9}), 99))), "");  // torch keeps the offset of an empty view
  EXPECT_EQ(refusal(dict_of(tensor(tuple({}), tuple({}), 19))), "");
  EXPECT_EQ(refusal(kStart + "}."), "");
  // Nested dicts and lists that no checkpoint's name explains are flattened.
  const std::string nested = around(kStart + "}(" + text("a") + "}" + text("b") + one + "s" + text("c") + "]" + one +
                                    "a" + number(5) + one + "u.");
  std::vector<std::string> names;
  const Pth flat = parse_pth(bytes_of(nested), "f");
  for (const StoredTensor& t : flat.tensors()) names.push_back(t.name);
  EXPECT_EQ(names, (std::vector<std::string>{"a.b", "c.0", "5"}));
  // A "model" beside tensors is one of them, and not what holds them.
  const std::string beside =
      around(kStart + "}(" + text("model") + "}" + text("b") + one + "s" + text("w") + one + "u.");
  EXPECT_EQ(parse_pth(bytes_of(beside), "f").tensors().size(), 2U);
  EXPECT_NE(parse_pth(bytes_of(beside), "f").find("model.b"), nullptr);
}

TEST(Pth, RefusesToCallAnythingByItsName) {
  const std::string line = "whoami";
  const std::vector<std::pair<std::string, std::string>> cases = {
      {global("os", "system") + "(" + text(line) + "tR", "\"os.system\""},
      {global("posix", "system") + text(line) + "\x85R", "\"posix.system\""},
      {global("builtins", "eval") + text("1") + "\x85R", "\"builtins.eval\""},
      {global("builtins", "getattr"), "\"builtins.getattr\""},
      {text("os") + text("system") + "\x93", "\"os.system\""},
      {"\x8C\x02os\x8C\x06system\x93", "\"os.system\""},
      {number(1) + number(2) + "\x93", "names a class by no text"},
      {std::string("(") + text(line) + "ios\nsystem\n", "\"os.system\""},
      {std::string("(") + global("os", "system") + text(line) + "o", "\"os.system\""},
      {std::string("(") + global("collections", "OrderedDict") + "o", "OBJ"},
      {global("subprocess", "Popen") + ")\x81", "\"subprocess.Popen\""},
      {global("collections", "OrderedDict") + ")\x81", "NEWOBJ,"},
      {global("collections", "OrderedDict") + ")}\x92", "NEWOBJ_EX"},
      {"\x82\x01", "EXT1"},
      {"\x83\x01\x01", "EXT2"},
      {"\x84\x01\x01\x01\x01", "EXT4"},
      {"P0\n", "PERSID"},
      {"\x8F", "EMPTY_SET"},
      {"\x97", "NEXT_BUFFER"},
      {std::string(1, '\xFF'), "opcode 255"},
      {global("torch", "load"), "\"torch.load\""},
      {global("torch.", "FloatStorage"), "refused"},
      {global("torch", ".FloatStorage"), "refused"},
      {global("torch.", "loatStorage"), "refused"},
      {"(icollections\nOrderedDict\n", "\"collections.OrderedDict\""},
      {global("torch.FloatStorage", ""), "refused"},
      {global("", "torch.FloatStorage"), "refused"},
      {global("torch._utils", "_rebuild_tensor_v3"), "_rebuild_tensor_v3"},
      {global("os\",", "system"), "refused"},
      {std::string("c") + std::string(5000, 'm') + "\nname\n", "name without an end"},
      {text(line) + ")R", "calls text with a tuple"},
      {global("torch", "FloatStorage") + text(line) + "R", "calls a class with text"},
      {std::string(")") + text(line) + "b", "attributes of a tuple"},
      {global("torch", "FloatStorage") + "}b", "attributes of a class"},
      {global("collections", "OrderedDict") + tuple({1}) + "R", "from values"},
  };
  for (const auto& [value, words] : cases) {
    const std::string got = refusal(dict_of(value));
    EXPECT_NE(got.find(words), std::string::npos) << "expected: " << words << "\ngot: " << got;
  }
  // One tensor beside the call does not make it better.
  EXPECT_NE(refusal(kStart + "}(" + text("w") + tensor(tuple({1}), tuple({1})) + text("x") + global("os", "system") +
                    text(line) + "\x85Ru.")
                .find("\"os.system\""),
            std::string::npos);
}

TEST(Pth, RefusesBrokenPickles) {
  const std::string deep = [] {
    std::string out = kStart;
    for (int n = 0; n < 100; ++n) out.append("}").append(text("k"));
    return out + "N" + std::string(100, 's') + ".";
  }();
  std::string bomb = kStart + "}q" + std::string(1, '\0');  // 2^60 paths through 60 dicts
  for (int n = 0; n < 60; ++n) {
    const char before = static_cast<char>(n), after = static_cast<char>(n + 1);
    bomb += std::string("0}(") + text("a") + "h" + before + text("b") + "h" + before + "uq" + after;
  }
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "ends inside an opcode"},
      {kStart, "ends inside an opcode"},
      {"\x80\x09}.", "protocol 9"},
      {kStart + ".", "empty stack"},
      {kStart + "N.", "holds None, expected a state dict"},
      {kStart + tensor(tuple({1}), tuple({1})) + ".", "holds a call"},
      {kStart + "}}.", "more than one value"},
      {kStart + "(}.", "more than one value"},
      {kStart + "}.x", "1 bytes behind its end"},
      {kStart + "0.", "empty stack"},
      {kStart + "}N(0.", "empty stack"},  // a mark hides what is below it
      {kStart + "t.", "looks for a mark"},
      {kStart + "e.", "looks for a mark"},
      {kStart + "1.", "looks for a mark"},
      {kStart + "2.", "empty stack"},
      {kStart + "q\x01.", "empty stack"},
      {kStart + "h\x05.", "asks for value 5"},
      {kStart + "j\xFF\xFF\xFF\xFF.", "asks for value 4294967295"},
      {kStart + "Nr\xFF\xFF\xFF\xFF.", "holds None"},  // kept at a high place, without memory for those below
      {kStart + "}(Nu.", "key without a value"},
      {kStart + "}NNa.", "adds to None, expected a list"},
      {kStart + "]NNs.", "adds to a list, expected a dict"},
      {kStart + "X\xFF\xFF\xFF\xFFxx.", "4294967295 bytes are wanted"},
      {kStart + "\x8D" + little_endian(~0ULL, 8) + "xx.", "18446744073709551615 bytes are wanted"},
      {kStart + "\x95" + little_endian(1000, 8) + "}.", "frame"},
      {kStart + "\x8B\x08", "LONG4"},
      {kStart + "}" + std::string(600000, '2') + ".", "steps"},
      {kStart + std::string(600000, '(') + ".", "steps"},
      {deep, "deeper than 64"},
      {kStart + "}q\x01" + text("self") + "h\x01s.", "deeper than 64"},
      {kStart + "]q\x01h\x01" + "a0}" + text("l") + "h\x01s.", "deeper than 64"},
      {bomb + ".", "too many"},
      {kStart + "}}Ns.", "a dict as a key"},
      {kStart + "}NNs.", "None as a key"},
      {kStart + "}" + text(std::string(600, 'k')) + "Ns.", "longer than 512"},
  };
  for (const auto& [pickle, words] : cases) {
    const std::string got = refusal(pickle);
    EXPECT_NE(got.find(words), std::string::npos) << "expected: " << words << "\ngot: " << got;
  }
}

TEST(Pth, RefusesBrokenTensors) {
  const std::string one = tuple({1});
  const std::int64_t half = std::int64_t{1} << 32;
  const auto with = [&](const std::string& from) { return tensor(one, one, 0, from); };
  const std::vector<std::pair<std::string, std::string>> cases = {
      {tensor(tuple({3, 2}), tuple({1, 3})), "not contiguous"},
      {tensor(tuple({2}), tuple({0})), "not contiguous"},
      {tensor(tuple({2, 2}), tuple({4, 1})), "stride 4, expected 2"},
      {tensor(tuple({2}), tuple({})), "1 dimensions and 0 strides"},
      {tensor(tuple({21}), one), "21 elements from 0 on"},
      {tensor(tuple({20}), one, 1), "20 elements from 1 on"},
      {tensor(one, one, std::int64_t{1} << 62), "1 elements from"},
      {tensor(one, one, -1), "has -1 in its offset"},
      {tensor(tuple({-1}), one), "has -1 in its shape"},
      {tensor(tuple({half, half, half}), tuple({1, 1, 1})), "more than 2^63"},
      {tensor(tuple({half, half / 4}), tuple({half / 4, 1})), "elements from 0 on"},
      {tensor("]", one), "a list as its shape"},
      {tensor("(Nt", one), "has None in its shape"},
      {tensor(tuple(std::vector<std::int64_t>(17, 1)), one), "17 dimensions"},
      {with("N"), "None as its storage"},
      {with("NQ"), "not described"},
      {with(std::string("(") + text("storage") + "tQ"), "not described"},
      {with(std::string("(") + text("what") + global("torch", "FloatStorage") + text("0") + text("cpu") + number(20) +
            "tQ"),
       "not described"},
      {with(std::string("(") + text("storage") + global("torch", "Size") + text("0") + text("cpu") + number(20) + "tQ"),
       "class torch.Size"},
      {with(storage("FloatStorage", "1")), "\"m/data/1\""},
      {with(storage("FloatStorage", "../byteorder")), "lacks"},
      {with(storage("FloatStorage", "0", 19)), "19 elements of F32"},
      {with(storage("FloatStorage", "0", -1)), "has -1 in its storage"},
      {with(storage("HalfStorage")), "20 elements of F16"},
      {with(storage("HalfStorage", "0", 40)), ""},
      {global("torch._utils", "_rebuild_tensor_v2") + ")R", "0 fields"},
      {global("torch._utils", "_rebuild_parameter") + ")R", "parameter of no tensor"},
      {global("torch._utils", "_rebuild_parameter") + "(NtR", "parameter of no tensor"},
  };
  for (const auto& [value, words] : cases) {
    const std::string got = refusal(dict_of(value));
    EXPECT_NE(got.find(words), std::string::npos) << "expected: " << words << "\ngot: " << got;
    if (words.empty()) {
      EXPECT_EQ(got, "");
    }
  }
  EXPECT_NE(refusal(kStart + "}(" + text("w") + tensor(one, one) + text("w") + tensor(one, one) + "u.").find("twice"),
            std::string::npos);
}

TEST(Pth, RefusesOtherFiles) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "does not end as a zip"},
      {std::string("\x80\x02\x8A\x0Al\xFC\x9C") + std::string(50, 'x'), "old format"},
      {test::make_zip({{"m/other", "x"}}), "without a data.pkl"},
      {test::make_zip({{"data.pkl", kStart + "}."}}), "without a data.pkl"},
      {test::make_zip({{"a/data.pkl", kStart + "}."}, {"b/data.pkl", kStart + "}."}}), "two pickles"},
      {test::make_zip({{"m/data.pkl", kStart + "}."}, {"m/byteorder", "big"}}), "\"big\", expected little"},
      {test::make_zip({{"m/data.pkl", std::string(20000000, '0'), true}}), "expected at most 16777216"},
      {test::make_zip(
           {{"m/data.pkl", dict_of(tensor(tuple({1}), tuple({1})))}, {"m/data/0", std::string(80, 's'), true}}),
       "deflated"},
  };
  for (const auto& [file, words] : cases)
    EXPECT_NE(refusal_of_file(file).find(words), std::string::npos) << words << "\ngot: " << refusal_of_file(file);
  EXPECT_THROW(Pth("/nonexistent.pth"), FileError);
}

TEST(Pth, EveryTruncationAndEveryBitFlipOfARealFile) {
  const std::string file = golden_bytes();
  ASSERT_GT(file.size(), 1000U);
  for (std::size_t size = 0; size < file.size(); ++size) ASSERT_NE(refusal_of_file(file.substr(0, size)), "") << size;
  std::size_t refused = 0;
  for (std::size_t bit = 0; bit < 8 * file.size(); ++bit) {
    std::string flipped = file;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << (bit % 8)));
    if (!refusal_of_file(flipped).empty()) ++refused;
  }
  EXPECT_GT(refused, 8 * 1000U);  // the pickle is under a checksum; the padding before the storages is not
}

// The same on the pickle alone, where no checksum stands in the way.
TEST(Pth, EveryTruncationAndEveryBitFlipOfAPickle) {
  const std::string pickle = kStart + "}(" + text("a") + tensor(tuple({2, 3}), tuple({3, 1}), 4) + text("b") +
                             global("torch._utils", "_rebuild_parameter") + "(" + tensor(tuple({5}), tuple({1})) +
                             "\x88" + global("collections", "OrderedDict") + ")RtRu}" + text("_metadata") + "}sb.";
  ASSERT_EQ(refusal(pickle), "");
  for (std::size_t size = 0; size < pickle.size(); ++size) EXPECT_NE(refusal(pickle.substr(0, size)), "") << size;
  std::size_t refused = 0;
  for (std::size_t bit = 0; bit < 8 * pickle.size(); ++bit) {
    std::string flipped = pickle;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << (bit % 8)));
    if (!refusal(flipped).empty()) ++refused;
  }
  EXPECT_GT(refused, 6 * pickle.size());  // names are free
}

}  // namespace
}  // namespace attend::io
