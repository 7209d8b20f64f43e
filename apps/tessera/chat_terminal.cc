// The terminal side of `tessera chat`: prompts, history, interruption.
#include <editline/readline.h>
#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <atomic>
#include <clocale>
#include <csignal>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "call_view.h"
#include "chat_client.h"
#include "terminal_text.h"

namespace tessera::app {

namespace {

// Set by SIGINT. A signal handler can reach nothing but an object of static storage.
std::atomic<bool> interrupted{false};

void on_interrupt(int) { interrupted = true; }

// Makes SIGINT stop the answer, not the program, while it exists. Without SA_RESTART the blocking read ends.
class InterruptGuard {
 public:
  InterruptGuard() {
    interrupted = false;
    struct sigaction action{};
    action.sa_handler = on_interrupt;
    sigaction(SIGINT, &action, &previous_);
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    pthread_sigmask(SIG_UNBLOCK, &set, &previous_mask_);
  }
  ~InterruptGuard() {
    pthread_sigmask(SIG_SETMASK, &previous_mask_, nullptr);
    sigaction(SIGINT, &previous_, nullptr);
  }
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;

 private:
  struct sigaction previous_{};
  sigset_t previous_mask_{};
};

// Styles only where a person looks; there nothing but they may steer the terminal.
struct Style {
  explicit Style(int file) : Style(isatty(file) != 0) {}
  // What the model or the server wrote. A program that reads it gets it as it is.
  std::string shown(const std::string& text) const { return terminal ? terminal_text(text, Lines::kMany) : text; }

  bool terminal;
  const char* dim;
  const char* bold;
  const char* off;

