// Runs the rules of style over the whole project. Each rule is shown to fail in canary_test.cc.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "tests/style/room_table.h"
#include "tests/style/rules.h"
#include "tests/style/standard_includes.h"

namespace tessera::style {
namespace {

namespace fs = std::filesystem;

std::string read(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// Text that people write: code, build files, scripts, pages. Goldens and planted files are not among it.
bool is_checked(const std::string& path) {
  if (path.starts_with("tests/goldens/") && !path.ends_with(".md")) return false;
  if (path.starts_with("tests/style/canary/")) return false;
  static const std::set<std::string> extensions = {".cc", ".h", ".cu", ".py", ".sh", ".md", ".txt", ".cmake", ".json"};
  static const std::set<std::string> without = {"run", "test", ".ci/run", "NOTICE", ".clang-tidy", ".clang-format"};
  return extensions.contains(fs::path(path).extension().string()) || without.contains(path);
}

const std::vector<SourceFile>& sources() {
  static const std::vector<SourceFile> files = [] {
    const fs::path root = TESSERA_SOURCE_DIR;
    std::vector<SourceFile> result;
    auto add = [&](const fs::path& path) {
      std::string relative = path.lexically_relative(root).generic_string();
      if (is_checked(relative)) result.push_back({relative, read(path)});
    };
    for (const auto& entry : fs::directory_iterator(root)) {
      if (entry.is_regular_file()) add(entry.path());
    }
    for (const char* folder :
         {".ci", "apps", "bench", "cmake", "docs", "models", "scripts", "tessera", "tests", "tools"}) {
      if (!fs::exists(root / folder)) continue;
      for (const auto& entry : fs::recursive_directory_iterator(root / folder)) {
        if (entry.is_regular_file()) add(entry.path());
      }
    }
    std::ranges::sort(result, {}, &SourceFile::path);
    return result;
  }();
  return files;
}

const RoomTable& rooms() {
  static const RoomTable table = [] {
    auto parsed = parse_room_table(read(fs::path(TESSERA_SOURCE_DIR) / "docs" / "rooms.md"));
    if (!parsed) throw std::runtime_error("docs/rooms.md: " + parsed.error());
    return *parsed;
  }();
  return table;
}

template <typename Rule>
void expect_clean(Rule rule) {
  ASSERT_GT(sources().size(), 50U) << "the walk over the project found too little";
  for (const SourceFile& file : sources()) {
    for (const Violation& violation : rule(file)) ADD_FAILURE() << violation.to_string();
  }
}

TEST(Style, IncludesFollowTheRooms) {
  expect_clean([](const SourceFile& file) { return check_includes(file, rooms()); });
}

TEST(Style, RoomsAreDeclaredAsTheTableSays) {
  expect_clean([](const SourceFile& file) { return check_room_declaration(file, rooms()); });
  for (const Room& room : rooms().rooms) {
    EXPECT_TRUE(fs::exists(fs::path(TESSERA_SOURCE_DIR) / room.folder / "CMakeLists.txt")) << room.folder;
  }
}

TEST(Style, FilesCanBeReadInOneGo) { expect_clean(check_size); }

TEST(Style, NothingIsUnfinishedOrSwitchedOff) { expect_clean(check_unfinished); }

TEST(Style, HeadersSayWhatTheyAreFor) { expect_clean(check_header); }

TEST(Style, NothingNamesOneMachine) { expect_clean(check_machine_words); }

TEST(Style, NoBannedConstructs) { expect_clean(check_banned_constructs); }

TEST(Style, OnlyTheVerifierProvesPages) { expect_clean(check_page_proof); }
TEST(Style, OnlyTestsInjectFaults) { expect_clean(check_fault_seams); }

TEST(Style, FileNamesSaySomething) { expect_clean(check_file_name); }

TEST(Style, StandardHeadersAreIncludedWhereTheyAreUsed) {
  for (const Violation& violation : check_standard_includes(sources())) ADD_FAILURE() << violation.to_string();
}

TEST(Style, EverySourceIsCompiled) {
  const std::string commands = read(fs::path(TESSERA_BINARY_DIR) / "compile_commands.json");
  ASSERT_FALSE(commands.empty()) << "no compile_commands.json in " << TESSERA_BINARY_DIR;
  for (const Violation& violation : check_registered(sources(), TESSERA_SOURCE_DIR, commands)) {
    ADD_FAILURE() << violation.to_string();
  }
}

}  // namespace
}  // namespace tessera::style
