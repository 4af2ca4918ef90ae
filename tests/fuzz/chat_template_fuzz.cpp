// Any Jinja source and any messages: an error, or a chat whose parts are the messages' and the template's.
#include <fuzzer/FuzzedDataProvider.h>

#include <cstdint>
#include <string>
#include <vector>

#include "attend/error.hpp"
#include "llm/text/chat_template.hpp"
#include "seeded.hpp"

namespace {

using attend::llm::ChatTemplate;

void use(const ChatTemplate& chat_template, const std::vector<attend::llm::Message>& messages, bool prompt,
         const std::vector<std::string>& tools) {
  std::string joined;
  for (const attend::llm::ChatPart& part : chat_template.parts(messages, prompt, tools)) {
    if (part.text.empty()) attend::test::stop("a part of nothing");
    joined += part.text;
  }
  if (joined != chat_template.render(messages, prompt, tools)) attend::test::stop("the parts are not the chat");
  if (chat_template.stop_pieces().empty()) attend::test::stop("nothing ends an answer");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  FuzzedDataProvider bytes(data, size);
  const std::vector<std::string> names = ChatTemplate::names();
  std::vector<attend::llm::Message> messages(bytes.ConsumeIntegralInRange<std::size_t>(0, 6));
  for (attend::llm::Message& message : messages) {
    const int role = bytes.ConsumeIntegralInRange<int>(0, 12);
    message.role = role < 3    ? "user"
                   : role < 6  ? "assistant"
                   : role < 8  ? "system"
                   : role < 10 ? "tool"
                               : bytes.ConsumeRandomLengthString(8);
    message.content = bytes.ConsumeRandomLengthString(40);
    if (bytes.ConsumeIntegralInRange<int>(0, 3) == 0) message.call_id = bytes.ConsumeRandomLengthString(10);
    if (message.role == "assistant" && bytes.ConsumeIntegralInRange<int>(0, 3) == 0)
      message.calls.push_back({"abcdefghi", bytes.ConsumeRandomLengthString(10), bytes.ConsumeRandomLengthString(20)});
  }
  std::vector<std::string> tools(bytes.ConsumeIntegralInRange<std::size_t>(0, 2));
  for (std::string& tool : tools) tool = R"({"function": )" + bytes.ConsumeRandomLengthString(30) + "}";
  const bool prompt = bytes.ConsumeBool();
  const auto known = bytes.ConsumeIntegralInRange<std::size_t>(0, names.size());
  try {
    use(known < names.size() ? *ChatTemplate::named(names[known])
                             : ChatTemplate::detect(bytes.ConsumeRemainingBytesAsString()),
        messages, prompt, tools);
  } catch (const attend::FileError&) {
  } catch (const attend::InvalidArgument&) {
  }
  return 0;
}
