// Four texts of different kinds, the same for every model: the kinds of its heads on them show how stable kinds are.
#include <algorithm>
#include <string_view>

#include "llm/look/head_types.hpp"

namespace attend::llm {
namespace {

struct FixedText {
  const char* name;
  std::string_view text;
};

// Each of about 160 tokens for a vocabulary of 50,000 tokens.
constexpr FixedText kTexts[] = {
    {"prose",
     "The ferry left the harbour before sunrise. Marta stood at the rail with her brother and watched the lights of "
     "the "
     "town grow small. \"Did you lock the door?\" he asked. \"I locked it twice,\" she said, \"and then I went back to "
     "look.\" He laughed, pulled his cap over his ears, and sat down on the wet bench behind the cabin. Nobody else "
     "had "
     "come up on deck. The wind smelled of salt and of burnt coffee from the kitchen below. After an hour the island "
     "appeared, first a grey line, then a hill with a white house on it, and Marta took the old letter out of her "
     "pocket and read it again, although she knew every word of it by heart."},
    {"exposition",
     "A river carries sediment in three ways. The largest stones roll along the bed, sand moves in short jumps, and "
     "clay stays suspended in the water. How much a river can carry depends on its speed: when the speed doubles, the "
     "largest particle that it can move grows by a factor of about sixty. Where the slope becomes gentle, the river "
     "slows down and drops what it carries, beginning with the heaviest grains. This is why deltas are made of layers. "
     "In 1963 a dam changed the flow of one such river; within 30 years the delta lost 12 percent of its area, because "
     "the sediment now settles in the reservoir and not at the coast."},
    {"code",
     "def merge(left, right):\n    result = []\n    i = j = 0\n    while i < len(left) and j < len(right):\n        if "
     "left[i] <= right[j]:\n            result.append(left[i])\n            i += 1\n        else:\n            "
     "result.append(right[j])\n            j += 1\n    result.extend(left[i:])\n    result.extend(right[j:])\n    "
     "return result\n\n\ndef sort(values):\n    if len(values) < 2:\n        return list(values)\n    middle = "
     "len(values) // 2\n    return merge(sort(values[:middle]), sort(values[middle:]))\n\n\nprint(sort([5, 2, 9, "
     "1]))\n"},
    {"Chinese",
     "清晨，渡船离开了港口。小玉站在船头，看着城里的灯光一点一点变小。弟弟问她：“门锁好了吗？”她说：“锁好了，我还回去看"
     "了一遍。”弟弟笑了，坐在船舱后面的长椅上。风里有海水的味道，也有厨房里咖啡的味道。过了一个小时，小岛出现了：先是一"
     "条灰色的线，然后是一座小山，山上有一座白色的房子。小玉从口袋里拿出那封旧信，又读了一遍。"},
};

constexpr std::int64_t kMostTokens = 160;

}  // namespace

std::vector<KindsOnText> kinds_on_texts(LookSession& session) {
  std::vector<KindsOnText> result;
  const ModelState& model = LookAccess::state(session.model());
  for (const FixedText& one : kTexts) {
    std::vector<Token> tokens = model.tokenizer.encode(one.text);
    tokens.resize(static_cast<std::size_t>(std::min({std::ssize(tokens), kMostTokens, model.context})));
    const bool known = std::all_of(tokens.begin(), tokens.end(),
                                   [&](Token token) { return token >= 0 && token < model.config().vocabulary; });
    if (!known || tokens.size() < 2) continue;
    const Look look = session.run(tokens, {.keep = false});
    KindsOnText& kinds = result.emplace_back(KindsOnText{one.name, {}});
    for (const HeadType& type : head_types(LookAccess::state(look), session.probe()))
      kinds.kinds.push_back(type.kind.kind);
  }
  return result;
}

}  // namespace attend::llm
