// The transport inside one process: a queue of messages for each pair of endpoints. Thread-safe; endpoints may outlive
// the transport object.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "tessera/kv_transfer/transport.h"

namespace tessera::kv_transfer {

struct LoopbackOptions {
  // Bytes that may wait between one endpoint and another, in one direction; also the largest message.
  std::int64_t bytes_in_flight_max = 16 << 20;
};

class LoopbackTransport {
 public:
  // Takes a message on its way, and may deliver() it zero times, once or often, at once or later, changed or not.
  using Filter = std::function<void(PeerId from, PeerId to, std::vector<std::byte> message)>;

  explicit LoopbackTransport(const LoopbackOptions& options);
  ~LoopbackTransport();

  // The endpoint with that number; there must not be one at this time. Destroying it makes its peer `kGone` for the
  // others.
  std::unique_ptr<Endpoint> make_endpoint(PeerId id);

  // For tests: every message goes through the filter instead of to its queue. A message that a filter keeps is not in
  // flight. An empty filter ends this. deliver puts a message at the end of its queue, whatever is in flight; it does
  // nothing when the addressee is gone.
  void set_filter(Filter filter);
  void deliver(PeerId from, PeerId to, std::vector<std::byte> message);

 private:
  struct State;
  class LoopbackEndpoint;
  std::shared_ptr<State> state_;
};

}  // namespace tessera::kv_transfer
