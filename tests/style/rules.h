// The project's rules of style as functions over one file's text, so that each can be shown to fail on a planted file.
// They work on lines and words, not on a parse of the language: that is enough for what they check, and easy to follow.
#pragma once

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "tests/style/room_table.h"

namespace tessera::style {

struct SourceFile {
  std::string path;  // Relative to the root of the project, with '/'.
  std::string text;
};

struct Violation {
  std::string path;
  int line = 0;  // 1-based; 0 where the file as a whole is meant.
  std::string what;

  std::string to_string() const;
};

using Violations = std::vector<Violation>;

// Includes follow docs/rooms.md: rooms, headers kept to one place, headers that a room never includes.
Violations check_includes(const SourceFile& file, const RoomTable& table);

// What a CMakeLists.txt tells tessera_room() is what docs/rooms.md says.
Violations check_room_declaration(const SourceFile& file, const RoomTable& table);

// 500 lines a file, 800 for kernels (.cu).
Violations check_size(const SourceFile& file);

// No marks of unfinished work, no code or tests switched off; a skipped test names the hardware, or the
// kernel's leave for user namespaces, that is not there.
Violations check_unfinished(const SourceFile& file);

// A header has #pragma once and opens with a comment that says what it is for.
Violations check_header(const SourceFile& file);

// No paths of one machine and no hosts of package registries.
Violations check_machine_words(const SourceFile& file);

// Constructs that the project does without: environment variables, fast-math, preprocessor conditions in models.
Violations check_banned_constructs(const SourceFile& file);

// Only the page check makes what proves it: nobody derives from kv_cache::Verifier or renames it, names EngineParts'
// factory of one, or constructs ops::VerifiedPages and ops::WritableSlots but the Verifier and the program that
// measures it (apps/tessera_bench).
Violations check_page_proof(const SourceFile& file);

// What tests inject faults through is in no product: nobody else derives an engine::StepObserver, or counts a page
// pool's allocations down to one that fails.
Violations check_fault_seams(const SourceFile& file);

// snake_case file names, none of which says only that it is a bag of things.
Violations check_file_name(const SourceFile& file);

// Every .cc file is compiled into something (`compile_commands` is the text of compile_commands.json under `root`), so
// that no test is silently left out; a fuzz target, which only one preset compiles, is named by a CMakeLists.txt of
// its folder. Of the CUDA backend, what is compiled without a CUDA compiler or what is compiled with one.
Violations check_registered(const std::vector<SourceFile>& files, std::string_view root,
                            std::string_view compile_commands);

}  // namespace tessera::style
