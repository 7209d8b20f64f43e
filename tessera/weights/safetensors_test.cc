#include "tessera/weights/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <chrono>
#include <cstring>
#include <fstream>
#include <string>

#include "tests/support/temporary_folder.h"

namespace tessera::weights {
namespace {

using base::StatusCode;
using test_support::TemporaryFolder;
using testing::HasSubstr;

// A file as a hostile writer might make it: header length, header and data are independent.
void write_raw(const std::filesystem::path& path, std::uint64_t length, const std::string& header,
               const std::string& data) {
  std::ofstream file(path, std::ios::binary);
  for (int i = 0; i < 8; ++i) file.put(static_cast<char>(length >> (8 * i)));
  file << header << data;
}

// What parsing `header` before `data_bytes` of data is refused with.
base::Status refusal(const std::string& header, std::int64_t data_bytes) {
  const auto result = parse_safetensors_header(header, data_bytes, "x.safetensors");
  return result.has_value() ? base::ok_status() : result.error();
}

std::string entry(const std::string& name, const std::string& dtype, const std::string& shape,
                  const std::string& offsets) {
  return "\"" + name + R"(":{"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}";
}

TEST(SafetensorsHeader, ReadsTensorsInTheOrderOfTheirOffsets) {
  const std::string header = "{" + entry("b", "F32", "[2, 3]", "[4, 28]") +
                             R"(,"__metadata__":{"format":"pt","note":"x"},)" + entry("a", "BF16", "[2]", "[0, 4]") +
                             "," + entry("scalar", "U8", "[]", "[28, 29]") + "," +
                             entry("empty", "I64", "[0, 5]", "[29, 29]") + "}   ";
  const auto tensors = parse_safetensors_header(header, 29, "x.safetensors");
  ASSERT_TRUE(tensors.has_value()) << tensors.error().to_string();
  ASSERT_EQ(tensors->size(), 4u);
  EXPECT_EQ((*tensors)[0].name, "a");
  EXPECT_EQ((*tensors)[0].dtype, base::DType::kBF16);
  EXPECT_EQ((*tensors)[1].name, "b");
  EXPECT_THAT((*tensors)[1].shape, testing::ElementsAre(2, 3));
  EXPECT_EQ((*tensors)[1].offset, 4);
  EXPECT_EQ((*tensors)[1].bytes, 24);
  EXPECT_EQ((*tensors)[2].bytes, 1);
  EXPECT_EQ((*tensors)[3].bytes, 0);
}

TEST(SafetensorsHeader, ReadsEveryDtype) {
  for (const std::string_view name : {"F32", "BF16", "F16", "F8_E4M3", "I64", "I32", "I16", "I8", "U8", "BOOL"}) {
    const std::int64_t bytes = 3 * base::dtype_size(*base::dtype_from_name(name));
    const std::string header = "{" + entry("a", std::string(name), "[3]", "[0, " + std::to_string(bytes) + "]") + "}";
    EXPECT_TRUE(refusal(header, bytes).ok()) << name;
  }
}

struct Refused {
  const char* name;
  std::string header;
  std::int64_t data_bytes;
  StatusCode code;
  const char* message;
};

class SafetensorsRefusal : public testing::TestWithParam<Refused> {};

TEST_P(SafetensorsRefusal, NamesFileTensorAndExpectation) {
  const base::Status status = refusal(GetParam().header, GetParam().data_bytes);
  EXPECT_EQ(status.code(), GetParam().code) << status.to_string();
  EXPECT_THAT(status.message(), HasSubstr("x.safetensors: "));
  EXPECT_THAT(status.message(), HasSubstr(GetParam().message));
}

const StatusCode kInvalid = StatusCode::kInvalidArgument;

INSTANTIATE_TEST_SUITE_P(
    All, SafetensorsRefusal,
    testing::Values(
        Refused{"NotJson", "hello", 0, kInvalid, "no JSON"}, Refused{"Empty", "", 0, kInvalid, "no JSON"},
        Refused{"Unfinished", R"({"a":{"dtype":"F32")", 0, kInvalid, "no JSON"},
        Refused{"TrailingText", "{} {}", 0, kInvalid, "goes on after its JSON"},
        Refused{"RootIsArray", "[]", 0, kInvalid, "an array, expected an object"},
        Refused{"TensorIsNumber", R"({"a":3})", 0, kInvalid, "'a' is a number, expected an object"},
        Refused{"TensorIsNull", R"({"a":null})", 0, kInvalid, "'a' is null, expected an object"},
        Refused{"NoName", "{" + entry("", "F32", "[1]", "[0,4]") + "}", 4, kInvalid, "without a name"},
        Refused{"MissingDtype", R"({"a":{"shape":[1],"data_offsets":[0,4]}})", 4, kInvalid,
                "tensor 'a': missing field dtype"},
        Refused{"MissingShape", R"({"a":{"dtype":"F32","data_offsets":[0,4]}})", 4, kInvalid, "missing field shape"},
        Refused{"MissingOffsets", R"({"a":{"dtype":"F32","shape":[1]}})", 4, kInvalid, "missing field data_offsets"},
        Refused{"FieldTwice", R"({"a":{"dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 4, kInvalid,
                "field dtype given twice"},
        Refused{"ShapeTwice", R"({"a":{"dtype":"F32","shape":[1],"shape":[1],"data_offsets":[0,4]}})", 4, kInvalid,
                "field shape given twice"},
        Refused{"UnknownField", R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"strides":[1]}})", 4, kInvalid,
                "unknown field 'strides'"},
        Refused{"UnknownDtype", "{" + entry("a", "F4", "[1]", "[0,4]") + "}", 4, StatusCode::kUnimplemented,
                "tensor 'a': unknown dtype 'F4', expected one of F32"},
        Refused{"DtypeIsNumber", R"({"a":{"dtype":7,"shape":[1],"data_offsets":[0,4]}})", 4, kInvalid,
                "dtype holds a number, expected a string"},
        Refused{"ShapeIsNumber", R"({"a":{"dtype":"F32","shape":1,"data_offsets":[0,4]}})", 4, kInvalid,
                "shape holds a number, expected an array"},
        Refused{"ShapeHoldsStrings", R"({"a":{"dtype":"F32","shape":["1"],"data_offsets":[0,4]}})", 4, kInvalid,
                "shape holds a string"},
        Refused{"NestedShape", R"({"a":{"dtype":"F32","shape":[[1]],"data_offsets":[0,4]}})", 4, kInvalid,
                "shape holds an array"},
        Refused{"NegativeShape", "{" + entry("a", "F32", "[-1]", "[0,4]") + "}", 4, kInvalid,
                "shape holds -1, expected no negative number"},
        Refused{"FractionalShape", "{" + entry("a", "F32", "[1.0]", "[0,4]") + "}", 4, kInvalid, "whole numbers"},
        Refused{"HugeShape", "{" + entry("a", "F32", "[18446744073709551615]", "[0,4]") + "}", 4,
                StatusCode::kOutOfRange, "too large"},
        Refused{"BeyondUint64", "{" + entry("a", "F32", "[99999999999999999999999]", "[0,4]") + "}", 4, kInvalid,
                "whole numbers"},
        Refused{"ShapeOverflows", "{" + entry("a", "F32", "[4294967296, 4294967296]", "[0,4]") + "}", 4,
                StatusCode::kOutOfRange, "overflows"},
        // 2^32 * 2^32 * 0 must not hide the overflow of its first two factors behind a zero.
        Refused{"OverflowBeforeZero", "{" + entry("a", "F32", "[4294967296, 4294967296, 0]", "[0,0]") + "}", 0,
                StatusCode::kOutOfRange, "overflows"},
        Refused{"RankTooHigh", "{" + entry("a", "F32", "[1,1,1,1,1,1,1,1,1]", "[0,4]") + "}", 4,
                StatusCode::kOutOfRange, "more than 8 dimensions"},
        Refused{"OneOffset", "{" + entry("a", "F32", "[1]", "[0]") + "}", 4, kInvalid, "1 numbers, expected 2"},
        Refused{"ThreeOffsets", "{" + entry("a", "F32", "[1]", "[0,4,8]") + "}", 4, kInvalid, "3 numbers, expected 2"},
        Refused{"NegativeOffset", "{" + entry("a", "F32", "[1]", "[-4,0]") + "}", 4, kInvalid, "data_offsets holds -4"},
        Refused{"FractionalOffset", "{" + entry("a", "F32", "[1]", "[0,4.5]") + "}", 4, kInvalid, "whole numbers"},
        Refused{"OffsetsReversed", "{" + entry("a", "F32", "[1]", "[4,0]") + "}", 4, kInvalid, "end before they begin"},
        Refused{"ExtentTooSmall", "{" + entry("a", "F32", "[2]", "[0,4]") + "}", 4, kInvalid,
                "tensor 'a': shape [2] of F32 needs 8 bytes, but data_offsets [0, 4] hold 4"},
        Refused{"ExtentTooLarge", "{" + entry("a", "F8_E4M3", "[2]", "[0,4]") + "}", 4, kInvalid, "needs 2 bytes"},
        Refused{"PastTheData", "{" + entry("a", "F32", "[2]", "[0,8]") + "}", 7, StatusCode::kDataLoss,
                "tensor 'a' ends at byte 8 of the data, but the file holds 7: truncated?"},
        Refused{"Overlap", "{" + entry("a", "F32", "[2]", "[0,8]") + "," + entry("b", "F32", "[1]", "[4,8]") + "}", 8,
                kInvalid, "'b' begins at 4 and overlaps 'a', which ends at 8"},
        Refused{"SameBytes", "{" + entry("a", "F32", "[1]", "[0,4]") + "," + entry("b", "F32", "[1]", "[0,4]") + "}", 4,
                kInvalid, "overlaps"},
        Refused{"Hole", "{" + entry("a", "F32", "[1]", "[0,4]") + "," + entry("b", "F32", "[1]", "[8,12]") + "}", 12,
                kInvalid, "nothing holds bytes 4 to 8, before tensor 'b'"},
        Refused{"HoleAtTheStart", "{" + entry("a", "F32", "[1]", "[4,8]") + "}", 8, kInvalid, "hole in the data"},
        Refused{"BytesLeftOver", "{" + entry("a", "F32", "[1]", "[0,4]") + "}", 6, kInvalid,
                "2 bytes after the last tensor"},
        Refused{"NameTwice", "{" + entry("a", "F32", "[1]", "[0,4]") + "," + entry("a", "F32", "[1]", "[4,8]") + "}", 8,
                kInvalid, "tensor 'a' is listed twice"},
        Refused{"NameTwiceInDisguise",
                "{" + entry("a", "F32", "[1]", "[0,4]") + "," + entry("\\u0061", "F32", "[1]", "[4,8]") + "}", 8,
                kInvalid, "tensor 'a' is listed twice"},
        Refused{"MetadataTwice", R"({"__metadata__":{},"__metadata__":{}})", 0, kInvalid, "two __metadata__"},
        Refused{"MetadataIsText", R"({"__metadata__":"x"})", 0, kInvalid, "'__metadata__' is a string"},
        Refused{"MetadataHoldsNumbers", R"({"__metadata__":{"a":1}})", 0, kInvalid, "expected strings only"},
        Refused{"DeepNesting", R"({"a":{"shape":)" + std::string(100000, '['), 0, kInvalid, "shape holds an array"},
        Refused{"ControlCharacters", "{" + entry("a\\nb", "F4", "[1]", "[0,4]") + "}", 4, StatusCode::kUnimplemented,
                "tensor 'a\\x0ab'"}),
    [](const testing::TestParamInfo<Refused>& tested) { return std::string(tested.param.name); });

