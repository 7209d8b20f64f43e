#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <span>

#include "tests/conformance/backend_test.h"

namespace tessera::conformance {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct Sampled {
  std::vector<ops::SampledToken> tokens;
  std::vector<std::int32_t> top_ids;
  std::vector<float> top_logprobs;
};

// Ids by logit descending, id ascending.
std::vector<std::int32_t> ranking(const HostMatrix& logits, std::int64_t r) {
  std::vector<std::int32_t> ids(static_cast<std::size_t>(logits.cols));
  std::iota(ids.begin(), ids.end(), 0);
  std::stable_sort(ids.begin(), ids.end(),
                   [&](std::int32_t a, std::int32_t b) { return logits.at(r, a) > logits.at(r, b); });
  return ids;
}

double log_softmax(const HostMatrix& logits, std::int64_t r, std::int64_t id) {
  long double total = 0.0L;
  for (std::int64_t i = 0; i < logits.cols; ++i) {
    total += std::exp(static_cast<long double>(logits.at(r, i)) - static_cast<long double>(logits.at(r, id)));
  }
  return -static_cast<double>(std::log(total));
}

// The distribution that a row is drawn from, in the order of the walk.
struct Distribution {
  std::vector<std::int32_t> ids;
  std::vector<double> weights;
  double total() const { return std::accumulate(weights.begin(), weights.end(), 0.0); }
};

Distribution distribution(const HostMatrix& logits, std::int64_t r, const ops::SampleRow& row) {
  std::vector<std::int32_t> ranked = ranking(logits, r);
  const double largest = logits.at(r, ranked[0]);
  const bool by_count = row.top_k > 0 && row.top_k < logits.cols;
  if (by_count) ranked.resize(static_cast<std::size_t>(row.top_k));
  const auto weight = [&](std::int32_t id) {
    return std::exp((static_cast<double>(logits.at(r, id)) - largest) / static_cast<double>(row.temperature));
  };
  if (row.top_p < 1.0f) {
    double mass = 0.0;
    for (const std::int32_t id : ranked) mass += weight(id);
    double sum = 0.0;
    std::vector<std::int32_t> prefix;
    for (const std::int32_t id : ranked) {
      prefix.push_back(id);
      sum += weight(id);
      if (sum >= static_cast<double>(row.top_p) * mass) break;
    }
    ranked = prefix;
  } else if (!by_count) {
    std::sort(ranked.begin(), ranked.end());
  }
  Distribution out;
  for (const std::int32_t id : ranked) {
    out.ids.push_back(id);
    out.weights.push_back(weight(id));
  }
  return out;
}

std::int32_t draw(const Distribution& d, double uniform) {
  const double target = uniform * d.total();
  double sum = 0.0;
  for (std::size_t i = 0; i < d.ids.size(); ++i) {
    sum += d.weights[i];
    if (sum > target) return d.ids[i];
  }
  return -1;
}

class SampleTokensTest : public BackendTest {
 protected:
  Sampled run(const HostMatrix& logits, const std::vector<ops::SampleRow>& rows, std::int32_t top_width = 0) {
    const DeviceMatrix device_logits = device_.upload_matrix(logits, 3);
    const auto n = rows.size();
    const auto tokens = device_.upload(std::vector<ops::SampledToken>(n, {-77, -77.0f}));
    const auto ids = device_.upload(std::vector<std::int32_t>(n * static_cast<std::size_t>(top_width), -77));
    const auto logprobs = device_.upload(std::vector<float>(n * static_cast<std::size_t>(top_width), -77.0f));
    backend().sample_tokens(stream(),
                            {device_logits.view(), rows, top_width, tokens.data(), top_width > 0 ? ids.data() : nullptr,
                             top_width > 0 ? logprobs.data() : nullptr});
    return {device_.download(tokens), device_.download(ids), device_.download(logprobs)};
  }
};
INSTANTIATE_TEST_SUITE_P(Backends, SampleTokensTest, all_backends(), backend_case_name);

TEST_P(SampleTokensTest, GreedyTakesTheLargestAndTheLowestIdAmongEquals) {
  constexpr std::uint64_t kSeed = 1301;
  for (const std::int64_t vocab : {1, 2, 7, 8, 63, 64, 65, 1000, 49152}) {
    SCOPED_TRACE(testing::Message() << "seed " << kSeed << ", vocabulary " << vocab);
    Random random(kSeed + static_cast<std::uint64_t>(vocab));
    HostMatrix logits = random_matrix(random, 5, vocab, 3.0f);
    for (std::int64_t r = 1; r < 5; ++r) {  // Row r has r + 1 equal maxima, at random places.
      for (std::int64_t i = 0; i <= r; ++i) logits.at(r, random.below(vocab)) = 50.0f;
    }
    const Sampled out = run(logits, std::vector<ops::SampleRow>(5));
    for (std::int64_t r = 0; r < 5; ++r) {
      const std::int32_t best = ranking(logits, r)[0];
      EXPECT_EQ(out.tokens[static_cast<std::size_t>(r)].token, best);
      EXPECT_NEAR(out.tokens[static_cast<std::size_t>(r)].logprob, log_softmax(logits, r, best), 1e-5);
    }
  }
}

TEST_P(SampleTokensTest, DrawsAreTheIndependentOnes) {
  constexpr std::uint64_t kSeed = 1302;
  Random random(kSeed);
  for (const std::int64_t vocab : {1, 2, 17, 64, 1000, 5003}) {
    for (const float temperature : {0.05f, 0.7f, 1.0f, 1.5f, 100.0f}) {
      for (const float top_p : {0.0f, 0.1f, 0.5f, 0.95f, 1.0f, 2.0f}) {
        for (const std::int32_t top_k : {0, 1, 5, 40, 999, 100000}) {
          SCOPED_TRACE(testing::Message() << "seed " << kSeed << ", vocabulary " << vocab << ", temperature "
                                          << temperature << ", top_p " << top_p << ", top_k " << top_k);
          const HostMatrix logits = random_matrix(random, 3, vocab, 3.0f);
          std::vector<ops::SampleRow> rows(3);
          for (ops::SampleRow& row : rows) {
            row.temperature = temperature;
            row.top_p = top_p;
            row.top_k = top_k;
            row.seed = random.bits();
            row.position = random.bits() % 100'000;
          }
          const Sampled out = run(logits, rows);
          for (std::int64_t r = 0; r < 3; ++r) {
            const ops::SampleRow& row = rows[static_cast<std::size_t>(r)];
            const std::int32_t token =
                draw(distribution(logits, r, row), ops::sampling_uniform(row.seed, row.position));
            ASSERT_EQ(out.tokens[static_cast<std::size_t>(r)].token, token);
            // Always of the raw logits, whatever the temperature.
            ASSERT_NEAR(out.tokens[static_cast<std::size_t>(r)].logprob, log_softmax(logits, r, token), 1e-5);
          }
        }
      }
    }
  }
}

TEST_P(SampleTokensTest, EqualLogitsAreRestrictedByLowestId) {
  std::vector<ops::SampleRow> rows(200);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    rows[i].temperature = 1.0f;
    rows[i].top_k = 3;
    rows[i].seed = 7;
    rows[i].position = i;
  }
  const HostMatrix logits(200, 50);  // All equal.
  std::vector<int> counts(50);
  for (const ops::SampledToken& token : run(logits, rows).tokens) ++counts[static_cast<std::size_t>(token.token)];
  EXPECT_EQ(counts[0] + counts[1] + counts[2], 200);
  EXPECT_GT(std::min({counts[0], counts[1], counts[2]}), 30);
}

