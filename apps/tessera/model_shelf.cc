#include "model_shelf.h"

#include <fmt/format.h>

#include <system_error>
#include <utility>

namespace tessera::app {

base::Result<std::shared_ptr<ShelvedModel>> ModelShelf::take(const std::filesystem::path& dir,
                                                             const BackendOptions& options) {
  // A folder that cannot be resolved goes by its name: loading it says what is wrong with it.
  std::error_code error;
  std::filesystem::path place = std::filesystem::weakly_canonical(dir, error);
  if (error) place = dir;
  const std::string key =
      fmt::format("{} {} {} {} {}", options.device, options.name, options.simd_target, options.threads, place.string());
  if (const auto found = models_.find(key); found != models_.end()) {
    if (std::shared_ptr<ShelvedModel> shared = found->second.lock()) return shared;
  }
  auto loaded = std::make_shared<ShelvedModel>();
  TESSERA_ASSIGN_OR_RETURN(loaded->device, make_backend(options));
  loaded->backend = std::make_unique<RoundingBackend>(*loaded->device);
  TESSERA_RETURN_IF_ERROR(check_model(options, dir));
  TESSERA_ASSIGN_OR_RETURN(loaded->model, models::load_model(dir, *loaded->backend));
  models_[key] = loaded;
  return loaded;
}

}  // namespace tessera::app
