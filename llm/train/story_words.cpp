// The words of the generated stories, English and Chinese side by side.
#include "llm/train/story_words.hpp"

namespace attend::llm {
namespace {

constexpr Name kPersons[] = {
    {{"Lily", "丽丽"}, Gender::she}, {{"Anna", "安娜"}, Gender::she}, {{"Mia", "米娅"}, Gender::she},
    {{"Sue", "小苏"}, Gender::she},  {{"Emma", "小艾"}, Gender::she}, {{"Lucy", "露西"}, Gender::she},
    {{"Nora", "诺拉"}, Gender::she}, {{"Rose", "小玫"}, Gender::she}, {{"Amy", "小梅"}, Gender::she},
    {{"Kate", "小芳"}, Gender::she}, {{"Tom", "小明"}, Gender::he},   {{"Ben", "小本"}, Gender::he},
    {{"Max", "大勇"}, Gender::he},   {{"Sam", "小山"}, Gender::he},   {{"Jack", "杰克"}, Gender::he},
    {{"Leo", "小乐"}, Gender::he},   {{"Tim", "小天"}, Gender::he},   {{"Dan", "小丹"}, Gender::he},
    {{"Luke", "小路"}, Gender::he},  {{"Finn", "阿飞"}, Gender::he},
};
constexpr Name kAnimals[] = {
    {{"Spot", "点点"}, Gender::it}, {{"Coco", "可可"}, Gender::it}, {{"Bubbles", "泡泡"}, Gender::it},
    {{"Snow", "雪球"}, Gender::it}, {{"Pip", "皮皮"}, Gender::it},  {{"Dodo", "多多"}, Gender::it},
};
constexpr Words kGirls[] = {{"girl", "女孩"}, {"princess", "公主"}};
constexpr Words kBoys[] = {{"boy", "男孩"}, {"prince", "王子"}};
constexpr Words kAnimalKinds[] = {{"dog", "小狗"},  {"cat", "小猫"}, {"rabbit", "兔子"}, {"duck", "鸭子"},
                                  {"bear", "小熊"}, {"fox", "狐狸"}, {"mouse", "老鼠"},  {"bird", "小鸟"}};
constexpr Words kCharacters[] = {{"little", "小小的"}, {"brave", "勇敢的"}, {"kind", "善良的"}, {"clever", "聪明的"},
                                 {"quiet", "安静的"},  {"funny", "有趣的"}, {"shy", "害羞的"},  {"busy", "忙碌的"}};
constexpr Adjective kAdjectives[] = {
    {{"red", "红色的"}, true},    {{"blue", "蓝色的"}, true},   {{"green", "绿色的"}, true},
    {{"yellow", "黄色的"}, true}, {{"white", "白色的"}, true},  {{"black", "黑色的"}, true},
    {{"pink", "粉色的"}, true},   {{"brown", "棕色的"}, true},  {{"big", "大大的"}, false},
    {{"tiny", "小小的"}, false},  {{"old", "旧的"}, false},     {{"new", "新的"}, false},
    {{"soft", "软软的"}, false},  {{"heavy", "重重的"}, false},
};
constexpr Noun kObjects[] = {
    {{"ball", "球"}, "balls", "个"},     {{"kite", "风筝"}, "kites", "只"},         {{"hat", "帽子"}, "hats", "顶"},
    {{"book", "书"}, "books", "本"},     {{"cup", "杯子"}, "cups", "个"},           {{"boat", "小船"}, "boats", "条"},
    {{"drum", "鼓"}, "drums", "面"},     {{"bell", "铃铛"}, "bells", "个"},         {{"box", "盒子"}, "boxes", "个"},
    {{"lamp", "灯"}, "lamps", "盏"},     {{"key", "钥匙"}, "keys", "把"},           {{"coat", "外套"}, "coats", "件"},
    {{"doll", "娃娃"}, "dolls", "个"},   {{"car", "小车"}, "cars", "辆"},           {{"bag", "包"}, "bags", "个"},
    {{"spoon", "勺子"}, "spoons", "把"}, {{"clock", "钟"}, "clocks", "个"},         {{"flute", "笛子"}, "flutes", "支"},
    {{"ring", "戒指"}, "rings", "枚"},   {{"umbrella", "雨伞"}, "umbrellas", "把"},
};
constexpr Noun kCountables[] = {
    {{"apple", "苹果"}, "apples", "个"},   {{"pear", "梨"}, "pears", "个"},     {{"egg", "鸡蛋"}, "eggs", "个"},
    {{"shell", "贝壳"}, "shells", "个"},   {{"stone", "石头"}, "stones", "块"}, {{"coin", "硬币"}, "coins", "枚"},
    {{"cookie", "饼干"}, "cookies", "块"}, {{"flower", "花"}, "flowers", "朵"}, {{"leaf", "叶子"}, "leaves", "片"},
    {{"nut", "坚果"}, "nuts", "颗"},
};
constexpr Place kPlaces[] = {
    {{"park", "公园"}, "in"},  {{"garden", "花园"}, "in"}, {{"river", "河边"}, "by"},  {{"forest", "森林"}, "in"},
    {{"beach", "海滩"}, "on"}, {{"farm", "农场"}, "on"},   {{"market", "市场"}, "at"}, {{"school", "学校"}, "at"},
    {{"hill", "山坡"}, "on"},  {{"lake", "湖边"}, "by"},
};
constexpr Cause kCauses[] = {
    {{"It began to rain.", "下雨了。"}, {"[a] <got> wet.", "[a]<淋湿了>。"}},
    {{"It was very hot.", "天气很热。"}, {"[a] <drank> some water.", "[a]<喝了>一些水。"}},
    {{"It was very cold.", "天气很冷。"}, {"[a] <made> a fire.", "[a]<生了>一堆火。"}},
    {{"The wind was strong.", "风很大。"}, {"[a] <held> on to a tree.", "[a]<抱住了>一棵树。"}},
    {{"The sun went down.", "太阳下山了。"}, {"[a] <felt> sleepy.", "[a]<困了>。"}},
    {{"There was a loud noise.", "传来一声巨响。"}, {"[a] <jumped>.", "[a]<跳了起来>。"}},
};
constexpr Words kSyllables[] = {{"la", "啦"},  {"dum", "咚"}, {"zim", "叮"}, {"tor", "嘟"},
                                {"bal", "吧"}, {"nee", "呢"}, {"pok", "啪"}, {"ruu", "噜"},
                                {"hey", "嘿"}, {"wum", "汪"}, {"sha", "沙"}, {"kik", "叽"}};
constexpr Pronouns kShe = {{"she", "她"}, {"her", "她"}, {"her", "她的"}};
constexpr Pronouns kHe = {{"he", "他"}, {"him", "他"}, {"his", "他的"}};
constexpr Pronouns kIt = {{"it", "它"}, {"it", "它"}, {"its", "它的"}};

}  // namespace

std::span<const Name> person_names() {
  return kPersons;
}
std::span<const Name> animal_names() {
  return kAnimals;
}
std::span<const Words> person_kinds(Gender gender) {
  return gender == Gender::she ? std::span<const Words>(kGirls) : std::span<const Words>(kBoys);
}
std::span<const Words> animal_kinds() {
  return kAnimalKinds;
}
std::span<const Words> characters() {
  return kCharacters;
}
std::span<const Adjective> adjectives() {
  return kAdjectives;
}
std::span<const Noun> objects() {
  return kObjects;
}
std::span<const Noun> countables() {
  return kCountables;
}
std::span<const Place> places() {
  return kPlaces;
}
std::span<const Cause> causes() {
  return kCauses;
}
std::span<const Words> syllables() {
  return kSyllables;
}
const Pronouns& pronouns(Gender gender) {
  return gender == Gender::she ? kShe : gender == Gender::he ? kHe : kIt;
}

}  // namespace attend::llm
