#include "tessera/quality/task.h"

namespace tessera::quality {

std::vector<TaskEntry> code_tasks() { return {}; }

}  // namespace tessera::quality
