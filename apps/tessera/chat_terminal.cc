// The terminal side of `tessera chat`: prompts, history, interruption.
#include <editline/readline.h>
#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <optional>

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
    "  /help           this list\n"
    "  /quit           leave (also Ctrl-D)\n"
    "  Ctrl-C          stop the answer; at the prompt, leave\n";

}  // namespace

base::Status ask_once(const ChatOptions& options, const std::string& prompt) {
  const InterruptGuard guard;
  const auto print = [](const std::string& text) { std::cout << text << std::flush; };
  const base::Result<AnswerStats> stats = ask(options, {{"user", prompt}}, print, interrupted);
  if (!stats.has_value()) return stats.error();
  std::cout << std::endl;
  return std::cout ? base::ok_status() : base::unavailable("standard output cannot be written");
}

base::Status run_chat(const ChatOptions& options_in, const std::string& greeting) {
  ChatOptions options = options_in;
  const bool terminal = isatty(STDIN_FILENO) != 0 && isatty(STDOUT_FILENO) != 0;
  const Style style(terminal);
  std::vector<Turn> turns;
  if (terminal) std::cout << style.dim << greeting << "\n" << kHelp << style.off << std::endl;
  while (true) {
    const std::optional<std::string> line = read_line(terminal, "you> ");
    if (!line.has_value() || *line == "/quit" || *line == "/exit") break;
    if (line->empty()) continue;
    if (*line == "/help") {
      std::cout << kHelp << std::flush;
      continue;
    }
    if (*line == "/clear" || line->starts_with("/system ")) {
      if (*line != "/clear") options.system = line->substr(8);
      turns.clear();
      std::cout << style.dim << "(the conversation begins again)" << style.off << std::endl;
      continue;
    }
    if (line->starts_with("/")) {
      std::cout << "unknown command " << *line << "; /help lists them" << std::endl;
      continue;
    }
    turns.push_back({"user", *line});
    std::string answer;
    if (terminal) std::cout << style.bold << "tessera> " << style.off << std::flush;
    const InterruptGuard guard;
    const base::Result<AnswerStats> stats = ask(
        options, turns,
        [&](const std::string& text) {
          answer += text;
          std::cout << text << std::flush;
        },
        interrupted);
    std::cout << std::endl;
    if (!stats.has_value()) {
      if (stats.error().code() != base::StatusCode::kCancelled) {
        std::cerr << "error: " << stats.error().message() << std::endl;
        turns.pop_back();
        if (!terminal) return stats.error();
        continue;
      }
      std::cout << style.dim << "(stopped)" << style.off << std::endl;
    } else if (terminal) {
      const double decode_seconds = stats->seconds - stats->first_token_seconds;
      std::cout << style.dim
                << fmt::format(
                       "[{} prompt tokens, {} cached; {} tokens, {:.1f}/s; first after {:.0f} ms; {}]",
                       stats->prompt_tokens, stats->cached_tokens, stats->completion_tokens,
                       decode_seconds > 0 ? static_cast<double>(stats->completion_tokens - 1) / decode_seconds : 0.0,
                       stats->first_token_seconds * 1e3, stats->finish_reason)
                << style.off << std::endl;
    }
    turns.push_back({"assistant", answer});
  }
  if (terminal) std::cout << std::endl;
  return base::ok_status();
}

}  // namespace tessera::app
