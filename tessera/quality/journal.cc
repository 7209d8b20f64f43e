#include "tessera/quality/journal.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <system_error>

#include "tessera/quality/journal_lines.h"

namespace tessera::quality {

base::Result<std::unique_ptr<Journal>> Journal::create(const std::filesystem::path& path,
                                                       const EvaluationIdentity& identity) {
  auto journal = std::unique_ptr<Journal>(new Journal(path));
  TESSERA_RETURN_IF_ERROR(journal->open(O_CREAT));
  // Only once it is locked: another process may be writing it.
  if (ftruncate(journal->file_, 0) != 0) {
    return base::failure(base::unavailable(fmt::format("{}: {}", path.string(), std::strerror(errno))));
  }
  TESSERA_RETURN_IF_ERROR(journal->write_line(header_line(identity)));
  return journal;
}

base::Result<std::unique_ptr<Journal>> Journal::resume(const std::filesystem::path& path,
                                                       const EvaluationIdentity& identity) {
  auto journal = std::unique_ptr<Journal>(new Journal(path));
  TESSERA_RETURN_IF_ERROR(journal->open(0));
  TESSERA_RETURN_IF_ERROR(journal->read(identity));
  return journal;
}

Journal::~Journal() {
  if (file_ >= 0) close(file_);
}

base::Status Journal::open(int flags) {
  file_ = ::open(path_.c_str(), O_RDWR | O_APPEND | O_CLOEXEC | flags, 0644);
  if (file_ < 0) {
    std::string what = fmt::format("journal {}: {}", path_.string(), std::strerror(errno));
    return errno == ENOENT && flags == 0 ? base::not_found(std::move(what)) : base::unavailable(std::move(what));
  }
  if (flock(file_, LOCK_EX | LOCK_NB) != 0) {
    return base::unavailable(fmt::format("journal {}: another evaluation is writing it", path_.string()));
  }
  return base::ok_status();
}

base::Status Journal::read(const EvaluationIdentity& identity) {
  std::ifstream file(path_, std::ios::binary);
  std::string line;
  std::int64_t number = 0;
  std::int64_t whole_bytes = 0;
  while (std::getline(file, line)) {
    // A line is whole once its newline is there; the last one of a program that was killed may not be.
    if (file.eof()) break;
    ++number;
    const auto at = [&](const base::Status& status) {
      return status.with_context(fmt::format("journal {}, line {}", path_.string(), number));
    };
    const auto parsed = parse_line(line);
    if (!parsed.has_value()) {
      // After a crash of the machine the file's end may be anything; what stands before it is what was written.
      if (number > 1 && file.peek() == std::ifstream::traits_type::eof()) break;
      return at(parsed.error());
    }
    const base::Status status = number == 1 ? check_header(*parsed, identity) : take_line(*parsed, found_);
    if (!status.ok()) return at(status);
    whole_bytes += static_cast<std::int64_t>(line.size()) + 1;
  }
  if (number == 0) {
    // It was killed before it had said what it is.
    if (ftruncate(file_, 0) != 0) return base::unavailable(fmt::format("{}: {}", path_.string(), std::strerror(errno)));
    return write_line(header_line(identity));
  }
  if (ftruncate(file_, whole_bytes) != 0) {
    return base::unavailable(fmt::format("journal {}: {}", path_.string(), std::strerror(errno)));
  }
  return base::ok_status();
}

base::Status Journal::write_line(std::string line) {
  line += '\n';
  const std::lock_guard lock(writing_);
  std::size_t written = 0;
  while (written < line.size()) {
    const ssize_t count = ::write(file_, line.data() + written, line.size() - written);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return base::unavailable(fmt::format("journal {}: {}", path_.string(), std::strerror(errno)));
    written += static_cast<std::size_t>(count);
  }
  return base::ok_status();
}

base::Status Journal::add(std::size_t plan, const RespondentInfo& respondent) {
  return write_line(respondent_line(plan, respondent));
}

base::Status Journal::add(std::size_t plan, std::string_view task, const Outcome& outcome) {
  return write_line(outcome_line(plan, task, outcome));
}

base::Status Journal::add(std::size_t plan, std::string_view task, const PassageDistances& distances) {
  return write_line(distances_line(plan, task, distances));
}

}  // namespace tessera::quality
