#include <fmt/format.h>

#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "tessera/quality/task.h"

namespace tessera::quality {

std::vector<TaskEntry> task_list() {
  std::vector<TaskEntry> all;
  for (auto tasks : {pocket_tasks, text_tasks, choice_tasks, code_tasks, tool_tasks}) {
    for (TaskEntry& entry : tasks()) all.push_back(std::move(entry));
  }
  return all;
}

base::Result<TaskEntry> find_task(std::string_view name) {
  std::string names;
  for (TaskEntry& entry : task_list()) {
    if (entry.info.name == name) return std::move(entry);
    names += (names.empty() ? "" : ", ") + entry.info.name;
  }
  return base::failure(base::not_found(fmt::format("task '{}' is not known; there are {}", name, names)));
}

std::vector<std::size_t> select_questions(const Task& task, std::int64_t limit) {
  std::vector<std::size_t> chosen;
  const std::size_t size = task.size();
  const auto wanted = static_cast<std::size_t>(limit);
  if (limit > 0 && !task.info().limit_by_cell && wanted < size) {
    chosen.reserve(wanted);
    for (std::size_t i = 0; i < wanted; ++i) chosen.push_back(i * size / wanted);
    return chosen;
  }
  std::map<std::string, std::size_t> taken;
  for (std::size_t i = 0; i < size; ++i) {
    if (limit > 0 && task.info().limit_by_cell && ++taken[task.cell(i)] > wanted) continue;
    chosen.push_back(i);
  }
  return chosen;
}

}  // namespace tessera::quality
