#include "tessera/ops/collective.h"

#include "tests/conformance/backend_test.h"

namespace tessera::conformance {
namespace {

class CollectiveTest : public BackendTest {};
INSTANTIATE_TEST_SUITE_P(Backends, CollectiveTest, all_backends(), backend_case_name);

TEST_P(CollectiveTest, OneRankIsAlone) {
  const ops::SingleRank alone(backend());
  EXPECT_EQ(alone.rank(), 0);
  EXPECT_EQ(alone.size(), 1);
}

TEST_P(CollectiveTest, SumOverOneRankChangesNothing) {
  Random random(601);
  ops::SingleRank alone(backend());
  const HostMatrix x = random_matrix(random, 5, 33);
  const DeviceMatrix device_x = device_.upload_matrix(x, 3);
  alone.all_reduce_sum(stream(), device_x.view());
  EXPECT_TRUE(same_bits(device_.download_matrix(device_x), x));
}

TEST_P(CollectiveTest, GatherOverOneRankCopies) {
  Random random(602);
  ops::SingleRank alone(backend());
  for (const std::int64_t rows : {0, 1, 5}) {
    const HostMatrix x = random_matrix(random, rows, 33);
    const DeviceMatrix device_x = device_.upload_matrix(x, 3);
    const DeviceMatrix out = device_.output_matrix(rows, 33, 7);
    alone.all_gather_columns(stream(), device_x.view(), out.view());
    EXPECT_TRUE(same_bits(device_.download_matrix(out), x));
  }
}

}  // namespace
}  // namespace tessera::conformance
