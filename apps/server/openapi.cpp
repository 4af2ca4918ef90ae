// The description of the API that the server gives of itself (OpenAPI 3.0).
#include <fmt/format.h>

#include "apps/server/api.hpp"
#include "attend/runtime.hpp"
#include "io/json_text.hpp"

namespace attend::server {
namespace {

constexpr const char* kSchemas = R"json({
  "Error": {"type": "object", "required": ["error"], "properties": {"error": {"type": "object",
    "required": ["message", "type", "param", "code"], "properties": {"message": {"type": "string"}, "type": {"type": "string"},
    "param": {"type": "string", "nullable": true}, "code": {"type": "string", "nullable": true}}}}},
  "Model": {"type": "object", "required": ["id", "object", "created", "owned_by"], "properties": {"id": {"type": "string"},
    "object": {"type": "string", "enum": ["model"]}, "created": {"type": "integer"}, "owned_by": {"type": "string"},
    "context": {"type": "integer", "description": "Tokens of the longest sequence"},
    "task": {"type": "string", "enum": ["generate", "embed"]}, "compute": {"type": "string", "enum": ["file", "f32"]}}},
  "Models": {"type": "object", "required": ["object", "data"], "properties": {"object": {"type": "string", "enum": ["list"]},
    "data": {"type": "array", "items": {"$ref": "#/components/schemas/Model"}}}},
  "Usage": {"type": "object", "required": ["prompt_tokens", "total_tokens"], "properties": {"prompt_tokens": {"type": "integer"},
    "completion_tokens": {"type": "integer"}, "total_tokens": {"type": "integer"},
    "prompt_tokens_details": {"type": "object", "required": ["cached_tokens"], "properties": {"cached_tokens": {"type": "integer",
      "description": "Tokens of the prompt that an earlier request had left in the cache"}}}}},
  "ToolCall": {"type": "object", "required": ["id", "function"], "properties": {"id": {"type": "string"}, "type": {"type": "string", "enum": ["function"]},
    "function": {"type": "object", "required": ["name"], "properties": {"name": {"type": "string", "minLength": 1},
      "arguments": {"type": "string", "description": "A JSON object"}}}}},
  "Message": {"oneOf": [
    {"type": "object", "required": ["role", "content"], "properties": {"role": {"type": "string", "enum": ["system", "developer", "user"]}, "content": {"$ref": "#/components/schemas/Content"}}},
    {"type": "object", "required": ["role"], "properties": {"role": {"type": "string", "enum": ["assistant"]}, "content": {"type": "string", "nullable": true},
      "reasoning_content": {"type": "string", "nullable": true, "description": "Thoughts before the answer; templates without thoughts have no place for them"},
      "tool_calls": {"type": "array", "items": {"$ref": "#/components/schemas/ToolCall"}}}},
    {"type": "object", "required": ["role", "content", "tool_call_id"], "properties": {"role": {"type": "string", "enum": ["tool"]}, "content": {"$ref": "#/components/schemas/Content"},
      "tool_call_id": {"type": "string", "minLength": 1}}}]},
  "Content": {"oneOf": [{"type": "string"}, {"type": "array", "minItems": 1, "items": {"type": "object", "required": ["type", "text"], "properties": {
    "type": {"type": "string", "enum": ["text"]}, "text": {"type": "string"}}}}]},
  "Generation": {"type": "object", "properties": {
    "model": {"type": "string", "description": "One of /v1/models; absent: the first"},
    "temperature": {"type": "number", "minimum": 0, "maximum": 2, "nullable": true, "description": "Default: generation_config.json's, else 0.7; 0 is greedy"},
    "top_p": {"type": "number", "minimum": 0, "maximum": 1, "nullable": true, "description": "Default: generation_config.json's, else 0.9"},
    "top_k": {"type": "integer", "minimum": -1, "maximum": 2147483647, "nullable": true, "description": "0 or -1: off. Default: generation_config.json's, else 0"},
    "min_p": {"type": "number", "minimum": 0, "maximum": 1, "nullable": true, "description": "Default: generation_config.json's, else 0.05"},
    "repetition_penalty": {"type": "number", "minimum": 0.01, "maximum": 100, "nullable": true, "description": "Default: generation_config.json's, else 1.05; 1 at temperature 0"},
    "repeat_penalty": {"type": "number", "minimum": 0.01, "maximum": 100, "nullable": true, "description": "Another name of repetition_penalty"},
    "presence_penalty": {"type": "number", "minimum": -2, "maximum": 2, "default": 0, "nullable": true},
    "frequency_penalty": {"type": "number", "minimum": -2, "maximum": 2, "default": 0, "nullable": true},
    "logit_bias": {"type": "object", "additionalProperties": {"type": "number", "minimum": -100, "maximum": 100}, "nullable": true},
    "seed": {"type": "integer", "format": "int64", "nullable": true},
    "stop": {"oneOf": [{"type": "string", "minLength": 1}, {"type": "array", "maxItems": 16, "items": {"type": "string", "minLength": 1}}], "nullable": true},
    "n": {"type": "integer", "minimum": 1, "maximum": 16, "default": 1, "nullable": true},
    "stream": {"type": "boolean", "default": false, "nullable": true},
    "stream_options": {"type": "object", "nullable": true, "properties": {"include_usage": {"type": "boolean"}, "include_obfuscation": {"type": "boolean", "description": "Has no effect"}}},
    "user": {"type": "string", "description": "Has no effect"},
    "store": {"type": "boolean", "nullable": true, "description": "Has no effect: nothing is stored"},
    "service_tier": {"type": "string", "nullable": true, "description": "Has no effect"},
    "metadata": {"type": "object", "additionalProperties": {"type": "string"}, "nullable": true, "description": "Has no effect"},
    "prompt_cache_key": {"type": "string", "description": "Has no effect"}, "safety_identifier": {"type": "string", "description": "Has no effect"}}},
  "ChatRequest": {"allOf": [{"$ref": "#/components/schemas/Generation"}, {"type": "object", "required": ["messages"], "properties": {
    "messages": {"type": "array", "minItems": 1, "items": {"$ref": "#/components/schemas/Message"}},
    "max_tokens": {"type": "integer", "minimum": -1, "nullable": true, "description": "-1, or absent: as long as the context has room; not 0"},
    "max_completion_tokens": {"type": "integer", "minimum": -1, "nullable": true, "description": "The same"},
    "logprobs": {"type": "boolean", "nullable": true}, "top_logprobs": {"type": "integer", "minimum": 0, "maximum": 20, "nullable": true},
    "response_format": {"type": "object", "required": ["type"], "properties": {"type": {"type": "string", "enum": ["text", "json_object", "json_schema"]},
      "json_schema": {"type": "object", "required": ["schema"], "properties": {"name": {"type": "string"}, "description": {"type": "string"}, "strict": {"type": "boolean"}, "schema": {"type": "object"}}}}},
    "tools": {"type": "array", "maxItems": 128, "items": {"type": "object", "required": ["type", "function"], "properties": {"type": {"type": "string", "enum": ["function"]},
      "function": {"type": "object", "required": ["name"], "properties": {"name": {"type": "string", "pattern": "^[A-Za-z0-9_-]{1,64}$"}, "description": {"type": "string"}, "parameters": {"type": "object"}, "strict": {"type": "boolean"}}}}}},
    "tool_choice": {"oneOf": [{"type": "string", "enum": ["none", "auto", "required"]}, {"type": "object", "required": ["type", "function"], "properties": {"type": {"type": "string", "enum": ["function"]},
      "function": {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}}}}},
      {"type": "object", "required": ["type", "allowed_tools"], "properties": {"type": {"type": "string", "enum": ["allowed_tools"]}, "allowed_tools": {"type": "object", "required": ["mode", "tools"],
        "properties": {"mode": {"type": "string", "enum": ["auto", "required"]}, "tools": {"type": "array", "minItems": 1, "maxItems": 128, "items": {"type": "object"}}}}}}]},
    "parallel_tool_calls": {"type": "boolean", "default": true},
    "reasoning_effort": {"type": "string", "enum": ["none", "minimal", "low", "medium", "high", "xhigh"], "nullable": true, "description": "none: no thoughts, others: thoughts, where the model's template leaves the choice"},
    "modalities": {"type": "array", "minItems": 1, "maxItems": 1, "items": {"type": "string", "enum": ["text"]}, "nullable": true},
    "verbosity": {"type": "string", "enum": ["medium"], "nullable": true},
    "chat_template_kwargs": {"type": "object", "properties": {"enable_thinking": {"type": "boolean"}}}}}]},
  "ChatResponse": {"type": "object", "required": ["id", "object", "created", "model", "choices", "usage"], "properties": {
    "id": {"type": "string"}, "object": {"type": "string", "enum": ["chat.completion"]}, "created": {"type": "integer"}, "model": {"type": "string"},
    "choices": {"type": "array", "items": {"type": "object", "required": ["index", "message", "logprobs", "finish_reason"], "properties": {"index": {"type": "integer"},
      "message": {"type": "object", "required": ["role", "content"], "properties": {"role": {"type": "string"}, "content": {"type": "string", "nullable": true},
        "reasoning_content": {"type": "string", "description": "Thoughts of a model that thinks, without the marks around them"},
        "tool_calls": {"type": "array", "items": {"$ref": "#/components/schemas/ToolCall"}}}},
      "logprobs": {"type": "object", "nullable": true}, "finish_reason": {"type": "string", "enum": ["stop", "length", "tool_calls"]}}}},
    "usage": {"$ref": "#/components/schemas/Usage"}}},
  "CompletionRequest": {"allOf": [{"$ref": "#/components/schemas/Generation"}, {"type": "object", "required": ["prompt"], "properties": {
    "prompt": {"oneOf": [{"type": "string"}, {"type": "array", "minItems": 1, "maxItems": 16, "items": {"type": "string"}}, {"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 0}},
      {"type": "array", "minItems": 1, "maxItems": 16, "items": {"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 0}}}]},
    "logprobs": {"type": "integer", "minimum": 0, "maximum": 20, "nullable": true}, "echo": {"type": "boolean", "nullable": true},
    "max_tokens": {"type": "integer", "minimum": -1, "default": 16, "nullable": true, "description": "-1: as long as the context has room"},
    "best_of": {"type": "integer", "minimum": 1, "maximum": 128, "nullable": true, "description": "n, or absent"},
    "suffix": {"type": "string", "maxLength": 0, "nullable": true}}}]},
  "CompletionResponse": {"type": "object", "required": ["id", "object", "created", "model", "choices", "usage"], "properties": {
    "id": {"type": "string"}, "object": {"type": "string", "enum": ["text_completion"]}, "created": {"type": "integer"}, "model": {"type": "string"},
    "choices": {"type": "array", "items": {"type": "object", "required": ["index", "text", "logprobs", "finish_reason"], "properties": {"index": {"type": "integer"},
      "text": {"type": "string"}, "logprobs": {"type": "object", "nullable": true}, "finish_reason": {"type": "string", "enum": ["stop", "length"]}}}},
    "usage": {"$ref": "#/components/schemas/Usage"}}},
  "EmbeddingRequest": {"type": "object", "required": ["input"], "properties": {"model": {"type": "string"},
    "input": {"oneOf": [{"type": "string", "minLength": 1}, {"type": "array", "minItems": 1, "maxItems": 2048, "items": {"type": "string", "minLength": 1}},
      {"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 0}},
      {"type": "array", "minItems": 1, "maxItems": 2048, "items": {"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 0}}}],
      "description": "Texts; token ids of the model's own tokenizer only if the server was started with --accept-token-ids"},
    "encoding_format": {"type": "string", "enum": ["float", "base64"]}, "dimensions": {"type": "integer", "minimum": 1, "maximum": 1048576}, "user": {"type": "string"}}},
  "EmbeddingResponse": {"type": "object", "required": ["object", "data", "model", "usage"], "properties": {"object": {"type": "string", "enum": ["list"]},
    "data": {"type": "array", "items": {"type": "object", "required": ["object", "index", "embedding"], "properties": {"object": {"type": "string"}, "index": {"type": "integer"},
      "embedding": {"oneOf": [{"type": "array", "items": {"type": "number"}}, {"type": "string"}]}}}},
    "model": {"type": "string"}, "usage": {"$ref": "#/components/schemas/Usage"}}},
  "TokenizeRequest": {"type": "object", "required": ["content"], "properties": {"model": {"type": "string"}, "content": {"type": "string"}, "add_special": {"type": "boolean"},
    "parse_special": {"type": "boolean"}, "with_pieces": {"type": "boolean"}}},
  "TokenizeResponse": {"type": "object", "required": ["tokens"], "properties": {"tokens": {"type": "array"}}},
  "DetokenizeRequest": {"type": "object", "required": ["tokens"], "properties": {"model": {"type": "string"}, "tokens": {"type": "array", "items": {"type": "integer", "minimum": 0}}}},
  "DetokenizeResponse": {"type": "object", "required": ["content"], "properties": {"content": {"type": "string"}}},
  "Event": {"type": "object", "required": ["data"], "description": "One event of a stream: a chunk of the answer as JSON, or [DONE]",
    "properties": {"data": {"type": "string"}}},
  "Health": {"type": "object", "required": ["status"], "properties": {"status": {"type": "string", "enum": ["ok", "stopping"]}}}
})json";

constexpr const char* kErrors[][2] = {
    {"400", "The request is wrong: the message says where, what was got and what is expected"},
    {"401", "The token is missing or wrong"},
    {"403", "A page of another site asks"},
    {"404", "There is no such path or model"},
    {"405", "The path has other methods"},
    {"408", "The request did not arrive in time"},
    {"413", "The body is longer than 1 MiB"},
    {"415", "The body is not said to be JSON"},
    {"421", "Host is not a name of this server"},
    {"429", "The queue is full; Retry-After says when to try again"},
    {"431", "The head is longer than 8 KiB"},
    {"500", "A fault of the server"},
    {"503", "The server is stopping, or all connections are in use"}};

std::string reference(const char* schema) {
  return fmt::format("{{\"$ref\": \"#/components/schemas/{}\"}}", schema);
}

std::string responses(const char* schema, const char* type) {
  std::string content = fmt::format("\"{}\": {{\"schema\": {}}}", type,
                                    schema != nullptr ? reference(schema) : std::string("{\"type\": \"string\"}"));
  if (schema != nullptr &&
      (std::string_view(schema) == "ChatResponse" || std::string_view(schema) == "CompletionResponse"))
    content += ", \"text/event-stream\": {\"schema\": " + reference("Event") + "}";
  std::string text = fmt::format("{{\"200\": {{\"description\": \"The answer\", \"content\": {{{}}}}}", content);
  for (const auto& [status, about] : kErrors)
    text += fmt::format(", \"{}\": {{\"description\": {}, \"content\": {{\"application/json\": {{\"schema\": {}}}}}}}",
                        status, io::json_quoted(about), reference("Error"));
  return text + "}";
}

std::string operation(const char* id, const char* about, const char* body, const char* schema,
                      const char* type = "application/json", const char* parameters = "") {
  std::string text = fmt::format("{{\"operationId\": \"{}\", \"summary\": {}, ", id, io::json_quoted(about));
  if (*parameters != '\0') text += fmt::format("\"parameters\": {}, ", parameters);
  if (body != nullptr)
    text += fmt::format(
        "\"requestBody\": {{\"required\": true, \"content\": {{\"application/json\": {{\"schema\": {}}}}}}}, ",
        reference(body));
  return text + "\"responses\": " + responses(schema, type) + "}";
}

std::string make_document() {
  std::string paths;
  const auto add = [&](const char* path, const char* method, const std::string& what) {
    paths += fmt::format("{}\"{}\": {{\"{}\": {}}}", paths.empty() ? "" : ",\n  ", path, method, what);
  };
  add("/v1/chat/completions", "post",
      operation("chat", "Answer a conversation by the model's own chat template", "ChatRequest", "ChatResponse"));
  add("/v1/completions", "post", operation("complete", "Continue a text", "CompletionRequest", "CompletionResponse"));
  add("/v1/embeddings", "post",
      operation("embed", "Texts as vectors of length 1", "EmbeddingRequest", "EmbeddingResponse"));
  add("/v1/models", "get", operation("models", "The models that are served", nullptr, "Models"));
  add("/v1/models/{id}", "get",
      operation("model", "One of them", nullptr, "Model", "application/json",
                R"([{"name": "id", "in": "path", "required": true, "schema": {"type": "string"}}])"));
  add("/tokenize", "post", operation("tokenize", "A text as tokens", "TokenizeRequest", "TokenizeResponse"));
  add("/detokenize", "post", operation("detokenize", "Tokens as text", "DetokenizeRequest", "DetokenizeResponse"));
  add("/health", "get", operation("health", "Whether it is ready", nullptr, "Health"));
  add("/metrics", "get", operation("metrics", "Counters in Prometheus' text format", nullptr, nullptr, "text/plain"));
  return fmt::format(
      "{{\"openapi\": \"3.0.3\", \"info\": {{\"title\": \"attend\", \"version\": \"{}\", \"description\": "
      "\"OpenAI's API over models on this machine. Unknown fields have no effect: the header attend-ignored names "
      "them.\"}},\n\"paths\": {{\n  {}\n}},\n\"components\": {{\"schemas\": {}, "
      "\"securitySchemes\": {{\"token\": {{\"type\": \"http\", \"scheme\": \"bearer\"}}}}}}}}\n",
      version(), paths, kSchemas);
}

}  // namespace

const std::string& openapi_document() {
  static const std::string document = make_document();
  return document;
}

}  // namespace attend::server
