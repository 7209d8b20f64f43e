#include "tessera/server/answer.h"

namespace tessera::server {

namespace {

void write_finish_reason(JsonWriter& json, const std::optional<request::FinishReason>& reason) {
  json.key("finish_reason");
  if (reason.has_value()) {
    json.string(request::finish_reason_name(*reason));
  } else {
    json.null();
  }
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
    for (const LogprobEntry& entry : entries) json.number(entry.logprob);
    json.end_array().key("top_logprobs").begin_array();
    for (const LogprobEntry& entry : entries) {
      json.begin_object();
      for (const request::TokenLogprob& top : entry.top) json.key(token_text(top.token)).number(top.logprob);
      json.end_object();
    }
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
    write_token(entry.token, entry.logprob);
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
  json.key("delta").begin_object().key("role").string("assistant").key("content").string("").end_object();
  json.key("logprobs").null();
  write_finish_reason(json, std::nullopt);
  json.end_object().end_array().end_object();
  return json.take();
}

std::string AnswerWriter::chunk(std::size_t choice, const TextDelta& delta,
                                std::optional<request::FinishReason> finish_reason,
                                const std::optional<Usage>& usage) const {
  JsonWriter json;
  const bool chat = generation_.kind == GenerationKind::kChat;
  begin(json, chat ? "chat.completion.chunk" : "text_completion");
  json.key("choices").begin_array().begin_object().key("index").integer(static_cast<std::int64_t>(choice));
  if (chat) {
    json.key("delta").begin_object();
    if (!delta.text.empty()) json.key("content").string(delta.text);
    json.end_object();
  } else {
    json.key("text").string(delta.text);
  }
  if (delta.logprobs.empty()) {
    json.key("logprobs").null();
  } else {
    write_logprobs(json, delta.logprobs);
  }
  write_finish_reason(json, finish_reason);
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

std::string AnswerWriter::whole(const std::vector<AnswerChoice>& choices, const Usage& usage) const {
  JsonWriter json;
  const bool chat = generation_.kind == GenerationKind::kChat;
  begin(json, chat ? "chat.completion" : "text_completion");
  json.key("choices").begin_array();
  for (std::size_t i = 0; i < choices.size(); ++i) {
    json.begin_object().key("index").integer(static_cast<std::int64_t>(i));
    if (chat) {
      json.key("message").begin_object().key("role").string("assistant");
      json.key("content").string(choices[i].text).end_object();
    } else {
      json.key("text").string(choices[i].text);
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