// Long tokens reach the parser's handler in parts.
TEST(SafetensorsHeader, LongNamesStayWhole) {
  const std::string name(100000, 'n');
  const auto tensors = parse_safetensors_header("{" + entry(name, "U8", "[1]", "[0,1]") + "}", 1, "x");
  ASSERT_TRUE(tensors.has_value()) << tensors.error().to_string();
  EXPECT_EQ(tensors->front().name, name);
  const base::Status status = refusal("{" + entry(name, "F4", "[1]", "[0,1]") + "}", 1);
  EXPECT_LT(status.message().size(), 500u);
}

class SafetensorsFileTest : public testing::Test {
 protected:
  base::Status open_status(std::uint64_t length, const std::string& header, const std::string& data) {
    write_raw(path_, length, header, data);
    const auto file = SafetensorsFile::open(path_);
    return file.has_value() ? base::ok_status() : file.error();
  }
  TemporaryFolder folder_{"safetensors"};
  std::filesystem::path path_ = folder_.path() / "x.safetensors";
};

TEST_F(SafetensorsFileTest, MapsWhatTheHeaderDescribes) {
  const std::string header = "{" + entry("a", "U8", "[2]", "[1,3]") + "," + entry("b", "U8", "[1]", "[0,1]") + "}";
  write_raw(path_, header.size(), header, "xyz");
  auto file = SafetensorsFile::open(path_);
  ASSERT_TRUE(file.has_value()) << file.error().to_string();
  ASSERT_TRUE(file->map().ok());
  // The mapping follows the object.
  const SafetensorsFile moved = std::move(*file);
  ASSERT_EQ(moved.tensors().size(), 2u);
  EXPECT_EQ(std::to_integer<char>(moved.data(moved.tensors()[0])[0]), 'x');
  EXPECT_EQ(moved.data(moved.tensors()[1]).size(), 2u);
  EXPECT_EQ(std::to_integer<char>(moved.data(moved.tensors()[1])[1]), 'z');
}

