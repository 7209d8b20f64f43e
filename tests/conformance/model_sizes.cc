#include "tests/conformance/model_sizes.h"

#include "tests/conformance/paged_kv.h"

namespace tessera::conformance {

namespace {

constexpr std::int32_t kHeads = 9;
constexpr std::int32_t kKvHeads = 3;
constexpr std::int32_t kHeadDim = 64;

}  // namespace

HostMatrix linear(Device& device, const HostMatrix& in, const HostMatrix& weight_values, ops::WeightFormat format) {
  const ops::Weight weight = device.weight(weight_values, format, ops::WeightUsage::kLinear);
  const DeviceMatrix device_in = device.upload_matrix(in);
  const DeviceMatrix out = device.output_matrix(in.rows, weight_values.rows);
  device.backend().linear(device.stream(),
                          {device_in.view(), &weight, nullptr, out.view(), ops::OutputMode::kOverwrite});
  return device.download_matrix(out);
}

HostMatrix rms_norm(Device& device, const HostMatrix& in, const HostMatrix& weight_values) {
  const ops::Weight weight = device.weight(weight_values, ops::WeightFormat::kF32, ops::WeightUsage::kVector);
  const DeviceMatrix x = device.upload_matrix(in);
  device.backend().rms_norm(device.stream(), {x.view(), &weight, 1e-5f, x.view()});
  return device.download_matrix(x);
}

HostMatrix attention(Device& device, ops::KvFormat format, std::uint64_t seed) {
  Random random(seed);
  const std::vector<std::int32_t> lengths = {700, 1, 130, 1030, 64};
  const ops::KvLayout layout = ops::gqa_kv_layout(format, 1, 64, kKvHeads, kHeadDim);
  PagedKv kv(device, layout, lengths, seed);
  for (int s = 0; s < 5; ++s) {
    const std::int32_t length = lengths[static_cast<std::size_t>(s)];
    const HostMatrix k = random_matrix(random, length, kKvHeads * kHeadDim);
    const HostMatrix v = random_matrix(random, length, kKvHeads * kHeadDim);
    kv.write(0, std::vector<Window>{{s, length, length}}, k, v);
  }
  const std::vector<Window> windows = {{0, 700, 60}, {1, 1, 1}, {2, 130, 1}, {3, 1030, 1}, {4, 64, 1}};
  const HostMatrix q = random_matrix(random, new_tokens(windows), kHeads * kHeadDim);
  const kv_cache::CheckedPages checked = kv.check(windows);
  const std::vector<std::int32_t> cu = {0, 60, 61, 62, 63, 64};
  const DeviceMatrix device_q = device.upload_matrix(q);
  const DeviceMatrix out = device.output_matrix(q.rows, q.cols);
  device.backend().paged_attention(device.stream(), {device_q.view(), cu, checked.pages, kv.cache(), 0, kHeads,
                                                     kKvHeads, kHeadDim, 0.125f, out.view()});
  return device.download_matrix(out);
}

Sampled sample(Device& device, const HostMatrix& logits, const std::vector<ops::SampleRow>& rows) {
  const DeviceMatrix device_logits = device.upload_matrix(logits);
  const auto out = device.upload(std::vector<ops::SampledToken>(rows.size()));
  device.backend().sample_tokens(device.stream(), {device_logits.view(), rows, 0, out.data(), nullptr, nullptr});
  Sampled sampled;
  for (const ops::SampledToken& token : device.download(out)) {
    sampled.tokens.push_back(token.token);
    sampled.logprobs.push_back(token.logprob);
  }
  return sampled;
}

std::vector<ops::SampleRow> sample_rows(Random& random, std::int64_t count) {
  std::vector<ops::SampleRow> rows(static_cast<std::size_t>(count));
  for (std::size_t r = 0; r < rows.size(); ++r) {
    rows[r].temperature = r % 4 == 0 ? 0.0f : static_cast<float>(0.3 + random.uniform());
    rows[r].top_p = r % 3 == 0 ? 1.0f : 0.9f;
    rows[r].top_k = r % 2 == 0 ? 0 : 50;
    rows[r].seed = random.bits();
    rows[r].position = r;
  }
  return rows;
}

}  // namespace tessera::conformance
