#include "tessera/quality/sandbox_inside.h"

#include <fcntl.h>
#include <linux/capability.h>
#include <linux/mount.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>

namespace tessera::quality {

namespace {

// From linux/fs.h and sys/mount.h, neither of which can be included beside linux/mount.h.
constexpr unsigned long kMountNoSuid = 2;
constexpr unsigned long kMountNoDev = 4;
constexpr unsigned long kMountNoExec = 8;
constexpr unsigned long kMountBind = 4096;
constexpr unsigned long kMountRecursive = 16384;
constexpr unsigned long kMountPrivate = 1UL << 18;
constexpr int kDetach = 2;

// The new root is put together where every system has a folder; it covers that folder for this process alone.
constexpr const char* kRoot = "/tmp";

constexpr unsigned kNoCloseOnExec = 0;

// One system call as the kernel has it: sanitizers watch the library's functions, with locks of their own.
template <typename... Arguments>
long call(long number, Arguments... arguments) {
  return syscall(number, arguments...);
}

// A step that failed ends the process.
class Steps {
 public:
  explicit Steps(int report) : report_(report) {}
  void begin(SandboxStep step) { step_ = step; }
  void report_at(int descriptor) { report_ = descriptor; }
  void need(bool done) const {
    if (!done) fail(errno);
  }
  [[noreturn]] void fail(int error) const {
    const SandboxFailure failure{step_, error};
    call(SYS_write, report_, &failure, sizeof failure);
    while (true) call(SYS_exit_group, 125);
  }

