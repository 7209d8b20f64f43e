// Every op of every backend refuses wrong parameters before it touches memory. ops/param_checks_test.cc has the details
// of the ops that need no pages; here are the others, and that each backend calls the checks at all.
#include "tests/conformance/paged_kv.h"

namespace tessera::conformance {
namespace {

class MisuseDeathTest : public BackendTest {
 protected:
  static constexpr std::int32_t kHeads = 2;
  static constexpr std::int32_t kHeadDim = 16;
  MisuseDeathTest() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
  ops::KvLayout layout() const { return ops::gqa_kv_layout(ops::KvFormat::kBF16, 2, 16, kHeads, kHeadDim); }
};
INSTANTIATE_TEST_SUITE_P(Backends, MisuseDeathTest, all_backends(), backend_case_name);

TEST_P(MisuseDeathTest, Layers) {
  const DeviceMatrix a = device_.output_matrix(2, 32);
  const DeviceMatrix wrong = device_.output_matrix(2, 31);
  const ops::Weight vector = device_.weight(HostMatrix(1, 32), ops::WeightFormat::kF32, ops::WeightUsage::kVector);
  const ops::Weight linear = device_.weight(HostMatrix(32, 32), ops::WeightFormat::kF32, ops::WeightUsage::kLinear);
  EXPECT_DEATH(backend().rms_norm(stream(), {a.view(), &vector, 1e-5f, wrong.view()}), "expected \\[2, 32\\]");
  EXPECT_DEATH(backend().swiglu(stream(), {a.view(), wrong.view(), a.view()}), "expected \\[2, 32\\]");
  EXPECT_DEATH(backend().linear(stream(), {a.view(), &linear, nullptr, wrong.view(), ops::OutputMode::kOverwrite}),
               "expected \\[2, 32\\]");
  ops::RopeParams rope;
  rope.x = a.view();
  rope.heads = kHeads;
  rope.head_dim = kHeadDim;
  rope.rotary_dim = kHeadDim;
  EXPECT_DEATH(backend().rope(stream(), rope), "expected \\[0, 32\\]");
}

TEST_P(MisuseDeathTest, KvWrite) {
  PagedKv kv(device_, layout(), {20}, 1);
  const kv_cache::CheckedPages checked = kv.check(std::vector<Window>{{0, 20, 2}});
  const DeviceMatrix x = device_.output_matrix(2, 32);
  const DeviceMatrix wrong = device_.output_matrix(3, 32);
  const auto flags = device_.upload(std::vector<std::uint8_t>(2));
  EXPECT_DEATH(backend().kv_write(stream(), {checked.slots, {x.view(), wrong.view()}, kv.cache(), 0, flags.data()}),
               "expected \\[2, 32\\]");
  EXPECT_DEATH(backend().kv_write(stream(), {checked.slots, {x.view(), x.view()}, kv.cache(), 2, flags.data()}),
               "layer 2 of 2");
  EXPECT_DEATH(backend().kv_write(stream(), {checked.slots, {x.view(), x.view()}, kv.cache(), 0, nullptr}),
               "nonfinite_rows");
}

TEST_P(MisuseDeathTest, PagedAttention) {
  PagedKv kv(device_, layout(), {20}, 1);
  const kv_cache::CheckedPages checked = kv.check(std::vector<Window>{{0, 20, 2}});
  const DeviceMatrix q = device_.output_matrix(2, 64);
  const DeviceMatrix out = device_.output_matrix(2, 64);
  const std::vector<std::int32_t> cu = {0, 2};
  const ops::PagedAttentionParams good{q.view(), cu,     checked.pages, kv.cache(), 0,
                                       4,        kHeads, kHeadDim,      1.0f,       out.view()};
  ops::PagedAttentionParams p = good;
  p.heads = 3;
  EXPECT_DEATH(backend().paged_attention(stream(), p), "3 heads over 2 KV heads");
  const std::vector<std::int32_t> longer = {0, 3};
  p = good;
  p.cu_seqlens_q = longer;
  EXPECT_DEATH(backend().paged_attention(stream(), p), "expected \\[3, 64\\]");
  const std::vector<std::int32_t> falling = {0, 3, 2};
  p = good;
  p.cu_seqlens_q = falling;
  EXPECT_DEATH(backend().paged_attention(stream(), p), "cu_seqlens_q");
  p = good;
  p.out = q.view();
  EXPECT_DEATH(backend().paged_attention(stream(), p), "overlap");
  p = good;
  p.layer = -1;
  EXPECT_DEATH(backend().paged_attention(stream(), p), "layer -1");
}

TEST_P(MisuseDeathTest, MoreQueriesThanKeys) {
  PagedKv kv(device_, layout(), {20}, 1);
  const kv_cache::CheckedPages checked = kv.check(std::vector<Window>{{0, 2, 0}});
  const DeviceMatrix q = device_.output_matrix(3, 64);
  const DeviceMatrix out = device_.output_matrix(3, 64);
  const std::vector<std::int32_t> cu = {0, 3};
  // A device may find out only while it runs.
  EXPECT_DEATH(
      {
        backend().paged_attention(stream(),
                                  {q.view(), cu, checked.pages, kv.cache(), 0, 4, kHeads, kHeadDim, 1.0f, out.view()});
        synchronize_or_die();
      },
      "3 queries over 2");
}

TEST_P(MisuseDeathTest, Pages) {
  PagedKv kv(device_, layout(), {20}, 1);
  const kv_cache::CheckedPages checked = kv.check(std::vector<Window>{{0, 20, 2}});
  const auto images =
      device_.upload(std::vector<std::byte>(static_cast<std::size_t>(layout().page_layer_bytes(0) * 8)));
  const auto digests = device_.upload(std::vector<std::uint64_t>(8));
  ops::KvLayout f32 = layout();
  f32.format = ops::KvFormat::kF32;
  EXPECT_DEATH(
      backend().gather_pages(stream(), {checked.pages, kv.cache(), f32, 0, 0, 0, 1, 0, images.data(), digests.data()}),
      "no conversion from bf16 to f32");
  ops::KvLayout other_size = layout();
  other_size.page_size = 64;
  EXPECT_DEATH(backend().gather_pages(
                   stream(), {checked.pages, kv.cache(), other_size, 0, 0, 0, 1, 0, images.data(), digests.data()}),
               "nothing but the format");
  EXPECT_DEATH(backend().gather_pages(
                   stream(), {checked.pages, kv.cache(), layout(), 0, 1, 0, 1, 0, images.data(), digests.data()}),
               "row 1 of 1");
  EXPECT_DEATH(backend().digest_pages(stream(), {checked.pages, kv.cache(), 0, 0, 3, 2, 0, digests.data()}),
               "2 pages from 3 of 4");
  EXPECT_DEATH(backend().digest_pages(stream(), {checked.pages, kv.cache(), 0, 0, 0, 1, 0, nullptr}), "digests");
  EXPECT_DEATH(backend().scatter_pages(stream(), {checked.slots, kv.cache(), 0, nullptr}), "images");
  EXPECT_DEATH(backend().digest_tokens(stream(), {checked.slots, kv.cache(), 1, 2, 0, digests.data()}),
               "2 layers from 1 of 2");
  EXPECT_DEATH(backend().digest_tokens(stream(), {checked.slots, kv.cache(), 0, 2, 0, nullptr}), "digests");
  const auto entries = device_.upload(std::vector<ops::PageTableEntry>(1));
  const auto verdicts = device_.upload(std::vector<ops::RowVerdict>(1));
  EXPECT_DEATH(
      backend().check_digests(stream(), {checked.pages, kv.cache(), 0, nullptr, 1, entries.data(), verdicts.data()}),
      "recorded");
  EXPECT_DEATH(backend().check_digests(
                   stream(), {checked.pages, kv.cache(), 0, digests.data(), -1, entries.data(), verdicts.data()}),
               "-1 entries");
}

TEST_P(MisuseDeathTest, VerifyAndSample) {
  EXPECT_DEATH(backend().verify_pages(stream(), {}), "page_size");
  const DeviceMatrix logits = device_.output_matrix(1, 8);
  const std::vector<ops::SampleRow> rows(2);
  EXPECT_DEATH(backend().sample_tokens(stream(), {logits.view(), rows, 0, nullptr, nullptr, nullptr}),
               "expected \\[2, 8\\]");
}

}  // namespace
}  // namespace tessera::conformance
