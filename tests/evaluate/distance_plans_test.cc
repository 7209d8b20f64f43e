#include "distance_plans.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "tests/support/byte_tokenizer.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/tiny_checkpoint.h"

namespace tessera::app {
namespace {

using test_support::ControlToken;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

class DistancePlansTest : public testing::Test {
 protected:
  // A model folder without weights, which nobody reads here.
  PlanSpec plan(const std::string& name, const std::vector<ControlToken>& control,
                std::int64_t vocab_size = 300) const {
    const std::filesystem::path dir = folder_.path() / name;
    std::filesystem::create_directory(dir);
    test_support::TinyLlamaOptions options;
    options.vocab_size = vocab_size;
    std::ofstream(dir / "config.json") << test_support::tiny_llama_config(options);
    std::ofstream(dir / "tokenizer.json") << test_support::byte_tokenizer_json(control);
    PlanSpec plan;
    plan.name = name;
    plan.model = dir.string();
    return plan;
  }
  static DistancePlans choose(const std::vector<PlanSpec>& plans, std::optional<bool> wanted = {}) {
    const auto chosen = choose_distance_plans(plans, wanted);
    EXPECT_TRUE(chosen.has_value()) << chosen.error().message();
    return chosen.value_or(DistancePlans{});
  }
  static std::string error(const std::vector<PlanSpec>& plans, std::optional<bool> wanted = {}) {
    const auto chosen = choose_distance_plans(plans, wanted);
    return chosen.has_value() ? "ok" : chosen.error().message();
  }

  test_support::TemporaryFolder folder_{"distance_plans"};
  const PlanSpec first_ = plan("first", {{"<|turn|>"}, {"<|end|>"}});
  const PlanSpec same_ = plan("same", {{"<|turn|>"}, {"<|end|>"}});
};

TEST_F(DistancePlansTest, LeavesOutOnlyThePlanWithAnotherVocabulary) {
  const PlanSpec longer = plan("longer", {{"<|turn|>"}, {"<|end|>"}}, 400);
  const PlanSpec renamed = plan("renamed", {{"<|turn|>"}, {"\\u001b"}});
  const PlanSpec fewer = plan("fewer", {{"<|turn|>"}});
  const PlanSpec ordinary = plan("ordinary", {{"<|turn|>"}, {"<|end|>", ControlToken::Kind::kOrdinary}});
  PlanSpec again = first_;
  again.name = "again";
  const DistancePlans chosen = choose({first_, longer, same_, renamed, fewer, ordinary, again});
  EXPECT_THAT(chosen.compared, ElementsAre(true, false, true, false, false, false, true));
  EXPECT_TRUE(chosen.any());
  EXPECT_THAT(
      chosen.notes,
      ElementsAre(
          "plan 'longer' has no distances: plan 'longer' has 400 tokens in its vocabulary, and the first plan "
          "300",
          "plan 'renamed' has no distances: token 257 is the control token '\\u001b' in plan 'renamed', and the "
          "control token '<|end|>' in the first plan",
          "plan 'fewer' has no distances: token 257 is nothing in plan 'fewer', and the control token "
          "'<|end|>' in the first plan",
          "plan 'ordinary' has no distances: token 257 is '<|end|>' in plan 'ordinary', and the control token "
          "'<|end|>' in the first plan"));
  EXPECT_EQ(error({first_, renamed}, true),
            "--distances: token 257 is the control token '\\u001b' in plan 'renamed', and the control token "
            "'<|end|>' in the first plan");
  const DistancePlans none = choose({first_, renamed});
  EXPECT_THAT(none.compared, ElementsAre(false, false));
  EXPECT_FALSE(none.any());
  EXPECT_EQ(none.notes.size(), 1u);
}

TEST_F(DistancePlansTest, NeedsTwoPlansOfOwnEngines) {
  PlanSpec server;
  server.name = "server";
  server.url = "http://h";
  EXPECT_THAT(choose({first_, server, same_}).compared, ElementsAre(true, false, true));
  EXPECT_THAT(choose({first_, same_}, false).compared, ElementsAre(false, false));
  const DistancePlans alone = choose({first_, server});
  EXPECT_FALSE(alone.any());
  EXPECT_THAT(alone.notes, IsEmpty());
  const DistancePlans second = choose({server, first_, same_});
  EXPECT_FALSE(second.any());
  EXPECT_EQ(second.notes.size(), 1u);
  EXPECT_EQ(error({first_, server}, true),
            "--distances: the first plan and another must be engines of this command: a server does not give whole "
            "distributions");

  PlanSpec simulated = first_;
  simulated.name = "simulated";
  simulated.kv_rounding = KvRounding::kFp8;
  EXPECT_THAT(choose({first_, simulated}).compared, ElementsAre(true, true));
  const std::string needs =
      "plan 'simulated': a simulated KV format has distances and no answers: expected another plan before it, and no "
      "--no-distances";
  EXPECT_EQ(error({simulated, first_}), needs);
  EXPECT_EQ(error({first_, simulated}, false), needs);
  EXPECT_NE(error({server, simulated}), "ok");
}

TEST_F(DistancePlansTest, NamesAFolderWithoutATokenizer) {
  std::filesystem::remove(std::filesystem::path(same_.model) / "tokenizer.json");
  EXPECT_NE(error({first_, same_}).find(same_.model), std::string::npos) << error({first_, same_});
  // Where one folder is all there is, nothing is read of it.
  EXPECT_EQ(error({same_, same_}), "ok");
}

}  // namespace
}  // namespace tessera::app