 private:
  explicit Style(bool is_terminal)
      : terminal(is_terminal),
        dim(terminal ? "\033[2m" : ""),
        bold(terminal ? "\033[1m" : ""),
        off(terminal ? "\033[0m" : "") {}
};

std::optional<std::string> read_line(bool terminal, const char* prompt) {
  if (!terminal) {
    std::string line;
    if (!std::getline(std::cin, line)) return std::nullopt;
    return line;
  }
  const std::unique_ptr<char, decltype(&std::free)> text(readline(prompt), &std::free);
  if (text == nullptr) return std::nullopt;
  if (*text != '\0') add_history(text.get());
  return std::string(text.get());
}

constexpr const char* kHelp =
    "  /clear          forget the conversation\n"
    "  /system TEXT    begin again under this system prompt\n"
    "  /think on|off   whether the model thinks first, where it can\n"
    "  /try N          ask the N-th of the prompts that the model suggests, if it does\n"
    "  /help           this list\n"
    "  /quit           leave (also Ctrl-D), also where a call's result is asked for\n"
    "  a line that ends in \\ goes on in the next one\n"
    "  Ctrl-C          stop the answer; at the prompt, leave\n";

std::size_t columns(int file) {
  winsize size{};
  constexpr std::size_t kUsual = 80;
  return ioctl(file, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : kUsual;
}

// Where to write, and how it looks there.
struct Sink {
  std::ostream& out;
  Style style;
};

// Writes an answer: its reasoning dimmed, its content as it is, calls at the end, each beginning on a line of its own.
class AnswerPrinter {
 public:
  AnswerPrinter(const Sink& reasoning, const Sink& content)
      : reasoning_(reasoning.out),
        content_(content.out),
        reasoning_style_(reasoning.style),
        content_style_(content.style) {}

  void print(AnswerPart part, const std::string& text) {
    if (part == AnswerPart::kReasoning) {
      const Style& style = reasoning_style_;
      reasoning_ << style.dim << style.shown(text) << style.off << std::flush;
      thinking_ = true;
      return;
    }
    end_reasoning();
    content_ << content_style_.shown(text) << std::flush;
    written_ = true;
  }
  void finish(const std::vector<Call>& calls) {
    end_reasoning();
    if (written_ && !calls.empty()) content_ << '\n';
    std::string text;
    for (const Call& call : calls) text += call_view(call, columns(STDOUT_FILENO));
    if (!text.empty()) text.pop_back();  // The last line's end is written below.
    content_ << text << std::endl;
  }

 private:
  void end_reasoning() {
    if (std::exchange(thinking_, false)) reasoning_ << '\n' << std::flush;
  }
  std::ostream& reasoning_;
  std::ostream& content_;
  const Style reasoning_style_;
  const Style content_style_;
  bool thinking_ = false;  // The last that was written is reasoning.
  bool written_ = false;
};

// A conversation in the terminal.
class Chat {
 public:
  Chat(const ChatOptions& options, std::vector<std::string> examples)
      : options_(options),
        examples_(std::move(examples)),
        style_(STDOUT_FILENO),
        terminal_(isatty(STDIN_FILENO) != 0 && style_.terminal) {}

  base::Status run(const std::string& greeting) {
    if (terminal_) {
      std::cout << style_.dim << greeting << "\n" << kHelp << style_.off;
      suggest();
      std::cout << std::endl;
    }
    while (true) {
      std::optional<std::string> question = read_question();
      if (!question.has_value()) break;
      if (const std::string* example = example_named(*question); example != nullptr) {
        question = *example;
        say(*example);
      } else if (question->empty() || obey(*question)) {
        continue;
      }
      TESSERA_ASSIGN_OR_RETURN(const Then then, take_turn({"user", *question}));
      if (then == Then::kLeave) break;
    }
    if (terminal_) std::cout << std::endl;
    return base::ok_status();
  }

 private:
  enum class Then { kGoOn, kLeave };

  void say(const std::string& text) { std::cout << style_.dim << style_.shown(text) << style_.off << std::endl; }

  // Empty at the end of the input, or where it says that the chat is over.
  std::optional<std::string> read_unless_leaving(const std::string& prompt) {
    std::optional<std::string> line = read_line(terminal_, prompt.c_str());
    if (line.has_value() && (*line == "/quit" || *line == "/exit")) line.reset();
    return line;
  }

  // A line, and those that it says go on from it. Empty as above.
  std::optional<std::string> read_question() {
    std::optional<std::string> question = read_unless_leaving("you> ");
    while (question.has_value() && question->ends_with('\\')) {
      question->back() = '\n';
      const std::optional<std::string> more = read_line(terminal_, "...> ");
      if (!more.has_value()) return std::nullopt;
      *question += *more;
    }
    return question;
  }

  void suggest() {
    if (examples_.empty()) return;
    std::cout << "\nTo begin with, type /try and a number, or write your own:\n";
    for (std::size_t i = 0; i < examples_.size(); ++i) {
      std::string shown = terminal_text(examples_[i], Lines::kMany);
      for (std::size_t at = shown.find('\n'); at != std::string::npos; at = shown.find('\n', at + 1)) {
        shown.insert(at + 1, "     ");
      }
      std::cout << style_.dim << "  " << i + 1 << "  " << style_.off << shown << "\n";
    }
  }

  // The prompt that "/try N" names; null where the line says anything else, or names none.
  const std::string* example_named(std::string_view line) const {
    constexpr std::string_view kTry = "/try ";
    if (!line.starts_with(kTry) || line.size() != kTry.size() + 1) return nullptr;
    const std::size_t number = static_cast<std::size_t>(line.back() - '0');
    return line.back() >= '1' && number <= examples_.size() ? &examples_[number - 1] : nullptr;
  }

  // Whether the line is a command; then it is done.
  bool obey(const std::string& line) {
    if (!line.starts_with("/")) return false;
    if (line == "/help") {
      std::cout << kHelp << std::flush;
    } else if (line == "/try" || line.starts_with("/try ")) {
      std::cout << (examples_.empty() ? "this model suggests no prompts"
                                      : fmt::format("expected /try and a number from 1 to {}", examples_.size()))
                << std::endl;
    } else if (options_.ask_by == AskBy::kCompletion && (line.starts_with("/system ") || line.starts_with("/think "))) {
      std::cout << "prompts are completed as they are: nothing here heeds " << line << std::endl;
    } else if (line == "/clear" || line.starts_with("/system ")) {
      if (line != "/clear") options_.system = line.substr(8);
      turns_.clear();
      say("(the conversation begins again)");
    } else if (line == "/think on" || line == "/think off") {
      options_.thinking = line == "/think on";
      say(*options_.thinking ? "(it thinks first)" : "(it answers at once)");
    } else {
      std::cout << "unknown command " << line << "; /help lists them" << std::endl;
    }
    return true;
  }

  // Asks, and for as long as the answer calls tools asks for their results and goes on.
  base::Result<Then> take_turn(Turn question) {
    const std::size_t before = turns_.size();
    turns_.push_back(std::move(question));
    while (true) {
      base::Status status = ask_and_print();
      if (!status.ok()) {
        std::cerr << "error: " << status.message() << std::endl;
        turns_.resize(before);
        if (!terminal_) return base::failure(std::move(status));
        return Then::kGoOn;
      }
      const std::vector<Call> calls = turns_.back().calls;
      for (const Call& call : calls) {
        std::optional<std::string> result =
            read_unless_leaving(fmt::format("result of {}> ", terminal_text(call.name, Lines::kOne)));
        if (!result.has_value()) return Then::kLeave;
        turns_.push_back({.role = "tool", .content = std::move(*result), .tool_call_id = call.id});
      }
      if (calls.empty()) return Then::kGoOn;
    }
  }

  // Adds the answer to the turns. An answer that was interrupted or cut off is one too, but its calls are not to be
  // made.
  base::Status ask_and_print() {
    if (terminal_) std::cout << style_.bold << "tessera> " << style_.off << std::flush;
    const InterruptGuard guard;
    AnswerPrinter printer({std::cout, style_}, {std::cout, style_});
    Turn answer;
    const base::Result<AnswerStats> stats =
        ask(options_, turns_,
            {[&](AnswerPart part, const std::string& text) { printer.print(part, text); }, interrupted}, answer);
    printer.finish(answer.calls);
    if (!stats.has_value()) {
      if (stats.error().code() != base::StatusCode::kCancelled) return stats.error();
      answer.calls.clear();
      say("(stopped)");
    } else if (terminal_) {
      const double decode_seconds = stats->seconds - stats->first_token_seconds;
      say(fmt::format("[{} prompt tokens, {} cached; {} tokens, {:.1f}/s; first after {:.0f} ms; {}]",
                      stats->prompt_tokens, stats->cached_tokens, stats->completion_tokens,
                      decode_seconds > 0 ? static_cast<double>(stats->completion_tokens - 1) / decode_seconds : 0.0,
                      stats->first_token_seconds * 1e3, stats->finish_reason));
    }
    if (stats.has_value() && stats->finish_reason != "tool_calls" && !answer.calls.empty()) {
      answer.calls.clear();
      say(fmt::format("(not asked to make these calls: the answer ended with \"{}\")", stats->finish_reason));
    }
    turns_.push_back(std::move(answer));
    return base::ok_status();
  }

  ChatOptions options_;
  const std::vector<std::string> examples_;
  const Style style_;
  const bool terminal_;  // A person writes and reads.
  std::vector<Turn> turns_;
};

}  // namespace

base::Status ask_once(const ChatOptions& options, const std::string& prompt) {
  const InterruptGuard guard;
  AnswerPrinter printer({std::cerr, Style(STDERR_FILENO)}, {std::cout, Style(STDOUT_FILENO)});
  Turn answer;
  const base::Result<AnswerStats> stats =
      ask(options, {{"user", prompt}},
          {[&](AnswerPart part, const std::string& text) { printer.print(part, text); }, interrupted}, answer);
  if (!stats.has_value()) return stats.error();
  printer.finish(answer.calls);
  return std::cout ? base::ok_status() : base::unavailable("standard output cannot be written");
}

base::Status run_chat(const ChatOptions& options, const Welcome& welcome) {
  // The line editor drops what is not a character of the locale, and everything here is UTF-8.
  std::setlocale(LC_CTYPE, "C.UTF-8");
  return Chat(options, welcome.examples).run(welcome.greeting);
}

}  // namespace tessera::app
