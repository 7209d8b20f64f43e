#include "tessera/quality/sandbox.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/sched.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "tessera/quality/sandbox_inside.h"

namespace tessera::quality {

namespace {

using Clock = std::chrono::steady_clock;

std::string error_text(int error) { return std::generic_category().message(error); }

base::Status no_wall(std::string_view what, int error) {
  return base::unavailable(fmt::format(
      "code that a model wrote is run only in a sandbox, and {} fails on this machine: {}", what, error_text(error)));
}

class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int number) : number_(number) {}
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() { close(); }
  int number() const { return number_; }
  void close() {
    if (number_ >= 0) ::close(std::exchange(number_, -1));
  }

 private:
  int number_ = -1;
};

struct Channel {
  Descriptor ours;
  Descriptor theirs;
};

base::Result<Channel> make_pipe() {
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) {
    return base::failure(base::internal_error(fmt::format("a pipe for the sandbox: {}", error_text(errno))));
  }
  return Channel{Descriptor(ends[0]), Descriptor(ends[1])};
}

// Writing to a socket whose reader is gone can be told not to raise a signal.
base::Result<Channel> make_socket_pair() {
  std::array<int, 2> ends{};
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) {
    return base::failure(base::internal_error(fmt::format("a socket for the sandbox: {}", error_text(errno))));
  }
  return Channel{Descriptor(ends[0]), Descriptor(ends[1])};
}

// Folders beside /usr in which the interpreter's own loader and libraries may lie.
struct RootNames {
  std::vector<std::string> texts;
  std::vector<SandboxRootName> names;
};

RootNames root_names() {
  RootNames found;
  constexpr std::array<const char*, 3> kPaths = {"/lib", "/lib64", "/bin"};
  found.texts.reserve(kPaths.size());
  for (const char* const path : kPaths) {
    std::error_code error;
    const std::filesystem::file_status status = std::filesystem::symlink_status(path, error);
    SandboxRootName name{.path = path, .inside = nullptr, .link_target = nullptr};
    if (std::filesystem::is_symlink(status)) {
      found.texts.push_back(std::filesystem::read_symlink(path, error).string());
      name.link_target = found.texts.back().c_str();
    } else if (!std::filesystem::is_directory(status)) {
      continue;
    }
    name.inside = path + 1;
    found.names.push_back(name);
  }
  return found;
}

// The process, killed and waited for whatever happens.
class Child {
 public:
  Child(pid_t process, Descriptor watched) : process_(process), watched_(std::move(watched)) {}
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  ~Child() {
    kill();
    wait();
  }
  pid_t process() const { return process_; }
  int watched() const { return watched_.number(); }
  // It is the first of its process namespace: all that it may have started ends with it.
  void kill() const {
    if (process_ > 0) ::kill(process_, SIGKILL);
  }
  // The status that waitpid() gives, once.
  int wait() {
    int status = 0;
    while (process_ > 0 && waitpid(process_, &status, 0) < 0 && errno == EINTR) {
    }
    process_ = -1;
    return status;
  }

 private:
  pid_t process_;
  Descriptor watched_;
};

bool wrote(const std::string& path, std::string_view text) {
  const Descriptor file(open(path.c_str(), O_WRONLY | O_CLOEXEC));
  return file.number() >= 0 && write(file.number(), text.data(), text.size()) == static_cast<ssize_t>(text.size());
}

constexpr unsigned kNobody = 65534;

// Root becomes nobody outside; a user stays the user there, which is all that the kernel lets a user say.
base::Status map_identity(pid_t process, bool is_root) {
  const std::string folder = fmt::format("/proc/{}/", process);
  if (!is_root && !wrote(folder + "setgroups", "deny")) return no_wall("giving up groups", errno);
  const auto line = [is_root](unsigned own) { return fmt::format("{} {} 1\n", kSandboxId, is_root ? kNobody : own); };
  if (!wrote(folder + "gid_map", line(getegid()))) return no_wall("mapping the group's identity", errno);
  if (!wrote(folder + "uid_map", line(geteuid()))) return no_wall("mapping the user's identity", errno);
  return {};
}

// A copy of this process in namespaces of its own, made in one step. In the copy nothing may be called but system
// calls.
std::pair<pid_t, int> clone_into_namespaces(const SandboxPlan& plan) {
  constexpr unsigned long kFlags = CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC |
                                   CLONE_NEWUTS | CLONE_NEWCGROUP | CLONE_PIDFD | SIGCHLD;
  // No handler of ours may run in the copy before it has reset them.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  int watched = -1;
  const long process = syscall(SYS_clone, kFlags, nullptr, &watched, nullptr, nullptr);
  if (process == 0) run_inside_sandbox(plan);
  const int error = errno;
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  errno = error;
  return {static_cast<pid_t>(process), watched};
}

void append_end(std::string& kept, std::string_view more) {
  kept += more;
  if (kept.size() > 2 * kSandboxOutputBytes) kept.erase(0, kept.size() - kSandboxOutputBytes);
}

// Reads what is there now.
void drain(int output, std::string& kept) {
  std::array<char, 1 << 16> piece;
  // A program that prints without end must not keep us from looking at the clock.
  for (int i = 0; i < 16; ++i) {
    const ssize_t got = read(output, piece.data(), piece.size());
    if (got <= 0) return;
    append_end(kept, {piece.data(), static_cast<std::size_t>(got)});
  }
}

