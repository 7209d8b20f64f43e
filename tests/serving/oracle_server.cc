#include "tests/serving/oracle_server.h"

#include <algorithm>
#include <utility>

#include "tessera/base/check.h"

namespace tessera::test_support {

namespace {

constexpr Flavors kSplitFlavors{.prompt = 1, .generated = 2};

bool decodes_only(const OracleEngine& engine) { return engine.config.role == request::EngineRole::kDecode; }

}  // namespace

// What the router knows as an engine, whichever sits there.
class OracleServer::Seat final : public request::EngineEndpoint {
 public:
  Seat(OracleServer& server, const OracleEngine& options)
      : server_(server),
        options_(options),
        model_(server.backend_, {.kv = server.options_.kv,
                                 .flavor = decodes_only(options) ? kSplitFlavors.generated : kSplitFlavors.prompt,
                                 .context = server.options_.context,
                                 .before_forward = options.before_forward,
                                 .on_batch = options.on_batch}) {
    seat_one();
  }
  const request::EngineInfo& info() const override { return info_; }
  bool try_send(request::EngineCommand command) override {
    if (engine_ == nullptr) return false;
    if (!options_.on_command) return engine_->try_send(std::move(command));
    const bool sent = engine_->try_send(command);
    if (sent) options_.on_command(command);
    return sent;
  }
  engine::Engine& engine() {
    TESSERA_CHECK(engine_ != nullptr, "the engine has ended");
    return *engine_;
  }
  bool is_taken() const { return engine_ != nullptr; }
  void end_one() { engine_.reset(); }
  void seat_one() {
    end_one();
    const engine::EngineConfig& config = options_.config;
    auto endpoint = config.role == request::EngineRole::kUnified
                        ? nullptr
                        : server_.transport_->make_endpoint(static_cast<kv_transfer::PeerId>(config.id));
    if (endpoint != nullptr && server_.options_.wrap_endpoint) {
      endpoint = server_.options_.wrap_endpoint(std::move(endpoint));
    }
    auto made = engine::Engine::create(
        config, {model_, server_.backend_, server_.events_, server_.clock_, std::move(endpoint)});
    TESSERA_CHECK(made.has_value(), made.has_value() ? "" : made.error().to_string());
    engine_ = std::move(*made);
    info_ = engine_->info();
  }

 private:
  OracleServer& server_;
  const OracleEngine& options_;
  ContextOracleModel model_;
  std::unique_ptr<engine::Engine> engine_;  // Null: it has ended.
  request::EngineInfo info_;
};

OracleServer::OracleServer(const OracleServerOptions& options, ops::Backend& backend, const base::Clock& clock)
    : options_(options),
      backend_(backend),
      clock_(clock),
      events_(options.event_queue),
      transport_(std::make_unique<kv_transfer::LoopbackTransport>(options.loopback)) {
  std::vector<request::EngineEndpoint*> endpoints;
  for (const OracleEngine& engine : options_.engines) {
    engines_.push_back(std::make_unique<Seat>(*this, engine));
    endpoints.push_back(engines_.back().get());
  }
  auto router = router::Router::create(options_.router, endpoints, events_, clock_);
  TESSERA_CHECK(router.has_value(), router.has_value() ? "" : router.error().to_string());
  router_ = std::move(*router);
}

OracleServer::~OracleServer() { stop(); }

engine::Engine& OracleServer::engine(std::size_t i) { return engines_.at(i)->engine(); }

Flavors OracleServer::flavors() const {
  return std::ranges::any_of(options_.engines, decodes_only) ? kSplitFlavors
                                                             : Flavors{kSplitFlavors.prompt, kSplitFlavors.prompt};
}

void OracleServer::end_engine(std::size_t i) { engines_.at(i)->end_one(); }

bool OracleServer::has_engine(std::size_t i) const { return engines_.at(i)->is_taken(); }

void OracleServer::restart_engine(std::size_t i) { engines_.at(i)->seat_one(); }

void OracleServer::start_threads() {
  for (const auto& seat : engines_) seat->engine().start();
  router_->start();
}

void OracleServer::stop() {
  if (std::exchange(stopped_, true)) return;
  router_->stop();
  for (const auto& seat : engines_) {
    if (seat->is_taken()) seat->engine().stop();
  }
}

}  // namespace tessera::test_support
