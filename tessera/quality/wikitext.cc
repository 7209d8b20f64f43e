#include "tessera/quality/wikitext.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <numbers>
#include <optional>
#include <utility>

#include "tessera/base/check.h"
#include "tessera/quality/asking.h"
#include "tessera/quality/data_file.h"
#include "tessera/quality/python_space.h"

namespace tessera::quality {

namespace {

// What the harness assumes of a model whose context it does not know.
constexpr std::size_t kContextAssumed = 2048;
// Fewer tokens would be a text of scraps.
constexpr std::size_t kContextMin = 16;
constexpr std::size_t kPassagePrompt = 256;
constexpr std::size_t kPassageContinuation = 256;

std::string replace_all(std::string_view text, std::string_view what, std::string_view by) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t at = text.find(what); at != std::string_view::npos; at = text.find(what)) {
    out.append(text.substr(0, at)).append(by);
    text.remove_prefix(at + what.size());
  }
  return out.append(text);
}

// Takes away the white space just inside of each pair of marks: re.sub(r"\(\s*([^\)]*?)\s*\)", r"(\1)", text).
std::string strip_inside(std::string_view text, char open, char close) {
  std::string out;
  out.reserve(text.size());
  while (true) {
    const std::size_t start = text.find(open);
    const std::size_t end = start == std::string_view::npos ? start : text.find(close, start + 1);
    if (end == std::string_view::npos) return out.append(text);
    out.append(text.substr(0, start + 1)).append(strip(text.substr(start + 1, end - start - 1))) += close;
    text.remove_prefix(end + 1);
  }
}

// re.sub(r"/' [0-9]/", r"/'[0-9]/", text): the second is no pattern, so the digit is replaced by those five characters.
std::string replace_quoted_digit(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t at = text.find("/' "); at != std::string_view::npos; at = text.find("/' ")) {
    const bool matches = at + 4 < text.size() && text[at + 3] >= '0' && text[at + 3] <= '9' && text[at + 4] == '/';
    out.append(text.substr(0, at)).append(matches ? "/'[0-9]/" : text.substr(at, 1));
    text.remove_prefix(at + (matches ? 5 : 1));
  }
  return out.append(text);
}

bool is_title(std::string_view line) {
  const std::string bare(replace_all(replace_all(line, "= = =", "==="), "= =", "=="));
  const std::string_view title = strip(bare);
  return title.starts_with("= ") && title.ends_with(" =");
}

std::string title_of(std::string_view article) {
  std::string_view title = strip(article.substr(0, article.find('\n')));
  if (title.size() > 4 && title.starts_with("= ") && title.ends_with(" =")) title = title.substr(2, title.size() - 4);
  return std::string(title);
}

struct Article {
  std::string title;
  std::string page;  // As upstream has it.
};

class Wikitext final : public Task {
 public:
  Wikitext(TaskInfo info, std::vector<Article> articles, std::string digest)
      : info_(std::move(info)), articles_(std::move(articles)), digest_(std::move(digest)) {}

  const TaskInfo& info() const override { return info_; }
  std::size_t size() const override { return articles_.size(); }
  std::string question_id(std::size_t index) const override {
    return fmt::format("{}: {}", index, articles_[index].title);
  }
  std::string cell(std::size_t) const override { return {}; }
  std::string data_digest() const override { return digest_; }

  base::Result<Outcome> ask(std::size_t index, Respondent& respondent) const override {
    return ask_or_skip(question_id(index), cell(index),
                       [&](Outcome& outcome) { return score(articles_[index], respondent, outcome); });
  }

  // The article's beginning: a prompt, and what follows.
  base::Result<std::optional<Passage>> passage(std::size_t index, Respondent& respondent) const override {
    return passage_or_none(question_id(index), cell(index), beginning(articles_[index], respondent), respondent);
  }

