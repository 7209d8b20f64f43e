#include "tessera/models/model.h"

#include <optional>
#include <utility>

#include "tessera/base/limits.h"
#include "tessera/models/decoder.h"
#include "tessera/models/family.h"
#include "tessera/models/weight_loader.h"
#include "tessera/weights/mapped_file.h"

namespace tessera::models {

base::Result<std::unique_ptr<Model>> load_model(const std::filesystem::path& dir, ops::Backend& backend,
                                                const std::function<void(const LoadProgress&)>& progress) {
  TESSERA_ASSIGN_OR_RETURN(const ModelConfig config, read_config(dir));
  TESSERA_ASSIGN_OR_RETURN(const std::string config_text,
                           weights::read_text_file(dir / kConfigFileName, base::limits::kConfigFileBytesMax));
  TESSERA_ASSIGN_OR_RETURN(weights::Checkpoint checkpoint, weights::Checkpoint::open(dir));
  DecoderTensors tensors = family_entry(config.family).describe(config);
  TESSERA_ASSIGN_OR_RETURN(LoadedModel loaded, load_weights(config, config_text, tensors.description,
                                                            std::move(checkpoint), backend, progress));
  return make_decoder(std::move(loaded), std::move(tensors));
}

}  // namespace tessera::models
