#include "evaluate_plans.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>  // NOLINT(modernize-deprecated-headers): mkdtemp is POSIX's.

#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::app {
namespace {

using ::testing::HasSubstr;

class EvaluatePlansTest : public testing::Test {
 protected:
  EvaluatePlansTest() {
    std::string pattern = testing::TempDir() + "evaluate_plans.XXXXXX";
    folder_ = mkdtemp(pattern.data());
    for (const char* const name : {"one", "two"}) {
      std::filesystem::create_directory(folder_ / name);
      std::ofstream(folder_ / name / "config.json") << "{}";
    }
    defaults_.model = folder_ / "one";
  }
  ~EvaluatePlansTest() override { std::filesystem::remove_all(folder_); }

  PlanSpec plan(std::string_view text) const {
    const auto plan = parse_plan(text, defaults_);
    EXPECT_TRUE(plan.has_value()) << plan.error().message();
    return plan.value_or(PlanSpec{});
  }
  std::string error(std::string_view text) const {
    const auto plan = parse_plan(text, defaults_);
    return plan.has_value() ? "ok" : plan.error().message();
  }
  std::string error_of_all(const std::vector<std::string>& plans, const std::vector<std::string>& urls) const {
    const auto all = parse_plans(plans, urls, defaults_);
    return all.has_value() ? "ok" : all.error().message();
  }

