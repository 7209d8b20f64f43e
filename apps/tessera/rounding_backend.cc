#include "rounding_backend.h"

#include <algorithm>
#include <array>
#include <span>
#include <utility>
#include <vector>

#include "tessera/backends/cpu/reference/kv_row.h"
#include "tessera/backends/cpu/reference/page_rows.h"
#include "tessera/base/check.h"

namespace tessera::app {

namespace {

void treat(const RowTreatment& treatment, int layer, int part, std::span<float> row) {
  if (treatment.observe != nullptr) treatment.observe->observe(layer, part, row);
  if (treatment.round != nullptr) treatment.round->round(layer, part, row);
}

bool is_empty(const RowTreatment& treatment) { return treatment.round == nullptr && treatment.observe == nullptr; }

}  // namespace

void RoundingBackend::kv_write(ops::Stream& stream, const ops::KvWriteParams& params) {
  if (is_empty(write_)) {
    ForwardingBackend::kv_write(stream, params);
    return;
  }
  const ops::KvLayout& layout = params.cache.layout;
  TESSERA_CHECK(layout.format == ops::KvFormat::kBF16, "rows are treated for BF16 pages only");
  ops::KvWriteParams treated = params;
  std::array<ops::Buffer, ops::KvLayout::kPartsMax> buffers;
  for (int p = 0; p < layout.layer_parts(params.layer); ++p) {
    const auto part = static_cast<std::size_t>(p);
    const ops::ConstMatrix& rows = params.parts[part];
    TESSERA_CHECK(rows.dtype == base::DType::kF32);
    const std::int64_t bytes = rows.rows * rows.cols * static_cast<std::int64_t>(sizeof(float));
    base::Result<ops::Buffer> buffer = inner().allocate(bytes, "rows of a simulated KV format");
    TESSERA_CHECK(buffer.has_value(), buffer.error().to_string());
    buffers[part] = std::move(*buffer);
    const ops::Matrix dense = ops::f32_matrix(buffers[part].as<float>(), rows.rows, rows.cols);
    std::vector<float> host(static_cast<std::size_t>(rows.rows * rows.cols));
    inner().copy_matrix(stream, rows, dense);
    inner().copy_to_host(stream, host.data(), dense.data, bytes);
    stream.synchronize();
    for (std::int64_t r = 0; r < rows.rows; ++r) {
      treat(write_, params.layer, p,
            std::span(host).subspan(static_cast<std::size_t>(r * rows.cols), static_cast<std::size_t>(rows.cols)));
    }
    inner().copy_to_device(stream, dense.data, host.data(), bytes);
    stream.synchronize();
    treated.parts[part] = dense;
  }
  ForwardingBackend::kv_write(stream, treated);
  stream.synchronize();  // The treated rows end here.
}

void RoundingBackend::gather_pages(ops::Stream& stream, const ops::GatherPagesParams& params) {
  ForwardingBackend::gather_pages(stream, params);
  if (is_empty(gather_)) return;
  const ops::KvLayout& layout = params.target;
  TESSERA_CHECK(layout.format == ops::KvFormat::kBF16, "rows are treated for BF16 pages only");
  const std::int64_t image_bytes = layout.page_layer_bytes(params.layer);
  std::vector<std::byte> images(static_cast<std::size_t>(params.num_pages * image_bytes));
  std::vector<std::uint64_t> digests(static_cast<std::size_t>(params.num_pages));
  std::int32_t kv_len = 0;
  inner().copy_to_host(stream, images.data(), params.images, std::ssize(images));
  inner().copy_to_host(stream, &kv_len, params.pages.kv_lens() + params.row, sizeof(kv_len));
  stream.synchronize();

  std::vector<float> row;
  std::vector<std::byte> scratch;
  for (std::int32_t i = 0; i < params.num_pages; ++i) {
    const std::int32_t slots = std::clamp(kv_len - (params.first_page + i) * layout.page_size, 0, layout.page_size);
    const auto rows = backends::cpu::rows_in_image(layout, params.layer, images.data() + i * image_bytes);
    for (int p = 0; p < layout.layer_parts(params.layer); ++p) {
      if (layout.parts[p].kind == ops::KvPartKind::kIndexKeys) continue;
      row.resize(static_cast<std::size_t>(layout.parts[p].elements));
      for (std::int32_t slot = 0; slot < slots; ++slot) {
        std::byte* const at = rows.data[static_cast<std::size_t>(p)] + slot * layout.row_bytes(p);
        backends::cpu::decode_kv_row(layout, p, at, nullptr, 0, std::ssize(row), row.data());
        treat(gather_, params.layer, p, row);
        backends::cpu::encode_kv_row(layout, p, row.data(), at, nullptr);
      }
    }
    digests[static_cast<std::size_t>(i)] =
        backends::cpu::digest_rows(layout, rows, slots, params.digest_key, params.layer, scratch);
  }
  inner().copy_to_device(stream, params.images, images.data(), std::ssize(images));
  inner().copy_to_device(stream, params.digests, digests.data(), params.num_pages * 8);
  stream.synchronize();
}

void RoundingModel::forward(ops::Stream& stream, models::Workspace& workspace, const models::ForwardBatch& batch,
                            ops::Matrix logits) const {
  backend_.set_write_treatment(treatment_);
  ForwardingModel::forward(stream, workspace, batch, logits);
  backend_.set_write_treatment({});
}

}  // namespace tessera::app
