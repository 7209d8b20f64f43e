#include "tessera/server/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/histogram.h>
#include <prometheus/metric_family.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <array>
#include <map>
#include <string_view>
#include <vector>

namespace tessera::server {

namespace {

using prometheus::Histogram;
using prometheus::MetricFamily;
using prometheus::MetricType;

const Histogram::BucketBoundaries kLatencyBuckets = {0.001, 0.002, 0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32,
                                                     0.64,  1.28,  2.56,  5.12, 10.0, 20.0, 40.0, 80.0, 160.0};

constexpr std::array<std::string_view, 3> kPrefixes = {"tessera_", "vllm:", "sglang:"};

// Collects samples of one scrape.
class Families {
 public:
  explicit Families(const std::string& model_name) : model_name_(model_name) {}

  using Labels = std::vector<std::pair<std::string, std::string>>;
  void add(const std::string& name, const std::string& help, MetricType type, double value, const Labels& labels = {}) {
    MetricFamily& family = of(name, help, type);
    prometheus::ClientMetric metric;
    metric.label.push_back({"model_name", model_name_});
    for (const auto& [key, text] : labels) metric.label.push_back({key, text});
    if (type == MetricType::Counter) {
      metric.counter.value = value;
    } else {
      metric.gauge.value = value;
    }
    family.metric.push_back(std::move(metric));
  }
  std::vector<MetricFamily> take() { return std::move(families_); }

