#include "distance_plans.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>

#include "output_file.h"
#include "terminal_text.h"
#include "tessera/models/config.h"
#include "tessera/text/tokenizer.h"

namespace tessera::app {

namespace {

// What a model's token ids mean.
struct Vocabulary {
  std::int64_t size = 0;  // Of the model, which may be padded beyond the tokenizer's.
  std::unique_ptr<text::Tokenizer> tokenizer;
};

base::Result<Vocabulary> read_vocabulary(const std::string& model) {
  TESSERA_ASSIGN_OR_RETURN(const models::ModelConfig config, models::read_config(model));
  TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<text::Tokenizer> tokenizer, text::Tokenizer::load(model));
  return Vocabulary{.size = config.vocab_size, .tokenizer = std::move(tokenizer)};
}

std::string meaning(const text::Tokenizer& tokenizer, text::TokenId id) {
  constexpr std::size_t kShownTokenBytes = 40;
  if (!tokenizer.contains(id)) return "nothing";
  return fmt::format("{}'{}'", tokenizer.is_added(id) ? "the control token " : "",
                     shown_line(tokenizer.token_bytes(id), kShownTokenBytes));
}

// The first difference, in words; empty: there is none.
std::string difference(std::string_view plan, const Vocabulary& reference, const Vocabulary& other) {
  if (reference.size != other.size) {
    return fmt::format("plan '{}' has {} tokens in its vocabulary, and the first plan {}", plan, other.size,
                       reference.size);
  }
  const text::Tokenizer& first = *reference.tokenizer;
  const text::Tokenizer& second = *other.tokenizer;
  const text::TokenId ids = std::max(first.vocab_size(), second.vocab_size());
  for (text::TokenId id = 0; id < ids; ++id) {
    if (first.contains(id) == second.contains(id) && first.is_added(id) == second.is_added(id) &&
        first.token_bytes(id) == second.token_bytes(id)) {
      continue;
    }
    return fmt::format("token {} is {} in plan '{}', and {} in the first plan", id, meaning(second, id), plan,
                       meaning(first, id));
  }
  return {};
}

base::Status needs_distances(const PlanSpec& plan) {
  return base::invalid_argument(fmt::format(
      "plan '{}': a simulated KV format has distances and no answers: expected another plan before it, and no "
      "--no-distances",
      plan.name));
}

}  // namespace

bool DistancePlans::any() const {
  return std::ranges::any_of(compared, [](bool is) { return is; });
}

base::Result<DistancePlans> choose_distance_plans(std::span<const PlanSpec> plans, std::optional<bool> wanted) {
  for (const PlanSpec& plan : plans) {
    if (plan.kv_rounding.has_value() && (&plan == plans.data() || wanted == false)) {
      return base::failure(needs_distances(plan));
    }
  }
  DistancePlans chosen;
  chosen.compared.assign(plans.size(), false);
  if (wanted == false) return chosen;
  const auto own = std::ranges::count_if(plans, [](const PlanSpec& plan) { return plan.is_own(); });
  const bool any_simulated =
      std::ranges::any_of(plans, [](const PlanSpec& plan) { return plan.kv_rounding.has_value(); });
  if (own < 2 || !plans.front().is_own()) {
    constexpr std::string_view kObstacle =
        "the first plan and another must be engines of this command: a server does not give whole distributions";
    if (wanted == true || any_simulated) {
      return base::failure(base::invalid_argument(fmt::format("--distances: {}", kObstacle)));
    }
    if (own >= 2) chosen.notes.push_back(fmt::format("no distances: {}", kObstacle));
    return chosen;
  }
  const std::filesystem::path reference_folder = resolved(plans.front().model);
  std::optional<Vocabulary> reference;
  for (std::size_t i = 1; i < plans.size(); ++i) {
    const PlanSpec& plan = plans[i];
    if (!plan.is_own()) continue;
    std::string obstacle;
    if (resolved(plan.model) != reference_folder) {
      if (!reference.has_value()) {
        TESSERA_ASSIGN_OR_RETURN(reference, read_vocabulary(plans.front().model));
      }
      TESSERA_ASSIGN_OR_RETURN(const Vocabulary other, read_vocabulary(plan.model));
      obstacle = difference(plan.name, *reference, other);
    }
    if (obstacle.empty()) {
      chosen.compared[i] = true;
    } else if (wanted == true || plan.kv_rounding.has_value()) {
      return base::failure(base::invalid_argument(fmt::format("--distances: {}", obstacle)));
    } else {
      chosen.notes.push_back(fmt::format("plan '{}' has no distances: {}", plan.name, obstacle));
    }
  }
  chosen.compared[0] = chosen.any();
  return chosen;
}

}  // namespace tessera::app
