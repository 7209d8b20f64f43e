// Inside the server room: threads for work that is as long as a text, so that connections are served meanwhile.
// Included only by the .cc files that talk Boost.Asio.
#pragma once

#include <atomic>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/thread_pool.hpp>
#include <cstdint>
#include <functional>

namespace tessera::server {

class TextWorkers {
 public:
  TextWorkers(std::int64_t threads, std::int64_t jobs_max);
  // Waits for the jobs that have begun and drops the others; of neither's coroutine anything runs any more, but all of
  // them must still be there, and what they run on too.
  ~TextWorkers();
  TextWorkers(const TextWorkers&) = delete;
  TextWorkers& operator=(const TextWorkers&) = delete;

  // Runs `work` on a worker and goes on, where the caller runs, when it is done. False: jobs_max are waiting or running
  // already, and nothing was run. Throws what the work throws. From one thread only; `work` may use what the caller's
  // coroutine holds.
  boost::asio::awaitable<bool> run(const std::function<void()>& work);

 private:
  const std::int64_t jobs_max_;
  std::atomic<std::int64_t> jobs_{0};
  boost::asio::thread_pool pool_;
};

}  // namespace tessera::server
