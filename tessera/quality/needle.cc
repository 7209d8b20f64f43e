#include "tessera/quality/needle.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "tessera/quality/asking.h"
#include "tessera/quality/data_file.h"

namespace tessera::quality {

namespace {

constexpr std::array<int, 5> kDepths = {0, 25, 50, 75, 100};
constexpr std::size_t kLengthMin = 256;
constexpr std::size_t kLengthMax = std::size_t{1} << 20;
constexpr std::size_t kNeedlesInCell = 10;
// Of each length, for the answer.
constexpr std::size_t kAnswerTokens = 48;
// English in large vocabularies: a length is asked where the book has at least so many bytes for each of its tokens.
constexpr std::size_t kBytesPerToken = 4;

// SplitMix64 (Steele, Lea, Flood 2014): the same needles on every machine.
class Draw {
 public:
  explicit Draw(std::uint64_t seed) : state_(seed) {}
  std::size_t below(std::size_t limit) {
    state_ += 0x9e3779b97f4a7c15U;
    std::uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9U;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebU;
    return static_cast<std::size_t>((z ^ (z >> 31)) % limit);
  }
  template <std::size_t kSize>
  std::string_view one_of(const std::array<std::string_view, kSize>& all) {
    return all[below(kSize)];
  }

 private:
  std::uint64_t state_;
};

struct Question {
  std::size_t length;  // In tokens, answer included.
  int depth_percent;
  std::size_t number;  // In its cell.
};

class NeedleTask final : public Task {
 public:
  NeedleTask(TaskInfo info, std::string book, std::string digest)
      : info_(std::move(info)), book_(std::move(book)), digest_(std::move(digest)) {
    for (std::size_t length = kLengthMin; length <= kLengthMax && length * kBytesPerToken <= book_.size();
         length *= 2) {
      for (const int depth : kDepths) {
        for (std::size_t i = 0; i < kNeedlesInCell; ++i) questions_.push_back({length, depth, i});
      }
    }
  }

  const TaskInfo& info() const override { return info_; }
  std::size_t size() const override { return questions_.size(); }
  std::string question_id(std::size_t index) const override {
    return fmt::format("{}/{}", cell(index), questions_[index].number);
  }
  std::string cell(std::size_t index) const override {
    return fmt::format("{}/{}%", questions_[index].length, questions_[index].depth_percent);
  }
  std::string data_digest() const override { return digest_; }

  base::Result<Outcome> ask(std::size_t index, Respondent& respondent) const override {
    return ask_or_skip(question_id(index), cell(index), [&](Outcome& outcome) -> base::Status {
      const Needle needle = make_needle(seed(questions_[index]));
      outcome.expected = needle.secret;
      TESSERA_ASSIGN_OR_RETURN(const ChatQuestion chat, chat_question(questions_[index], needle, respondent));
      TESSERA_ASSIGN_OR_RETURN(const Answer answer, respondent.chat(chat));
      outcome.answer = shown(answer.text);
      outcome.scores["right"] = answer.text.contains(needle.secret) ? 1.0 : 0.0;
      return base::ok_status();
    });
  }

  base::Result<std::optional<Passage>> passage(std::size_t index, Respondent& respondent) const override {
    return passage_or_none(question_id(index), cell(index), encode(questions_[index], respondent), respondent);
  }

 private:
  // Different in every cell, so that no answer can come from another question's context.
  static std::uint64_t seed(const Question& question) {
    return (static_cast<std::uint64_t>(question.length) * 128 + static_cast<std::uint64_t>(question.depth_percent)) *
               kNeedlesInCell +
           question.number;
  }

  ChatQuestion with_bytes(const Question& question, const Needle& needle, std::size_t bytes) const {
    return {.messages = {{.role = "user",
                          .content = fmt::format(
                              "The text below states a code.\n\n{}\n\n{} Answer with the code alone.",
                              haystack(book_, bytes, question.depth_percent, needle.sentence), needle.question)}},
            .tools = {},
            .max_tokens = static_cast<std::int64_t>(kAnswerTokens)};
  }

