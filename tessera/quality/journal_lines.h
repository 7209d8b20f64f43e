// The lines of a journal: one object each, written and read back to the same bits.
#pragma once

#include <boost/json/object.hpp>
#include <cstddef>
#include <string>
#include <string_view>

#include "tessera/base/status.h"
#include "tessera/quality/journal.h"

namespace tessera::quality {

std::string header_line(const EvaluationIdentity& identity);
// Whether a file that begins with these bytes, and has no line end yet, may become a journal.
bool may_begin_header(std::string_view bytes);
std::string respondent_line(std::size_t plan, const RespondentInfo& respondent);
std::string outcome_line(std::size_t plan, std::string_view task, const Outcome& outcome);
std::string distances_line(std::size_t plan, std::string_view task, const PassageDistances& distances);

// data_loss: the text is no JSON object. Bytes that are not UTF-8 pass: a model may have written them.
base::Result<boost::json::object> parse_line(std::string_view line);
// data_loss: not the first line of a journal. invalid_argument: one of another evaluation; says what differs.
base::Status check_header(const boost::json::object& line, const EvaluationIdentity& identity);
// Adds what any other line says. data_loss: it is none of the lines above.
base::Status take_line(const boost::json::object& line, JournalContents& contents);

}  // namespace tessera::quality