std::optional<SandboxFailure> read_failure(int report) {
  SandboxFailure failure;
  ssize_t got = -1;
  do {
    got = read(report, &failure, sizeof failure);
  } while (got < 0 && errno == EINTR);
  return got == sizeof failure ? std::optional(failure) : std::nullopt;
}

// Until the process has ended; false if it had to be killed.
bool watch(const Child& child, int output, Clock::time_point deadline, std::string& kept) {
  std::array<pollfd, 2> watched = {pollfd{.fd = child.watched(), .events = POLLIN, .revents = 0},
                                   pollfd{.fd = output, .events = POLLIN, .revents = 0}};
  while (true) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
    if (left.count() <= 0) return false;
    const int ready = poll(watched.data(), watched.size(), static_cast<int>(left.count()));
    if (ready < 0 && errno != EINTR) return false;
    if (ready <= 0) continue;
    drain(output, kept);
    if (watched[0].revents != 0) return true;
    // It closed its output and goes on: only its end is waited for.
    if ((watched[1].revents & POLLIN) == 0 && watched[1].revents != 0) watched[1].fd = -1;
  }
}

// Leans on every wall, and says at the end that all held.
constexpr std::string_view kTrial = R"(
import os, threading
def refused(what, attempt):
    try:
        attempt()
    except (OSError, RuntimeError):
        return
    raise SystemExit(what)
import _socket
refused("a socket can be made", lambda: _socket.socket())
refused("a process can be made", os.fork)
refused("files outside can be written", lambda: open("/file", "w"))
refused("the system's files can be written", lambda: open("/usr/file", "w"))
if set(os.listdir("/")) - {"usr", "lib", "lib64", "bin", "work", "program.py"}:
    raise SystemExit("the system's root is seen")
if set(os.environ) - {"LC_CTYPE"}:
    raise SystemExit("the environment is seen")
if os.getpid() != 1 or os.getuid() == 0:
    raise SystemExit("the identity is the system's")
open("file", "w").write("x")
thread = threading.Thread(target=lambda: print("all walls stand"))
thread.start()
thread.join()
)";

}  // namespace

base::Result<SandboxRun> Sandbox::run(std::string_view program, const SandboxLimits& limits) const {
  TESSERA_ASSIGN_OR_RETURN(Channel go, make_socket_pair());
  TESSERA_ASSIGN_OR_RETURN(Channel report, make_pipe());
  TESSERA_ASSIGN_OR_RETURN(Channel output, make_pipe());
  if (fcntl(output.ours.number(), F_SETFL, O_NONBLOCK) != 0) {
    return base::failure(base::internal_error(fmt::format("the sandbox's output: {}", error_text(errno))));
  }
  const RootNames names = root_names();
  const bool is_root = geteuid() == 0;
  const SandboxPlan plan{.go = go.theirs.number(),
                         .report = report.theirs.number(),
                         .output = output.theirs.number(),
                         .drops_groups = is_root,
                         .program = program.data(),
                         .program_bytes = program.size(),
                         .root_names = names.names,
                         .cpu_seconds = limits.cpu_seconds,
                         .memory_bytes = limits.memory_bytes,
                         .file_bytes = kSandboxFileBytes};
  const Clock::time_point deadline = Clock::now() + limits.wall;
  const auto [process, watched] = clone_into_namespaces(plan);
  if (process < 0) {
    if (errno == EAGAIN || errno == ENOMEM) {
      return base::failure(base::internal_error(fmt::format("a process for the sandbox: {}", error_text(errno))));
    }
    return base::failure(no_wall("making namespaces (user, mount, process, network, IPC)", errno));
  }
  Child child(process, Descriptor(watched));
  go.theirs.close();
  report.theirs.close();
  output.theirs.close();
  TESSERA_RETURN_IF_ERROR(map_identity(process, is_root));
  // A process that has died already is seen below.
  const char byte = 1;
  static_cast<void>(send(go.ours.number(), &byte, 1, MSG_NOSIGNAL));

  SandboxRun run;
  run.timed_out = !watch(child, output.ours.number(), deadline, run.output);
  if (run.timed_out) child.kill();
  const int status = child.wait();
  drain(output.ours.number(), run.output);
  if (run.output.size() > kSandboxOutputBytes) run.output.erase(0, run.output.size() - kSandboxOutputBytes);
  if (const std::optional<SandboxFailure> failure = read_failure(report.ours.number())) {
    return base::failure(no_wall(sandbox_step_name(failure->step), failure->error));
  }
  if (WIFEXITED(status)) run.exit_code = WEXITSTATUS(status);
  if (WIFSIGNALED(status)) run.signal = WTERMSIG(status);
  return run;
}

base::Result<Sandbox> Sandbox::create() {
  const Sandbox sandbox;
  TESSERA_ASSIGN_OR_RETURN(const SandboxRun trial, sandbox.run(kTrial));
  if (trial.exit_code != 0 || trial.output != "all walls stand\n") {
    return base::failure(base::unavailable(fmt::format(
        "code that a model wrote is run only in a sandbox, and a trial of it ended with exit code {}, signal {}: {}",
        trial.exit_code, trial.signal, trial.output)));
  }
  return sandbox;
}

}  // namespace tessera::quality