TEST_P(SampleTokensTest, DrawsFollowTheDistribution) {
  // Pearson's chi-square over 40,000 draws; 1 case in 10,000 of a right sampler would exceed the bounds, and the seeds
  // are fixed.
  constexpr int kDraws = 40'000;
  constexpr int kBatch = 1000;
  struct Case {
    float temperature;
    float top_p;
    std::int32_t top_k;
    double bound;  // Of the chi-square distribution with (kept - 1) degrees of freedom, at 0.9999.
  };
  const std::vector<float> row_logits = {0.0f, 1.0f, -1.0f, 2.0f, 0.5f, -2.0f, 1.5f, 0.25f, -0.5f, 0.75f};
  for (const Case& c : {Case{1.0f, 1.0f, 0, 33.72}, Case{0.5f, 1.0f, 0, 33.72}, Case{1.0f, 1.0f, 4, 21.11},
                        Case{2.0f, 0.6f, 0, 21.11}}) {
    SCOPED_TRACE(testing::Message() << "temperature " << c.temperature << ", top_p " << c.top_p << ", top_k "
                                    << c.top_k);
    HostMatrix logits(kBatch, 10);
    for (std::int64_t r = 0; r < kBatch; ++r) {
      std::copy(row_logits.begin(), row_logits.end(), logits.values.begin() + r * 10);
    }
    std::vector<int> counts(10);
    ops::SampleRow base_row;
    base_row.temperature = c.temperature;
    base_row.top_p = c.top_p;
    base_row.top_k = c.top_k;
    for (int batch = 0; batch < kDraws / kBatch; ++batch) {
      std::vector<ops::SampleRow> rows(kBatch, base_row);
      for (int r = 0; r < kBatch; ++r) {  // Half the draws vary the position, half the seed.
        rows[static_cast<std::size_t>(r)].seed = batch % 2 == 0 ? 42u : static_cast<std::uint64_t>(batch * kBatch + r);
        rows[static_cast<std::size_t>(r)].position =
            batch % 2 == 0 ? static_cast<std::uint64_t>(batch * kBatch + r) : 3u;
      }
      for (const ops::SampledToken& token : run(logits, rows).tokens) ++counts[static_cast<std::size_t>(token.token)];
    }
    const Distribution d = distribution(logits, 0, base_row);
    double chi_square = 0.0;
    int kept = 0;
    for (std::size_t i = 0; i < d.ids.size(); ++i) {
      const double expected = kDraws * d.weights[i] / d.total();
      const int count = counts[static_cast<std::size_t>(d.ids[i])];
      chi_square += (count - expected) * (count - expected) / expected;
      kept += count;
    }
    EXPECT_EQ(kept, kDraws) << "a token outside the restriction was drawn";
    EXPECT_LT(chi_square, c.bound) << "over " << d.ids.size() << " tokens";
  }
}

