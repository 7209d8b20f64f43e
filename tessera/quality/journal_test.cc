#include "tessera/quality/journal.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>  // NOLINT(modernize-deprecated-headers): mkdtemp is POSIX's.
#include <sys/resource.h>

#include <bit>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <limits>
#include <random>

namespace tessera::quality {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

const EvaluationIdentity kIdentity = {
    {"version of tessera", "1.2"}, {"limit", "20"}, {"plan 1", "bf16: role=unified"}, {"task 1", "toy: 5 of 9"}};

class JournalTest : public testing::Test {
 protected:
  JournalTest() {
    std::string pattern = testing::TempDir() + "journal_test.XXXXXX";
    folder_ = mkdtemp(pattern.data());
    path_ = folder_ / "journal";
  }
  ~JournalTest() override { std::filesystem::remove_all(folder_); }

  std::string text() const {
    std::ifstream file(path_, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  void write(std::string_view text) const { std::ofstream(path_, std::ios::binary) << text; }
  std::string error(const EvaluationIdentity& identity = kIdentity) const {
    const auto journal = Journal::resume(path_, identity);
    return journal.has_value() ? "ok" : journal.error().message();
  }

  std::filesystem::path folder_;
  std::filesystem::path path_;
};

Outcome outcome(std::string question) {
  return {.question = std::move(question),
          .cell = "level \"1\"\n",
          .scores = {{"right", 1.0}, {"loglikelihood", -0.1 - 0.2}},
          .expected = "42",
          .answer = "forty\x01\x02 \xc3\xa9 \xff\xfe {\"a\":1}",
          .skipped = {}};
}

bool same(const Outcome& a, const Outcome& b) {
  return a.question == b.question && a.cell == b.cell && a.scores == b.scores && a.expected == b.expected &&
         a.answer == b.answer && a.skipped == b.skipped;
}

TEST_F(JournalTest, KeepsEverythingToTheBit) {
  const std::uint64_t seed = 20261130;
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937_64 random(seed);
  // Any bits that are a number, subnormal ones and infinities too.
  const auto number = [&] {
    while (true) {
      const auto value = std::bit_cast<double>(random());
      if (value == value) return value;
    }
  };
  const RespondentInfo info{.model = "m", .precision = "prefill=fp8/bf16", .digest = "ab12", .context_tokens = 2048};
  std::vector<Outcome> outcomes;
  std::vector<PassageDistances> passages;
  {
    const auto journal = Journal::create(path_, kIdentity);
    ASSERT_TRUE(journal.has_value()) << journal.error().message();
    ASSERT_TRUE((*journal)->add(1, info).ok());
    for (int i = 0; i < 200; ++i) {
      Outcome one = outcome("q" + std::to_string(i));
      one.scores["number"] = number();
      if (i % 7 == 0) {
        one = {.question = one.question, .cell = "x", .scores = {}, .expected = {}, .answer = {}, .skipped = "long"};
      }
      PassageDistances passage{.question = one.question, .cell = one.cell, .positions = {}};
      for (int at = 0; at < i % 5; ++at) {
        passage.positions.push_back({at, number(), i % 2 == 0, number(), i, -at, number(), number()});
      }
      if (i == 3) passage.positions[0].kl = std::numeric_limits<double>::infinity();
      ASSERT_TRUE((*journal)->add(1, "toy", one).ok());
      ASSERT_TRUE((*journal)->add(2, "toy", passage).ok());
      outcomes.push_back(one);
      passages.push_back(passage);
    }
  }
  const auto journal = Journal::resume(path_, kIdentity);
  ASSERT_TRUE(journal.has_value()) << journal.error().message();
  const JournalContents& found = (*journal)->found();
  EXPECT_EQ(found.respondents.at(1).precision, info.precision);
  EXPECT_EQ(found.respondents.at(1).digest, info.digest);
  EXPECT_EQ(found.respondents.at(1).context_tokens, info.context_tokens);
  ASSERT_EQ(found.outcomes.at({1, "toy"}).size(), outcomes.size());
  for (std::size_t i = 0; i < outcomes.size(); ++i) {
    EXPECT_TRUE(same(found.outcomes.at({1, "toy"}).at(outcomes[i].question), outcomes[i])) << i;
    const PassageDistances& passage = found.distances.at({2, "toy"}).at(outcomes[i].question);
    ASSERT_EQ(passage.positions.size(), passages[i].positions.size());
    for (std::size_t at = 0; at < passage.positions.size(); ++at) {
      const PositionDistance& have = passage.positions[at];
      const PositionDistance& want = passages[i].positions[at];
      EXPECT_TRUE(have.position == want.position && have.kl == want.kl && have.same_best == want.same_best &&
                  have.rank_overlap == want.rank_overlap && have.reference_best == want.reference_best &&
                  have.other_best == want.other_best && have.reference_logprob == want.reference_logprob &&
                  have.other_logprob == want.other_logprob)
          << i << " " << at;
    }
  }
}

// A program that is killed may leave any part of its last line.
TEST_F(JournalTest, DropsATornLineAndGoesOn) {
  {
    const auto journal = Journal::create(path_, kIdentity);
    ASSERT_TRUE((*journal)->add(0, "toy", outcome("a")).ok());
    ASSERT_TRUE((*journal)->add(0, "toy", outcome("b")).ok());
  }
  const std::string whole = text();
  const std::size_t header = whole.find('\n') + 1;
  const std::size_t first = whole.find('\n', header) + 1;
  for (std::size_t bytes = 0; bytes <= whole.size(); ++bytes) {
    write(whole.substr(0, bytes));
    {
      const auto journal = Journal::resume(path_, kIdentity);
      ASSERT_TRUE(journal.has_value()) << bytes << journal.error().message();
      const auto& outcomes = (*journal)->found().outcomes;
      const std::size_t want = bytes < first ? 0 : bytes < whole.size() ? 1 : 2;
      ASSERT_EQ(outcomes.empty() ? 0 : outcomes.at({0, "toy"}).size(), want) << bytes;
      for (const char* const question : {"a", "b"}) {
        if (want == 0 || !outcomes.at({0, "toy"}).contains(question)) {
          ASSERT_TRUE((*journal)->add(0, "toy", outcome(question)).ok());
        }
      }
    }
    ASSERT_EQ(text(), whole) << bytes;
  }
}

TEST_F(JournalTest, RefusesAnotherEvaluationsAndSaysWhatDiffers) {
  ASSERT_TRUE(Journal::create(path_, kIdentity).has_value());
  const std::string before = text();
  EvaluationIdentity other = kIdentity;
  other[1].second = "30";
  other[3] = {"task 1", "another: 5 of 9"};
  other.emplace_back("plan 2", "fp8: role=split");
  const std::string what = error(other);
  EXPECT_THAT(what, HasSubstr("another evaluation"));
  EXPECT_THAT(what, HasSubstr("limit: '20' in the journal, '30' now"));
  EXPECT_THAT(what, HasSubstr("task 1: 'toy: 5 of 9' in the journal, 'another: 5 of 9' now"));
  EXPECT_THAT(what, HasSubstr("plan 2: nothing in the journal, 'fp8: role=split' now"));
  EXPECT_THAT(what, Not(HasSubstr("plan 1")));
  EXPECT_EQ(text(), before);
  EvaluationIdentity fewer = kIdentity;
  fewer.erase(fewer.begin() + 2);
  EXPECT_THAT(error(fewer), HasSubstr("plan 1: 'bf16: role=unified' in the journal, nothing now"));
  EXPECT_EQ(error(), "ok");
}

TEST_F(JournalTest, NamesWhatIsNoJournal) {
  EXPECT_EQ(Journal::resume(path_, kIdentity).error().code(), base::StatusCode::kNotFound);
  write("# notes\n");
  EXPECT_THAT(error(), HasSubstr("journal, line 1: "));
  write("{\"questions\":[]}\n");
  EXPECT_THAT(error(), HasSubstr("line 1: not the journal of an evaluation"));
  EXPECT_EQ(text(), "{\"questions\":[]}\n");
  ASSERT_TRUE(Journal::create(path_, kIdentity).has_value());
  const std::string header = text();
  for (
      const auto& [line, what] : std::initializer_list<std::pair<std::string, std::string>>{
          {"not JSON", "line 2: "},
          {"[]", "line 2: expected an object"},
          {"{}", "line 2: 'plan': expected a whole number"},
          {R"({"plan":-1,"task":"toy","outcome":{}})", "'plan'"},
          {R"({"plan":0,"task":"toy"})", "expected a respondent, an outcome or distances"},
          {R"({"plan":0,"task":"toy","outcome":{"question":7}})", "'question': expected a text"},
          {R"({"plan":0,"task":"t","outcome":{"question":"","cell":"","expected":"","answer":"","skipped":"","scores":{"r":"1x"}}})",
           "'scores': expected numbers as texts"},
          {R"({"plan":0,"task":"t","distances":{"question":"q","cell":"","positions":["0 1 2 3"]}})", "'positions'"},
          {R"({"plan":0,"respondent":{"model":"m"}})", "'precision'"}}) {
    write(header + line + "\n" + R"({"plan":0,"task":"toy","distances":{"question":"q","cell":"","positions":[]}})" +
          "\n");
    EXPECT_THAT(error(), HasSubstr(what)) << line;
  }
  write("{\"tessera_evaluation_journal\":2,\"evaluation\":{}}\n");
  EXPECT_THAT(error(), HasSubstr("format 2; expected 1"));
  EXPECT_EQ(Journal::create(folder_ / "nowhere" / "j", kIdentity).error().code(), base::StatusCode::kUnavailable);
}

// Whatever --journal names by mistake stays as it is.
TEST_F(JournalTest, LeavesAFileThatIsNoJournal) {
  for (const char* const notes :
       {"notes without a line end", "{\"questions\":[]}", "{\"tessera_evaluation\":1}", "\xff"}) {
    write(notes);
    EXPECT_THAT(error(), HasSubstr("journal: not the journal of an evaluation")) << notes;
    EXPECT_EQ(text(), notes);
  }
  // An empty file, and a header that was cut off, have nothing to lose.
  for (const char* const begun : {"", "{", "{\"tessera_evaluation_journal\":1,\"evalu"}) {
    write(begun);
    EXPECT_EQ(error(), "ok") << begun;
    EXPECT_EQ(error(), "ok") << begun;
  }
  EXPECT_THAT(Journal::resume("/dev/null", kIdentity).error().message(),
              HasSubstr("journal /dev/null: expected a file on a disk"));
  EXPECT_FALSE(Journal::resume(folder_, kIdentity).has_value());
}

// Takes the place of a disk that is full: writes past this many bytes of a file fail.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(std::size_t bytes) {
    EXPECT_EQ(getrlimit(RLIMIT_FSIZE, &before_), 0);
    handler_ = signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{.rlim_cur = bytes, .rlim_max = before_.rlim_max};
    EXPECT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  }
  ~FileSizeLimit() {
    setrlimit(RLIMIT_FSIZE, &before_);
    signal(SIGXFSZ, handler_);
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;

 private:
  rlimit before_{};
  void (*handler_)(int) = nullptr;
};

TEST_F(JournalTest, AFailedWriteLeavesWholeLinesAndEndsIt) {
  {
    const auto created = Journal::create(path_, kIdentity);
    ASSERT_TRUE((*created)->add(0, "toy", outcome("a")).ok());
  }
  const std::string before = text();
  {
    const auto journal = Journal::resume(path_, kIdentity);
    ASSERT_TRUE(journal.has_value()) << journal.error().message();
    base::Status failed;
    {
      const FileSizeLimit limit(before.size() + 20);
      failed = (*journal)->add(0, "toy", outcome("b"));
    }
    EXPECT_EQ(failed.code(), base::StatusCode::kUnavailable);
    EXPECT_THAT(failed.message(), HasSubstr("journal: File too large"));
    EXPECT_EQ(text(), before);
    // There is room again, but a line in between would be missing.
    EXPECT_EQ((*journal)->add(0, "toy", outcome("c")), failed);
    EXPECT_EQ(text(), before);
  }
  const auto journal = Journal::resume(path_, kIdentity);
  ASSERT_TRUE(journal.has_value()) << journal.error().message();
  EXPECT_EQ((*journal)->found().outcomes.at({0, "toy"}).size(), 1u);
  EXPECT_TRUE((*journal)->add(0, "toy", outcome("b")).ok());
}

TEST_F(JournalTest, HasOneWriterAndCanBeReplaced) {
  {
    const auto journal = Journal::create(path_, kIdentity);
    ASSERT_TRUE((*journal)->add(0, "toy", outcome("a")).ok());
    EXPECT_THAT(Journal::create(path_, kIdentity).error().message(), HasSubstr("another evaluation is writing it"));
    EXPECT_THAT(error(), HasSubstr("another evaluation is writing it"));
  }
  EXPECT_EQ(error(), "ok");
  const EvaluationIdentity other = {{"limit", "1"}};
  ASSERT_TRUE(Journal::create(path_, other).has_value());
  const auto journal = Journal::resume(path_, other);
  ASSERT_TRUE(journal.has_value());
  EXPECT_TRUE((*journal)->found().outcomes.empty());
}

}  // namespace
}  // namespace tessera::quality
