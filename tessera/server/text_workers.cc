#include "tessera/server/text_workers.h"

#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <exception>
#include <memory>
#include <utility>

namespace tessera::server {

namespace net = boost::asio;

namespace {

// Shared by the coroutine, the worker and the message between them; whichever is the last.
struct Job {
  Job(const net::any_io_executor& executor, const std::function<void()>& work_in) : work(work_in), finished(executor) {}
  std::function<void()> work;
  std::exception_ptr failure;
  // The coroutine's thread only.
  net::steady_timer finished;
  bool done = false;
};

}  // namespace

TextWorkers::TextWorkers(std::int64_t threads, std::int64_t jobs_max)
    : jobs_max_(jobs_max), pool_(static_cast<std::size_t>(threads)) {}

TextWorkers::~TextWorkers() {
  pool_.stop();
  pool_.join();
}

net::awaitable<bool> TextWorkers::run(const std::function<void()>& work) {
  if (jobs_.load() >= jobs_max_) co_return false;
  jobs_.fetch_add(1);
  const net::any_io_executor executor = co_await net::this_coro::executor;
  auto job = std::make_shared<Job>(executor, work);
  net::post(pool_, [this, executor, given = job]() mutable {
    try {
      given->work();
    } catch (...) {
      given->failure = std::current_exception();
    }
    jobs_.fetch_sub(1);
    net::post(executor, [back = std::move(given)] {
      back->done = true;
      back->finished.cancel();
    });
  });
  // The message comes to this same thread, so that it cannot fall between the look and the wait.
  while (!job->done) {
    job->finished.expires_at(net::steady_timer::time_point::max());
    boost::system::error_code ignored;
    co_await job->finished.async_wait(net::redirect_error(net::use_awaitable, ignored));
  }
  if (job->failure != nullptr) std::rethrow_exception(job->failure);
  co_return true;
}

}  // namespace tessera::server
