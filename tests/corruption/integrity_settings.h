// What the tests of damaged bytes run: an engine of some role, layout and format, at a level of integrity.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tessera/kv_transfer/wire.h"
#include "tests/corruption/page_bytes.h"
#include "tests/serving/serving_harness.h"

namespace tessera::test_support {

enum class Where : std::uint8_t { kUnified, kPrefill, kDecode };

struct Setting {
  Where where;
  OracleKv kv;
  ops::KvFormat format;
};

inline std::vector<Setting> settings() {
  std::vector<Setting> all;
  for (const OracleKv kv : {OracleKv::kKeysAndValues, OracleKv::kLatents}) {
    all.push_back({Where::kUnified, kv, ops::KvFormat::kBF16});
    all.push_back({Where::kUnified, kv, ops::KvFormat::kF8E4M3});
    all.push_back({Where::kPrefill, kv, ops::KvFormat::kBF16});
    all.push_back({Where::kDecode, kv, ops::KvFormat::kBF16});
    all.push_back({Where::kDecode, kv, ops::KvFormat::kF8E4M3});
  }
  return all;
}

inline std::string setting_name(const testing::TestParamInfo<Setting>& test) {
  const Setting& s = test.param;
  return std::string(s.where == Where::kUnified   ? "Unified"
                     : s.where == Where::kPrefill ? "Prefill"
                                                  : "Decode") +
         (s.kv == OracleKv::kLatents ? "Latents" : "KeysAndValues") +
         (s.format == ops::KvFormat::kBF16 ? "Bf16" : "Fp8");
}

inline HarnessOptions harness_options(const Setting& setting, kv_cache::IntegrityLevel level) {
  HarnessOptions options;
  options.pools = setting.where == Where::kUnified ? Pools::kUnified : Pools::kSplit;
  options.kv = setting.kv;
  (setting.where == Where::kDecode ? options.decode_kv : options.prefill_kv) = setting.format;
  options.integrity.level = level;
  options.integrity.sweep_pages_per_second = 0;
  return options;
}

inline engine::Engine& engine_of(ServingHarness& harness, Where where) {
  return where == Where::kDecode ? harness.decode() : harness.first();
}

// Every kind of byte in the pool that the setting is about.
inline std::vector<ByteSite> sites_of(const HarnessOptions& options, Where where) {
  ServingHarness scene(options);
  return byte_sites(engine_of(scene, where).loop().pool().layout());
}

// Of a message between engines (docs/kv_page.md).
inline kv_transfer::wire::MessageType type_of(std::span<const std::byte> message) {
  constexpr std::size_t kTypeOffset = 6;
  return static_cast<kv_transfer::wire::MessageType>(message[kTypeOffset]);
}

// Drops all messages of a type until it is told to let them pass; what they are for, the engines send again.
class Stall {
 public:
  Stall(ServingHarness& harness, kv_transfer::wire::MessageType type) {
    harness.transport().set_filter([&harness, type, this](auto from, auto to, std::vector<std::byte> message) {
      if (stalled_ && type_of(message) == type) {
        ++dropped_;
        return;
      }
      harness.transport().deliver(from, to, std::move(message));
    });
  }
  void end() { stalled_ = false; }
  int dropped() const { return dropped_; }

 private:
  bool stalled_ = true;
  int dropped_ = 0;
};

inline void expect_balance(ServingHarness& harness) {
  harness.expect_pages_balance(harness.first().loop().stats().pages_quarantined,
                               harness.split() ? harness.decode().loop().stats().pages_quarantined : 0);
}

inline void expect_corrupted(const Heard& heard) {
  EXPECT_EQ(heard.terminals, 1);
  EXPECT_EQ(heard.after_terminal, 0);
  ASSERT_TRUE(heard.failed.has_value());
  EXPECT_EQ(heard.failed->code(), base::StatusCode::kCorruption);
}

}  // namespace tessera::test_support