 private:
  static base::Status score(const Article& article, Respondent& respondent, Outcome& outcome) {
    const std::int64_t known = respondent.info().context_tokens;
    const std::size_t context = known > 0 ? static_cast<std::size_t>(known) : kContextAssumed;
    if (context < kContextMin) {
      return base::out_of_range(fmt::format("a context of {} tokens is too short to score texts in", context));
    }
    const std::string text = wikitext_detokenize(article.page);
    TESSERA_ASSIGN_OR_RETURN(const TokenId prefix, prefix_token(text, respondent));
    TESSERA_ASSIGN_OR_RETURN(const std::vector<TokenId> tokens, respondent.encode(text));
    Likelihood sum;
    // One token of the context is the window's prefix, and one is kept for the token that servers generate after what
    // they score.
    for (const ScoredTokens& window : rolling_windows(tokens, prefix, context - 2)) {
      TESSERA_ASSIGN_OR_RETURN(const Likelihood part, likelihood(respondent, window));
      sum.logprob += part.logprob;
      sum.tokens += part.tokens;
    }
    outcome.scores["logprob"] = sum.logprob;
    outcome.scores["bits"] = -sum.logprob / std::numbers::ln2;
    outcome.scores["words"] = static_cast<double>(count_split_words(article.page));
    outcome.scores["bytes"] = static_cast<double>(article.page.size());
    outcome.scores["tokens"] = static_cast<double>(sum.tokens);
    return base::ok_status();
  }

  // What the first token of a text is foreseen from: BOS where prompts begin with it, else a line end, as there is
  // before each article in the file. (The harness would take BOS or EOS, whether or not the model knows them so.)
  static base::Result<TokenId> prefix_token(std::string_view text, Respondent& respondent) {
    const std::string_view line = text.substr(0, text.find('\n'));
    TESSERA_ASSIGN_OR_RETURN(const std::vector<TokenId> prompt, respondent.encode_prompt(line));
    TESSERA_ASSIGN_OR_RETURN(const std::vector<TokenId> plain, respondent.encode(line));
    if (prompt.size() > plain.size()) return prompt.front();
    TESSERA_ASSIGN_OR_RETURN(const std::vector<TokenId> line_end, respondent.encode("\n"));
    if (line_end.empty())
      return base::failure(base::internal_error("the model's tokenizer makes no token of a line end"));
    return line_end.back();
  }

  static base::Result<Passage> beginning(const Article& article, Respondent& respondent) {
    TESSERA_ASSIGN_OR_RETURN(const std::vector<TokenId> tokens,
                             respondent.encode_prompt(wikitext_detokenize(article.page)));
    const std::int64_t known = respondent.info().context_tokens;
    const std::size_t context = known > 0 ? static_cast<std::size_t>(known) : kContextAssumed;
    const std::size_t length = std::min({tokens.size(), kPassagePrompt + kPassageContinuation, context});
    if (length < 2) return base::failure(base::out_of_range("the text is too short to lead a model through"));
    const auto middle = tokens.begin() + static_cast<std::ptrdiff_t>(std::min(kPassagePrompt, length / 2));
    Passage passage;
    passage.prompt.assign(tokens.begin(), middle);
    passage.continuation.assign(middle, tokens.begin() + static_cast<std::ptrdiff_t>(length));
    return passage;
  }

  TaskInfo info_;
  std::vector<Article> articles_;
  std::string digest_;
};

base::Result<std::unique_ptr<Task>> make_wikitext(const TaskInfo& info, const DataFolders& folders) {
  TESSERA_ASSIGN_OR_RETURN(const DataLines data, read_data_lines(folders.data / "wikitext2_test.jsonl.gz"));
  std::vector<Article> articles;
  for (std::size_t i = 0; i < data.lines.size(); ++i) {
    TESSERA_ASSIGN_OR_RETURN(const std::string text, data.text(i, "text"));
    std::vector<std::string> pages = wikitext_articles(text);
    if (pages.empty()) return base::failure(data.wrong(i, "expected 'text' to hold articles, got white space"));
    articles.reserve(articles.size() + pages.size());
    for (std::string& page : pages) {
      std::string title = title_of(page);
      articles.push_back({std::move(title), std::move(page)});
    }
  }
  return std::make_unique<Wikitext>(info, std::move(articles), data_digest(data.raw));
}

}  // namespace