TEST_F(SafetensorsFileTest, AFileWithoutTensorsIsSound) { EXPECT_TRUE(open_status(2, "{}", "").ok()); }

TEST_F(SafetensorsFileTest, HeaderLongerThanTheFile) {
  const base::Status status = open_status(3, "{}", "");
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_THAT(status.message(), HasSubstr("x.safetensors: header of 3 bytes is longer than the file (10 bytes)"));
}

TEST_F(SafetensorsFileTest, HeaderBeyondTheLimit) {
  const auto begin = std::chrono::steady_clock::now();
  for (const std::uint64_t length : {100'000'001ull, 1ull << 40, ~0ull}) {
    const base::Status status = open_status(length, "{}", "");
    EXPECT_EQ(status.code(), StatusCode::kOutOfRange) << status.to_string();
    EXPECT_THAT(status.message(), HasSubstr("expected at most 100000000"));
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(1));
}

TEST_F(SafetensorsFileTest, TooShortForALength) {
  std::ofstream(path_, std::ios::binary) << "1234567";
  const auto file = SafetensorsFile::open(path_);
  ASSERT_FALSE(file.has_value());
  EXPECT_EQ(file.error().code(), StatusCode::kDataLoss);
  EXPECT_THAT(file.error().message(), HasSubstr("7 bytes, expected at least"));
}

