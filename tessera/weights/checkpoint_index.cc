#include <fmt/format.h>

#include <boost/json.hpp>
#include <set>

#include "tessera/base/limits.h"
#include "tessera/weights/checkpoint.h"

namespace tessera::weights {

namespace {

namespace json = boost::json;

// A name, not a path: the shard lies in the folder itself.
bool is_plain_shard_name(std::string_view name) {
  constexpr std::string_view kSuffix = ".safetensors";
  if (!name.ends_with(kSuffix) || name.size() == kSuffix.size() || name.size() > 255) return false;
  if (name.front() == '.') return false;
  for (const char c : name) {
    if (c == '/' || c == '\\' || static_cast<unsigned char>(c) < 0x20 || c == 0x7f) return false;
  }
  return true;
}

}  // namespace

base::Result<std::map<std::string, std::string, std::less<>>> parse_checkpoint_index(std::string_view text,
                                                                                     std::string_view file_name) {
  const auto refuse = [&](const std::string& message) {
    return base::failure(base::invalid_argument(fmt::format("{}: {}", file_name, message)));
  };
  json::error_code ec;
  const json::value root = json::parse(text, ec);
  if (ec) return refuse("no JSON: " + ec.message());
  if (!root.is_object()) return refuse("expected an object");
  const json::value* map = root.get_object().if_contains("weight_map");
  if (map == nullptr || !map->is_object()) return refuse("expected an object weight_map");
  if (map->get_object().empty()) return refuse("weight_map is empty");
  if (std::ssize(map->get_object()) > base::limits::kTensorsPerCheckpointMax) {
    return refuse(fmt::format("weight_map has {} tensors, expected at most {}", map->get_object().size(),
                              base::limits::kTensorsPerCheckpointMax));
  }
  std::map<std::string, std::string, std::less<>> weight_map;
  std::set<std::string_view> shards;
  for (const json::key_value_pair& entry : map->get_object()) {
    const std::string_view tensor(entry.key().data(), entry.key().size());
    if (!entry.value().is_string())
      return refuse(fmt::format("tensor {}: expected a shard's name", quote_name(tensor)));
    const json::string& value = entry.value().get_string();
    const std::string_view shard(value.data(), value.size());
    if (!is_plain_shard_name(shard)) {
      return refuse(fmt::format("tensor {}: shard {}, expected a file name in this folder that ends in .safetensors",
                                quote_name(tensor), quote_name(shard)));
    }
    shards.insert(shard);
    weight_map.emplace(tensor, shard);
  }
  if (std::ssize(shards) > base::limits::kShardsPerCheckpointMax) {
    return refuse(fmt::format("{} shards, expected at most {}", shards.size(), base::limits::kShardsPerCheckpointMax));
  }
  return weight_map;
}

}  // namespace tessera::weights
