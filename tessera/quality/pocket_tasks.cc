#include "tessera/quality/task.h"

namespace tessera::quality {

std::vector<TaskEntry> pocket_tasks() { return {}; }

}  // namespace tessera::quality