TEST_F(SafetensorsFileTest, TruncatedData) {
  const std::string header = "{" + entry("a", "F32", "[4]", "[0,16]") + "}";
  const base::Status status = open_status(header.size(), header, "0123456789");
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_THAT(status.message(), HasSubstr("tensor 'a' ends at byte 16 of the data, but the file holds 10"));
}

TEST_F(SafetensorsFileTest, MissingFile) {
  const auto file = SafetensorsFile::open(folder_.path() / "none.safetensors");
  ASSERT_FALSE(file.has_value());
  EXPECT_EQ(file.error().code(), StatusCode::kNotFound);
  EXPECT_THAT(file.error().message(), HasSubstr("none.safetensors"));
}

// Opening must neither wait for a pipe's writer nor read from it.
TEST_F(SafetensorsFileTest, PipesAndFoldersAreNoFiles) {
  ASSERT_EQ(::mkfifo((folder_.path() / "pipe.safetensors").c_str(), 0600), 0);
  std::filesystem::create_directory(folder_.path() / "folder.safetensors");
  for (const char* name : {"pipe.safetensors", "folder.safetensors"}) {
    const auto file = SafetensorsFile::open(folder_.path() / name);
    ASSERT_FALSE(file.has_value());
    EXPECT_THAT(file.error().message(), HasSubstr("expected a regular file"));
  }
}

TEST_F(SafetensorsFileTest, LargeTextFilesAreRefusedUnread) {
  std::ofstream(path_, std::ios::binary) << "abc";
  EXPECT_EQ(*read_text_file(path_, 3), "abc");
  std::filesystem::resize_file(path_, 1ull << 40);  // Sparse.
  const auto text = read_text_file(path_, 1000);
  ASSERT_FALSE(text.has_value());
  EXPECT_EQ(text.error().code(), StatusCode::kOutOfRange);
}

}  // namespace
}  // namespace tessera::weights
