#include "tessera/quality/journal.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <string_view>

#include "tessera/quality/journal_lines.h"

namespace tessera::quality {

base::Result<std::unique_ptr<Journal>> Journal::create(const std::filesystem::path& path,
                                                       const EvaluationIdentity& identity) {
  auto journal = std::unique_ptr<Journal>(new Journal(path));
  TESSERA_RETURN_IF_ERROR(journal->open(O_CREAT));
  // Only once it is locked: another process may be writing it.
  TESSERA_RETURN_IF_ERROR(journal->cut(0));
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
  struct stat facts{};
  if (fstat(file_, &facts) != 0) return unavailable();
  if (!S_ISREG(facts.st_mode)) {
    return base::invalid_argument(fmt::format("journal {}: expected a file on a disk", path_.string()));
  }
  if (flock(file_, LOCK_EX | LOCK_NB) != 0) {
    return base::unavailable(fmt::format("journal {}: another evaluation is writing it", path_.string()));
  }
  return base::ok_status();
}

base::Result<std::string> Journal::text() const {
  std::string all;
  std::array<char, std::size_t{1} << 16> part{};
  while (true) {
    const ssize_t count = ::read(file_, part.data(), part.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return base::failure(unavailable());
    if (count == 0) return all;
    all.append(part.data(), static_cast<std::size_t>(count));
  }
}

base::Status Journal::read(const EvaluationIdentity& identity) {
  TESSERA_ASSIGN_OR_RETURN(const std::string all, text());
  std::int64_t number = 0;
  std::size_t next = 0;
  // A line is whole once its newline is there; the last one of a program that was killed may not be.
  for (std::size_t end = all.find('\n'); end != std::string::npos; end = all.find('\n', next)) {
    ++number;
    const auto at = [&](const base::Status& status) {
      return status.with_context(fmt::format("journal {}, line {}", path_.string(), number));
    };
    const auto parsed = parse_line(std::string_view(all).substr(next, end - next));
    if (!parsed.has_value()) {
      // After a crash of the machine the file's end may be anything; what stands before it is what was written.
      if (number > 1 && end + 1 == all.size()) break;
      return at(parsed.error());
    }
    const base::Status status = number == 1 ? check_header(*parsed, identity) : take_line(*parsed, found_);
    if (!status.ok()) return at(status);
    next = end + 1;
  }
  if (number > 0) return cut(static_cast<std::int64_t>(next));
  // It was killed before it had said what it is; a file of somebody else's does not begin so.
  if (!may_begin_header(all)) {
    return base::data_loss(fmt::format("journal {}: not the journal of an evaluation", path_.string()));
  }
  TESSERA_RETURN_IF_ERROR(cut(0));
  return write_line(header_line(identity));
}

base::Status Journal::cut(std::int64_t bytes) {
  if (ftruncate(file_, bytes) != 0) return unavailable();
  bytes_ = bytes;
  return base::ok_status();
}

base::Status Journal::unavailable() const {
  return base::unavailable(fmt::format("journal {}: {}", path_.string(), std::strerror(errno)));
}

base::Status Journal::write_line(std::string line) {
  line += '\n';
  const std::lock_guard lock(writing_);
  TESSERA_RETURN_IF_ERROR(failure_);
  std::size_t written = 0;
  while (written < line.size()) {
    const ssize_t count = ::write(file_, line.data() + written, line.size() - written);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      failure_ = unavailable();
      // The next line must not be joined to half of this one. Should even that fail, half a line is the file's end,
      // since nothing follows it, and resume() drops it.
      if (ftruncate(file_, bytes_) != 0) failure_ = failure_.with_context("half a line is left");
      return failure_;
    }
    written += static_cast<std::size_t>(count);
  }
  bytes_ += static_cast<std::int64_t>(line.size());
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
