#include "tessera/server/answer.h"

#include <fmt/format.h>

#include <algorithm>

namespace tessera::server {

namespace {

void write_finish_reason(JsonWriter& json, std::string_view reason) {
  json.key("finish_reason");
  if (reason.empty()) {
    json.null();
  } else {
    json.string(reason);
  }
}

void write_logprob(JsonWriter& json, const std::optional<float>& logprob) {
  if (logprob.has_value()) {
    json.number(*logprob);
  } else {
    json.null();
  }
}

std::string_view reasoning_key(ReasoningField field) {
  return field == ReasoningField::kReasoning ? "reasoning" : "reasoning_content";
}

}  // namespace

std::string AnswerWriter::token_text(std::int32_t token) const {
  const std::int32_t ids[] = {token};
  return tokenizer_.decode(ids, text::SpecialTokens::kKeep);
}

void AnswerWriter::begin(JsonWriter& json, std::string_view object) const {
  json.begin_object().key("id").string(generation_.id).key("object").string(object);
  json.key("created").integer(generation_.created).key("model").string(generation_.model);
}

void AnswerWriter::write_usage(JsonWriter& json, const Usage& usage) const {
  json.key("usage").begin_object().key("prompt_tokens").integer(usage.prompt_tokens);
  json.key("completion_tokens").integer(usage.completion_tokens);
  json.key("total_tokens").integer(usage.prompt_tokens + usage.completion_tokens);
  json.key("prompt_tokens_details").begin_object().key("cached_tokens").integer(usage.cached_tokens).end_object();
  if (usage.integrity_recomputes > 0) json.key("integrity_recomputes").integer(usage.integrity_recomputes);
  json.end_object();
}

// A dictionary by the tokens' texts, in which the token itself is always, under its own text. Another token with a text
// that is taken is written as vLLM writes tokens by number.
void AnswerWriter::write_top_logprobs(JsonWriter& json, const LogprobEntry& entry) const {
  if (!entry.logprob.has_value()) {
    json.null();
    return;
  }
  std::vector<std::string> texts{token_text(entry.token)};
  bool has_own = false;
  json.begin_object();
  for (const request::TokenLogprob& top : entry.top) {
    std::string text = token_text(top.token);
    if (top.token == entry.token) {
      has_own = true;
    } else if (std::ranges::find(texts, text) != texts.end()) {
      text = fmt::format("token_id:{}", top.token);
    } else {
      texts.push_back(text);
    }
    json.key(text).number(top.logprob);
  }
  if (!has_own) json.key(texts.front()).number(*entry.logprob);
  json.end_object();
}

void AnswerWriter::write_logprobs(JsonWriter& json, const std::vector<LogprobEntry>& entries) const {
  json.key("logprobs");
  if (!generation_.options.logprobs) {
    json.null();
    return;
  }
  if (generation_.kind == GenerationKind::kCompletion) {
    json.begin_object().key("tokens").begin_array();
    for (const LogprobEntry& entry : entries) json.string(token_text(entry.token));
    json.end_array().key("token_logprobs").begin_array();
    for (const LogprobEntry& entry : entries) write_logprob(json, entry.logprob);
    json.end_array().key("top_logprobs").begin_array();
    for (const LogprobEntry& entry : entries) write_top_logprobs(json, entry);
    json.end_array().key("text_offset").begin_array();
    for (const LogprobEntry& entry : entries) json.integer(entry.text_offset);
    json.end_array().end_object();
    return;
  }
  const auto write_token = [&](std::int32_t token, float logprob) {
    json.key("token").string(token_text(token)).key("logprob").number(logprob).key("bytes").begin_array();
    for (const char byte : tokenizer_.token_bytes(token)) json.integer(static_cast<unsigned char>(byte));
    json.end_array();
  };
  json.begin_object().key("content").begin_array();
  for (const LogprobEntry& entry : entries) {
    json.begin_object();
    write_token(entry.token, entry.logprob.value());
    json.key("top_logprobs").begin_array();
    for (const request::TokenLogprob& top : entry.top) {
      json.begin_object();
      write_token(top.token, top.logprob);
      json.end_object();
    }
    json.end_array().end_object();
  }
  json.end_array().end_object();
}

std::string AnswerWriter::role_chunk(std::size_t choice) const {
  JsonWriter json;
  begin(json, "chat.completion.chunk");
  json.key("choices").begin_array().begin_object().key("index").integer(static_cast<std::int64_t>(choice));
  json.key("delta").begin_object().key("role").string("assistant").end_object();
  json.key("logprobs").null();
  write_finish_reason(json, {});
  json.end_object().end_array().end_object();
  return json.take();
}

void AnswerWriter::write_delta(JsonWriter& json, const text::OutputDelta& delta, EmptyContent empty_content) const {
  json.begin_object();
  if (!delta.reasoning.empty()) json.key(reasoning_key(generation_.reasoning_field)).string(delta.reasoning);
  if (!delta.content.empty() || empty_content == EmptyContent::kWrite) json.key("content").string(delta.content);
  if (!delta.tool_calls.empty()) {
    json.key("tool_calls").begin_array();
    for (const text::ToolCallDelta& call : delta.tool_calls) {
      json.begin_object().key("index").integer(call.index);
      if (!call.id.empty()) json.key("id").string(call.id).key("type").string("function");
      json.key("function").begin_object();
      if (!call.id.empty()) json.key("name").string(call.name);
      json.key("arguments").string(call.arguments).end_object().end_object();
    }
    json.end_array();
  }
  json.end_object();
}

std::string AnswerWriter::chunk(std::size_t choice, const ChoiceDelta& delta, const ChunkEnd& end,
                                const std::optional<Usage>& usage) const {
  JsonWriter json;
  const bool chat = generation_.kind == GenerationKind::kChat;
  begin(json, chat ? "chat.completion.chunk" : "text_completion");
  json.key("choices").begin_array().begin_object().key("index").integer(static_cast<std::int64_t>(choice));
  if (chat) {
    write_delta(json.key("delta"), delta.output, end.empty_content);
  } else {
    json.key("text").string(delta.output.content);
  }
  if (delta.logprobs.empty()) {
    json.key("logprobs").null();
  } else {
    write_logprobs(json, delta.logprobs);
  }
  write_finish_reason(json, end.finish_reason);
  json.end_object().end_array();
  if (usage.has_value()) write_usage(json, *usage);
  json.end_object();
  return json.take();
}

std::string AnswerWriter::usage_chunk(const Usage& usage) const {
  JsonWriter json;
  begin(json, generation_.kind == GenerationKind::kChat ? "chat.completion.chunk" : "text_completion");
  json.key("choices").begin_array().end_array();
  write_usage(json, usage);
  json.end_object();
  return json.take();
}

void AnswerWriter::write_message(JsonWriter& json, const AnswerChoice& choice) const {
  json.begin_object().key("role").string("assistant").key("content");
  if (choice.content.empty() && !choice.tool_calls.empty()) {
    json.null();
  } else {
    json.string(choice.content);
  }
  if (!choice.reasoning.empty()) json.key(reasoning_key(generation_.reasoning_field)).string(choice.reasoning);
  if (!choice.tool_calls.empty()) {
    json.key("tool_calls").begin_array();
    for (const text::ToolCall& call : choice.tool_calls) {
      json.begin_object().key("id").string(call.id).key("type").string("function").key("function").begin_object();
      json.key("name").string(call.name).key("arguments").string(call.arguments).end_object().end_object();
    }
    json.end_array();
  }
  json.end_object();
}

std::string AnswerWriter::whole(const std::vector<AnswerChoice>& choices, const Usage& usage) const {
  JsonWriter json;
  const bool chat = generation_.kind == GenerationKind::kChat;
  begin(json, chat ? "chat.completion" : "text_completion");
  json.key("choices").begin_array();
  for (std::size_t i = 0; i < choices.size(); ++i) {
    json.begin_object().key("index").integer(static_cast<std::int64_t>(i));
    if (chat) {
      write_message(json.key("message"), choices[i]);
    } else {
      json.key("text").string(choices[i].content);
    }
    write_logprobs(json, choices[i].logprobs);
    write_finish_reason(json, choices[i].finish_reason);
    json.end_object();
  }
  json.end_array();
  write_usage(json, usage);
  json.end_object();
  return json.take();
}

}  // namespace tessera::server
