#include "tessera/quality/task.h"

namespace tessera::quality {

std::vector<TaskEntry> choice_tasks() { return {}; }

}  // namespace tessera::quality