 private:
  MetricFamily& of(const std::string& name, const std::string& help, MetricType type) {
    for (MetricFamily& family : families_) {
      if (family.name == name) return family;
    }
    families_.push_back(MetricFamily{name, help, type, {}});
    return families_.back();
  }
  const std::string& model_name_;
  std::vector<MetricFamily> families_;
};

}  // namespace

struct Metrics::Series {
  prometheus::Registry registry;
  std::vector<Histogram*> first_token;
  std::vector<Histogram*> inter_token;
  std::vector<Histogram*> end_to_end;
  Histogram* handoff_ms = nullptr;
  prometheus::Family<prometheus::Counter>* success = nullptr;
  prometheus::Family<prometheus::Counter>* http = nullptr;
  std::map<std::string, std::string> labels;
};

Metrics::Metrics(std::string model_name) : model_name_(std::move(model_name)), series_(std::make_unique<Series>()) {
  series_->labels = {{"model_name", model_name_}};
  const auto histograms = [&](std::string_view name, const std::string& help) {
    std::vector<Histogram*> all;
    all.reserve(kPrefixes.size());
    for (const std::string_view prefix : kPrefixes) {
      all.push_back(&prometheus::BuildHistogram()
                         .Name(std::string(prefix) + std::string(name))
                         .Help(help)
                         .Register(series_->registry)
                         .Add(series_->labels, kLatencyBuckets));
    }
    return all;
  };
  series_->first_token = histograms("time_to_first_token_seconds", "From the request's arrival to its first token.");
  series_->inter_token = histograms("inter_token_latency_seconds", "Between two tokens of one sequence.");
  series_->end_to_end = histograms("e2e_request_latency_seconds", "From the request's arrival to its last token.");
  series_->handoff_ms = &prometheus::BuildHistogram()
                             .Name("sglang:kv_transfer_latency_ms")
                             .Help("Handing one sequence from prefill to decode, milliseconds.")
                             .Register(series_->registry)
                             .Add(series_->labels, Histogram::BucketBoundaries{0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500,
                                                                               1000, 2000, 5000});
  series_->success = &prometheus::BuildCounter()
                          .Name("vllm:request_success_total")
                          .Help("Sequences that finished, by reason.")
                          .Register(series_->registry);
  series_->http = &prometheus::BuildCounter()
                       .Name("tessera_http_responses_total")
                       .Help("HTTP responses by status.")
                       .Register(series_->registry);
  for (const char* reason : {"stop", "length"}) {
    auto labels = series_->labels;
    labels["finished_reason"] = reason;
    series_->success->Add(labels);
  }
}

Metrics::~Metrics() = default;

void Metrics::observe_first_token(double seconds) {
  for (Histogram* h : series_->first_token) h->Observe(seconds);
}
void Metrics::observe_inter_token(double seconds) {
  for (Histogram* h : series_->inter_token) h->Observe(seconds);
}
void Metrics::observe_finished(double seconds, request::FinishReason reason) {
  for (Histogram* h : series_->end_to_end) h->Observe(seconds);
  auto labels = series_->labels;
  labels["finished_reason"] = request::finish_reason_name(reason);
  series_->success->Add(labels).Increment();
}
void Metrics::observe_handoff(double seconds) { series_->handoff_ms->Observe(seconds * 1e3); }
void Metrics::count_http(int status) {
  auto labels = series_->labels;
  labels["status"] = std::to_string(status);
  series_->http->Add(labels).Increment();
}

std::string Metrics::serialize(const router::RouterSnapshot& snapshot) const {
  Families families(model_name_);
  request::EngineStats sum;
  double kv_usage = 0.0;
  for (const auto& [info, stats] : snapshot.engines) {
    const Families::Labels labels = {{"engine", std::to_string(info.id)},
                                     {"role", std::string(request::engine_role_name(info.role))}};
    const auto gauge = [&](const char* name, const char* help, double value) {
      families.add(std::string("tessera_engine_") + name, help, MetricType::Gauge, value, labels);
    };
    const auto counter = [&](const char* name, const char* help, double value) {
      families.add(std::string("tessera_engine_") + name, help, MetricType::Counter, value, labels);
    };
    gauge("sequences_waiting", "Sequences not started.", static_cast<double>(stats.waiting));
    gauge("sequences_running", "Sequences in the running batch.", static_cast<double>(stats.running));
    gauge("sequences_handing_over", "Sequences in a handoff.", static_cast<double>(stats.handing_over));
    const auto pages = [&](const char* state, std::int64_t count) {
      Families::Labels with_state = labels;
      with_state.emplace_back("state", state);
      families.add("tessera_engine_pages", "Pages of the KV pool by state; they add up to the pool.", MetricType::Gauge,
                   static_cast<double>(count), with_state);
    };
    pages("free", stats.pages_free);
    pages("leased", stats.pages_leased);
    pages("cached", stats.pages_cached);
    pages("quarantined", stats.pages_quarantined);
    Families::Labels with_level = labels;
    with_level.emplace_back("level", kv_cache::integrity_level_name(info.integrity));
    gauge("device_failed", "1 when the engine's device has failed and the engine has ended.",
          stats.device_failed ? 1.0 : 0.0);
    families.add("tessera_engine_kv_integrity", "1 for the level at which this engine proves its KV pages.",
                 MetricType::Gauge, 1.0, with_level);
    gauge("resident_tokens", "Tokens of KV held by running sequences.", static_cast<double>(stats.resident_tokens));
    counter("steps_total", "Forward passes.", static_cast<double>(stats.steps));
    counter("step_seconds_total", "Time in steps.", static_cast<double>(stats.step_ns) * 1e-9);
    counter("page_check_seconds_total", "Time in page checks, inside steps.",
            static_cast<double>(stats.check_ns) * 1e-9);
    counter("page_digest_seconds_total", "Of that, digests of what steps wrote and read.",
            static_cast<double>(stats.digest_ns) * 1e-9);
    counter("page_sweep_seconds_total", "Beside steps: digests of pages that were swept, or found in the prefix cache.",
            static_cast<double>(stats.sweep_ns) * 1e-9);
    counter("pages_swept_total", "Pages that the background sweep checked, each time that it did.",
            static_cast<double>(stats.pages_swept));
    counter("page_digest_failures_total",
            "Pages that were found to hold other bytes than were written to them; each once, however many read it.",
            static_cast<double>(stats.digest_failures));
    counter("rows_checked_total", "Rows whose pages were checked before and after a step.",
            static_cast<double>(stats.rows_checked));
    counter(
        "page_check_failures_total",
        "Rows of steps, handoffs and pages looked at alone that failed a check of tag, owner, position or slot, or of "
        "what came over the wire; damaged bytes in a pool are counted apart.",
        static_cast<double>(stats.check_failures));
    counter("integrity_recomputes_total", "Sequences that went back to be computed again after a failed page check.",
            static_cast<double>(stats.integrity_recomputes));
    counter("audited_pages_freed_total", "Quarantined pages that an audit took into service again.",
            static_cast<double>(stats.audited_pages_freed));
    counter("audited_pages_kept_total", "Quarantined pages that an audit kept, once for each audit.",
            static_cast<double>(stats.audited_pages_kept));
    counter("page_audit_failures_total", "Audits that found pages lost, or records that are not the host's.",
            static_cast<double>(stats.audit_failures));
    counter("page_double_frees_total", "Pages that were given back by who did not hold them; without effect.",
            static_cast<double>(stats.double_frees));
    counter("preemptions_total", "Sequences that lost their pages and were recomputed.",
            static_cast<double>(stats.preemptions));
    counter("handoffs_total", "Handoffs committed.", static_cast<double>(stats.handoffs_done));
    counter("handoffs_failed_total", "Handoffs aborted.", static_cast<double>(stats.handoffs_failed));
    counter("handoff_bytes_total", "KV bytes handed over, as sent.", static_cast<double>(stats.handoff_wire_bytes));
    sum.waiting += stats.waiting;
    sum.running += stats.running;
    sum.handoffs_failed += stats.handoffs_failed;
    counter("prefix_cache_queries_total",
            "Prompt tokens of admitted sequences, looked up in this engine's prefix cache.",
            static_cast<double>(stats.prefix_query_tokens));
    counter("prefix_cache_hits_total", "Of them, those that were found.", static_cast<double>(stats.prefix_hit_tokens));
    // What a decode engine finds of a handed-over prompt spares sending, not computing: it is not counted again.
    if (info.role != request::EngineRole::kDecode) {
      sum.prefix_query_tokens += stats.prefix_query_tokens;
      sum.prefix_hit_tokens += stats.prefix_hit_tokens;
    }
    sum.preemptions += stats.preemptions;
    sum.integrity_recomputes += stats.integrity_recomputes;
    const std::int64_t used = stats.pages_leased + stats.pages_quarantined;
    if (stats.pages_total > 0) {
      kv_usage = std::max(kv_usage, static_cast<double>(used) / static_cast<double>(stats.pages_total));
    }
  }

  const auto count = [](std::int64_t value) { return static_cast<double>(value); };
  const auto alike = [&](std::initializer_list<const char*> names, const char* help, MetricType type, double value) {
    for (const char* name : names) families.add(name, help, type, value);
  };
  using enum MetricType;
  alike({"tessera_num_requests_running", "vllm:num_requests_running", "sglang:num_running_reqs"},
        "Sequences in running batches.", Gauge, count(sum.running));
  alike({"tessera_num_requests_waiting", "vllm:num_requests_waiting", "sglang:num_queue_reqs"},
        "Sequences not started.", Gauge, count(sum.waiting));
  alike({"tessera_kv_cache_usage_perc", "vllm:kv_cache_usage_perc", "sglang:token_usage"},
        "Share of the fullest pool's pages in use, 0 to 1.", Gauge, kv_usage);
  alike({"tessera_prefix_cache_queries", "vllm:prefix_cache_queries"}, "Prompt tokens looked up in the prefix cache.",
        Counter, count(sum.prefix_query_tokens));
  alike({"tessera_prefix_cache_hits", "vllm:prefix_cache_hits"}, "Prompt tokens found in the prefix cache.", Counter,
        count(sum.prefix_hit_tokens));
  families.add("sglang:cache_hit_rate", "Share of looked-up prompt tokens found in the prefix cache.", Gauge,
               sum.prefix_query_tokens == 0 ? 0.0 : count(sum.prefix_hit_tokens) / count(sum.prefix_query_tokens));
  alike({"tessera_prompt_tokens_total", "vllm:prompt_tokens_total", "sglang:prompt_tokens_total"},
        "Prompt tokens of accepted sequences.", Counter, count(snapshot.prompt_tokens));
  alike({"tessera_generation_tokens_total", "vllm:generation_tokens_total", "sglang:generation_tokens_total"},
        "Tokens emitted.", Counter, count(snapshot.generated_tokens));
  alike({"vllm:num_preemptions_total"}, "Sequences that lost their pages and were recomputed.", Counter,
        count(sum.preemptions));
  families.add("sglang:num_transfer_failed_reqs_total", "Handoffs aborted.", Counter, count(sum.handoffs_failed));
  families.add("tessera_sequences_submitted_total", "Sequences accepted.", Counter, count(snapshot.submitted));
  families.add("tessera_sequences_refused_total", "Sequences refused at submission.", Counter, count(snapshot.refused));
  families.add("tessera_sequences_failed_total", "Sequences that ended with an error.", Counter,
               count(snapshot.failed));
  families.add("tessera_kv_integrity_errors_total", "Sequences that ended because a page failed its check.", Counter,
               count(snapshot.corrupted));
  families.add("tessera_kv_integrity_recomputes_total",
               "Times that a sequence was computed again because a page failed its check.", Counter,
               count(sum.integrity_recomputes));
  families.add("tessera_sequences_cancelled_total", "Sequences aborted by their clients.", Counter,
               count(snapshot.cancelled));
  families.add("tessera_sequences_live", "Sequences between acceptance and end.", Gauge, count(snapshot.live));

  std::vector<MetricFamily> all = series_->registry.Collect();
  for (MetricFamily& family : families.take()) all.push_back(std::move(family));
  return prometheus::TextSerializer().Serialize(all);
}

}  // namespace tessera::server