std::vector<std::string> wikitext_articles(std::string_view text) {
  std::vector<std::string> articles;
  std::size_t start = 0;
  const auto end_article = [&](std::size_t end) {
    const std::string_view article = text.substr(start, end - start);
    if (!strip(article).empty()) articles.emplace_back(article);
  };
  for (std::size_t line = 0; line <= text.size();) {
    const std::size_t end = std::min(text.find('\n', line), text.size());
    if (is_title(text.substr(line, end - line))) {
      if (line > 0) end_article(line - 1);
      start = line;
    }
    line = end + 1;
  }
  end_article(text.size());
  return articles;
}

std::string wikitext_detokenize(std::string_view page) {
  using Replacement = std::pair<std::string_view, std::string_view>;
  static constexpr std::array<Replacement, 9> kSpacing = {{{" @-@ ", "-"},
                                                           {" @,@ ", ","},
                                                           {" @.@ ", "."},
                                                           {" : ", ": "},
                                                           {" ; ", "; "},
                                                           {" . ", ". "},
                                                           {" ! ", "! "},
                                                           {" ? ", "? "},
                                                           {" , ", ", "}}};
  static constexpr std::array<Replacement, 8> kRest = {{{"= = = =", "===="},
                                                        {"= = =", "==="},
                                                        {"= =", "=="},
                                                        {" \u00b0 ", "\u00b0"},
                                                        {" \n", "\n"},
                                                        {"\n ", "\n"},
                                                        {" N ", " 1 "},
                                                        {" 's", "'s"}}};
  static constexpr std::array<std::pair<char, char>, 5> kMarks = {
      {{'(', ')'}, {'[', ']'}, {'{', '}'}, {'"', '"'}, {'\'', '\''}}};
  std::string text = replace_quoted_digit(replace_all(page, "s '", "s'"));
  for (const auto& [what, by] : kSpacing) text = replace_all(text, what, by);
  for (const auto& [open, close] : kMarks) text = strip_inside(text, open, close);
  for (const auto& [what, by] : kRest) text = replace_all(text, what, by);
  return text;
}

std::vector<ScoredTokens> rolling_windows(std::span<const TokenId> text, TokenId prefix, std::size_t window) {
  TESSERA_CHECK(window > 0);
  std::vector<ScoredTokens> windows;
  windows.reserve(text.size() / window + 1);
  for (std::size_t scored = 0; scored < text.size();) {
    const std::size_t end = scored + std::min(window, text.size() - scored);
    // The last window may have room for more than one token before what it scores.
    const std::size_t before = scored == 0 ? 0 : std::min(scored, window + 1 - (end - scored));
    ScoredTokens tokens;
    if (scored == 0) tokens.tokens.push_back(prefix);
    for (std::size_t i = scored - before; i < end; ++i) tokens.tokens.push_back(text[i]);
    tokens.first = tokens.tokens.size() - (end - scored);
    windows.push_back(std::move(tokens));
    scored = end;
  }
  return windows;
}

TaskEntry wikitext_task() {
  TaskInfo info;
  info.name = "wikitext-2";
  info.about =
      "articles of Wikipedia, scored token by token in windows of the model's context: perplexity of a word "
      "(compared), a byte and a token, and bits a byte; says nothing of decoding";
  // The four are one log-likelihood by four divisors, which are the same for every plan of one tokenizer: one verdict.
  info.metrics = {{"word_perplexity", MetricKind::kPerplexity, "logprob", "words"},
                  {"byte_perplexity", MetricKind::kPerplexity, "logprob", "bytes", false},
                  {"token_perplexity", MetricKind::kPerplexity, "logprob", "tokens", false},
                  {"bits_per_byte", MetricKind::kMean, "bits", "bytes", false}};
  info.by_likelihood = true;
  return {info, [info](const DataFolders& folders) { return make_wikitext(info, folders); }};
}

}  // namespace tessera::quality
