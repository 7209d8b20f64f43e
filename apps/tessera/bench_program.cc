#include "bench_program.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <system_error>
#include <vector>

namespace tessera::app {

base::Status run_bench(std::span<const std::string> arguments) {
  std::error_code error;
  const std::filesystem::path own = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) return base::unavailable("cannot tell where this program lies: " + error.message());
  const std::string program = own.parent_path() / "tessera_bench";
  if (!std::filesystem::exists(program, error)) {
    return base::not_found(fmt::format(
        "the benchmarks are a program of their own, and {} does not exist; scripts/build.sh cpu tessera_bench makes it",
        program));
  }
  std::vector<std::string> words(arguments.begin(), arguments.end());
  words.insert(words.begin(), program);
  std::vector<char*> argv;
  argv.reserve(words.size() + 1);
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  execv(program.c_str(), argv.data());
  return base::unavailable(fmt::format("cannot start {}: {}", program, std::strerror(errno)));
}

}  // namespace tessera::app
