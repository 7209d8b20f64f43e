// Models that were loaded for one command and are still in use, so that plans of the same checkpoint share its weights.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>

#include "backend_choice.h"
#include "rounding_backend.h"
#include "tessera/base/status.h"
#include "tessera/models/model.h"
#include "tessera/ops/backend.h"

namespace tessera::app {

// A model, and the backend that holds its weights behind one that can round rows of KV on their way into the cache, and
// does not until it is told to. Engines of one thread may share it.
struct ShelvedModel {
  std::unique_ptr<ops::Backend> device;
  std::unique_ptr<RoundingBackend> backend;  // Over `device`.
  std::unique_ptr<models::Model> model;      // Computes on `backend`.
};

// Keeps nothing alive itself. Used from one thread.
class ModelShelf {
 public:
  // The model of the folder on the backend that the options say: the one that somebody still uses, else it is loaded.
  // Errors are those of make_backend, check_model and models::load_model.
  base::Result<std::shared_ptr<ShelvedModel>> take(const std::filesystem::path& dir, const BackendOptions& options);

 private:
  std::map<std::string, std::weak_ptr<ShelvedModel>> models_;
};

}  // namespace tessera::app
