// A regular file, opened read-only: its size is known, ranges of it can be read, and it can be mapped into memory. Use
// from one thread; the mapped bytes may be read from any.
//
// A file that somebody truncates while it is mapped raises SIGBUS in whoever reads the missing part: a model folder
// must not change while it is served.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

#include "tessera/base/status.h"

namespace tessera::weights {

class MappedFile {
 public:
  // not_found, or invalid_argument for what is no regular file (a pipe would make the reader wait for ever). Reads
  // nothing yet.
  static base::Result<MappedFile> open(const std::filesystem::path& path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  const std::filesystem::path& path() const { return path_; }
  std::int64_t size() const { return size_; }

  // Fills `out` from `offset`; the range must lie inside the file.
  base::Status read_at(std::int64_t offset, std::span<std::byte> out) const;

  // Maps the whole file, private and read-only, and closes its descriptor. The bytes stay valid, at the same address,
  // until the object (or what it was moved into) is destroyed. Nothing is read until the bytes are touched.
  base::Status map();
  // Empty before map().
  std::span<const std::byte> bytes() const { return {mapping_, mapping_ == nullptr ? 0 : static_cast<size_t>(size_)}; }

 private:
  MappedFile(std::filesystem::path path, int descriptor, std::int64_t size);
  void close() noexcept;
  std::filesystem::path path_;
  int descriptor_ = -1;
  std::int64_t size_ = 0;
  const std::byte* mapping_ = nullptr;
};

// The whole of a small text file (JSON). out_of_range when it is larger than bytes_max: then nothing is allocated.
base::Result<std::string> read_text_file(const std::filesystem::path& path, std::int64_t bytes_max);

}  // namespace tessera::weights
