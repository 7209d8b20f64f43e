// Pre-tokenizing and encoding with the real vocabularies of Kimi K2, GLM-4.5 and Qwen3 (scripts/vocabularies.sh makes
// them): ordinary text, which is this repository's own prose and code, and a megabyte of one character.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/text/tiktoken.h"
#include "tessera/text/tokenizer.h"
#include "tessera/text/tokenizer_json.h"

namespace tessera::bench {
namespace {

constexpr std::size_t kBytes = 1 << 20;

std::filesystem::path source_dir() { return TESSERA_SOURCE_DIR; }
std::filesystem::path vocabularies_dir() { return source_dir() / "build" / "vocabularies"; }

std::string file_text(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// A megabyte of the files below `folder` that end in `extension`, in the order of their names.
std::string text_of_files(const std::filesystem::path& folder, std::string_view extension) {
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file() && entry.path().extension() == extension) paths.push_back(entry.path());
  }
  std::ranges::sort(paths);
  std::string text;
  for (const auto& path : paths) text += file_text(path);
  for (std::size_t length = text.size(); length > 0 && text.size() < kBytes;) text += text.substr(0, length);
  return text.substr(0, kBytes);
}

std::string repeated(std::string_view unit) {
  std::string text;
  while (text.size() < kBytes) text += unit;
  return text;
}

const std::map<std::string, std::string>& texts() {
  static const std::map<std::string, std::string> all = {
      {"prose", text_of_files(source_dir() / "docs", ".md")},
      {"code", text_of_files(source_dir() / "tessera", ".cc")},
      {"latin", repeated("a")},
      {"cyrillic", repeated("й")},
      {"han", repeated("世")},
      {"hangul", repeated("한")},
      {"emoji", repeated("😀")},
      {"emoji_joined", repeated("👩‍👩‍👧‍👦")},
      {"spaces", repeated(" ")},
      {"digits", repeated("7")},
      {"marks", repeated("\u0315\u0316")},
  };
  return all;
}

// Empty if the vocabulary is not there.
std::vector<text::RegexSplitter> splitters(const std::string& name) {
  const std::filesystem::path folder = vocabularies_dir() / name;
  auto vocabulary = name == "kimi_k2" ? text::parse_tiktoken(file_text(folder / "tiktoken.model"),
                                                             file_text(folder / "tokenizer_config.json"))
                                      : text::parse_tokenizer_json(file_text(folder / "tokenizer.json"));
  return vocabulary.has_value() ? std::move(vocabulary->splitters) : std::vector<text::RegexSplitter>();
}

void pre_tokenize(benchmark::State& state, const std::string& vocabulary, const std::string& text) {
  const auto steps = splitters(vocabulary);
  if (steps.size() != 1) return state.SkipWithError("no vocabulary: scripts/vocabularies.sh makes it");
  std::vector<std::string_view> pieces;
  for (auto _ : state) {
    pieces.clear();
    steps.front().split(texts().at(text), pieces);
    benchmark::DoNotOptimize(pieces.data());
  }
  state.SetBytesProcessed(static_cast<std::int64_t>(state.iterations() * kBytes));
  state.counters["pieces"] = static_cast<double>(pieces.size());
}

void encode(benchmark::State& state, const std::string& vocabulary, const std::string& text) {
  const auto tokenizer = text::Tokenizer::load(vocabularies_dir() / vocabulary);
  if (!tokenizer.has_value()) return state.SkipWithError("no vocabulary: scripts/vocabularies.sh makes it");
  std::size_t tokens = 0;
  for (auto _ : state) tokens = (*tokenizer)->encode(texts().at(text)).size();
  state.SetBytesProcessed(static_cast<std::int64_t>(state.iterations() * kBytes));
  state.counters["tokens"] = static_cast<double>(tokens);
}

[[maybe_unused]] const bool kRegistered = [] {
  for (const std::string vocabulary : {"kimi_k2", "glm45", "qwen3"}) {
    for (const std::string name : {"prose", "code", "latin", "cyrillic", "han", "hangul", "emoji", "emoji_joined",
                                   "spaces", "digits", "marks"}) {
      std::string of = vocabulary;
      of += '/';
      of += name;
      benchmark::RegisterBenchmark(("tokenizer/pre_tokenize/" + of).c_str(), pre_tokenize, vocabulary, name)
          ->Unit(benchmark::kMillisecond);
      benchmark::RegisterBenchmark(("tokenizer/encode/" + of).c_str(), encode, vocabulary, name)
          ->Unit(benchmark::kMillisecond);
    }
  }
  return true;
}();

}  // namespace
}  // namespace tessera::bench
