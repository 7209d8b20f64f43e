#include "tessera/quality/gsm8k.h"
#include "tessera/quality/needle.h"
#include "tessera/quality/task.h"
#include "tessera/quality/wikitext.h"

namespace tessera::quality {

std::vector<TaskEntry> text_tasks() { return {gsm8k_task(), needle_task(), wikitext_task()}; }

}  // namespace tessera::quality