TEST_P(SampleTokensTest, MaskedTokensAreNeverTaken) {
  constexpr std::uint64_t kSeed = 1303;
  SCOPED_TRACE(testing::Message() << "seed " << kSeed);
  Random random(kSeed);
  HostMatrix logits = random_matrix(random, 300, 100, 2.0f);
  for (std::int64_t r = 0; r < 300; ++r) {
    for (std::int64_t i = 0; i < 100; ++i) {
      if (i % 7 != r % 7) logits.at(r, i) = -kInfinity;
    }
  }
  std::vector<ops::SampleRow> rows(300);
  for (std::size_t r = 0; r < rows.size(); ++r) {
    rows[r].temperature = r % 3 == 0 ? 0.0f : 5.0f;
    rows[r].top_k = r % 2 == 0 ? 0 : 50;
    rows[r].top_p = r % 5 == 0 ? 0.9f : 1.0f;
    rows[r].seed = r;
  }
  const Sampled out = run(logits, rows);
  for (std::size_t r = 0; r < rows.size(); ++r) {
    EXPECT_EQ(out.tokens[r].token % 7, static_cast<std::int32_t>(r % 7)) << "row " << r;
    EXPECT_TRUE(std::isfinite(out.tokens[r].logprob));
  }
  // A mask that leaves one token: its log-probability is 0.
  HostMatrix single(1, 9);
  for (float& value : single.values) value = -kInfinity;
  single.at(0, 4) = -123.0f;
  std::vector<ops::SampleRow> row(1);
  row[0].temperature = 0.8f;
  EXPECT_EQ(run(single, row).tokens[0].token, 4);
  EXPECT_EQ(run(single, row).tokens[0].logprob, 0.0f);
}

TEST_P(SampleTokensTest, TheSmallestRandomNumberTakesNoMaskedToken) {
  // The seed that makes splitmix64's state, and so the random number, exactly zero.
  std::vector<ops::SampleRow> rows(2);
  rows[0].temperature = 1.0f;
  rows[0].seed = 0 - 0x9e3779b97f4a7c15ull;
  rows[0].position = 0;
  ASSERT_EQ(ops::sampling_uniform(rows[0].seed, rows[0].position), 0.0);
  rows[1] = rows[0];
  rows[1].top_k = 60;
  HostMatrix logits(2, 70);
  for (std::int64_t r = 0; r < 2; ++r) {
    for (std::int64_t i = 0; i < 40; ++i) logits.at(r, i) = -kInfinity;
  }
  const Sampled out = run(logits, rows);
  EXPECT_EQ(out.tokens[0].token, 40);
  EXPECT_EQ(out.tokens[1].token, 40);
}

