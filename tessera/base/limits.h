// Hard limits on what comes from outside. Each is checked before anything is allocated.
#pragma once

#include <cstdint>

namespace tessera::base::limits {

// Checkpoints.
inline constexpr std::int64_t kSafetensorsHeaderBytesMax = 100'000'000;  // The format's own limit.
inline constexpr std::int64_t kTensorRankMax = 8;
inline constexpr std::int64_t kTensorsPerCheckpointMax = 1'000'000;
inline constexpr std::int64_t kShardsPerCheckpointMax = 1000;
inline constexpr std::int64_t kJsonFileBytesMax = 256 << 20;
inline constexpr std::int64_t kJsonDepthMax = 64;
inline constexpr std::int64_t kVocabularyMax = 1 << 21;
inline constexpr std::int64_t kLayersMax = 1024;
inline constexpr std::int64_t kHiddenMax = 1 << 17;
inline constexpr std::int64_t kIntermediateMax = 1 << 20;
inline constexpr std::int64_t kHeadsMax = 4096;
inline constexpr std::int64_t kHeadDimMax = 4096;
inline constexpr std::int64_t kConfigFileBytesMax = 4 << 20;
inline constexpr std::int64_t kModuleListMax = 100'000;  // Names in a quantization config's lists.
inline constexpr std::int64_t kModulePatternsMax = 64;
inline constexpr std::int64_t kModulePatternBytesMax = 512;
inline constexpr std::int64_t kModulePatternStepsMax = 30'000'000;  // Of all patterns on all names of a model.
inline constexpr std::int64_t kStopTokensMax = 64;
inline constexpr std::int64_t kContextMax = 1 << 24;
inline constexpr std::int64_t kExpertsMax = 4096;                // Of one layer.
inline constexpr std::int64_t kExpertsOfAllLayersMax = 1 << 16;  // A model's experts are listed before a file is seen.
inline constexpr std::int64_t kSharedExpertsMax = 64;
inline constexpr std::int64_t kLoraRankMax = 1 << 16;
inline constexpr std::int64_t kIndexTopkMax = 1 << 16;
inline constexpr std::int64_t kNextnLayersMax = 16;
inline constexpr std::int64_t kBatchTokensMax = 1 << 22;  // Of one forward pass.

// Requests.
inline constexpr std::int64_t kBodyBytesMax = 16 << 20;
inline constexpr std::int64_t kHeaderBytesMax = 16 << 10;
inline constexpr std::int64_t kChoicesMax = 16;  // "n"
inline constexpr std::int64_t kStopStringsMax = 16;
inline constexpr std::int64_t kStopStringBytesMax = 256;
inline constexpr std::int64_t kTopLogprobsMax = 20;
// Log-probabilities of prompt tokens, alternatives included: in one answer, and in all that are being made.
inline constexpr std::int64_t kPromptLogprobsMax = 1 << 20;
inline constexpr std::int64_t kPromptLogprobsLiveMax = 1 << 24;
inline constexpr std::int64_t kLogitBiasesMax = 1024;
inline constexpr std::int64_t kMessagesMax = 4096;
inline constexpr std::int64_t kToolsMax = 1024;
inline constexpr std::int64_t kToolCallsMax = 1024;  // Of one message.
inline constexpr std::int64_t kToolValuesMax =
    200'000;  // JSON values in a request's tools and the calls of its history.
inline constexpr std::int64_t kToolNameBytesMax = 256;
inline constexpr std::int64_t kToolCallIdBytesMax = 512;

}  // namespace tessera::base::limits
