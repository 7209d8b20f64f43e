// What tasks do alike when they ask: shorten what people are shown, tell a question that does not fit the model from a
// failure, and refuse data with two questions of one name.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "tessera/base/status.h"
#include "tessera/quality/data_file.h"
#include "tessera/quality/distribution_source.h"
#include "tessera/quality/outcome.h"
#include "tessera/quality/respondent.h"

namespace tessera::quality {

// At most kShownBytes of it, cut between two characters: of an answer the end is what is judged, so a text that is too
// long loses its middle.
std::string shown(std::string_view text);

// An outcome with what `judge` fills in, or, where it fails with out_of_range, one that was skipped for that reason.
base::Result<Outcome> ask_or_skip(std::string question, std::string cell,
                                  const std::function<base::Status(Outcome&)>& judge);

// A passage as a task returns it: with its question's names, or none where it was not encoded for being too long
// (out_of_range) or is longer than the model's context.
base::Result<std::optional<Passage>> passage_or_none(std::string question, std::string cell,
                                                     base::Result<Passage> passage, const Respondent& respondent);

// Which ids a task has seen: a question that comes twice would be paired with itself.
class QuestionIds {
 public:
  // data_loss, naming file and line.
  base::Status add(const DataLines& data, std::size_t index, const std::string& id);

 private:
  std::map<std::string, std::size_t> lines_;
};

}  // namespace tessera::quality
