#include "tessera/text/chat_markup.h"

#include <fmt/format.h>

#include <algorithm>

namespace tessera::text {
namespace {

base::Result<TokenId> marker_id(std::string_view format, const Tokenizer& tokenizer, std::string_view marker) {
  const auto id = tokenizer.token_id(marker);
  if (!id.has_value()) {
    return base::failure(base::not_found(fmt::format(
        "chat format {}: '{}' is not one of the tokenizer's added tokens, and the format needs it", format, marker)));
  }
  return *id;
}

}  // namespace

base::Result<Markup> Markup::create(std::string_view format, const Tokenizer& tokenizer,
                                    std::span<const std::string_view> markers) {
  Markup markup;
  for (const std::string_view marker : markers) {
    TESSERA_ASSIGN_OR_RETURN(const TokenId id, marker_id(format, tokenizer, marker));
    markup.markers_.emplace_back(marker, id);
  }
  return markup;
}

std::pair<std::size_t, const Markup::Marker*> Markup::find(std::string_view text, std::size_t from) const {
  std::size_t at = std::string_view::npos;
  const Marker* found = nullptr;
  for (const Marker& marker : markers_) {
    const std::size_t place = text.find(marker.first, from);
    if (place == std::string_view::npos) continue;
    if (place < at || (place == at && marker.first.size() > found->first.size())) {
      at = place;
      found = &marker;
    }
  }
  return {at, found};
}

PromptWriter& PromptWriter::markup(std::string_view content) {
  std::size_t begin = 0;
  while (begin < content.size()) {
    const auto [at, marker] = markup_->find(content, begin);
    text(content.substr(begin, at - begin));
    if (marker == nullptr) break;
    segments_.push_back(Segment::of_token(marker->second));
    begin = at + marker->first.size();
  }
  return *this;
}

PromptWriter& PromptWriter::text(std::string_view content) {
  if (content.empty()) return *this;
  if (segments_.empty() || segments_.back().kind != Segment::Kind::kText) segments_.push_back(Segment::of_text({}));
  segments_.back().text += content;
  return *this;
}

base::Result<std::vector<TokenId>> chat_stop_ids(std::string_view format, const Tokenizer& tokenizer,
                                                 std::span<const std::string_view> markers) {
  std::vector<TokenId> ids = tokenizer.eos_ids();
  for (const std::string_view marker : markers) {
    TESSERA_ASSIGN_OR_RETURN(const TokenId id, marker_id(format, tokenizer, marker));
    ids.push_back(id);
  }
  std::ranges::sort(ids);
  const auto repeated = std::ranges::unique(ids);
  ids.erase(repeated.begin(), repeated.end());
  return ids;
}

}  // namespace tessera::text
