#include "tessera/quality/task.h"

namespace tessera::quality {

std::vector<TaskEntry> tool_tasks() { return {}; }

}  // namespace tessera::quality