TEST_P(SampleTokensTest, UnusableLogitsAreAnErrorOfTheirRowOnly) {
  constexpr std::uint64_t kSeed = 1304;
  for (const float temperature : {0.0f, 1.0f}) {
    for (const std::int64_t vocab : {5, 64, 101}) {
      SCOPED_TRACE(testing::Message() << "seed " << kSeed << ", vocabulary " << vocab);
      Random random(kSeed);
      HostMatrix logits = random_matrix(random, 8, vocab);
      std::vector<ops::SampleRow> rows(8);
      for (ops::SampleRow& row : rows) {
        row.temperature = temperature;
        row.top_logprobs = 2;
      }
      const Sampled clean = run(logits, rows, 2);
      logits.at(1, 0) = kNaN;
      logits.at(2, vocab - 1) = kNaN;
      logits.at(3, 2) = kInfinity;
      for (std::int64_t i = 0; i < vocab; ++i) logits.at(4, i) = -kInfinity;
      for (std::int64_t i = 0; i < vocab; ++i) logits.at(5, i) = kNaN;
      logits.at(6, 3) = kNaN;
      rows[6].forced_token = 1;
      const Sampled out = run(logits, rows, 2);
      for (std::size_t r = 0; r < 8; ++r) {
        if (r == 0 || r == 7) {
          EXPECT_EQ(out.tokens[r].token, clean.tokens[r].token);
          EXPECT_EQ(out.tokens[r].logprob, clean.tokens[r].logprob);
          EXPECT_EQ(out.top_ids[2 * r], clean.top_ids[2 * r]);
        } else {
          EXPECT_EQ(out.tokens[r].token, -1) << "row " << r;
          EXPECT_EQ(out.top_ids[2 * r], -1) << "row " << r;
          EXPECT_EQ(out.top_ids[2 * r + 1], -1) << "row " << r;
        }
      }
    }
  }
}

TEST_P(SampleTokensTest, AForcedTokenIsTakenWithItsOwnLogprob) {
  constexpr std::uint64_t kSeed = 1305;
  SCOPED_TRACE(testing::Message() << "seed " << kSeed);
  Random random(kSeed);
  HostMatrix logits = random_matrix(random, 4, 33, 4.0f);
  logits.at(3, 5) = -kInfinity;
  std::vector<ops::SampleRow> rows(4);
  rows[0].forced_token = 0;
  rows[1].forced_token = 32;
  rows[1].temperature = 1.0f;
  rows[2].forced_token = 7;
  rows[2].top_k = 1;
  rows[2].temperature = 0.5f;
  rows[3].forced_token = 5;  // Masked, and still forced.
  const Sampled out = run(logits, rows);
  for (std::size_t r = 0; r < 3; ++r) {
    EXPECT_EQ(out.tokens[r].token, rows[r].forced_token);
    EXPECT_NEAR(out.tokens[r].logprob, log_softmax(logits, static_cast<std::int64_t>(r), rows[r].forced_token), 1e-5);
  }
  EXPECT_EQ(out.tokens[3].token, 5);
  EXPECT_EQ(out.tokens[3].logprob, -kInfinity);
}

// Whoever finds the token among the alternatives may compare the two numbers.
TEST_P(SampleTokensTest, AForcedTokenAmongTheAlternativesHasTheSameNumber) {
  constexpr std::uint64_t kSeed = 1311;
  SCOPED_TRACE(testing::Message() << "seed " << kSeed);
  Random random(kSeed);
  constexpr std::int32_t kVocab = 20;
  const HostMatrix logits = random_matrix(random, kVocab, kVocab, 7.0f);
  std::vector<ops::SampleRow> rows(kVocab);
  for (std::int32_t r = 0; r < kVocab; ++r) {
    rows[static_cast<std::size_t>(r)].forced_token = r;
    rows[static_cast<std::size_t>(r)].top_logprobs = kVocab;
  }
  const Sampled out = run(logits, rows, kVocab);
  for (std::size_t r = 0; r < rows.size(); ++r) {
    const auto ids = std::span(out.top_ids).subspan(r * kVocab, kVocab);
    const auto at = static_cast<std::size_t>(std::ranges::find(ids, rows[r].forced_token) - ids.begin());
    ASSERT_LT(at, ids.size());
    EXPECT_EQ(out.top_logprobs[r * kVocab + at], out.tokens[r].logprob);
  }
}

