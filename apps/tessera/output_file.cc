#include "output_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <random>
#include <string>
#include <system_error>

namespace tessera::app {

namespace {

base::Status failed(const std::filesystem::path& path, std::string_view why) {
  return base::unavailable(fmt::format("{}: cannot be written: {}", path.string(), why));
}

// A new file beside the one that is to be written; removed again unless it has taken that one's place.
class Part {
 public:
  explicit Part(const std::filesystem::path& path)
      : name_(fmt::format("{}.{:08x}.part", path.string(), std::random_device()())),
        file_(::open(name_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644)) {}
  ~Part() {
    if (file_ < 0) return;
    close(file_);
    if (!in_place_) unlink(name_.c_str());
  }
  Part(const Part&) = delete;
  Part& operator=(const Part&) = delete;

  bool is_open() const { return file_ >= 0; }

  // False: as errno says.
  bool write(std::string_view text) const {
    while (!text.empty()) {
      const ssize_t count = ::write(file_, text.data(), text.size());
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) return false;
      text.remove_prefix(static_cast<std::size_t>(count));
    }
    // On the disk before the name says so: after a crash there is the old file or the new one.
    return fsync(file_) == 0;
  }
  bool take_the_place_of(const std::filesystem::path& path) {
    in_place_ = std::rename(name_.c_str(), path.c_str()) == 0;
    return in_place_;
  }

 private:
  const std::string name_;
  const int file_;
  bool in_place_ = false;
};

}  // namespace

base::Result<OutputFile> OutputFile::open(const std::filesystem::path& path) {
  std::error_code error;
  const std::filesystem::file_status there = std::filesystem::status(path, error);
  if (std::filesystem::is_directory(there)) return base::failure(failed(path, "it is a folder"));
  if (std::filesystem::exists(there) && !std::filesystem::is_regular_file(there)) {
    return base::failure(failed(path, "it is no file on a disk"));
  }
  OutputFile output(resolved(path));
  if (!Part(output.path_).is_open()) return base::failure(failed(path, std::strerror(errno)));
  return output;
}

base::Status OutputFile::write(std::string_view text) const {
  Part part(path_);
  if (part.is_open() && part.write(text) && part.take_the_place_of(path_)) return base::ok_status();
  return failed(path_, std::strerror(errno));
}

std::filesystem::path resolved(const std::filesystem::path& path) {
  std::error_code error;
  std::filesystem::path place = std::filesystem::weakly_canonical(std::filesystem::absolute(path, error), error);
  return error ? path : place;
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
