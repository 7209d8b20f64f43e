#include "evaluate_plans.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <system_error>
#include <utility>

#include "server_address.h"
#include "tessera/ops/kv_conversion.h"

namespace tessera::app {

namespace {

using Values = std::map<std::string, std::string, std::less<>>;

constexpr std::string_view kOwnKeys =
    "model, role, kv, prefill-kv, decode-kv, kv-rounding, batch, chunk, device, backend";
constexpr std::string_view kServerKeys = "url, model, api-key-file";
constexpr std::size_t kNameBytesMax = 60;

bool is_name(std::string_view text) {
  return !text.empty() && text.size() <= kNameBytesMax && std::ranges::all_of(text, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_' ||
           c == '.';
  });
}

// Takes keys out of a plan's values, so that what is left at the end is what nobody knows.
class Keys {
 public:
  Keys(std::string plan, Values values) : plan_(std::move(plan)), values_(std::move(values)) {}

  base::Status wrong(std::string_view what) const {
    return base::invalid_argument(fmt::format("--plan '{}': {}", plan_, what));
  }

  std::optional<std::string> take(std::string_view key) {
    const auto at = values_.find(key);
    if (at == values_.end()) return std::nullopt;
    std::string value = std::move(at->second);
    values_.erase(at);
    return value;
  }

  base::Status one_of(std::string_view key, std::span<const std::string_view> allowed, std::string& value) {
    const std::optional<std::string> given = take(key);
    if (!given.has_value()) return base::ok_status();
    if (std::ranges::find(allowed, *given) == allowed.end()) {
      std::string names;
      for (const std::string_view name : allowed) names += fmt::format("{}{}", names.empty() ? "" : ", ", name);
      return wrong(fmt::format("{}={}: expected one of {}", key, *given, names));
    }
    value = *given;
    return base::ok_status();
  }

  base::Status number(std::string_view key, std::int64_t max, std::int64_t& value) {
    const std::optional<std::string> given = take(key);
    if (!given.has_value()) return base::ok_status();
    const char* const end = given->data() + given->size();
    const auto [stop, error] = std::from_chars(given->data(), end, value);
    if (error != std::errc{} || stop != end || value < 1 || value > max) {
      return wrong(fmt::format("{}={}: expected a number from 1 to {}", key, *given, max));
    }
    return base::ok_status();
  }

  base::Status kv(std::string_view key, ops::KvFormat& format, bool& given) {
    constexpr std::string_view kFormats[] = {"bf16", "fp8_e4m3", "f32"};
    std::string name;
    TESSERA_RETURN_IF_ERROR(one_of(key, kFormats, name));
    given = !name.empty();
    format = kv_format_of(name).value_or(format);
    return base::ok_status();
  }

  base::Status nothing_left(std::string_view known) const {
    if (values_.empty()) return base::ok_status();
    return wrong(fmt::format("key '{}' is not known here; there are {}", values_.begin()->first, known));
  }

 private:
  const std::string plan_;
  Values values_;
};

base::Status read_server(Keys& keys, PlanSpec& plan) {
  if (base::Result<ServerAddress> address = parse_url(plan.url); !address.has_value()) {
    return keys.wrong(address.error().message());
  }
  plan.model = keys.take("model").value_or("");
  plan.api_key_file = keys.take("api-key-file").value_or("");
  return keys.nothing_left(kServerKeys);
}

base::Status read_kv(Keys& keys, PlanSpec& plan) {
  bool both_given = false;
  bool prefill_given = false;
  bool decode_given = false;
  ops::KvFormat both{};
  TESSERA_RETURN_IF_ERROR(keys.kv("kv", both, both_given));
  if (both_given) plan.prefill_kv = plan.decode_kv = both;
  TESSERA_RETURN_IF_ERROR(keys.kv("prefill-kv", plan.prefill_kv, prefill_given));
  TESSERA_RETURN_IF_ERROR(keys.kv("decode-kv", plan.decode_kv, decode_given));
  std::string rounding;
  TESSERA_RETURN_IF_ERROR(keys.one_of("kv-rounding", kKvRoundingNames, rounding));
  plan.kv_rounding = kv_rounding_of(rounding);
  if (plan.kv_rounding.has_value()) {
    if (!plan.split || both_given || prefill_given || decode_given) {
      return keys.wrong(
          "kv-rounding= simulates the decode pool's KV: expected role=split, and none of kv=, prefill-kv= and "
          "decode-kv=");
    }
    plan.decode_kv = ops::KvFormat::kBF16;
    return base::ok_status();
  }
  if (!plan.split) {
    if (prefill_given || decode_given) {
      return keys.wrong("role=unified has one pool: expected kv=, not prefill-kv= or decode-kv=");
    }
    plan.decode_kv = plan.prefill_kv;
    return base::ok_status();
  }
  if (const base::Status status = ops::check_conversion(plan.prefill_kv, plan.decode_kv); !status.ok()) {
    return keys.wrong(fmt::format("prefill-kv and decode-kv: {}", status.message()));
  }
  return base::ok_status();
}

base::Status read_own(Keys& keys, const PlanDefaults& defaults, PlanSpec& plan) {
  plan.model = keys.take("model").value_or(defaults.model);
  if (plan.model.empty()) return keys.wrong("it has no model: expected --model DIR, or model=DIR or url=URL in it");
  std::error_code error;
  if (!std::filesystem::is_regular_file(std::filesystem::path(plan.model) / "config.json", error)) {
    return base::not_found(
        fmt::format("--plan '{}': model={}: expected a folder with a config.json", plan.name, plan.model));
  }
  constexpr std::string_view kRoles[] = {"unified", "split"};
  std::string role = "split";
  TESSERA_RETURN_IF_ERROR(keys.one_of("role", kRoles, role));
  plan.split = role == "split";
  TESSERA_RETURN_IF_ERROR(read_kv(keys, plan));
  // The limits are those of `tessera serve`.
  TESSERA_RETURN_IF_ERROR(keys.number("batch", 4096, plan.batch));
  TESSERA_RETURN_IF_ERROR(keys.number("chunk", 65536, plan.chunk));
  plan.backend = defaults.backend;
  constexpr std::string_view kDevices[] = {"cpu", "cuda"};
  constexpr std::string_view kBackends[] = {"simd", "reference"};
  TESSERA_RETURN_IF_ERROR(keys.one_of("device", kDevices, plan.backend.device));
  TESSERA_RETURN_IF_ERROR(keys.one_of("backend", kBackends, plan.backend.name));
  const bool reference = plan.backend.device == "cpu" && plan.backend.name == "reference";
  if (!reference && (plan.prefill_kv == ops::KvFormat::kF32 || plan.decode_kv == ops::KvFormat::kF32)) {
    return keys.wrong("KV in f32: only the reference backend has it; expected backend=reference");
  }
  return keys.nothing_left(kOwnKeys);
}

}  // namespace