  // As much of the book as makes the question, with room for the answer, as long as it is to be.
  base::Result<ChatQuestion> chat_question(const Question& question, const Needle& needle,
                                           Respondent& respondent) const {
    const std::int64_t context = respondent.info().context_tokens;
    if (context > 0 && std::cmp_less(context, question.length)) {
      return base::failure(
          base::out_of_range(fmt::format("needs a context of {} tokens, the model has {}", question.length, context)));
    }
    const auto count = [&](std::size_t bytes) -> base::Result<std::size_t> {
      TESSERA_ASSIGN_OR_RETURN(const std::vector<TokenId> tokens,
                               respondent.encode_chat(with_bytes(question, needle, bytes)));
      return tokens.size();
    };
    TESSERA_ASSIGN_OR_RETURN(const std::size_t bytes,
                             bytes_for_tokens(book_.size(), question.length - kAnswerTokens, count));
    return with_bytes(question, needle, bytes);
  }

  base::Result<Passage> encode(const Question& question, Respondent& respondent) const {
    const Needle needle = make_needle(seed(question));
    TESSERA_ASSIGN_OR_RETURN(const ChatQuestion chat, chat_question(question, needle, respondent));
    Passage passage;
    TESSERA_ASSIGN_OR_RETURN(passage.prompt, respondent.encode_chat(chat));
    TESSERA_ASSIGN_OR_RETURN(passage.continuation, respondent.encode(needle.secret));
    return passage;
  }

