// An ordered queue of device work. Work enqueued on one stream runs in the order of enqueueing; two streams are
// unordered. On the CPU backends every op is done when its call returns. One thread uses a stream at a time.
#pragma once

namespace tessera::ops {

class Stream {
 public:
  virtual ~Stream() = default;
  // Returns when all work enqueued so far is done, or the device has failed (Backend::health).
  virtual void synchronize() = 0;
};

}  // namespace tessera::ops