TEST_P(SampleTokensTest, ReportsTheBestAlternatives) {
  constexpr std::uint64_t kSeed = 1306;
  for (const std::int64_t vocab : {3, 8, 100, 3001}) {
    SCOPED_TRACE(testing::Message() << "seed " << kSeed << ", vocabulary " << vocab);
    Random random(kSeed);
    HostMatrix logits = random_matrix(random, 5, vocab, 2.0f);
    for (std::int64_t i = 0; i < vocab; ++i) logits.at(3, i) = static_cast<float>(i % 2);  // Many equals.
    for (std::int64_t i = 1; i < vocab; ++i) logits.at(4, i) = -kInfinity;
    std::vector<ops::SampleRow> rows(5);
    rows[0].top_logprobs = 0;
    rows[1].top_logprobs = 1;
    rows[2].top_logprobs = 20;
    rows[3].top_logprobs = 7;
    rows[4].top_logprobs = 3;
    rows[2].temperature = 1.0f;
    rows[2].top_k = 1;  // The alternatives do not care about restrictions.
    const Sampled out = run(logits, rows, 20);
    for (std::int64_t r = 0; r < 5; ++r) {
      const std::vector<std::int32_t> ranked = ranking(logits, r);
      for (std::int64_t i = 0; i < 20; ++i) {
        const auto at = static_cast<std::size_t>(r * 20 + i);
        if (i < rows[static_cast<std::size_t>(r)].top_logprobs && i < vocab) {
          const std::int32_t id = ranked[static_cast<std::size_t>(i)];
          EXPECT_EQ(out.top_ids[at], id) << "row " << r << ", rank " << i;
          if (std::isinf(logits.at(r, id))) {
            EXPECT_EQ(out.top_logprobs[at], -kInfinity);
          } else {
            EXPECT_NEAR(out.top_logprobs[at], log_softmax(logits, r, id), 1e-5);
          }
        } else {
          EXPECT_EQ(out.top_ids[at], -1) << "row " << r << ", rank " << i;
          EXPECT_EQ(out.top_logprobs[at], 0.0f);
        }
      }
    }
    // When greedy, the best alternative's log-probability is exactly the token's own.
    EXPECT_EQ(out.top_ids[20], out.tokens[1].token);
    EXPECT_EQ(out.top_logprobs[20], out.tokens[1].logprob);
  }
}

TEST_P(SampleTokensTest, RowDoesNotDependOnTheBatch) {
  constexpr std::uint64_t kSeed = 1307;
  SCOPED_TRACE(testing::Message() << "seed " << kSeed);
  Random random(kSeed);
  const HostMatrix logits = random_matrix(random, 33, 1003, 3.0f);
  std::vector<ops::SampleRow> rows(33);
  for (ops::SampleRow& row : rows) {
    row.temperature = static_cast<float>(random.uniform());
    row.top_p = random.below(2) == 0 ? 1.0f : 0.9f;
    row.top_k = random.below(2) == 0 ? 0 : 30;
    row.seed = random.bits();
    row.top_logprobs = 3;
  }
  const Sampled together = run(logits, rows, 3);
  for (std::size_t r = 0; r < rows.size(); ++r) {
    const auto begin = static_cast<std::int64_t>(r);
    const Sampled alone = run(logits.slice(begin, begin + 1), {rows[r]}, 3);
    EXPECT_EQ(alone.tokens[0].token, together.tokens[r].token);
    EXPECT_EQ(alone.tokens[0].logprob, together.tokens[r].logprob);
    for (std::size_t i = 0; i < 3; ++i) {
      EXPECT_EQ(alone.top_ids[i], together.top_ids[r * 3 + i]);
      EXPECT_EQ(alone.top_logprobs[i], together.top_logprobs[r * 3 + i]);
    }
  }
}

TEST_P(SampleTokensTest, TakesNoRows) { EXPECT_TRUE(run(HostMatrix(0, 10), {}, 2).tokens.empty()); }

}  // namespace
}  // namespace tessera::conformance