base::Result<PlanSpec> parse_plan(std::string_view text, const PlanDefaults& defaults) {
  const std::size_t colon = text.find(':');
  PlanSpec plan;
  plan.name = text.substr(0, colon);
  const auto wrong = [&](std::string_view what) {
    return base::failure(base::invalid_argument(fmt::format("--plan '{}': {}", text, what)));
  };
  if (!is_name(plan.name)) {
    return wrong(
        fmt::format("expected NAME or NAME:key=value,..., where NAME has 1 to {} letters, digits, '-', '_' and '.'",
                    kNameBytesMax));
  }
  Values values;
  std::string_view rest = colon == std::string_view::npos ? std::string_view() : text.substr(colon + 1);
  while (!rest.empty()) {
    const std::string_view item = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(rest.size(), item.size() + 1));
    const std::size_t equals = item.find('=');
    if (equals == std::string_view::npos || equals == 0 || equals + 1 == item.size()) {
      return wrong(fmt::format("'{}': expected key=value", item));
    }
    const std::string key(item.substr(0, equals));
    if (!values.emplace(key, item.substr(equals + 1)).second) return wrong(fmt::format("key '{}' stands twice", key));
  }
  Keys keys(plan.name, std::move(values));
  plan.url = keys.take("url").value_or("");
  if (plan.is_own()) {
    TESSERA_RETURN_IF_ERROR(read_own(keys, defaults, plan));
  } else {
    TESSERA_RETURN_IF_ERROR(read_server(keys, plan));
  }
  return plan;
}

base::Result<std::vector<PlanSpec>> parse_plans(std::span<const std::string> plans, std::span<const std::string> urls,
                                                const PlanDefaults& defaults) {
  std::vector<PlanSpec> all;
  all.reserve(plans.size() + urls.size() + 1);
  for (const std::string& text : plans) {
    TESSERA_ASSIGN_OR_RETURN(PlanSpec plan, parse_plan(text, defaults));
    all.push_back(std::move(plan));
  }
  for (const std::string& url : urls) {
    TESSERA_ASSIGN_OR_RETURN(const ServerAddress address, parse_url(url));
    PlanSpec plan;
    plan.name = fmt::format("{}:{}", address.host, address.port);
    plan.url = url;
    all.push_back(std::move(plan));
  }
  if (all.empty() && !defaults.model.empty()) {
    TESSERA_ASSIGN_OR_RETURN(PlanSpec plan, parse_plan("default", defaults));
    all.push_back(std::move(plan));
  }
  if (all.empty()) {
    return base::failure(base::invalid_argument("nothing to evaluate: expected --model DIR, --plan SPEC or --url URL"));
  }
  std::set<std::string> names;
  for (const PlanSpec& plan : all) {
    if (!names.insert(plan.name).second) {
      return base::failure(base::invalid_argument(
          fmt::format("two plans are named '{}': expected a name of its own for each", plan.name)));
    }
  }
  return all;
}

std::string describe(const PlanSpec& plan) {
  if (!plan.is_own()) {
    return fmt::format("url={}{}{}", plan.url, plan.model.empty() ? "" : " model=", plan.model);
  }
  std::string text = plan.split ? fmt::format("role=split prefill-kv={} decode-kv={}",
                                              ops::kv_format_name(plan.prefill_kv), ops::kv_format_name(plan.decode_kv))
                                : fmt::format("role=unified kv={}", ops::kv_format_name(plan.prefill_kv));
  if (plan.kv_rounding.has_value()) text += fmt::format(" kv-rounding={}", kv_rounding_name(*plan.kv_rounding));
  text += fmt::format(" batch={} chunk={}", plan.batch, plan.chunk);
  text += plan.backend.device == "cuda" ? " device=cuda" : fmt::format(" backend={}", plan.backend.name);
  if (plan.backend.device == "cpu" && plan.backend.name == "simd" && plan.backend.simd_target != "best") {
    text += fmt::format(" simd-target={}", plan.backend.simd_target);
  }
  return text + fmt::format(" model={}", plan.model);
}

}  // namespace tessera::app
