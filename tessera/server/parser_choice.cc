#include "tessera/server/parser_choice.h"

#include <fmt/format.h>

#include <array>
#include <span>
#include <string>

namespace tessera::server {

namespace {

using text::ReasoningSyntax;
using text::ToolCallSyntax;

template <typename Syntax>
struct Named {
  std::string_view name;
  Syntax syntax;
};

// All of them are <think>...</think>. kInside: of models whose prompt opens it, as SGLang and vLLM assume for them.
constexpr std::array kReasoningParsers = {
    Named{"none", ReasoningSyntax::kNone},          Named{"think", ReasoningSyntax::kOutside},
    Named{"kimi_k2", ReasoningSyntax::kOutside},    Named{"glm45", ReasoningSyntax::kOutside},
    Named{"qwen3", ReasoningSyntax::kOutside},      Named{"qwen3-thinking", ReasoningSyntax::kInside},
    Named{"deepseek-r1", ReasoningSyntax::kInside}, Named{"deepseek_r1", ReasoningSyntax::kInside},
};

constexpr std::array kToolCallParsers = {
    Named{"none", ToolCallSyntax::kNone},    Named{"kimi_k2", ToolCallSyntax::kKimi},
    Named{"glm45", ToolCallSyntax::kGlm},    Named{"glm47", ToolCallSyntax::kGlm},
    Named{"glm", ToolCallSyntax::kGlm},      Named{"hermes", ToolCallSyntax::kHermes},
    Named{"qwen", ToolCallSyntax::kHermes},  Named{"qwen25", ToolCallSyntax::kHermes},
    Named{"qwen3", ToolCallSyntax::kHermes},
};

template <typename Syntax>
base::Result<std::optional<Syntax>> find_named(std::span<const Named<Syntax>> all, std::string_view name,
                                               std::string_view flag) {
  if (name == "auto") return std::optional<Syntax>();
  std::string known = "auto";
  for (const Named<Syntax>& one : all) {
    if (one.name == name) return std::optional(one.syntax);
    known += fmt::format(", {}", one.name);
  }
  return base::failure(base::invalid_argument(fmt::format("{}: '{}' is not known; there are {}", flag, name, known)));
}

}  // namespace

base::Result<std::optional<ReasoningSyntax>> reasoning_parser_named(std::string_view name) {
  return find_named<ReasoningSyntax>(kReasoningParsers, name, "--reasoning-parser");
}

base::Result<std::optional<ToolCallSyntax>> tool_call_parser_named(std::string_view name) {
  return find_named<ToolCallSyntax>(kToolCallParsers, name, "--tool-call-parser");
}

std::string_view reasoning_parser_name(ReasoningSyntax syntax) {
  return syntax == ReasoningSyntax::kNone ? "none" : "think";
}

std::string_view tool_call_parser_name(ToolCallSyntax syntax) {
  switch (syntax) {
    case ToolCallSyntax::kNone:
      return "none";
    case ToolCallSyntax::kKimi:
      return "kimi_k2";
    case ToolCallSyntax::kGlm:
      return "glm45";
    case ToolCallSyntax::kHermes:
      return "hermes";
  }
  return "none";
}

base::Status check_reasoning_parser(const text::ChatFormat& format, const ParserChoice& choice) {
  const ReasoningSyntax of_format = format.output_syntax({}).reasoning;
  if (choice.reasoning != ReasoningSyntax::kInside || of_format != ReasoningSyntax::kOutside) return base::ok_status();
  return base::invalid_argument(
      fmt::format("--reasoning-parser: the one that was named takes the beginning of an answer for reasoning, but the "
                  "prompts of the chat format {} do not open it; expected auto, none or think",
                  format.name()));
}

text::OutputSyntax choose_syntax(text::OutputSyntax of_format, const ParserChoice& choice) {
  text::OutputSyntax syntax = of_format;
  if (choice.tool_calls.has_value()) syntax.tool_calls = *choice.tool_calls;
  if (choice.reasoning.has_value()) {
    const bool format_knows = of_format.reasoning != ReasoningSyntax::kNone;
    if (*choice.reasoning == ReasoningSyntax::kNone || !format_knows) syntax.reasoning = *choice.reasoning;
  }
  return syntax;
}

}  // namespace tessera::server
