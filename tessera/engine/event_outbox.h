// Events on their way to the driver. The engine never waits for the driver: what its queue has no room for stays here,
// and the loop computes nothing more until it is gone (so the outbox holds at most the events of one turn of the loop).
#pragma once

#include <deque>
#include <utility>

#include "tessera/request/messages.h"

namespace tessera::engine {

class EventOutbox {
 public:
  EventOutbox(request::EngineId engine, request::EngineEventQueue& queue) : engine_(engine), queue_(queue) {}

  void add(request::EngineEventBody body) { events_.push_back({engine_, std::move(body)}); }
  // True when everything was taken.
  bool flush() {
    while (!events_.empty() && queue_.try_push(std::move(events_.front()))) events_.pop_front();
    return events_.empty();
  }
  bool empty() const { return events_.empty(); }

 private:
  const request::EngineId engine_;
  request::EngineEventQueue& queue_;
  std::deque<request::EngineEvent> events_;
};

}  // namespace tessera::engine
