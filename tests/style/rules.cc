#include "tests/style/rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <regex>

#include "tests/style/lines.h"

namespace tessera::style {

namespace {

constexpr int kMaxLines = 500;
constexpr int kMaxKernelLines = 800;

bool is_test(std::string_view path) { return path.ends_with("_test.cc") || path.ends_with("_test.h"); }

bool is_cpp(std::string_view path) { return path.ends_with(".cc") || path.ends_with(".h") || path.ends_with(".cu"); }

std::string_view file_name(std::string_view path) { return path.substr(path.rfind('/') + 1); }

std::string_view folder_of(std::string_view path) {
  const std::size_t slash = path.rfind('/');
  return slash == std::string_view::npos ? std::string_view{} : path.substr(0, slash);
}

// Calls f(line number, line) for every line.
template <typename F>
void for_each_line(const SourceFile& file, F f) {
  int number = 0;
  for (std::string_view line : split(file.text, '\n')) f(++number, line);
}

// Why `header`, included by a file of `room`, is not allowed; empty when it is.
std::string objection(std::string_view header, const Room& room, bool test, const RoomTable& table) {
  if (header.starts_with("tessera/")) {
    const Room* target = table.room_of(header);
    if (target == nullptr) return fmt::format("'{}' is in no room of docs/rooms.md", header);
    if (target->name != room.name && !room.includes.contains(target->name) &&
        !(test && room.test_includes.contains(target->name))) {
      return fmt::format("room '{}' may not include room '{}' ({})", room.name, target->name, header);
    }
  }
  for (std::string_view folder : {"apps/", "bench/"}) {
    if (header.starts_with(folder)) return fmt::format("a room may not include '{}'", header);
  }
  if (test) return {};
  if (header.starts_with("tests/")) return fmt::format("only tests may include '{}'", header);
  for (const KeptHeader& kept : table.kept) {
    if (header.starts_with(kept.prefix) && !kept.rooms.contains(room.name)) {
      return fmt::format("'{}' may not be included in room '{}' (docs/rooms.md says where)", header, room.name);
    }
  }
  for (const BannedHeaders& banned : table.banned) {
    if (banned.room == room.name && banned.headers.contains(std::string(header))) {
      return fmt::format("room '{}' never includes '{}'", room.name, header);
    }
  }
  return {};
}

}  // namespace

std::string Violation::to_string() const {
  return line > 0 ? fmt::format("{}:{}: {}", path, line, what) : fmt::format("{}: {}", path, what);
}

Violations check_includes(const SourceFile& file, const RoomTable& table) {
  Violations found;
  if (!file.path.starts_with("tessera/") || !is_cpp(file.path)) return found;
  const Room* room = table.room_of(file.path);
  if (room == nullptr) return {{file.path, 0, "lies in no room of docs/rooms.md"}};
  for_each_line(file, [&](int number, std::string_view line) {
    const std::string_view header = included_header(line);
    if (header.empty()) return;
    std::string what = objection(header, *room, is_test(file.path), table);
    if (!what.empty()) found.push_back({file.path, number, std::move(what)});
  });
  return found;
}

Violations check_room_declaration(const SourceFile& file, const RoomTable& table) {
  if (!file.path.starts_with("tessera/") || file_name(file.path) != "CMakeLists.txt") return {};
  const Room* room = table.room_of(file.path);
  if (room == nullptr) return {{file.path, 0, "lies in no room of docs/rooms.md"}};
  const std::size_t call = file.text.find("tessera_room(");
  if (call == std::string::npos) return {{file.path, 0, "does not call tessera_room()"}};
  std::string arguments = file.text.substr(call + 13, file.text.find(')', call) - call - 13);
  std::ranges::replace(arguments, '\n', ' ');

  std::string name;
  std::string keyword;
  std::set<std::string> includes;
  std::set<std::string> test_includes;
  for (std::string_view word : split(arguments, ' ')) {
    word = trimmed(word);
    if (word.empty()) continue;
    if (name.empty()) {
      name = word;
    } else if (std::ranges::all_of(word, [](char c) { return (c >= 'A' && c <= 'Z') || c == '_'; })) {
      keyword = word;
    } else if (keyword == "ROOMS") {
      includes.emplace(word);
    } else if (keyword == "TEST_ROOMS") {
      test_includes.emplace(word);
    }
  }
  Violations found;
  if (name != room->name)
    found.push_back({file.path, 0, fmt::format("declares '{}', expected '{}'", name, room->name)});
  if (includes != room->includes) found.push_back({file.path, 0, "ROOMS differs from 'may include' in docs/rooms.md"});
  if (test_includes != room->test_includes) {
    found.push_back({file.path, 0, "TEST_ROOMS differs from 'its tests also' in docs/rooms.md"});
  }
  return found;
}

Violations check_size(const SourceFile& file) {
  const bool kernel = file.path.ends_with(".cu");
  if (!is_cpp(file.path) && !file.path.ends_with(".py") && !file.path.ends_with(".sh")) return {};
  const int limit = kernel ? kMaxKernelLines : kMaxLines;
  const auto lines = std::ranges::count(file.text, '\n');
  if (lines <= limit) return {};
  return {{file.path, 0, fmt::format("has {} lines, at most {} can be read in one go: split it", lines, limit)}};
}

Violations check_unfinished(const SourceFile& file) {
  // The words are put together here so that this file does not hold them.
  static const std::string marks[] = {std::string("TO") + "DO", std::string("FIX") + "ME", std::string("XX") + "X",
                                      std::string("HA") + "CK"};
  static const std::string switched_off[] = {std::string("DIS") + "ABLED_", std::string("#if ") + "0",
                                             std::string("if (") + "0)", std::string("if (") + "false)"};
  static const std::string skip = std::string("GTEST_") + "SKIP";
  Violations found;
  for_each_line(file, [&](int number, std::string_view line) {
    for (const std::string& mark : marks) {
      if (has_word(line, mark)) found.push_back({file.path, number, "unfinished: '" + mark + "'"});
    }
    if (!is_cpp(file.path)) return;
    for (const std::string& off : switched_off) {
      if (line.find(off) != std::string_view::npos) found.push_back({file.path, number, "switched off: '" + off + "'"});
    }
    if (line.find(skip) != std::string_view::npos && line.find("CUDA") == std::string_view::npos &&
        line.find("AVX") == std::string_view::npos && line.find("user namespaces") == std::string_view::npos) {
      found.push_back({file.path, number,
                       "a test may be skipped only for hardware or for user namespaces that the "
                       "kernel does not permit, which the line must name"});
    }
  });
  return found;
}

Violations check_header(const SourceFile& file) {
  if (!file.path.ends_with(".h")) return {};
  Violations found;
  if (!file.text.starts_with("// ")) found.push_back({file.path, 1, "does not open with a comment on its purpose"});
  if (file.text.find("\n#pragma once\n") == std::string::npos) found.push_back({file.path, 0, "has no #pragma once"});
  return found;
}

Violations check_machine_words(const SourceFile& file) {
  static const std::string words[] = {std::string("/wo") + "rk/",    std::string("/fa") + "rm/",
                                      std::string("/ro") + "ot/",    std::string("/ho") + "me/",
                                      std::string("/tm") + "p/",     std::string("pypi.") + "org",
                                      std::string("debian") + ".org"};
  Violations found;
  for_each_line(file, [&](int number, std::string_view line) {
    for (const std::string& word : words) {
      if (line.find(word) != std::string_view::npos) {
        found.push_back({file.path, number, "names something of one machine or a registry: '" + word + "'"});
      }
    }
  });
  return found;
}

Violations check_banned_constructs(const SourceFile& file) {
  Violations found;
  const bool product = file.path.starts_with("tessera/") || file.path.starts_with("apps/");
  const bool build = file_name(file.path) == "CMakeLists.txt" || file.path.ends_with(".cmake");
  for_each_line(file, [&](int number, std::string_view line) {
    if (product && is_cpp(file.path) && (has_word(line, "getenv") || has_word(line, "secure_getenv"))) {
      found.push_back({file.path, number, "reads an environment variable; configuration is flags and a file"});
    }
    if (build && line.find("fast-math") != std::string_view::npos) {
      found.push_back({file.path, number, "fast-math changes results"});
    }
    if (file.path.starts_with("tessera/models/") && is_cpp(file.path) && trimmed(line).starts_with("#if")) {
      found.push_back({file.path, number, "a preprocessor condition in models"});
    }
  });
  return found;
}

Violations check_page_proof(const SourceFile& file) {
  Violations found;
  if (!is_cpp(file.path) || file.path.starts_with("tests/style/")) return found;
  const bool verifier = file.path == "tessera/kv_cache/verifier.h" || file.path == "tessera/kv_cache/verifier.cc";
  const bool measures = file.path.starts_with("apps/tessera_bench/");
  // Over the whole text, as a declaration may break at its colon. Another name for the class would hide who derives.
  static const std::regex derived(R"(\b(class|struct)\s+\w+(?:::\w+)*(\s+final)?\s*:(?!:)[^{;]*\bVerifier\b)");
  static const std::regex renamed(R"(\busing\s+\w+\s*=\s*[\w:]*\bVerifier\s*;|\btypedef\s+[\w:]*\bVerifier\s+\w+)");
  const bool names_it = file.text.find("Verifier") != std::string::npos;
  if (!verifier && !measures && names_it && std::regex_search(file.text, derived)) {
    found.push_back({file.path, 0, "derives from Verifier, which only tessera_bench may"});
  }
  if (names_it && std::regex_search(file.text, renamed)) {
    found.push_back({file.path, 0, "gives Verifier another name, which would hide who derives from it"});
  }
  static const std::regex made(R"(\b(VerifiedPages|WritableSlots)(\s+\w+)?\s*[({]\s*[^)}\s])");
  const bool declares = file.path == "tessera/ops/verified_pages.h";
  for_each_line(file, [&](int number, std::string_view line) {
    if (!measures && !file.path.starts_with("tessera/engine/") && has_word(line, "make_verifier")) {
      found.push_back({file.path, number, "sets an engine's verifier, which only tessera_bench may"});
    }
    if (verifier || declares) return;
    const std::string_view code = line.substr(0, line.find("//"));
    if (code.find("VerifiedPages") == code.npos && code.find("WritableSlots") == code.npos) return;
    if (std::regex_search(code.begin(), code.end(), made)) {
      found.push_back({file.path, number, "makes verified pages or slots, which only the Verifier may"});
    }
  });
  return found;
}

Violations check_fault_seams(const SourceFile& file) {
  const bool product = file.path.starts_with("tessera/") || file.path.starts_with("apps/");
  if (!is_cpp(file.path) || !product || file.path.ends_with("_test.cc")) return {};
  struct Seam {
    std::string_view word;
    std::vector<std::string_view> own_files;
  };
  static const std::vector<Seam> seams = {
      {"StepObserver",
       {"tessera/engine/step_observer.h", "tessera/engine/step_runner.h", "tessera/engine/engine_config.h"}},
      {"allocations_until_failure_", {"tessera/kv_cache/page_pool.h", "tessera/kv_cache/page_pool.cc"}},
  };
  Violations found;
  for_each_line(file, [&](int number, std::string_view line) {
    for (const Seam& seam : seams) {
      if (!has_word(line, seam.word) || std::ranges::find(seam.own_files, file.path) != seam.own_files.end()) continue;
      found.push_back({file.path, number, fmt::format("names {}, which only tests may", seam.word)});
    }
  });
  return found;
}

Violations check_file_name(const SourceFile& file) {
  if (!is_cpp(file.path)) return {};
  const std::string_view name = file_name(file.path);
  std::string_view stem = name.substr(0, name.rfind('.'));
  // Highway's word for a header that is compiled once for each instruction set.
  if (stem.ends_with("-inl")) stem.remove_suffix(4);
  Violations found;
  if (!std::ranges::all_of(stem, [](char c) { return std::islower(c) || std::isdigit(c) || c == '_'; })) {
    found.push_back({file.path, 0, "its name is not snake_case"});
  }
  for (std::string_view part : split(stem, '_')) {
    for (std::string_view vague : {"util", "utils", "helper", "helpers", "manager", "misc", "stuff"}) {
      if (part == vague) found.push_back({file.path, 0, fmt::format("'{}' does not say what the file is for", vague)});
    }
  }
  return found;
}

Violations check_registered(const std::vector<SourceFile>& files, std::string_view root,
                            std::string_view compile_commands) {
  constexpr std::string_view kCuda = "tessera/backends/cuda/";
  constexpr std::string_view kCudaAbsent = "tessera/backends/cuda/absent/";
  constexpr std::string_view kCudaTests = "tests/conformance/cuda_";
  const auto compiled = [&](std::string_view path) {
    return compile_commands.find(fmt::format("\"file\": \"{}/{}", root, path)) != std::string_view::npos;
  };
  const bool cuda_absent = compiled(kCudaAbsent);
  Violations found;
  for (const SourceFile& file : files) {
    if (!file.path.ends_with(".cc")) continue;
    if (file.path.starts_with(kCuda) && file.path.starts_with(kCudaAbsent) != cuda_absent) continue;
    if (file.path.starts_with(kCudaTests) && cuda_absent) continue;
    if (file.path.ends_with("_fuzz.cc")) {
      const std::string list = std::string(folder_of(file.path)) + "/CMakeLists.txt";
      const auto cmake = std::ranges::find(files, list, &SourceFile::path);
      if (cmake == files.end() || !has_word(cmake->text, file_name(file.path))) {
        found.push_back({file.path, 0, fmt::format("is a fuzz target that {} does not name", list)});
      }
    } else if (!compiled(file.path + "\"")) {
      found.push_back({file.path, 0, "is compiled into nothing; a test in it would never run"});
    }
  }
  return found;
}

}  // namespace tessera::style
