// Full distributions over the vocabulary from real engines that are led through a known text: the prompt is computed as
// the plan's prefill computes it, and every token of the continuation as its decode would have, had it drawn it. That
// is the mechanism by which a preempted sequence is computed again: the prompt in the same chunks, then, in a split
// plan, the handoff with its conversion, then the continuation's tokens, forced, in the decode engine's pages. So the
// distribution of the continuation's first token comes from the prefill plan, all others from the decode plan.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "evaluate_plans.h"
#include "model_shelf.h"
#include "tessera/base/status.h"
#include "tessera/quality/distribution_source.h"

namespace tessera::app {

// Tokens of each pool's pages. A passage, prompt and continuation together, may be as long as the model's context or
// the pool, whichever is smaller.
inline constexpr std::int64_t kForcedPoolTokens = 32768;

// How many passages the constants of a simulated KV format are measured of.
inline constexpr std::size_t kCalibrationPassages = 16;

// Engines for a plan of own engines, in this process and without threads of their own: the caller's thread turns them
// while it waits in distributions(). Passages run up to plan.batch at once in each pool; neither that number nor
// plan.chunk, nor which passages come together, changes a bit of a distribution on the CPU backends. Stop tokens in a
// continuation are tokens like others.
//
// A plan with a simulated KV format is a split plan of BF16 pools: what prompts' rows are when prefill reads them is
// BF16, and rows are rounded as the format has it when pages are gathered for the handoff, and when the decode engine
// writes its own. Constant scales are measured by prepare(), on the first kCalibrationPassages passages that it is
// given and that are not too long; such a plan gives no distributions before that.
//
// The model comes from the shelf and is shared by all sources of the same folder and backend options; without a shelf
// it is loaded for this source alone. Sources that share a model are used from one thread.
//
// distributions(): out_of_range names a passage that is too long, invalid_argument one that is empty or has a token
// outside of the vocabulary; nothing is computed then. cancelled: `stop` was set. That or any other error, an engine's,
// ends the source: it fails with the same status from then on.
//
// Where `stop` becomes true, what is computed ends after the step that is under way; it outlives the source.
//
// Errors here: those of ModelShelf::take; invalid_argument: the backend does not support the plan's KV formats, they
// cannot be handed over, or the model has none of what its simulated KV format is about; resource_exhausted: the pools
// do not fit the memory, with the arithmetic.
base::Result<std::unique_ptr<quality::DistributionSource>> make_forced_scorer(const PlanSpec& plan,
                                                                              ModelShelf* shelf = nullptr,
                                                                              const std::atomic<bool>* stop = nullptr);

}  // namespace tessera::app
