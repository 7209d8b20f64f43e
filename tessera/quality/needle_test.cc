#include "tessera/quality/needle.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "tessera/quality/fake_respondent_testing.h"
#include "tessera/text/test_folder.h"

namespace tessera::quality {
namespace {

const std::filesystem::path kData = std::filesystem::path(TESSERA_SOURCE_DIR) / "data" / "evaluation";

std::unique_ptr<Task> needles() {
  auto task = needle_task().make({.data = kData, .pocket_tasks = {}});
  EXPECT_TRUE(task.has_value()) << task.error().to_string();
  return std::move(*task);
}

// Answers as a reader would that searches the text for the sentence that the question names.
base::Result<Answer> read_carefully(const ChatQuestion& question) {
  const std::string& text = question.messages.front().content;
  const std::size_t asked = text.rfind("What is ");
  const std::string fact = text.substr(asked + 8, text.find('?', asked) - asked - 8);
  const std::size_t at = text.find("T" + fact.substr(1) + " is ");
  if (at == std::string::npos) return Answer{.text = "none", .reasoning = {}, .calls = {}};
  return Answer{.text = "It is " + text.substr(at + fact.size() + 4, 7) + ".", .reasoning = {}, .calls = {}};
}

TEST(Needle, SentenceAndQuestionAreOfOneFact) {
  std::set<std::string> secrets;
  for (std::uint64_t seed = 0; seed < 500; ++seed) {
    const Needle needle = make_needle(seed);
    EXPECT_EQ(needle.secret.size(), 7U);
    EXPECT_TRUE(std::ranges::all_of(needle.secret, [](char c) { return c >= '0' && c <= '9'; }));
    const std::string fact = needle.question.substr(8, needle.question.size() - 9);
    EXPECT_EQ(needle.sentence, "T" + fact.substr(1) + " is " + needle.secret + ".");
    secrets.insert(needle.secret);
  }
  EXPECT_EQ(secrets.size(), 500U);
  // The same in every build: outcomes of different runs are paired.
  EXPECT_EQ(make_needle(1).sentence, make_needle(1).sentence);
}

TEST(Needle, LiesAtTheDepthAfterASentence) {
  const std::string book = "One is here. Two is there!\nThree? Four goes on without an end";
  EXPECT_EQ(haystack(book, book.size(), 0, "N."), "N. " + book);
  EXPECT_EQ(haystack(book, book.size(), 25, "N."), "One is here. N. Two is there!\nThree? Four goes on without an end");
  EXPECT_EQ(haystack(book, book.size(), 50, "N."), "One is here. Two is there! N.\nThree? Four goes on without an end");
  EXPECT_EQ(haystack(book, book.size(), 100, "N."),
            "One is here. Two is there!\nThree? N. Four goes on without an end");
  EXPECT_EQ(haystack(book, 15, 100, "N."), "One is here. N.");
  EXPECT_EQ(haystack(book, 17, 100, "N."), "One is here. N. Two");
  EXPECT_EQ(haystack(book, 0, 50, "N."), "N.");
}

TEST(Needle, LengthsAreMetFromBelow) {
  for (const double bytes_per_token : {1.0, 3.7, 4.0, 5.9, 11.0}) {
    for (const std::size_t wanted : {200U, 1000U, 30000U}) {
      int counted = 0;
      const auto count = [&](std::size_t bytes) -> base::Result<std::size_t> {
        ++counted;
        // Uneven, as texts are: some stretches have longer words.
        const auto uneven = static_cast<double>(bytes) + 400.0 * std::sin(static_cast<double>(bytes) / 3000.0);
        return 30 + static_cast<std::size_t>(std::max(0.0, uneven) / bytes_per_token);
      };
      const auto bytes = bytes_for_tokens(1'000'000, wanted, count);
      ASSERT_TRUE(bytes.has_value()) << bytes.error().to_string();
      const std::size_t tokens = *count(*bytes);
      EXPECT_LE(tokens, wanted);
      EXPECT_GE(tokens + 4, wanted);
      EXPECT_LE(counted, 20);
    }
  }
}

TEST(Needle, LengthsThatCannotBeMetAreOutOfRange) {
  const auto count = [](std::size_t bytes) -> base::Result<std::size_t> { return 30 + bytes / 4; };
  for (const auto& [book, wanted] : std::map<std::size_t, std::size_t>{{1000, 10}, {2000, 1000}}) {
    const auto bytes = bytes_for_tokens(book, wanted, count);
    ASSERT_FALSE(bytes.has_value());
    EXPECT_EQ(bytes.error().code(), base::StatusCode::kOutOfRange);
  }
  // A context that ends sooner than the server said.
  const auto limited = [](std::size_t bytes) -> base::Result<std::size_t> {
    if (bytes > 2000) return base::failure(base::out_of_range("too long"));
    return 30 + bytes / 4;
  };
  const auto short_of = bytes_for_tokens(100'000, 1000, limited);
  ASSERT_FALSE(short_of.has_value());
  EXPECT_EQ(short_of.error().code(), base::StatusCode::kOutOfRange);
  // Any other failure is one.
  const auto failing = [](std::size_t) -> base::Result<std::size_t> {
    return base::failure(base::unavailable("gone"));
  };
  EXPECT_EQ(bytes_for_tokens(100'000, 1000, failing).error().code(), base::StatusCode::kUnavailable);
}

TEST(Needle, QuestionsFitTheirLengthAndCanBeAnswered) {
  const auto task = needles();
  ASSERT_EQ(task->size(), 8U * 5U * 10U);
  FakeRespondent model;
  model.information.context_tokens = 2048;
  model.on_chat = read_carefully;
  std::set<std::string> ids;
  std::map<std::string, int> cells;
  int skipped = 0;
  for (std::size_t i = 0; i < task->size(); ++i) {
    EXPECT_TRUE(ids.insert(task->question_id(i)).second);
    ++cells[task->cell(i)];
    if (i % 7 != 0) continue;
    const auto outcome = task->ask(i, model);
    ASSERT_TRUE(outcome.has_value()) << outcome.error().to_string();
    const std::size_t length = std::stoul(task->cell(i));
    if (length > 2048) {
      EXPECT_NE(outcome->skipped.find("needs a context of"), std::string::npos);
      ++skipped;
      continue;
    }
    ASSERT_EQ(outcome->skipped, "");
    EXPECT_EQ(outcome->scores.at("right"), 1.0) << outcome->answer;
    const std::size_t prompt = model.encode_chat(model.chats.back())->size();
    EXPECT_LE(prompt + 48, length);
    EXPECT_GE(prompt + 48 + 40, length);
  }
  EXPECT_GT(skipped, 0);
  EXPECT_EQ(cells.size(), 40U);
  EXPECT_EQ(cells.at("1024/50%"), 10);
}

TEST(Needle, AnotherNumberIsWrong) {
  const auto task = needles();
  FakeRespondent model;
  model.on_chat = [](const ChatQuestion&) -> base::Result<Answer> {
    return Answer{.text = "It is 1234567.", .reasoning = {}, .calls = {}};
  };
  const auto outcome = task->ask(3, model);
  ASSERT_TRUE(outcome.has_value());
  EXPECT_EQ(outcome->scores.at("right"), 0.0);
  EXPECT_EQ(outcome->expected.size(), 7U);
}

TEST(Needle, PassagesEndInTheSecret) {
  const auto task = needles();
  FakeRespondent model;
  model.information.context_tokens = 512;
  const auto passage = task->passage(10, model);
  ASSERT_TRUE(passage.has_value() && passage->has_value());
  const auto outcome = [&] {
    model.on_chat = read_carefully;
    return task->ask(10, model);
  }();
  EXPECT_EQ(FakeRespondent::text_of((*passage)->continuation), outcome->expected);
  EXPECT_EQ((*passage)->cell, "256/25%");
  const auto too_long = task->passage(task->size() - 1, model);
  ASSERT_TRUE(too_long.has_value());
  EXPECT_FALSE(too_long->has_value());
}

TEST(Needle, ABookThatIsTooShortIsRefused) {
  const text::TestFolder folder;
  folder.write("moby_dick.jsonl.gz", "{\"chapter\":1,\"title\":\"x\",\"text\":\"Call me.\"}\n");
  const auto task = needle_task().make({.data = folder.path(), .pocket_tasks = {}});
  ASSERT_FALSE(task.has_value());
  EXPECT_EQ(task.error().code(), base::StatusCode::kDataLoss);
}

}  // namespace
}  // namespace tessera::quality
