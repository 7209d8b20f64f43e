#include "tessera/text/output_parser.h"

namespace tessera::text {

struct OutputParser::State {
  OutputSyntax syntax;
  const std::vector<Tool>* tools;
};

OutputParser::OutputParser(OutputSyntax syntax, const std::vector<Tool>& tools)
    : state_(std::make_unique<State>(State{syntax, &tools})) {}
OutputParser::~OutputParser() = default;
OutputParser::OutputParser(OutputParser&&) noexcept = default;
OutputParser& OutputParser::operator=(OutputParser&&) noexcept = default;

void OutputParser::push(std::string_view text, OutputDelta& out) { out.content += text; }
void OutputParser::finish(OutputDelta& /*out*/) {}
std::int32_t OutputParser::complete_calls() const { return 0; }

std::vector<std::string_view> marker_spellings(OutputSyntax /*syntax*/) { return {}; }

}  // namespace tessera::text
