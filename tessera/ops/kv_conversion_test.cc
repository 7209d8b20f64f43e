#include "tessera/ops/kv_conversion.h"

#include <gtest/gtest.h>

namespace tessera::ops {
namespace {

TEST(KvConversion, KnowsWhatGatherCanDo) {
  const auto message = [](KvFormat from, KvFormat to) { return check_conversion(from, to).message(); };
  for (const KvFormat format : {KvFormat::kF32, KvFormat::kBF16, KvFormat::kF8E4M3}) {
    EXPECT_TRUE(check_conversion(format, format).ok());
  }
  EXPECT_TRUE(check_conversion(KvFormat::kBF16, KvFormat::kF8E4M3).ok());
  EXPECT_TRUE(check_conversion(KvFormat::kF32, KvFormat::kBF16).ok());
  EXPECT_EQ(message(KvFormat::kF8E4M3, KvFormat::kBF16),
            "KV pages: no conversion from fp8_e4m3 to bf16; possible: fp8_e4m3");
  EXPECT_EQ(message(KvFormat::kF32, KvFormat::kF8E4M3),
            "KV pages: no conversion from f32 to fp8_e4m3; possible: f32, bf16");
  EXPECT_FALSE(check_conversion(KvFormat::kBF16, KvFormat::kF32).ok());
  EXPECT_FALSE(check_conversion(KvFormat::kF8E4M3, KvFormat::kF32).ok());
}

}  // namespace
}  // namespace tessera::ops