  TaskInfo info_;
  std::string book_;
  std::string digest_;
  std::vector<Question> questions_;
};

base::Result<std::unique_ptr<Task>> make_needle_task(const TaskInfo& info, const DataFolders& folders) {
  TESSERA_ASSIGN_OR_RETURN(const DataLines data, read_data_lines(folders.data / "moby_dick.jsonl.gz"));
  std::string book;
  for (std::size_t i = 0; i < data.lines.size(); ++i) {
    TESSERA_ASSIGN_OR_RETURN(const std::string text, data.text(i, "text"));
    book += (book.empty() ? "" : "\n\n") + text;
  }
  if (book.size() < kLengthMin * kBytesPerToken) {
    return base::failure(base::data_loss(fmt::format("{}: expected a book of {} bytes or more, got {}",
                                                     data.path.string(), kLengthMin * kBytesPerToken, book.size())));
  }
  return std::make_unique<NeedleTask>(info, std::move(book), data_digest(data.raw));
}

bool is_space(char c) { return c == ' ' || c == '\n'; }

// The end of the last sentence that ends at or before `end`; 0 where none does.
std::size_t sentence_end(std::string_view text, std::size_t end) {
  for (; end > 0; --end) {
    const char last = text[end - 1];
    if ((last == '.' || last == '!' || last == '?') && (end == text.size() || is_space(text[end]))) break;
  }
  return end;
}

}  // namespace

Needle make_needle(std::uint64_t seed) {
  static constexpr std::array<std::string_view, 8> kWhats = {"access",   "entry", "archive", "signal",
                                                             "delivery", "vault", "relay",   "inspection"};
  static constexpr std::array<std::string_view, 8> kWheres = {"harbour office", "old observatory", "seed library",
                                                              "tram depot",     "glass works",     "north granary",
                                                              "map room",       "weather station"};
  static constexpr std::array<std::string_view, 12> kFirst = {"Vel", "Or",  "Tash", "Quen", "Bri", "Lom",
                                                              "Zar", "Ith", "Mur",  "Pel",  "Dov", "Kes"};
  static constexpr std::array<std::string_view, 8> kMiddle = {"mo", "ve", "ran", "di", "lu", "sta", "ke", "no"};
  static constexpr std::array<std::string_view, 8> kLast = {"ra", "sk", "lin", "dor", "mere", "wick", "tal", "ven"};
  Draw draw(seed);
  const std::string_view what = draw.one_of(kWhats);
  const std::string_view where = draw.one_of(kWheres);
  const std::string_view first = draw.one_of(kFirst);
  const std::string_view middle = draw.one_of(kMiddle);
  const std::string fact =
      fmt::format("the {} code of the {} in {}{}{}", what, where, first, middle, draw.one_of(kLast));
  const std::string secret = fmt::format("{}", 1000000 + draw.below(9000000));
  return {fmt::format("T{} is {}.", fact.substr(1), secret), fmt::format("What is {}?", fact), secret};
}

std::string haystack(std::string_view book, std::size_t bytes, int depth_percent, std::string_view sentence) {
  bytes = std::min(bytes, book.size());
  while (bytes > 0 && bytes < book.size() && !is_space(book[bytes])) --bytes;
  const std::string_view text = book.substr(0, bytes);
  const std::size_t at = sentence_end(text, bytes * static_cast<std::size_t>(depth_percent) / 100);
  std::string out(text.substr(0, at));
  if (at > 0) out += ' ';
  out += sentence;
  if (at == 0 && !text.empty()) out += ' ';
  return out.append(text.substr(at));
}

base::Result<std::size_t> bytes_for_tokens(std::size_t book_bytes, std::size_t tokens_wanted,
                                           const std::function<base::Result<std::size_t>(std::size_t bytes)>& count) {
  constexpr std::size_t kClose = 4;
  constexpr int kTries = 24;
  TESSERA_ASSIGN_OR_RETURN(std::size_t low_tokens, count(0));
  if (low_tokens > tokens_wanted) {
    return base::failure(base::out_of_range(
        fmt::format("the question alone has {} tokens, and there is room for {}", low_tokens, tokens_wanted)));
  }
  // [low, high): `low` bytes fit, `high` do not.
  std::size_t low = 0;
  std::size_t high = book_bytes + 1;
  double bytes_per_token = kBytesPerToken;
  for (int i = 0; i < kTries && high - low > 1 && low_tokens + kClose < tokens_wanted; ++i) {
    // Along the line that the last one lies on, or, where that does not close in, by halves.
    const auto step = static_cast<std::size_t>(static_cast<double>(tokens_wanted - low_tokens) * bytes_per_token);
    const std::size_t along = low + std::max<std::size_t>(step, 1);
    const std::size_t next = i % 4 == 3 ? low + (high - low) / 2 : std::min(along, high - 1);
    const base::Result<std::size_t> tokens = count(next);
    if (!tokens.has_value() && tokens.error().code() != base::StatusCode::kOutOfRange) {
      return base::failure(tokens.error());
    }
    if (!tokens.has_value() || *tokens > tokens_wanted) {
      high = next;
      if (tokens.has_value() && *tokens > low_tokens) {
        bytes_per_token = static_cast<double>(next - low) / static_cast<double>(*tokens - low_tokens);
      } else {
        bytes_per_token /= 2;
      }
      continue;
    }
    if (*tokens > low_tokens) {
      bytes_per_token = static_cast<double>(next - low) / static_cast<double>(*tokens - low_tokens);
    }
    low = next;
    low_tokens = *tokens;
  }
  if (low_tokens * 20 < tokens_wanted * 19) {
    return base::failure(base::out_of_range(fmt::format(
        "{} tokens were wanted, and the text, or the model's context, has room for {}", tokens_wanted, low_tokens)));
  }
  return low;
}

TaskEntry needle_task() {
  TaskInfo info;
  info.name = "needle";
  info.about =
      "a made-up code, hidden at 0 to 100% of contexts of 256 tokens and more of a novel, is asked for in a chat: is "
      "it in "
      "the answer?";
  info.metrics = {{"right", MetricKind::kAccuracy, "", ""}};
  info.limit_by_cell = true;
  return {info, [info](const DataFolders& folders) { return make_needle_task(info, folders); }};
}

}  // namespace tessera::quality
