// What /metrics says: histograms that the HTTP handlers feed, and everything that the router's snapshot knows, under
// our own names and under those that vLLM's and SGLang's dashboards read.
#pragma once

#include <memory>
#include <string>

#include "tessera/request/sequence_spec.h"
#include "tessera/router/router.h"

namespace tessera::server {

class Metrics {
 public:
  explicit Metrics(std::string model_name);
  ~Metrics();

  // Thread-safe. Seconds.
  void observe_first_token(double seconds);
  void observe_inter_token(double seconds);
  void observe_finished(double seconds, request::FinishReason reason);
  void observe_handoff(double seconds);
  void count_http(int status);

  // Prometheus' text format.
  std::string serialize(const router::RouterSnapshot& snapshot) const;

 private:
  struct Series;
  std::string model_name_;
  std::unique_ptr<Series> series_;
};

}  // namespace tessera::server
