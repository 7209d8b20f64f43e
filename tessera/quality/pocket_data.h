// The bundled model's held-out questions as its files have them (models/tessera-pocket/README.md says how they are
// written): read, checked, and put as the API takes them.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/status.h"
#include "tessera/quality/respondent.h"
#include "tessera/quality/tool_judge.h"

namespace tessera::quality {

enum class PocketScoring : std::uint8_t {
  kNumber,   // pocket-arithmetic
  kChoice,   // pocket-choice
  kText,     // pocket-retrieval, and what pocket-tools must decline
  kCalls,    // pocket-tools
  kEpisode,  // pocket-episodes
  kTrace,    // pocket-trace
  kCode,     // pocket-functions
};

struct PocketQuestion {
  std::string id;    // "retrieval/3/1024/unseen/7"
  std::string cell;  // "3/unseen/1024": level, split, and for retrieval the length in tokens.
  PocketScoring scoring = PocketScoring::kText;
  // Up to the user's turn that is answered; of an episode all turns, the assistant's being the right answers.
  std::vector<ChatMessage> messages;
  std::string tools;                         // As ChatQuestion has them.
  std::vector<DeclaredTool> declared = {};   // The same, read.
  std::string answer = {};                   // kNumber (decimal), kChoice, kText, kTrace
  std::vector<MadeCall> calls = {};          // kCalls
  std::vector<std::string> choices = {};     // kChoice
  std::vector<std::string> code_tests = {};  // kCode: Python expressions that must be true.
};

struct PocketData {
  std::vector<PocketQuestion> questions;
  std::string digest;  // data_digest() of the file's text and, for retrieval, of both filler texts after it.
};

// FOLDER/pocket-<task>.jsonl.gz, and for retrieval the filler files beside it. not_found, data_loss: names the file and
// the line, and for a field what was expected.
base::Result<PocketData> read_pocket_data(const std::filesystem::path& folder, std::string_view task);

// The call as a conversation's history writes it: the model's own ids and spacing.
ToolCall written_call(const MadeCall& call, std::size_t index);

}  // namespace tessera::quality
