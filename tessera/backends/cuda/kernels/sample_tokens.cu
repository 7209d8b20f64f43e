#include <cuda_runtime.h>

#include "tessera/backends/cuda/kernels/sample_tokens.h"
#include "tessera/backends/cuda/kernels/warp_device.h"

namespace tessera::backends::cuda {

namespace {

constexpr int kThreads = 1024;
constexpr int kWarps = kThreads / 32;
constexpr int kPivots = 7;  // Keys tried in one pass over the row: three bits of the answer.

using Wide = unsigned __int128;

// What the threads of a block tell each other.
struct Shared {
  Wide sums[kPivots + 1][kWarps];
  std::uint64_t order[kWarps];
  Wide wide;
  std::int32_t id;
  std::int32_t count;
};

// Keys are ordered as logits are; both zeros are one.
__device__ __forceinline__ std::uint32_t key_of(float logit) {
  const std::uint32_t bits = __float_as_uint(logit == 0.0f ? 0.0f : logit);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ float logit_of(std::uint32_t key) {
  return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}

__device__ __forceinline__ Wide shuffle_xor(Wide value, int offset) {
  const std::uint64_t low = __shfl_xor_sync(kFullWarp, static_cast<std::uint64_t>(value), offset);
  const std::uint64_t high = __shfl_xor_sync(kFullWarp, static_cast<std::uint64_t>(value >> 64), offset);
  return static_cast<Wide>(high) << 64 | low;
}

__device__ __forceinline__ Wide warp_wide_sum(Wide value) {
#pragma unroll
  for (int offset = 16; offset > 0; offset >>= 1) value += shuffle_xor(value, offset);
  return value;
}

__device__ __forceinline__ double to_double(Wide value) {
  return static_cast<double>(static_cast<std::uint64_t>(value >> 64)) * 0x1.0p64 +
         static_cast<double>(static_cast<std::uint64_t>(value));
}

// One row of logits and how it is weighed.
struct Row {
  const float* logits;
  std::int64_t vocab;
  double largest;
  double temperature;

  // exp((logit - largest) / temperature) in units of 2^-52.
  __device__ std::uint64_t weight(float logit) const {
    return __double2ull_rn(exp((static_cast<double>(logit) - largest) / temperature) * 0x1.0p52);
  }
};

// Calls use(logit, id) for ids threadIdx.x, threadIdx.x + kThreads, ...; several loads are under way at a time.
template <typename Use>
__device__ __forceinline__ void for_each_logit(const Row& row, const Use& use) {
  constexpr int kBatch = 4;
  std::int64_t i = threadIdx.x;
  for (; i + (kBatch - 1) * kThreads < row.vocab; i += kBatch * kThreads) {
    float logits[kBatch];
#pragma unroll
    for (int j = 0; j < kBatch; ++j) logits[j] = row.logits[i + j * kThreads];
#pragma unroll
    for (int j = 0; j < kBatch; ++j) use(logits[j], static_cast<std::int32_t>(i) + j * kThreads);
  }
  for (; i < row.vocab; i += kThreads) use(row.logits[i], static_cast<std::int32_t>(i));
}

// Whether candidates are counted or weighed.
enum class Measure { kCount, kWeight };

// Sum over all threads, which all get it.
__device__ Wide block_sum(Wide value, Shared& shared) {
  value = warp_wide_sum(value);
  __syncthreads();
  if (threadIdx.x % 32 == 0) shared.sums[0][threadIdx.x / 32] = value;
  __syncthreads();
  Wide total = 0;
  for (int w = 0; w < kWarps; ++w) total += shared.sums[0][w];
  return total;
}

// The measure of all candidates with at least this key.
__device__ Wide measure_from(const Row& row, std::uint32_t key, Shared& shared) {
  // A thread's share of the largest vocabulary stays below 2^64.
  std::uint64_t sum = 0;
  for_each_logit(row, [&](float logit, std::int32_t) {
    if (key_of(logit) >= key) sum += row.weight(logit);
  });
  return block_sum(sum, shared);
}

// A prefix of the candidates by logit descending, then id ascending: all whose key is larger than `key`, and the first
// `ties` (by id) of those whose key it is.
struct Prefix {
  std::uint32_t key;
  Wide above;          // Measure of the keys larger than `key`.
  std::uint64_t each;  // Measure of one candidate with that key.
  std::uint64_t ties;
  __device__ Wide measure() const { return above + static_cast<Wide>(each) * ties; }
};

// The shortest prefix whose measure is at least `need`, which is at least 1 and at most the measure of all candidates
// whose key is at least `lowest`. Narrows an interval of keys, eight ways at a time.
template <Measure kMeasure>
__device__ Prefix shortest_prefix(const Row& row, std::uint32_t lowest, Wide need, Shared& shared) {
  // All with key >= low reach the need; all with key >= high, whose measure is `above`, do not.
  std::uint64_t low = lowest;
  if constexpr (kMeasure == Measure::kWeight) {
    // Below this, weights are zero.
    const std::uint32_t weightless = key_of(static_cast<float>(row.largest - 40.0 * row.temperature));
    if (weightless > low) low = weightless;
  }
  std::uint64_t high = static_cast<std::uint64_t>(key_of(static_cast<float>(row.largest))) + 1;
  Wide above = 0;
  while (high - low > 1) {
    // The smallest power of two of which eight cover the interval.
    const int shift = max(64 - __clzll(static_cast<long long>(high - low - 1)) - 3, 0);
    const std::uint64_t step = std::uint64_t{1} << shift;
    // sums[i]: of the keys in [low + i * step, low + (i + 1) * step), as far as it is below high.
    std::uint64_t sums[kPivots + 1] = {};
    const auto low_key = static_cast<std::uint32_t>(low);
    const auto width = static_cast<std::uint32_t>(high - low);
    for_each_logit(row, [&](float logit, std::int32_t) {
      const std::uint32_t distance = key_of(logit) - low_key;  // Wraps around below low.
      if (distance >= width) return;
      const std::uint64_t measure = kMeasure == Measure::kCount ? 1 : row.weight(logit);
      const std::uint32_t part = distance >> shift;
#pragma unroll
      for (int j = 0; j <= kPivots; ++j) sums[j] += part == static_cast<std::uint32_t>(j) ? measure : 0;
    });
    __syncthreads();
#pragma unroll
    for (int j = 0; j <= kPivots; ++j) {
      const Wide sum = warp_wide_sum(sums[j]);
      if (threadIdx.x % 32 == 0) shared.sums[j][threadIdx.x / 32] = sum;
    }
    __syncthreads();
    // From the top down, the first part with which the need is reached. Part 0 must do, if no other does.
    for (int j = kPivots; j >= 0; --j) {
      const std::uint64_t begin = low + static_cast<std::uint64_t>(j) * step;
      if (begin >= high) continue;
      Wide sum = 0;
      for (int w = 0; w < kWarps; ++w) sum += shared.sums[j][w];
      if (j == 0 || above + sum >= need) {
        low = begin;
        break;
      }
      above += sum;
      high = begin;
    }
  }
  Prefix prefix;
  prefix.key = static_cast<std::uint32_t>(low);
  prefix.above = above;
  prefix.each = kMeasure == Measure::kCount ? 1 : row.weight(logit_of(prefix.key));
  // The least number of them that makes up what is missing: an estimate, mended.
  const Wide missing = need - above;
  prefix.ties = 1;
  if (prefix.each > 0) {
    prefix.ties =
        max(static_cast<std::uint64_t>(to_double(missing) / static_cast<double>(prefix.each)), std::uint64_t{1});
    while (static_cast<Wide>(prefix.each) * prefix.ties < missing) ++prefix.ties;
    while (prefix.ties > 1 && static_cast<Wide>(prefix.each) * (prefix.ties - 1) >= missing) --prefix.ties;
  }
  return prefix;
}

// The thread's share of the ids, which is consecutive: [begin, end).
struct Share {
  std::int64_t begin;
  std::int64_t end;
  __device__ explicit Share(std::int64_t vocab) {
    const std::int64_t size = (vocab + kThreads - 1) / kThreads;
    begin = min(static_cast<std::int64_t>(threadIdx.x) * size, vocab);
    end = min(begin + size, vocab);
  }
};

// The sum of `mine` over the threads before this one.
__device__ Wide sum_before(Wide mine, Shared& shared) {
  const int lane = threadIdx.x % 32;
  Wide inclusive = mine;
#pragma unroll
  for (int offset = 1; offset < 32; offset <<= 1) {
    const std::uint64_t low = __shfl_up_sync(kFullWarp, static_cast<std::uint64_t>(inclusive), offset);
    const std::uint64_t high = __shfl_up_sync(kFullWarp, static_cast<std::uint64_t>(inclusive >> 64), offset);
    if (lane >= offset) inclusive += static_cast<Wide>(high) << 64 | low;
  }
  __syncthreads();
  if (lane == 31) shared.sums[0][threadIdx.x / 32] = inclusive;
  __syncthreads();
  Wide before = inclusive - mine;
  for (int w = 0; w < static_cast<int>(threadIdx.x) / 32; ++w) before += shared.sums[0][w];
  return before;
}

// The first id, in order, at which the cumulative measure(id) reaches `need`, which is at least 1 and at most the sum.
template <typename MeasureOf>
__device__ std::int32_t first_reaching(const Row& row, const MeasureOf& measure, Wide need, Shared& shared) {
  const Share share(row.vocab);
  Wide mine = 0;
  for (std::int64_t i = share.begin; i < share.end; ++i) mine += measure(row.logits[i]);
  Wide sum = sum_before(mine, shared);
  if (sum < need && sum + mine >= need) {
    std::int64_t i = share.begin;
    while ((sum += measure(row.logits[i])) < need) ++i;
    shared.id = static_cast<std::int32_t>(i);
  }
  __syncthreads();
  const std::int32_t id = shared.id;
  __syncthreads();
  return id;
}

// The last candidate of a prefix.
__device__ std::int32_t last_of(const Row& row, const Prefix& prefix, Shared& shared) {
  return first_reaching(
      row, [&](float logit) { return static_cast<std::uint64_t>(key_of(logit) == prefix.key); }, prefix.ties, shared);
}

// `need` such that the first cumulative sum that exceeds uniform * total is the first that is at least need.
__device__ Wide need_of_draw(const ops::SampleRow& params, Wide total) {
  const auto uniform = static_cast<std::uint64_t>(ops::sampling_uniform(params.seed, params.position) * 0x1.0p53);
  return ((total * uniform) >> 53) + 1;
}

__device__ std::int32_t draw(const Row& row, const ops::SampleRow& params, Shared& shared) {
  const bool by_count = params.top_k > 0 && params.top_k < row.vocab;
  const bool by_mass = params.top_p < 1.0f;
  const auto weight = [&](float logit) { return row.weight(logit); };
  if (!by_count && !by_mass) {
    return first_reaching(row, weight, need_of_draw(params, measure_from(row, 0, shared)), shared);
  }
  std::uint32_t lowest = 0;
  Wide total = 0;
  if (by_count) {
    const Prefix best = shortest_prefix<Measure::kCount>(row, 0, static_cast<Wide>(params.top_k), shared);
    lowest = best.key;
    // Keys end below 2^32 - 1: the largest is +infinity's.
    total = measure_from(row, best.key + 1, shared) + static_cast<Wide>(row.weight(logit_of(best.key))) * best.ties;
  } else {
    total = measure_from(row, 0, shared);
  }
  if (by_mass) {
    const auto share = static_cast<std::uint64_t>(static_cast<double>(params.top_p) * 0x1.0p52);
    const Wide product = total * share;
    const Wide need = (product >> 52) + ((product & ((Wide{1} << 52) - 1)) != 0 ? 1 : 0);
    const Prefix nucleus = shortest_prefix<Measure::kWeight>(row, lowest, need == 0 ? Wide{1} : need, shared);
    lowest = nucleus.key;
    total = nucleus.measure();
  }
  return last_of(row, shortest_prefix<Measure::kWeight>(row, lowest, need_of_draw(params, total), shared), shared);
}

// Largest logit with the lowest id, and whether the row can be sampled from at all.
__device__ bool find_largest(Row& row, std::int32_t& best, Shared& shared) {
  std::uint64_t mine = 0;  // Key, then the complement of the id: the maximum is what is looked for.
  bool usable = true;
  for_each_logit(row, [&](float logit, std::int32_t id) {
    usable = usable && !isnan(logit);
    const std::uint64_t order = static_cast<std::uint64_t>(key_of(logit)) << 32 | ~static_cast<std::uint32_t>(id);
    mine = mine > order ? mine : order;
  });
#pragma unroll
  for (int offset = 16; offset > 0; offset >>= 1) {
    const std::uint64_t other = __shfl_xor_sync(kFullWarp, mine, offset);
    mine = mine > other ? mine : other;
  }
  if (threadIdx.x % 32 == 0) shared.order[threadIdx.x / 32] = mine;
  usable = __syncthreads_and(usable) != 0;
  for (int w = 0; w < kWarps; ++w) mine = mine > shared.order[w] ? mine : shared.order[w];
  __syncthreads();
  best = static_cast<std::int32_t>(~static_cast<std::uint32_t>(mine));
  const float largest = logit_of(static_cast<std::uint32_t>(mine >> 32));
  row.largest = largest;
  return usable && isfinite(largest);
}

// Fills the row's best alternatives. They are gathered in any order into top_ids, ranked into top_logprobs (as bits),
// and then put in their places.
template <typename Logprob>
__device__ void report_best(const SampleKernel& p, const Row& row, std::int32_t count, const Logprob& logprob,
                            Shared& shared) {
  const std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * p.top_width;
  std::int32_t* ids = p.top_ids + at;
  auto* ranked = reinterpret_cast<std::int32_t*>(p.top_logprobs + at);
  const Prefix prefix = shortest_prefix<Measure::kCount>(row, 0, static_cast<Wide>(count), shared);
  const std::int32_t last = last_of(row, prefix, shared);
  if (threadIdx.x == 0) shared.count = 0;
  __syncthreads();
  for_each_logit(row, [&](float logit, std::int32_t id) {
    const std::uint32_t key = key_of(logit);
    if (key > prefix.key || (key == prefix.key && id <= last)) ids[atomicAdd(&shared.count, 1)] = id;
  });
  __syncthreads();
  for (std::int32_t i = threadIdx.x; i < count; i += kThreads) {
    const std::int32_t id = ids[i];
    const std::uint32_t key = key_of(row.logits[id]);
    std::int32_t rank = 0;
    for (std::int32_t j = 0; j < count; ++j) {
      const std::uint32_t other = key_of(row.logits[ids[j]]);
      if (other > key || (other == key && ids[j] < id)) ++rank;
    }
    ranked[rank] = id;
  }
  __syncthreads();
  for (std::int32_t i = threadIdx.x; i < count; i += kThreads) {
    const std::int32_t id = ranked[i];
    ids[i] = id;
    p.top_logprobs[at + i] = logprob(id);
  }
}

__global__ void __launch_bounds__(kThreads) sample_kernel(SampleKernel p) {
  __shared__ Shared shared;
  const std::int64_t r = blockIdx.x;
  const ops::SampleRow params = p.rows[r];
  Row row{p.logits + r * p.logits_stride, p.vocab, 0.0, 1.0};
  for (std::int32_t i = threadIdx.x; i < p.top_width; i += kThreads) {
    p.top_ids[r * p.top_width + i] = -1;
    p.top_logprobs[r * p.top_width + i] = 0.0f;
  }
  std::int32_t token = 0;
  if (!find_largest(row, token, shared)) {
    if (threadIdx.x == 0) p.out[r] = ops::SampledToken{};
    return;
  }
  const double log_total = log(to_double(measure_from(row, 0, shared)) * 0x1.0p-52);
  const auto logprob = [&](std::int64_t id) {
    return static_cast<float>(static_cast<double>(row.logits[id]) - row.largest - log_total);
  };
  if (params.forced_token >= 0) {
    token = params.forced_token;
  } else if (params.temperature > 0.0f) {
    row.temperature = params.temperature;
    token = draw(row, params, shared);
  }
  if (threadIdx.x == 0) p.out[r] = ops::SampledToken{token, logprob(token)};
  const auto count = static_cast<std::int32_t>(params.top_logprobs < p.vocab ? params.top_logprobs : p.vocab);
  if (count > 0) report_best(p, row, count, logprob, shared);
}

}  // namespace

void launch_sample_tokens(const SampleKernel& kernel, const Launch& launch) {
  if (kernel.num_rows == 0) return;
  sample_kernel<<<static_cast<unsigned>(kernel.num_rows), kThreads, 0, launch.stream>>>(kernel);
}

}  // namespace tessera::backends::cuda
