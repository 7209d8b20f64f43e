#include "tessera/quality/comparison.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "tessera/quality/distances.h"

namespace tessera::quality {

namespace {

class PassageComparison {
 public:
  PassageComparison(std::span<DistributionSource* const> sources, std::span<const Passage> passages,
                    const WantedDistances& wanted,
                    const std::function<base::Status(std::size_t, std::size_t, PassageDistances)>& sink)
      : sources_(sources),
        passages_(passages),
        wanted_(wanted),
        sink_(sink),
        vocab_size_(static_cast<std::size_t>(sources.front()->vocab_size())) {}

  std::size_t row_bytes() const { return vocab_size_ * sizeof(float); }

  base::Status compare(std::span<const std::size_t> block) {
    begins_.clear();
    std::size_t rows = 0;
    std::vector<Passage> asked;
    asked.reserve(block.size());
    for (const std::size_t index : block) {
      begins_.push_back(rows);
      rows += passages_[index].continuation.size();
      asked.push_back(passages_[index]);
    }
    reference_.resize(rows * vocab_size_);
    std::size_t seen = 0;
    TESSERA_RETURN_IF_ERROR(sources_[0]->distributions(
        asked, [&](std::size_t passage, std::size_t position, std::span<const float> logprobs) {
          std::ranges::copy(logprobs, row(passage, position).begin());
          ++seen;
        }));
    if (seen != rows) return missing(sources_[0], seen, rows);
    for (std::size_t source = 1; source < sources_.size(); ++source) {
      TESSERA_RETURN_IF_ERROR(measure(source, block));
    }
    return base::ok_status();
  }

 private:
  std::span<float> row(std::size_t passage, std::size_t position) {
    return std::span(reference_).subspan((begins_[passage] + position) * vocab_size_, vocab_size_);
  }

  static base::Status missing(const DistributionSource* source, std::size_t seen, std::size_t rows) {
    return base::internal_error(
        fmt::format("{}: {} distributions came of {} positions", source->info().model, seen, rows));
  }

  base::Status measure(std::size_t source, std::span<const std::size_t> block) {
    std::vector<PassageDistances> results;
    std::vector<Passage> asked;
    std::vector<std::size_t> in_block;  // Of each that is asked.
    asked.reserve(block.size());
    in_block.reserve(block.size());
    results.reserve(block.size());
    std::size_t rows = 0;
    for (std::size_t i = 0; i < block.size(); ++i) {
      const Passage& one = passages_[block[i]];
      if (!wanted_[block[i]][source]) continue;
      asked.push_back(one);
      in_block.push_back(i);
      rows += one.continuation.size();
      results.push_back({.question = one.question,
                         .cell = one.cell,
                         .positions = std::vector<PositionDistance>(one.continuation.size())});
    }
    if (asked.empty()) return base::ok_status();
    std::size_t seen = 0;
    TESSERA_RETURN_IF_ERROR(sources_[source]->distributions(
        asked, [&](std::size_t passage, std::size_t position, std::span<const float> logprobs) {
          results[passage].positions[position] =
              position_distance(static_cast<std::int32_t>(position), asked[passage].continuation[position],
                                row(in_block[passage], position), logprobs);
          ++seen;
        }));
    if (seen != rows) return missing(sources_[source], seen, rows);
    for (std::size_t i = 0; i < results.size(); ++i) {
      TESSERA_RETURN_IF_ERROR(sink_(block[in_block[i]], source, std::move(results[i])));
    }
    return base::ok_status();
  }

  const std::span<DistributionSource* const> sources_;
  const std::span<const Passage> passages_;
  const WantedDistances& wanted_;
  const std::function<base::Status(std::size_t, std::size_t, PassageDistances)>& sink_;
  const std::size_t vocab_size_;
  std::vector<std::size_t> begins_;  // First row of each passage of the block.
  std::vector<float> reference_;     // [rows, vocab_size]
};

bool fits_all(const Passage& passage, std::span<DistributionSource* const> sources) {
  const std::size_t tokens = passage.prompt.size() + passage.continuation.size();
  return std::ranges::all_of(sources, [&](const DistributionSource* source) {
    const std::int64_t most = source->info().context_tokens;
    return most == 0 || tokens <= static_cast<std::size_t>(most);
  });
}

}  // namespace

base::Status compare_sources(std::span<DistributionSource* const> sources, std::span<const Passage> passages,
                             const WantedDistances& wanted,
                             const std::function<base::Status(std::size_t, std::size_t, PassageDistances)>& sink,
                             const std::function<void(std::size_t)>& left_out, const std::atomic<bool>& stop) {
  for (const DistributionSource* source : sources) {
    if (source->vocab_size() != sources[0]->vocab_size()) {
      return base::invalid_argument(
          fmt::format("{} has {} tokens in its vocabulary and {} has {}: distributions over different vocabularies "
                      "cannot be compared",
                      sources[0]->info().model, sources[0]->vocab_size(), source->info().model, source->vocab_size()));
    }
  }
  std::vector<std::size_t> left;  // To compare.
  left.reserve(passages.size());
  for (std::size_t i = 0; i < passages.size(); ++i) {
    if (std::none_of(wanted[i].begin() + 1, wanted[i].end(), [](bool is) { return is; })) continue;
    if (fits_all(passages[i], sources)) {
      left.push_back(i);
    } else {
      left_out(i);
    }
  }
  if (left.empty()) return base::ok_status();
  for (DistributionSource* source : sources) {
    if (stop) return {base::StatusCode::kCancelled, "interrupted"};
    TESSERA_RETURN_IF_ERROR(source->prepare(passages));
  }
  PassageComparison comparison(sources, passages, wanted, sink);
  const std::size_t rows_max = static_cast<std::size_t>(kReferenceBytesMax) / comparison.row_bytes();
  for (std::size_t first = 0; first < left.size();) {
    if (stop) return {base::StatusCode::kCancelled, "interrupted"};
    std::size_t count = 0;
    for (std::size_t rows = 0; first + count < left.size() && count < kBlockPassagesMax; ++count) {
      rows += passages[left[first + count]].continuation.size();
      if (count > 0 && rows > rows_max) break;
    }
    TESSERA_RETURN_IF_ERROR(comparison.compare(std::span(left).subspan(first, count)));
    first += count;
  }
  return base::ok_status();
}

}  // namespace tessera::quality
