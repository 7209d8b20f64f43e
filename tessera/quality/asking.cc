#include "tessera/quality/asking.h"

#include <fmt/format.h>

#include <cstdint>
#include <utility>

#include "tessera/text/utf8.h"

namespace tessera::quality {

std::string shown(std::string_view text) {
  if (text.size() <= kShownBytes) return std::string(text);
  constexpr std::string_view kGap = " [...] ";
  constexpr std::size_t kHalf = (kShownBytes - kGap.size()) / 2;
  std::size_t tail = text.size() - kHalf;
  while (tail < text.size() && (static_cast<unsigned char>(text[tail]) & 0xC0U) == 0x80U) ++tail;
  return fmt::format("{}{}{}", text.substr(0, text::utf8_prefix_within(text, kHalf)), kGap, text.substr(tail));
}

base::Result<Outcome> ask_or_skip(std::string question, std::string cell,
                                  const std::function<base::Status(Outcome&)>& judge) {
  Outcome outcome;
  outcome.question = std::move(question);
  outcome.cell = std::move(cell);
  const base::Status status = judge(outcome);
  if (status.code() == base::StatusCode::kOutOfRange) {
    outcome.scores.clear();
    outcome.skipped = shown(status.message());
  } else if (!status.ok()) {
    return base::failure(status.with_context(fmt::format("question {}", outcome.question)));
  }
  return outcome;
}

base::Result<std::optional<Passage>> passage_or_none(std::string question, std::string cell,
                                                     base::Result<Passage> passage, const Respondent& respondent) {
  if (!passage.has_value()) {
    if (passage.error().code() == base::StatusCode::kOutOfRange) return std::nullopt;
    return base::failure(passage.error().with_context(fmt::format("question {}", question)));
  }
  const std::int64_t context = respondent.info().context_tokens;
  const std::size_t tokens = passage->prompt.size() + passage->continuation.size();
  if (context > 0 && tokens > static_cast<std::size_t>(context)) return std::nullopt;
  passage->question = std::move(question);
  passage->cell = std::move(cell);
  return std::move(*passage);
}

base::Status QuestionIds::add(const DataLines& data, std::size_t index, const std::string& id) {
  const auto [at, is_new] = lines_.emplace(id, index);
  if (is_new) return base::ok_status();
  return data.wrong(index, fmt::format("question '{}' was on line {} already", id, at->second + 1));
}

}  // namespace tessera::quality
