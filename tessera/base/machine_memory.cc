#include "tessera/base/machine_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <limits>
#include <optional>
#include <string_view>
#include <vector>

namespace tessera::base {

namespace {

constexpr std::int64_t kMiB = 1 << 20;

// The number that a text begins with; empty for anything else ("max"), or one that does not fit.
std::optional<std::int64_t> leading_number(std::string_view text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || value < 0) return std::nullopt;
  return value;
}

std::optional<std::int64_t> read_number(const std::filesystem::path& file) {
  std::ifstream in(file);
  std::string line;
  if (!std::getline(in, line)) return std::nullopt;
  return leading_number(line);
}

// The number after `key` and blanks, at the beginning of a line.
std::optional<std::int64_t> read_field(const std::filesystem::path& file, std::string_view key) {
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    std::string_view rest = line;
    if (!rest.starts_with(key)) continue;
    rest.remove_prefix(key.size());
    const std::size_t number = rest.find_first_not_of(" \t");
    if (number == 0 || number == std::string_view::npos) continue;
    return leading_number(rest.substr(number));
  }
  return std::nullopt;
}

// One hierarchy of control groups, and the names that it gives to the same things.
struct Hierarchy {
  std::filesystem::path root;
  std::filesystem::path own;  // Relative to root.
  const char* limit;
  const char* use;
  const char* droppable;  // In memory.stat.
};

std::vector<Hierarchy> hierarchies(const MemorySource& source) {
  std::vector<Hierarchy> all;
  std::ifstream in(source.proc / "self" / "cgroup");
  for (std::string line; std::getline(in, line);) {  // number:controllers:/path
    const std::size_t first = line.find(':');
    const std::size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = fmt::format(",{},", line.substr(first + 1, second - first - 1));
    const std::filesystem::path own = std::filesystem::path(line.substr(second + 1)).lexically_normal().relative_path();
    if (controllers == ",,") {
      all.push_back({source.cgroup, own, "memory.max", "memory.current", "inactive_file"});
    } else if (controllers.find(",memory,") != std::string::npos) {
      all.push_back(
          {source.cgroup / "memory", own, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"});
    }
  }
  return all;
}

}  // namespace

Result<MachineMemory> read_machine_memory(const MemorySource& source) {
  const std::optional<std::int64_t> total = read_field(source.proc / "meminfo", "MemTotal:");
  const std::optional<std::int64_t> available = read_field(source.proc / "meminfo", "MemAvailable:");
  constexpr std::int64_t kKiBMax = std::numeric_limits<std::int64_t>::max() / 1024;
  if (!total.has_value() || !available.has_value() || *total > kKiBMax || *available > *total) {
    return failure(
        unavailable(fmt::format("{}: no sound MemTotal and MemAvailable", (source.proc / "meminfo").string())));
  }
  MachineMemory memory;
  memory.total_bytes = *total * 1024;
  memory.available_bytes = *available * 1024;
  memory.arithmetic =
      fmt::format("physical {} MiB, available {} MiB", memory.total_bytes / kMiB, memory.available_bytes / kMiB);

  for (const Hierarchy& hierarchy : hierarchies(source)) {
    // Upwards: a group is bound by the limits of all that it is in. A container may see its own group as the root, so
    // that the path names folders that are not there.
    for (std::filesystem::path group = hierarchy.own;; group = group.parent_path()) {
      const std::filesystem::path folder = hierarchy.root / group;
      const std::optional<std::int64_t> limit = read_number(folder / hierarchy.limit);
      if (limit.has_value() && *limit < *total * 1024) {
        const std::int64_t use = read_number(folder / hierarchy.use).value_or(0);
        const std::int64_t droppable = read_field(folder / "memory.stat", hierarchy.droppable).value_or(0);
        const std::int64_t held = std::max<std::int64_t>(0, use - droppable);
        memory.total_bytes = std::min(memory.total_bytes, *limit);
        memory.available_bytes = std::min(memory.available_bytes, std::max<std::int64_t>(0, *limit - held));
        memory.arithmetic +=
            fmt::format("; control group /{}: limit {} MiB, in use {} MiB", group.string(), *limit / kMiB, held / kMiB);
      }
      if (group.empty() || group == group.parent_path()) break;
    }
  }
  return memory;
}

}  // namespace tessera::base
