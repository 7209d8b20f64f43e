// MMLU-Pro: up to ten choices, reasoned about before a letter is named. Put as lm-evaluation-harness does (task
// mmlu_pro), judged by its pattern and by that of the data set's authors (answer_patterns.h).
#pragma once

#include "tessera/quality/task.h"

namespace tessera::quality {

TaskEntry mmlu_pro_task();

}  // namespace tessera::quality
