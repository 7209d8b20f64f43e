// The terminal side of `tessera chat`: prompts, history, interruption.
#include <editline/readline.h>
#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <atomic>
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

// Styles only where a person looks.
struct Style {
  explicit Style(bool terminal)
      : dim(terminal ? "\033[2m" : ""), bold(terminal ? "\033[1m" : ""), off(terminal ? "\033[0m" : "") {}
  const char* dim;
  const char* bold;
  const char* off;
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
    "  /help           this list\n"
    "  /quit           leave (also Ctrl-D)\n"
    "  Ctrl-C          stop the answer; at the prompt, leave\n";

std::size_t columns(int file) {
  winsize size{};
  constexpr std::size_t kUsual = 80;
  return ioctl(file, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : kUsual;
}

// Writes an answer: its reasoning dimmed, its content as it is, calls at the end, each beginning on a line of its own.
class AnswerPrinter {
 public:
  AnswerPrinter(std::ostream& reasoning, std::ostream& content, const Style& style)
      : reasoning_(reasoning), content_(content), style_(style) {}

  void print(AnswerPart part, const std::string& text) {
    if (part == AnswerPart::kReasoning) {
      reasoning_ << style_.dim << text << style_.off << std::flush;
      thinking_ = true;
      return;
    }
    end_reasoning();
    content_ << text << std::flush;
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
  const Style& style_;
  bool thinking_ = false;  // The last that was written is reasoning.
  bool written_ = false;
};

// A conversation in the terminal.
class Chat {
 public:
  explicit Chat(const ChatOptions& options)
      : options_(options), terminal_(isatty(STDIN_FILENO) != 0 && isatty(STDOUT_FILENO) != 0), style_(terminal_) {}

  base::Status run(const std::string& greeting) {
    if (terminal_) std::cout << style_.dim << greeting << "\n" << kHelp << style_.off << std::endl;
    while (true) {
      const std::optional<std::string> line = read_line(terminal_, "you> ");
      if (!line.has_value() || *line == "/quit" || *line == "/exit") break;
      if (line->empty() || obey(*line)) continue;
      TESSERA_RETURN_IF_ERROR(take_turn({"user", *line}));
    }
    if (terminal_) std::cout << std::endl;
    return base::ok_status();
  }

 private:
  void say(std::string_view text) { std::cout << style_.dim << text << style_.off << std::endl; }

  // Whether the line is a command; then it is done.
  bool obey(const std::string& line) {
    if (!line.starts_with("/")) return false;
    if (line == "/help") {
      std::cout << kHelp << std::flush;
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
  base::Status take_turn(Turn question) {
    const std::size_t before = turns_.size();
    turns_.push_back(std::move(question));
    while (true) {
      const base::Status status = ask_and_print();
      if (!status.ok()) {
        std::cerr << "error: " << status.message() << std::endl;
        turns_.resize(before);
        return terminal_ ? base::ok_status() : status;
      }
      const std::vector<Call> calls = turns_.back().calls;
      for (const Call& call : calls) {
        const std::optional<std::string> result =
            read_line(terminal_, fmt::format("result of {}> ", call.name).c_str());
        turns_.push_back({.role = "tool", .content = result.value_or(""), .tool_call_id = call.id});
      }
      if (calls.empty()) return base::ok_status();
    }
  }

  // Adds the answer to the turns. An answer that was interrupted is one too, but its calls are not to be made.
  base::Status ask_and_print() {
    if (terminal_) std::cout << style_.bold << "tessera> " << style_.off << std::flush;
    const InterruptGuard guard;
    AnswerPrinter printer(std::cout, std::cout, style_);
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
    turns_.push_back(std::move(answer));
    return base::ok_status();
  }

  ChatOptions options_;
  const bool terminal_;
  const Style style_;
  std::vector<Turn> turns_;
};

}  // namespace

base::Status ask_once(const ChatOptions& options, const std::string& prompt) {
  const InterruptGuard guard;
  const Style style(isatty(STDERR_FILENO) != 0);
  AnswerPrinter printer(std::cerr, std::cout, style);
  Turn answer;
  const base::Result<AnswerStats> stats =
      ask(options, {{"user", prompt}},
          {[&](AnswerPart part, const std::string& text) { printer.print(part, text); }, interrupted}, answer);
  if (!stats.has_value()) return stats.error();
  printer.finish(answer.calls);
  return std::cout ? base::ok_status() : base::unavailable("standard output cannot be written");
}

base::Status run_chat(const ChatOptions& options, const std::string& greeting) { return Chat(options).run(greeting); }

}  // namespace tessera::app
