// GSM8K: school arithmetic in words, worked out step by step. Put and judged as lm-evaluation-harness does (task
// gsm8k), but for the examples: always the training set's first five, where the harness draws five.
#pragma once

#include "tessera/quality/task.h"

namespace tessera::quality {

TaskEntry gsm8k_task();

}  // namespace tessera::quality
