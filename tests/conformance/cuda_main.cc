// cuda_conformance_test [--require-device]: cases are skipped where no device is, and count as skipped. For a run on a
// GPU machine that is no result: with the flag the program fails there. In any case it fails where a device is and does
// not work.
#include <gtest/gtest.h>

#include <cstdio>
#include <string_view>

#include "tessera/backends/cuda/cuda_backend.h"

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  const bool require_device = argc == 2 && std::string_view(argv[1]) == "--require-device";
  if (argc > 1 && !require_device) {
    std::fprintf(stderr, "usage: cuda_conformance_test [--require-device] [--gtest_...]\n");
    return 2;
  }
  const tessera::base::Status available = tessera::backends::cuda::cuda_availability();
  const bool may_skip = !require_device && available.code() != tessera::base::StatusCode::kInternal;
  if (!available.ok() && !may_skip && !GTEST_FLAG_GET(list_tests)) {
    std::fprintf(stderr, "no device to test: %s\n", available.to_string().c_str());
    return 1;
  }
  return RUN_ALL_TESTS();
}
