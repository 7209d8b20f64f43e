// What an evaluation says: as a table for the terminal, as JSON for programs, as one page for people that opens without
// a network. All three are made from the same analysis and say the same.
#pragma once

#include <string>

#include "tessera/quality/analysis.h"
#include "tessera/quality/evaluation.h"

namespace tessera::quality {

// Lines of at most 120 columns, no colours.
std::string report_text(const Evaluation& evaluation, const Analysis& analysis);
// One line; docs/evaluate.md has the schema. With outcomes, also all that was asked and answered.
std::string report_json(const Evaluation& evaluation, const Analysis& analysis, bool with_outcomes = false);
// One file with its style and plots (SVG) inside; no script or reference to anything outside. What a model wrote is
// text in it, never markup.
std::string report_html(const Evaluation& evaluation, const Analysis& analysis);

}  // namespace tessera::quality