 private:
  int report_;
  SandboxStep step_ = SandboxStep::kSignals;
};

// The handlers of the process that this is a copy of must not run here.
void reset_signals(const Steps& steps) {
  // The kernel's struct: handler (null: the default), flags, restorer, mask.
  static constexpr std::array<unsigned long, 4> kDefault{};
  constexpr std::size_t kMaskBytes = 8;
  for (int signal = 1; signal <= 64; ++signal) {
    if (signal == SIGKILL || signal == SIGSTOP) continue;
    steps.need(call(SYS_rt_sigaction, signal, kDefault.data(), nullptr, kMaskBytes) == 0);
  }
  static constexpr std::array<unsigned char, kMaskBytes> kNone{};
  steps.need(call(SYS_rt_sigprocmask, SIG_SETMASK, kNone.data(), nullptr, kMaskBytes) == 0);
}

constexpr int kReport = 3;
constexpr int kGo = 4;

// Leaves standard input (nothing), output and error, the report and the go; closes what this process has open beside.
void take_descriptors(const SandboxPlan& plan, Steps& steps) {
  // Out of the way of the numbers that they get.
  constexpr int kAway = 64;
  const auto away = [&steps](int descriptor) {
    const long moved = call(SYS_fcntl, descriptor, F_DUPFD_CLOEXEC, kAway);
    steps.need(moved >= 0);
    return static_cast<int>(moved);
  };
  const int report = away(plan.report);
  const int go = away(plan.go);
  const int output = away(plan.output);
  const int nothing = static_cast<int>(call(SYS_openat, AT_FDCWD, "/dev/null", O_RDONLY | O_CLOEXEC, 0));
  steps.need(nothing >= 0);
  const int input = away(nothing);
  steps.need(call(SYS_dup3, report, kReport, O_CLOEXEC) >= 0);
  steps.report_at(kReport);
  steps.need(call(SYS_dup3, go, kGo, O_CLOEXEC) >= 0);
  // dup3 without O_CLOEXEC: these three are the interpreter's.
  steps.need(call(SYS_dup3, input, STDIN_FILENO, kNoCloseOnExec) >= 0);
  steps.need(call(SYS_dup3, output, STDOUT_FILENO, kNoCloseOnExec) >= 0);
  steps.need(call(SYS_dup3, output, STDERR_FILENO, kNoCloseOnExec) >= 0);
  steps.need(call(SYS_close_range, kGo + 1, ~0U, 0) == 0);
}

void wait_for_go(const Steps& steps) {
  char byte = 0;
  long got = -1;
  do {
    got = call(SYS_read, kGo, &byte, 1);
  } while (got < 0 && errno == EINTR);
  if (got != 1) steps.fail(ESRCH);
}

// Outside it is nobody (the parent is root) or the user; no group of root's stays.
void take_identity(const SandboxPlan& plan, const Steps& steps) {
  if (plan.drops_groups) steps.need(call(SYS_setgroups, 0, nullptr) == 0);
  steps.need(call(SYS_setresgid, kSandboxId, kSandboxId, kSandboxId) == 0);
  steps.need(call(SYS_setresuid, kSandboxId, kSandboxId, kSandboxId) == 0);
  steps.need(call(SYS_setsid) >= 0);
}

// It must not outlive the parent, which may be gone by now: then nobody holds the other end.
void die_with_parent(const Steps& steps) {
  steps.need(call(SYS_prctl, PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0) == 0);
  pollfd watched{.fd = kGo, .events = 0, .revents = 0};
  timespec at_once{};
  steps.need(call(SYS_ppoll, &watched, 1, &at_once, nullptr, 0) >= 0);
  if ((watched.revents & POLLHUP) != 0) steps.fail(ESRCH);
}

bool mounted(const char* source, const char* target, const char* type, unsigned long flags, const char* data) {
  return call(SYS_mount, source, target, type, flags, data) == 0;
}

bool made_folder(const char* path) { return call(SYS_mkdirat, AT_FDCWD, path, 0755) == 0; }

// Unlike a remount, this keeps the flags that the outer namespace has locked.
bool set_read_only(const char* path, unsigned flags) {
  mount_attr attributes{};
  attributes.attr_set = MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV;
  return call(SYS_mount_setattr, AT_FDCWD, path, flags, &attributes, sizeof attributes) == 0;
}

void show_folder(const char* source, const char* target, const Steps& steps) {
  steps.need(made_folder(target));
  steps.need(mounted(source, target, nullptr, kMountBind | kMountRecursive, nullptr));
  steps.need(set_read_only(target, AT_RECURSIVE));
}

void write_program(const SandboxPlan& plan, const Steps& steps) {
  const long file = call(SYS_openat, AT_FDCWD, "program.py", O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0444);
  steps.need(file >= 0);
  std::size_t written = 0;
  while (written < plan.program_bytes) {
    const long bytes = call(SYS_write, file, plan.program + written, plan.program_bytes - written);
    steps.need(bytes > 0);
    written += static_cast<std::size_t>(bytes);
  }
  steps.need(call(SYS_close, file) == 0);
}

void build_root(const SandboxPlan& plan, Steps& steps) {
  steps.begin(SandboxStep::kPrivateMounts);
  steps.need(mounted(nullptr, "/", nullptr, kMountRecursive | kMountPrivate, nullptr));
  steps.begin(SandboxStep::kRoot);
  steps.need(mounted("tmpfs", kRoot, "tmpfs", kMountNoSuid | kMountNoDev, "size=8m,nr_inodes=64,mode=755"));
  // From here on the names of what it holds are relative.
  steps.need(call(SYS_chdir, kRoot) == 0);
  steps.begin(SandboxStep::kSystemFiles);
  show_folder("/usr", "usr", steps);
  for (const SandboxRootName& name : plan.root_names) {
    if (name.link_target == nullptr) {
      show_folder(name.path, name.inside, steps);
    } else {
      steps.need(call(SYS_symlinkat, name.link_target, AT_FDCWD, name.inside) == 0);
    }
  }
  steps.begin(SandboxStep::kWorkFolder);
  steps.need(made_folder("work"));
  steps.need(
      mounted("tmpfs", "work", "tmpfs", kMountNoSuid | kMountNoDev | kMountNoExec, "size=16m,nr_inodes=256,mode=700"));
  steps.begin(SandboxStep::kProgram);
  write_program(plan, steps);
  steps.begin(SandboxStep::kReadOnly);
  steps.need(set_read_only(".", 0));
  steps.begin(SandboxStep::kPivot);
  // With both folders the same, the old root lies on top of the new one, from where it is taken away.
  steps.need(call(SYS_pivot_root, ".", ".") == 0);
  steps.need(call(SYS_umount2, ".", kDetach) == 0);
  steps.need(call(SYS_chdir, "/work") == 0);
}

void limit(int resource, std::int64_t most, const Steps& steps) {
  const rlimit64 both{static_cast<rlim64_t>(most), static_cast<rlim64_t>(most)};
  steps.need(call(SYS_prlimit64, 0, resource, &both, nullptr) == 0);
}

void limit_resources(const SandboxPlan& plan, const Steps& steps) {
  limit(RLIMIT_CPU, plan.cpu_seconds, steps);
  limit(RLIMIT_AS, plan.memory_bytes, steps);
  limit(RLIMIT_FSIZE, plan.file_bytes, steps);
  limit(RLIMIT_NOFILE, 64, steps);
  limit(RLIMIT_NPROC, 64, steps);  // Threads, that is.
  limit(RLIMIT_CORE, 0, steps);
  limit(RLIMIT_MEMLOCK, 0, steps);
  limit(RLIMIT_MSGQUEUE, 0, steps);
}

// What it may do within its own namespaces ends too; the start of a program brings nothing back.
void drop_capabilities(const Steps& steps) {
  for (unsigned long capability = 0; capability < 64; ++capability) {
    if (call(SYS_prctl, PR_CAPBSET_DROP, capability, 0, 0, 0) == 0) continue;
    // Beyond the last one that this kernel knows.
    if (errno == EINVAL) break;
    steps.fail(errno);
  }
  __user_cap_header_struct header{.version = _LINUX_CAPABILITY_VERSION_3, .pid = 0};
  std::array<__user_cap_data_struct, 2> none{};
  steps.need(call(SYS_capset, &header, none.data()) == 0);
  steps.need(call(SYS_prctl, PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
}

}  // namespace

const char* sandbox_step_name(SandboxStep step) {
  switch (step) {
    case SandboxStep::kSignals:
      return "resetting signals";
    case SandboxStep::kDescriptors:
      return "closing open files";
    case SandboxStep::kIdentity:
      return "giving up the user's identity";
    case SandboxStep::kParent:
      return "tying its life to this process";
    case SandboxStep::kPrivateMounts:
      return "parting from the system's mounts";
    case SandboxStep::kRoot:
      return "mounting an empty root on /tmp";
    case SandboxStep::kSystemFiles:
      return "showing /usr read-only";
    case SandboxStep::kWorkFolder:
      return "mounting an empty working folder";
    case SandboxStep::kProgram:
      return "writing the program";
    case SandboxStep::kReadOnly:
      return "making the root read-only";
    case SandboxStep::kPivot:
      return "leaving the system's root";
    case SandboxStep::kLimits:
      return "limiting time and memory";
    case SandboxStep::kCapabilities:
      return "dropping capabilities";
    case SandboxStep::kFilter:
      return "filtering system calls";
    case SandboxStep::kInterpreter:
      return "starting /usr/bin/python3";
  }
  return "an unknown step";
}

void run_inside_sandbox(const SandboxPlan& plan) {
  Steps steps(plan.report);
  reset_signals(steps);
  steps.begin(SandboxStep::kDescriptors);
  take_descriptors(plan, steps);
  steps.begin(SandboxStep::kIdentity);
  wait_for_go(steps);
  take_identity(plan, steps);
  steps.begin(SandboxStep::kParent);
  die_with_parent(steps);
  build_root(plan, steps);
  steps.begin(SandboxStep::kLimits);
  limit_resources(plan, steps);
  steps.begin(SandboxStep::kCapabilities);
  drop_capabilities(steps);
  steps.begin(SandboxStep::kFilter);
  if (const int error = install_sandbox_filter(); error != 0) steps.fail(error);
  steps.begin(SandboxStep::kInterpreter);
  static constexpr std::array<const char*, 6> kArguments = {"python3", "-I", "-S", "-B", "/program.py", nullptr};
  static constexpr std::array<const char*, 1> kEnvironment = {nullptr};
  call(SYS_execve, "/usr/bin/python3", kArguments.data(), kEnvironment.data());
  steps.fail(errno);
}

}  // namespace tessera::quality
