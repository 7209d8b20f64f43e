// The life of a page is written down three times, for three readers: the table that the pool obeys, the model that spin
// searches, and the document. They must say the same.
#include "tessera/kv_cache/page_life.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <fstream>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

namespace tessera::kv_cache {
namespace {

std::string read_file(const std::string& path) {
  std::ifstream file(std::string(TESSERA_SOURCE_DIR) + "/" + path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

std::string lower(std::string text) {
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

// "from event to" of all that `row` finds in the text between the two marks, in order.
std::vector<std::string> rows_of(const std::string& text, const std::string& begin, const std::string& end,
                                 const std::regex& row) {
  const std::size_t from = text.find(begin);
  const std::size_t to = text.find(end, from);
  if (from == std::string::npos || to == std::string::npos) return {};
  const std::string table = text.substr(from + begin.size(), to - from - begin.size());
  std::vector<std::string> rows;
  for (std::sregex_iterator it(table.begin(), table.end(), row), last; it != last; ++it) {
    rows.push_back(lower((*it)[1].str() + " " + (*it)[2].str() + " " + (*it)[3].str()));
  }
  return rows;
}

std::vector<std::string> expected_rows() {
  std::vector<std::string> rows;
  for (const PageTransition& row : kPageTransitions) {
    rows.push_back(std::string(page_state_name(row.from)) + " " + page_event_name(row.event) + " " +
                   page_state_name(row.to));
  }
  return rows;
}

TEST(PageLife, ModelHasTheSameTable) {
  const std::regex row(R"(\{(\w+), (\w+), (\w+)\})");
  EXPECT_THAT(rows_of(read_file("tests/model_checking/page_pool.pml"), "life_table[][3] = {", "};", row),
              testing::ElementsAreArray(expected_rows()));
}

TEST(PageLife, DocumentHasTheSameTable) {
  const std::regex row(R"(\n\| (\w+) \| (\w+) \| (\w+) \|)");
  EXPECT_THAT(rows_of(read_file("docs/kv_page.md"), "| from | event | to |", "\n\n", row),
              testing::ElementsAreArray(expected_rows()));
}

TEST(PageLife, FollowsTheTableOnly) {
  EXPECT_TRUE(may_follow(PageState::kFree, PageEvent::kAllocate, PageState::kReserved));
  EXPECT_FALSE(may_follow(PageState::kFree, PageEvent::kAllocate, PageState::kLive));
  EXPECT_FALSE(may_follow(PageState::kInTransfer, PageEvent::kRelease, PageState::kFree));
  int allowed = 0;
  for (int from = 0; from < kPageStates; ++from) {
    for (int event = 0; event <= static_cast<int>(PageEvent::kAudit); ++event) {
      for (int to = 0; to < kPageStates; ++to) {
        allowed += may_follow(PageState(from), PageEvent(event), PageState(to)) ? 1 : 0;
      }
    }
  }
  // No row twice.
  EXPECT_EQ(allowed, std::ssize(kPageTransitions));
  EXPECT_STREQ(page_state_name(PageState(kPageStates)), "?");
}

// A page becomes free only by its holder, its cache, its fence or its audit; and nothing but an allocation takes it.
TEST(PageLife, NobodyTakesAFreePageButByAllocation) {
  for (const PageTransition& row : kPageTransitions) {
    if (row.from == PageState::kFree && row.to != PageState::kQuarantined) {
      EXPECT_EQ(row.event, PageEvent::kAllocate);
    }
    if (row.from == PageState::kQuarantined && row.to != PageState::kQuarantined) {
      EXPECT_EQ(row.to, PageState::kFree);
      EXPECT_TRUE(row.event == PageEvent::kFence || row.event == PageEvent::kAudit);
    }
    if (row.from == PageState::kInTransfer) {
      EXPECT_NE(row.to, PageState::kFree);
    }
  }
}

}  // namespace
}  // namespace tessera::kv_cache
