#include "tessera/quality/task.h"

namespace tessera::quality {

std::vector<TaskEntry> text_tasks() { return {}; }

}  // namespace tessera::quality