  std::filesystem::path folder_;
  PlanDefaults defaults_;
};

TEST_F(EvaluatePlansTest, ReadsOwnEngines) {
  const PlanSpec bare = plan("bf16-v2.1");
  EXPECT_EQ(bare.name, "bf16-v2.1");
  EXPECT_TRUE(bare.is_own());
  EXPECT_TRUE(bare.split);
  EXPECT_EQ(bare.prefill_kv, ops::KvFormat::kBF16);
  EXPECT_EQ(bare.decode_kv, ops::KvFormat::kF8E4M3);
  EXPECT_EQ(bare.model, (folder_ / "one").string());

  const PlanSpec full = plan("x:model=" + (folder_ / "two").string() +
                             ",role=split,prefill-kv=f32,decode-kv=bf16,batch=3,chunk=64,"
                             "backend=reference");
  EXPECT_EQ(full.model, (folder_ / "two").string());
  EXPECT_EQ(full.prefill_kv, ops::KvFormat::kF32);
  EXPECT_EQ(full.decode_kv, ops::KvFormat::kBF16);
  EXPECT_EQ(full.batch, 3);
  EXPECT_EQ(full.chunk, 64);
  EXPECT_EQ(full.backend.name, "reference");
  EXPECT_EQ(describe(full), "role=split prefill-kv=f32 decode-kv=bf16 batch=3 chunk=64 backend=reference model=" +
                                (folder_ / "two").string());

  const PlanSpec unified = plan("u:role=unified,kv=fp8_e4m3,device=cuda");
  EXPECT_FALSE(unified.split);
  EXPECT_EQ(unified.prefill_kv, ops::KvFormat::kF8E4M3);
  EXPECT_EQ(unified.decode_kv, ops::KvFormat::kF8E4M3);
  EXPECT_EQ(describe(unified), "role=unified kv=fp8_e4m3 batch=64 chunk=512 device=cuda model=" + defaults_.model);

  const PlanSpec both = plan("b:kv=fp8_e4m3,prefill-kv=bf16");
  EXPECT_EQ(both.prefill_kv, ops::KvFormat::kBF16);
  EXPECT_EQ(both.decode_kv, ops::KvFormat::kF8E4M3);
}

TEST_F(EvaluatePlansTest, ReadsServers) {
  const PlanSpec server = plan("there:url=http://example.org:8000/v1,model=some/model,api-key-file=key");
  EXPECT_FALSE(server.is_own());
  EXPECT_EQ(server.url, "http://example.org:8000/v1");
  EXPECT_EQ(server.model, "some/model");
  EXPECT_EQ(server.api_key_file, "key");
  EXPECT_EQ(describe(server), "url=http://example.org:8000/v1 model=some/model");
  EXPECT_EQ(plan("there:url=http://h").model, "");

  const auto all =
      parse_plans(std::vector<std::string>{"a"}, std::vector<std::string>{"http://h:1", "http://h:2"}, defaults_);
  ASSERT_TRUE(all.has_value()) << all.error().message();
  ASSERT_EQ(all->size(), 3u);
  EXPECT_EQ((*all)[0].name, "a");
  EXPECT_EQ((*all)[2].name, "h:2");
  EXPECT_EQ((*all)[2].url, "http://h:2");
}

TEST_F(EvaluatePlansTest, SaysWhatIsWrong) {
  for (const char* const text : {"", ":kv=bf16", "a b", "a/b:kv=bf16"}) {
    EXPECT_THAT(error(text), HasSubstr("expected NAME or NAME:key=value")) << text;
  }
  EXPECT_THAT(error("a:kv"), HasSubstr("'kv': expected key=value"));
  EXPECT_THAT(error("a:kv="), HasSubstr("'kv=': expected key=value"));
  EXPECT_THAT(error("a:,"), HasSubstr("expected key=value"));
  EXPECT_THAT(error("a:kv=bf16,kv=bf16"), HasSubstr("key 'kv' stands twice"));
  EXPECT_THAT(error("a:kv=fp16"), HasSubstr("--plan 'a': kv=fp16: expected one of bf16, fp8_e4m3, f32"));
  EXPECT_THAT(error("a:role=prefill"), HasSubstr("role=prefill: expected one of unified, split"));
  EXPECT_THAT(error("a:temperature=1"), HasSubstr("key 'temperature' is not known here; there are model, role, kv"));
  EXPECT_THAT(error("a:url=http://h,kv=bf16"), HasSubstr("key 'kv' is not known here; there are url, model, api-key"));
  EXPECT_THAT(error("a:url=https://h"), HasSubstr("url 'https://h': expected http://HOST:PORT"));
  for (const char* const number : {"0", "-1", "4097", "1x", "x", "99999999999999999999"}) {
    EXPECT_THAT(error(std::string("a:batch=") + number), HasSubstr("expected a number from 1 to 4096")) << number;
  }
  EXPECT_THAT(error("a:role=unified,decode-kv=bf16"), HasSubstr("one pool: expected kv="));
  EXPECT_THAT(error("a:prefill-kv=fp8_e4m3,decode-kv=bf16"), HasSubstr("prefill-kv and decode-kv: "));
  EXPECT_THAT(error("a:kv=f32"), HasSubstr("expected backend=reference"));
  EXPECT_THAT(error("a:model=" + folder_.string()), HasSubstr("expected a folder with a config.json"));
  defaults_.model.clear();
  EXPECT_THAT(error("a"), HasSubstr("expected --model DIR, or model=DIR or url=URL"));
}

TEST_F(EvaluatePlansTest, NamesAreTheirOwnAndOneIsThere) {
  EXPECT_EQ(error_of_all({"a", "b"}, {}), "ok");
  EXPECT_THAT(error_of_all({"a", "a:kv=bf16"}, {}), HasSubstr("two plans are named 'a'"));
  EXPECT_THAT(error_of_all({}, {"http://h:1", "http://h:1/v1"}), HasSubstr("two plans are named 'h:1'"));
  const auto one = parse_plans({}, {}, defaults_);
  ASSERT_TRUE(one.has_value());
  ASSERT_EQ(one->size(), 1u);
  EXPECT_EQ((*one)[0].name, "default");
  defaults_.model.clear();
  EXPECT_THAT(error_of_all({}, {}), HasSubstr("nothing to evaluate: expected --model DIR"));
}

}  // namespace
}  // namespace tessera::app
