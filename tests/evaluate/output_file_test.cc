#include "output_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <string>

#include "tests/support/temporary_folder.h"

namespace tessera::app {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class OutputFileTest : public testing::Test {
 protected:
  std::set<std::string> names() const {
    std::set<std::string> all;
    for (const auto& entry : std::filesystem::directory_iterator(folder_.path())) {
      all.insert(entry.path().filename().string());
    }
    return all;
  }
  std::string text(const std::string& name) const {
    std::ifstream file(folder_.path() / name);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  test_support::TemporaryFolder folder_{"output_file"};
};

// Two programs that are about to write one file do not touch each other's.
TEST_F(OutputFileTest, LeavesNothingUntilItIsWrittenAndIsWhole) {
  std::ofstream(folder_.path() / "report") << "old";
  const auto first = OutputFile::open(folder_.path() / "report");
  ASSERT_TRUE(first.has_value()) << first.error().message();
  {
    const auto second = OutputFile::open(folder_.path() / "report");
    ASSERT_TRUE(second.has_value()) << second.error().message();
  }
  EXPECT_THAT(names(), ElementsAre("report"));
  EXPECT_EQ(text("report"), "old");
  ASSERT_TRUE(first->write("new").ok());
  EXPECT_EQ(text("report"), "new");
  EXPECT_THAT(names(), ElementsAre("report"));
}

TEST_F(OutputFileTest, FollowsLinks) {
  std::ofstream(folder_.path() / "report") << "old";
  std::filesystem::create_symlink("report", folder_.path() / "link");
  const auto file = OutputFile::open(folder_.path() / "link");
  ASSERT_TRUE(file.has_value()) << file.error().message();
  ASSERT_TRUE(file->write("new").ok());
  EXPECT_EQ(text("report"), "new");
  EXPECT_TRUE(std::filesystem::is_symlink(folder_.path() / "link"));
  EXPECT_EQ(resolved(folder_.path() / "link"), resolved(folder_.path() / "." / "report"));
  EXPECT_NE(resolved(folder_.path() / "link"), resolved(folder_.path() / "none"));
}

TEST_F(OutputFileTest, SaysWhereItCannotBeWritten) {
  const auto error = [](const std::filesystem::path& path) {
    const auto file = OutputFile::open(path);
    return file.has_value() ? "ok" : file.error().message();
  };
  EXPECT_THAT(error(folder_.path()), HasSubstr("it is a folder"));
  EXPECT_THAT(error(folder_.path() / "nowhere" / "x"), HasSubstr("nowhere/x: cannot be written: No such file"));
  EXPECT_THAT(error("/dev/null"), HasSubstr("/dev/null: cannot be written: it is no file on a disk"));
  std::filesystem::create_directory(folder_.path() / "gone");
  const auto file = OutputFile::open(folder_.path() / "gone" / "x");
  ASSERT_TRUE(file.has_value()) << file.error().message();
  std::filesystem::remove(folder_.path() / "gone");
  EXPECT_THAT(file->write("text").message(), HasSubstr("gone/x: cannot be written: No such file"));
}

}  // namespace
}  // namespace tessera::app
