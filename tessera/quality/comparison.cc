#include "tessera/quality/comparison.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "tessera/quality/distances.h"

namespace tessera::quality {

namespace {

class Comparison {
 public:
  Comparison(std::span<DistributionSource* const> sources, std::span<const PassageToCompare> passages,
             const std::function<base::Status(std::size_t, std::size_t, PassageDistances)>& sink)
      : sources_(sources),
        passages_(passages),
        sink_(sink),
        vocab_size_(static_cast<std::size_t>(sources.front()->vocab_size())) {}

  std::size_t row_bytes() const { return vocab_size_ * sizeof(float); }

  // out_of_range: one of the block's is too long; nothing of the block has reached the sink then.
  base::Status compare(std::span<const std::size_t> block) {
    begins_.clear();
    std::size_t rows = 0;
    std::vector<Passage> asked;
    asked.reserve(block.size());
    for (const std::size_t index : block) {
      begins_.push_back(rows);
      rows += passages_[index].passage.continuation.size();
      asked.push_back(passages_[index].passage);
    }
    reference_.resize(rows * vocab_size_);
    std::size_t seen = 0;
    TESSERA_RETURN_IF_ERROR(sources_[0]->distributions(
        asked, [&](std::size_t passage, std::size_t position, std::span<const float> logprobs) {
          std::ranges::copy(logprobs, row(passage, position).begin());
          ++seen;
        }));
    if (seen != rows) return missing(sources_[0], seen, rows);
    std::vector<std::vector<PassageDistances>> results(sources_.size());
    for (std::size_t source = 1; source < sources_.size(); ++source) {
      TESSERA_RETURN_IF_ERROR(measure(source, block, results[source]));
    }
    for (std::size_t source = 1; source < sources_.size(); ++source) {
      std::size_t next = 0;
      for (const std::size_t index : block) {
        if (!passages_[index].wanted[source]) continue;
        TESSERA_RETURN_IF_ERROR(sink_(index, source, std::move(results[source][next++])));
      }
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

  base::Status measure(std::size_t source, std::span<const std::size_t> block, std::vector<PassageDistances>& results) {
    std::vector<Passage> asked;
    std::vector<std::size_t> in_block;  // Of each that is asked.
    asked.reserve(block.size());
    in_block.reserve(block.size());
    std::size_t rows = 0;
    for (std::size_t i = 0; i < block.size(); ++i) {
      const PassageToCompare& one = passages_[block[i]];
      if (!one.wanted[source]) continue;
      asked.push_back(one.passage);
      in_block.push_back(i);
      rows += one.passage.continuation.size();
      results.push_back({.question = one.passage.question,
                         .cell = one.passage.cell,
                         .positions = std::vector<PositionDistance>(one.passage.continuation.size())});
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
    return seen == rows ? base::ok_status() : missing(sources_[source], seen, rows);
  }

  const std::span<DistributionSource* const> sources_;
  const std::span<const PassageToCompare> passages_;
  const std::function<base::Status(std::size_t, std::size_t, PassageDistances)>& sink_;
  const std::size_t vocab_size_;
  std::vector<std::size_t> begins_;  // First row of each passage of the block.
  std::vector<float> reference_;     // [rows, vocab_size]
};

}  // namespace

base::Status compare_sources(std::span<DistributionSource* const> sources, std::span<const PassageToCompare> passages,
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
  Comparison comparison(sources, passages, sink);
  const std::size_t rows_max = static_cast<std::size_t>(kReferenceBytesMax) / comparison.row_bytes();
  for (std::size_t first = 0; first < passages.size();) {
    if (stop) return {base::StatusCode::kCancelled, "interrupted"};
    std::vector<std::size_t> block;
    block.reserve(kBlockPassagesMax);
    std::size_t rows = 0;
    for (; first < passages.size() && block.size() < kBlockPassagesMax; ++first) {
      rows += passages[first].passage.continuation.size();
      if (!block.empty() && rows > rows_max) break;
      block.push_back(first);
    }
    base::Status status = comparison.compare(block);
    if (status.ok()) continue;
    if (status.code() != base::StatusCode::kOutOfRange) return status;
    // One of them is too long: the others have their turn one by one.
    for (const std::size_t index : block) {
      if (stop) return {base::StatusCode::kCancelled, "interrupted"};
      base::Status alone = comparison.compare({&index, 1});
      if (alone.code() == base::StatusCode::kOutOfRange) {
        left_out(index);
      } else if (!alone.ok()) {
        return alone;
      }
    }
  }
  return base::ok_status();
}

}  // namespace tessera::quality
