// What the sandbox keeps in and out, seen from the code inside and from the system outside.
#include "tessera/quality/sandbox.h"

#include <gmock/gmock.h>
#include <grp.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "tessera/quality/sandbox_fixture.h"

namespace tessera::quality {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;
using ::testing::Not;

class SandboxTest : public SandboxFixture {
 protected:
  SandboxRun run(std::string_view program, const SandboxLimits& limits = {}) const {
    const base::Result<SandboxRun> run = sandbox_->run(program, limits);
    EXPECT_TRUE(run.has_value()) << run.error().message();
    return run.value_or(SandboxRun{});
  }
};

// The exception that ends the program.
constexpr std::string_view kTry = R"(
def attempt(what):
    try:
        print("did", what())
    except BaseException as error:
        print(type(error).__name__, error)
)";

std::string trying(std::string_view code) { return std::string(kTry) + std::string(code); }

std::size_t entries(const std::filesystem::path& folder) {
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder)) ++count;
  return count;
}

std::string text_of(const std::filesystem::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST_F(SandboxTest, RunsAProgramAndGivesItsEnd) {
  const SandboxRun good = run("import sys\nprint('hello'); print('world', file=sys.stderr)");
  EXPECT_EQ(good.exit_code, 0);
  EXPECT_THAT(good.output, HasSubstr("hello\n"));
  EXPECT_THAT(good.output, HasSubstr("world\n"));
  EXPECT_EQ(run("raise SystemExit(7)").exit_code, 7);
  const SandboxRun raised = run("assert 1 == 2, 'no'");
  EXPECT_EQ(raised.exit_code, 1);
  EXPECT_THAT(raised.output, HasSubstr("AssertionError: no"));
  EXPECT_EQ(run("def").exit_code, 1);
  EXPECT_EQ(run("").exit_code, 0);
  EXPECT_EQ(run("import math, re, hashlib, collections, typing, json, random, heapq, fractions, statistics").exit_code,
            0);
}

TEST_F(SandboxTest, HasNoNetwork) {
  const SandboxRun tried = run(trying(R"(
import socket
attempt(lambda: socket.create_connection(("127.0.0.1", 22), 1))
attempt(lambda: socket.socket(socket.AF_UNIX))
attempt(lambda: socket.getaddrinfo("example.org", 80))
)"));
  EXPECT_EQ(tried.exit_code, 0);
  EXPECT_THAT(tried.output, Not(HasSubstr("did")));
  EXPECT_THAT(tried.output, HasSubstr("PermissionError"));
}

TEST_F(SandboxTest, SeesAndWritesNoFilesOutside) {
  const std::filesystem::path secret = std::filesystem::path(::testing::TempDir()) / "sandbox_secret";
  std::ofstream(secret) << "the secret";
  std::filesystem::permissions(secret, std::filesystem::perms::all);
  const SandboxRun tried = run(trying("import os\nsecret = '" + secret.string() + R"('
for path in ("/root", "/home", "/etc/passwd", "/etc/shadow", "/proc/self/environ", "/proc/1/mem", "/sys", "/dev", "/var", secret):
    attempt(lambda: os.listdir(path) if os.path.isdir(path) else open(path).read())
for path in ("/file", "/usr/file", "/usr/bin/file", "/lib/file", "/program.py", secret):
    attempt(lambda: open(path, "w"))
attempt(lambda: os.mkdir("/folder"))
attempt(lambda: os.chmod("/usr/bin/python3", 0o777))
attempt(lambda: os.remove("/program.py"))
print(dict(os.environ), os.getcwd(), os.listdir("."), sorted(os.listdir("/")))
print(os.getuid(), os.geteuid(), os.getpid(), [fd for fd in range(3, 64) if os.path.exists(f"/dev/fd/{fd}")])
for fd in range(3, 64):
    try:
        os.fstat(fd)
        print("open", fd)
    except OSError:
        pass
)"));
  EXPECT_EQ(tried.exit_code, 0) << tried.output;
  EXPECT_THAT(tried.output, Not(HasSubstr("did")));
  EXPECT_THAT(tried.output, Not(HasSubstr("open ")));
  EXPECT_THAT(tried.output, HasSubstr("/work [] ['bin', 'lib', 'lib64', 'program.py', 'usr', 'work']"));
  EXPECT_THAT(tried.output, HasSubstr("1000 1000 1 "));
  EXPECT_EQ(text_of(secret), "the secret");
  std::filesystem::remove(secret);
}

TEST_F(SandboxTest, MakesNoProcessAndGainsNoRight) {
  const SandboxRun tried = run(trying(R"(
import os, subprocess, ctypes
attempt(os.fork)
attempt(lambda: subprocess.run(["/usr/bin/true"]))
attempt(lambda: os.posix_spawn("/usr/bin/true", ["true"], {}))
libc = ctypes.CDLL(None, use_errno=True)
def call(name, *arguments):
    if getattr(libc, name)(*arguments) < 0:
        raise OSError(ctypes.get_errno(), name)
attempt(lambda: call("unshare", 0x10000000))
attempt(lambda: call("mount", b"tmpfs", b"/work", b"tmpfs", 0, None))
attempt(lambda: call("ptrace", 16, 1, 0, 0))
attempt(lambda: call("syscall", 250, 0, 0, 0))
attempt(lambda: call("shmget", 0, 1 << 30, 0o1600))
attempt(lambda: os.setuid(0))
attempt(lambda: os.chroot("/work"))
attempt(lambda: os.memfd_create("x"))
)"));
  EXPECT_EQ(tried.exit_code, 0) << tried.output;
  EXPECT_THAT(tried.output, Not(HasSubstr("did")));
  // Another convention of system calls must not be a way around the filter.
  const SandboxRun other = run("import ctypes\nctypes.CDLL(None).syscall(0x40000000 + 41, 2, 1, 0)\nprint('alive')");
  EXPECT_THAT(other.output, Not(HasSubstr("alive")));
}

TEST_F(SandboxTest, BombsEndWithinLimits) {
  const auto began = std::chrono::steady_clock::now();
  const SandboxLimits small{.memory_bytes = std::int64_t{128} << 20};
  EXPECT_THAT(run("x = []\nwhile True: x.append(bytearray(1 << 20))", small).output, HasSubstr("MemoryError"));
  EXPECT_THAT(run("x = bytearray(600 << 20)").output, HasSubstr("MemoryError"));
  EXPECT_THAT(run("import os\nwhile True: os.fork()").output, HasSubstr("PermissionError"));
  EXPECT_NE(run("import threading, time\nwhile True: threading.Thread(target=time.sleep, args=(60,)).start()",
                {.wall = seconds(3)})
                .exit_code,
            0);
  EXPECT_THAT(run("f = open('f', 'wb')\nwhile True: f.write(bytes(1 << 20))").output, HasSubstr("OSError"));
  EXPECT_THAT(run("import os\nfor i in range(10**6): open(str(i), 'w').close()").output, HasSubstr("OSError"));
  EXPECT_NE(run("def f(): f()\nimport sys\nsys.setrecursionlimit(10**9)\nf()", small).exit_code, 0);
  EXPECT_LT(std::chrono::steady_clock::now() - began, seconds(60));
}

TEST_F(SandboxTest, EndlessLoopsEndAtTheLimits) {
  const SandboxRun slept = run("import time\ntime.sleep(60)", {.wall = milliseconds(700)});
  EXPECT_TRUE(slept.timed_out);
  EXPECT_EQ(slept.signal, SIGKILL);
  // Signals that it could ignore do not help it.
  const SandboxRun stubborn =
      run("import os, signal, time\nfor s in range(1, 32):\n  try: signal.signal(s, signal.SIG_IGN)\n  except OSError: "
          "pass\n"
          "os.close(1); os.close(2)\ntime.sleep(60)",
          {.wall = milliseconds(700)});
  EXPECT_TRUE(stubborn.timed_out);
  const SandboxRun spun = run("while True: pass", {.wall = seconds(30), .cpu_seconds = 1});
  EXPECT_FALSE(spun.timed_out);
  EXPECT_NE(spun.signal, 0);
  const SandboxRun printed = run("while True: print('x' * 1000)", {.wall = milliseconds(700)});
  EXPECT_TRUE(printed.timed_out);
  EXPECT_LE(printed.output.size(), kSandboxOutputBytes);
  EXPECT_GT(printed.output.size(), 10'000U);
}

TEST_F(SandboxTest, KeepsTheEndOfALongOutput) {
  const SandboxRun printed = run("print('x' * 1000000)\nprint('the end')");
  EXPECT_EQ(printed.output.size(), kSandboxOutputBytes);
  EXPECT_TRUE(printed.output.ends_with("x\nthe end\n"));
}

TEST_F(SandboxTest, LeavesNothingBehind) {
  run("1");
  const std::size_t open_before = entries("/proc/self/fd");
  const std::string mounts_before = text_of("/proc/self/mountinfo");
  run("open('left', 'w').write('x')");
  run("import time\ntime.sleep(60)", {.wall = milliseconds(300)});
  run("raise SystemExit(1)");
  EXPECT_EQ(entries("/proc/self/fd"), open_before);
  EXPECT_EQ(text_of("/proc/self/mountinfo"), mounts_before);
  EXPECT_FALSE(std::filesystem::exists(std::filesystem::temp_directory_path() / "program.py"));
  EXPECT_THAT(run("import os\nprint(os.listdir('.'))").output, HasSubstr("[]"));
  // No child is left to wait for, ended or not.
  EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1);
  EXPECT_EQ(errno, ECHILD);
}

// Root and an ordinary user take different ways to give up their identity; where the tests are root's, both are walked.
TEST_F(SandboxTest, AnOrdinaryUserNeedsNoRight) {
  if (geteuid() != 0) return;  // Then all of this program's tests are an ordinary user's.
  const pid_t process = fork();
  if (process == 0) {
    constexpr unsigned kNobody = 65534;
    bool is_user = setgroups(0, nullptr) == 0 && setgid(kNobody) == 0 && setuid(kNobody) == 0;
    // As a program that the user starts is; only the change of identity within one is not.
    is_user = is_user && prctl(PR_SET_DUMPABLE, 1) == 0;
    const base::Result<Sandbox> made = Sandbox::create();
    if (!made.has_value()) fputs(made.error().message().c_str(), stderr);
    _exit(is_user && made.has_value() ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(process, &status, 0), process);
  EXPECT_EQ(status, 0);
}

// Without leave to make namespaces, nothing runs.
TEST_F(SandboxTest, RefusesWhereAWallCannotBePutUp) {
  const pid_t process = fork();
  if (process == 0) {
    // In a user namespace that maps nobody, no further one may be made.
    if (unshare(CLONE_NEWUSER) != 0) _exit(2);
    const base::Result<Sandbox> made = Sandbox::create();
    if (made.has_value()) _exit(3);
    const base::Status& status = made.error();
    const bool says = status.code() == base::StatusCode::kUnavailable &&
                      status.message().find("only in a sandbox, and making namespaces") != std::string::npos;
    if (!says) fputs(status.message().c_str(), stderr);
    _exit(says ? 0 : 4);
  }
  int status = -1;
  ASSERT_EQ(waitpid(process, &status, 0), process);
  EXPECT_EQ(status, 0);
}

TEST_F(SandboxTest, ManyThreadsRunAtOnce) {
  std::vector<std::string> outputs(24);
  std::vector<std::thread> threads;
  threads.reserve(6);
  for (std::size_t t = 0; t < 6; ++t) {
    threads.emplace_back([this, t, &outputs] {
      for (std::size_t i = t; i < outputs.size(); i += 6) {
        outputs[i] = run("open('same', 'x').write('" + std::to_string(i) + "')\nprint(open('same').read())").output;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (std::size_t i = 0; i < outputs.size(); ++i) EXPECT_EQ(outputs[i], std::to_string(i) + "\n");
}

}  // namespace
}  // namespace tessera::quality
