#include "tessera/weights/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tessera/weights/digest.h"
#include "tessera/weights/safetensors_writer.h"
#include "tessera/weights/stored_weight.h"
#include "tests/support/temporary_folder.h"

namespace tessera::weights {
namespace {

using base::DType;
using base::StatusCode;
using test_support::TemporaryFolder;
using testing::ElementsAre;
using testing::HasSubstr;

class CheckpointTest : public testing::Test {
 protected:
  // Every tensor is one row of `bytes` U8, counting up from the first letter of its name.
  static std::vector<std::byte> content(const std::string& name, std::int64_t bytes) {
    std::vector<std::byte> data;
    for (std::int64_t i = 0; i < bytes; ++i) data.push_back(static_cast<std::byte>(name.front() + i));
    return data;
  }
  void write_file(const std::string& file, const std::vector<std::pair<std::string, std::int64_t>>& tensors) {
    std::vector<TensorDeclaration> declarations;
    for (const auto& [name, bytes] : tensors) declarations.push_back({name, DType::kU8, {bytes}});
    auto writer = SafetensorsWriter::create(folder_.path() / file, declarations);
    ASSERT_TRUE(writer.has_value()) << writer.error().to_string();
    for (const auto& [name, bytes] : tensors) ASSERT_TRUE(writer->write(name, content(name, bytes)).ok());
    ASSERT_TRUE(writer->finish().ok());
  }
  void write_text(const std::string& file, const std::string& text) {
    std::ofstream(folder_.path() / file, std::ios::binary) << text;
  }
  void write_index(const std::map<std::string, std::string>& weight_map) {
    ASSERT_TRUE(write_checkpoint_index(folder_.path(), weight_map, 0).ok());
  }
  base::Status open_status() {
    const auto checkpoint = Checkpoint::open(folder_.path());
    return checkpoint.has_value() ? base::ok_status() : checkpoint.error();
  }
  void expect_refused(StatusCode code, const std::string& message) {
    const base::Status status = open_status();
    EXPECT_EQ(status.code(), code) << status.to_string();
    EXPECT_THAT(status.message(), HasSubstr(message));
  }
  TemporaryFolder folder_{"checkpoint"};
};

TEST_F(CheckpointTest, SingleFile) {
  write_file("model.safetensors", {{"b", 3}, {"a", 2}});
  auto checkpoint = Checkpoint::open(folder_.path());
  ASSERT_TRUE(checkpoint.has_value()) << checkpoint.error().to_string();
  ASSERT_EQ(checkpoint->tensors().size(), 2u);
  EXPECT_EQ(checkpoint->tensors()[0].name, "a");
  EXPECT_EQ(checkpoint->tensor_bytes(), 5);
  EXPECT_EQ(checkpoint->list_file(), "model.safetensors");
  EXPECT_EQ(checkpoint->find("c"), nullptr);

  EXPECT_EQ(checkpoint->unconsumed().size(), 2u);
  const auto b = checkpoint->take("b");
  ASSERT_TRUE(b.has_value());
  EXPECT_EQ(b->file, "model.safetensors");
  EXPECT_THAT(b->shape, ElementsAre(3));
  EXPECT_EQ(std::to_integer<char>(b->data[2]), 'd');
  ASSERT_EQ(checkpoint->unconsumed().size(), 1u);
  EXPECT_EQ(checkpoint->unconsumed()[0].name, "a");

  // Everything stays where it is when the checkpoint moves.
  Checkpoint moved = std::move(*checkpoint);
  EXPECT_EQ(moved.find("b")->data.data(), b->data.data());
  EXPECT_EQ(moved.find("b")->file, "model.safetensors");
  EXPECT_TRUE(moved.take("a").has_value());
  EXPECT_TRUE(moved.take("a").has_value());
  EXPECT_TRUE(moved.unconsumed().empty());

  const auto missing = moved.take("c");
  ASSERT_FALSE(missing.has_value());
  EXPECT_EQ(missing.error().code(), StatusCode::kNotFound);
  EXPECT_THAT(missing.error().message(), HasSubstr("model.safetensors: tensor 'c' is missing"));
}

TEST_F(CheckpointTest, Sharded) {
  write_file("model-00001-of-00002.safetensors", {{"b", 3}, {"d", 1}});
  write_file("model-00002-of-00002.safetensors", {{"a", 2}});
  write_index({{"a", "model-00002-of-00002.safetensors"},
               {"b", "model-00001-of-00002.safetensors"},
               {"d", "model-00001-of-00002.safetensors"}});
  const auto checkpoint = Checkpoint::open(folder_.path());
  ASSERT_TRUE(checkpoint.has_value()) << checkpoint.error().to_string();
  EXPECT_EQ(checkpoint->file_count(), 2);
  EXPECT_EQ(checkpoint->tensors().size(), 3u);
  EXPECT_EQ(checkpoint->find("a")->file, "model-00002-of-00002.safetensors");
  EXPECT_EQ(std::to_integer<char>(checkpoint->find("a")->data[1]), 'b');
  EXPECT_EQ(checkpoint->list_file(), "model.safetensors.index.json");
}

TEST_F(CheckpointTest, NoFilesAtAll) {
  expect_refused(StatusCode::kNotFound, "expected model.safetensors or model.safetensors.index.json");
}

TEST_F(CheckpointTest, TwoTruths) {
  write_file("model.safetensors", {{"a", 2}});
  write_file("other.safetensors", {{"a", 2}});
  write_index({{"a", "other.safetensors"}});
  expect_refused(StatusCode::kInvalidArgument, "expected one of them");
}

TEST_F(CheckpointTest, AnIndexMayNameTheSingleFile) {
  write_file("model.safetensors", {{"a", 2}});
  write_index({{"a", "model.safetensors"}});
  EXPECT_TRUE(open_status().ok());
}

TEST_F(CheckpointTest, MissingShard) {
  write_file("s1.safetensors", {{"a", 2}});
  write_index({{"a", "s1.safetensors"}, {"b", "s2.safetensors"}});
  expect_refused(StatusCode::kNotFound, "shard 's2.safetensors' is not in the folder");
}

TEST_F(CheckpointTest, ShardLacksATensorOfTheIndex) {
  write_file("s1.safetensors", {{"a", 2}});
  write_index({{"a", "s1.safetensors"}, {"b", "s1.safetensors"}});
  expect_refused(StatusCode::kNotFound, "tensor 'b' should be in 's1.safetensors', which lacks it");
}

TEST_F(CheckpointTest, IndexLacksATensorOfAShard) {
  write_file("s1.safetensors", {{"a", 2}, {"b", 1}});
  write_index({{"a", "s1.safetensors"}});
  expect_refused(StatusCode::kInvalidArgument, "s1.safetensors: tensor 'b' is in no weight_map entry");
}

TEST_F(CheckpointTest, TensorInAnotherShardThanTheIndexSays) {
  write_file("s1.safetensors", {{"a", 2}});
  write_file("s2.safetensors", {{"b", 1}});
  write_index({{"a", "s2.safetensors"}, {"b", "s1.safetensors"}});
  expect_refused(StatusCode::kInvalidArgument, "tensor 'a' is here, but model.safetensors.index.json puts it into");
}

TEST_F(CheckpointTest, TensorInTwoShards) {
  write_file("s1.safetensors", {{"a", 2}});
  write_file("s2.safetensors", {{"a", 2}, {"b", 1}});
  write_index({{"a", "s1.safetensors"}, {"b", "s2.safetensors"}});
  expect_refused(StatusCode::kInvalidArgument, "s2.safetensors: tensor 'a' is here, but");
}

TEST_F(CheckpointTest, TruncatedShard) {
  write_file("s1.safetensors", {{"a", 2}});
  write_file("s2.safetensors", {{"b", 100}});
  write_index({{"a", "s1.safetensors"}, {"b", "s2.safetensors"}});
  std::filesystem::resize_file(folder_.path() / "s2.safetensors",
                               std::filesystem::file_size(folder_.path() / "s2.safetensors") - 1);
  expect_refused(StatusCode::kDataLoss,
                 "s2.safetensors: tensor 'b' ends at byte 100 of the data, but the file holds 99");
}

TEST_F(CheckpointTest, ShardNamesAreNoPaths) {
  for (const char* name :
       {"../s.safetensors", "/etc/s.safetensors", "sub/s.safetensors", "a\\\\b.safetensors", "..", "", ".safetensors",
        ".hidden.safetensors", "s.bin", "s.safetensors\\u0000", "a\\n.safetensors"}) {
    write_text("model.safetensors.index.json", R"({"weight_map":{"a":")" + std::string(name) + R"("}})");
    expect_refused(StatusCode::kInvalidArgument, "expected a file name in this folder that ends in .safetensors");
  }
}

TEST_F(CheckpointTest, BrokenIndex) {
  const std::pair<const char*, const char*> cases[] = {
      {"{", "no JSON"},
      {"[]", "expected an object"},
      {"{}", "expected an object weight_map"},
      {R"({"weight_map":[]})", "expected an object weight_map"},
      {R"({"weight_map":{}})", "weight_map is empty"},
      {R"({"weight_map":{"a":1}})", "tensor 'a': expected a shard's name"},
  };
  for (const auto& [text, message] : cases) {
    write_text("model.safetensors.index.json", text);
    expect_refused(StatusCode::kInvalidArgument, std::string("model.safetensors.index.json: ") + message);
  }
}

TEST_F(CheckpointTest, TooManyShards) {
  std::string text = R"({"weight_map":{)";
  for (int i = 0; i < 1001; ++i) {
    text += (i == 0 ? "\"" : ",\"") + std::to_string(i) + "\":\"" + std::to_string(i) + ".safetensors\"";
  }
  write_text("model.safetensors.index.json", text + "}}");
  expect_refused(StatusCode::kInvalidArgument, "1001 shards, expected at most 1000");
}

// ---- Stored weights ----

TEST_F(CheckpointTest, StoredWeightsArePlainAndOfTheExpectedShape) {
  std::vector<TensorDeclaration> declarations = {
      {"f32", DType::kF32, {2, 2}}, {"bf16", DType::kBF16, {4}}, {"f16", DType::kF16, {4}}, {"i64", DType::kI64, {1}}};
  auto writer = SafetensorsWriter::create(folder_.path() / "model.safetensors", declarations);
  ASSERT_TRUE(writer.has_value());
  const std::vector<std::byte> zeros(16);
  for (const auto& [name, bytes] : {std::pair{"f32", 16}, {"bf16", 8}, {"f16", 8}, {"i64", 8}}) {
    ASSERT_TRUE(writer->write(name, std::span(zeros).first(static_cast<std::size_t>(bytes))).ok());
  }
  ASSERT_TRUE(writer->finish().ok());
  auto checkpoint = Checkpoint::open(folder_.path());
  ASSERT_TRUE(checkpoint.has_value());

  using Shape = std::vector<std::int64_t>;
  EXPECT_EQ(take_weight(*checkpoint, "f32", Shape{2, 2})->format, ops::WeightFormat::kF32);
  EXPECT_EQ(take_weight(*checkpoint, "bf16", Shape{4})->format, ops::WeightFormat::kBF16);
  for (const Shape& shape : {Shape{4}, Shape{2, 3}, Shape{2, 2, 1}, Shape{}}) {
    const auto refused = take_weight(*checkpoint, "f32", shape);
    ASSERT_FALSE(refused.has_value());
    EXPECT_EQ(refused.error().message(),
              "model.safetensors: tensor 'f32' has shape [2, 2], expected " + shape_text(shape));
  }
  for (const auto& [name, shape, dtype] : {std::tuple{"f16", Shape{4}, "F16"}, {"i64", Shape{1}, "I64"}}) {
    const auto refused = take_weight(*checkpoint, name, shape);
    ASSERT_FALSE(refused.has_value());
    EXPECT_EQ(refused.error().code(), StatusCode::kUnimplemented);
    EXPECT_THAT(refused.error().message(), HasSubstr(std::string("is stored as ") + dtype + ", expected F32 or BF16"));
  }
  EXPECT_EQ(take_weight(*checkpoint, "none", Shape{1}).error().code(), StatusCode::kNotFound);
}

// ---- Writer ----

TEST_F(CheckpointTest, TheWriterAlignsDataAndNamesTheFileLast) {
  const std::filesystem::path path = folder_.path() / "model.safetensors";
  auto writer = SafetensorsWriter::create(path, {{"odd \"name\"\n", DType::kI64, {1}}});
  ASSERT_TRUE(writer.has_value());
  EXPECT_FALSE(std::filesystem::exists(path));
  ASSERT_TRUE(writer->write("odd \"name\"\n", content("x", 8)).ok());
  ASSERT_TRUE(writer->finish().ok());
  EXPECT_EQ(std::filesystem::file_size(path) % 8, 0u);
  auto checkpoint = Checkpoint::open(folder_.path());
  ASSERT_TRUE(checkpoint.has_value()) << checkpoint.error().to_string();
  EXPECT_EQ(checkpoint->tensors()[0].name, "odd \"name\"\n");
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(checkpoint->tensors()[0].data.data()) % 8, 0u);
  EXPECT_TRUE(std::ranges::equal(checkpoint->tensors()[0].data, content("x", 8)));
}

TEST_F(CheckpointTest, TheWriterRefusesWhatTheReaderWould) {
  const auto refusal = [&](std::vector<TensorDeclaration> tensors) {
    const auto writer = SafetensorsWriter::create(folder_.path() / "w.safetensors", std::move(tensors));
    return writer.has_value() ? base::ok_status() : writer.error();
  };
  EXPECT_EQ(refusal({{"a", DType::kF32, {-1}}}).code(), StatusCode::kOutOfRange);
  EXPECT_EQ(refusal({{"a", DType::kF32, {1ll << 40, 1ll << 40}}}).code(), StatusCode::kOutOfRange);
  EXPECT_EQ(refusal({{"", DType::kF32, {1}}}).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(refusal({{"__metadata__", DType::kF32, {1}}}).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(refusal({{"a", DType::kF32, {1}}, {"a", DType::kF32, {1}}}).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(refusal({{"a", DType::kF32, {1, 1, 1, 1, 1, 1, 1, 1, 1}}}).code(), StatusCode::kOutOfRange);
  const auto nowhere = SafetensorsWriter::create(folder_.path() / "none" / "w.safetensors", {});
  EXPECT_FALSE(nowhere.has_value());
}

// ---- Digest ----

class DigestTest : public CheckpointTest {
 protected:
  std::string digest(const std::string& config) {
    const auto checkpoint = Checkpoint::open(folder_.path());
    EXPECT_TRUE(checkpoint.has_value());
    CheckpointDigest d(config);
    for (const Tensor& tensor : checkpoint->tensors()) d.add(tensor);
    return d.finish();
  }
};

// Computed once in Python (hashlib, and libxxhash through ctypes), as docs/checkpoints.md defines it.
TEST_F(DigestTest, KnownAnswer) {
  write_file("model.safetensors", {{"b", 3}, {"a", 2}});
  EXPECT_EQ(digest("{}"), "640200fc825200ee89898449f2b3fa07ba294d28bd27115de1571be1c97c2249");
}

TEST_F(DigestTest, DependsOnContentAndNotOnPlaceOrOrder) {
  write_file("model.safetensors", {{"b", 3}, {"a", 2}});
  const std::string one = digest("{}");
  EXPECT_EQ(one.size(), 64u);
  EXPECT_NE(one, digest("{ }"));
  std::filesystem::remove(folder_.path() / "model.safetensors");
  write_file("s1.safetensors", {{"a", 2}});
  write_file("s2.safetensors", {{"b", 3}});
  write_index({{"a", "s1.safetensors"}, {"b", "s2.safetensors"}});
  EXPECT_EQ(one, digest("{}"));

  const auto checkpoint = Checkpoint::open(folder_.path());
  CheckpointDigest reversed("{}");
  reversed.add(*checkpoint->find("b"));
  reversed.add(*checkpoint->find("a"));
  reversed.add(*checkpoint->find("b"));
  EXPECT_EQ(one, reversed.finish());
  CheckpointDigest part("{}");
  part.add(*checkpoint->find("a"));
  EXPECT_NE(one, part.finish());
  Tensor changed = *checkpoint->find("b");
  changed.dtype = DType::kI8;
  CheckpointDigest other_dtype("{}");
  other_dtype.add(*checkpoint->find("a"));
  other_dtype.add(changed);
  EXPECT_NE(one, other_dtype.finish());
  write_file("s2.safetensors", {{"b", 4}});
  EXPECT_NE(one, digest("{}"));
}

}  // namespace
}  // namespace tessera::weights
