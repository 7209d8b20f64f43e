#include "output_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <system_error>
#include <utility>

namespace tessera::app {

base::Result<OutputFile> OutputFile::open(const std::filesystem::path& path) {
  const auto failed = [&](std::string_view why) {
    return base::failure(base::unavailable(fmt::format("{}: cannot be written: {}", path.string(), why)));
  };
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) return failed("it is a folder");
  OutputFile output(path);
  output.file_ = ::open(output.part().c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (output.file_ < 0) return failed(std::strerror(errno));
  return output;
}

OutputFile::OutputFile(OutputFile&& other) noexcept
    : path_(std::move(other.path_)), file_(std::exchange(other.file_, -1)) {}

OutputFile::~OutputFile() {
  if (file_ < 0) return;
  close(file_);
  unlink(part().c_str());
}

base::Status OutputFile::write(std::string_view text) {
  const auto failed = [&] {
    return base::unavailable(fmt::format("{}: cannot be written: {}", path_.string(), std::strerror(errno)));
  };
  while (!text.empty()) {
    const ssize_t count = ::write(file_, text.data(), text.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return failed();
    text.remove_prefix(static_cast<std::size_t>(count));
  }
  // On the disk before the name says so: after a crash there is the old file or the new one.
  if (fsync(file_) != 0) return failed();
  if (std::rename(part().c_str(), path_.c_str()) != 0) return failed();
  close(std::exchange(file_, -1));
  return base::ok_status();
}

std::filesystem::path shipped_folder(const std::filesystem::path& name) {
  std::error_code error;
  if (std::filesystem::is_directory(name, error)) return name;
  const std::filesystem::path own = std::filesystem::read_symlink("/proc/self/exe", error);
  for (std::filesystem::path folder = own.parent_path(); !error && folder.has_relative_path();
       folder = folder.parent_path()) {
    std::error_code ignored;
    if (std::filesystem::is_directory(folder / name, ignored)) return folder / name;
  }
  return name;
}

}  // namespace tessera::app
