// SPDX-License-Identifier: BSD-3-Clause
// Headers of safetensors files: every rule of the format, and bounded memory for the largest.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <gmock/gmock.h>

#include "io/file_util.hpp"
#include "io/models/safetensors_header.hpp"
#include "tests/io/model_test_util.hpp"

namespace mylos::test {
namespace {

using ::testing::HasSubstr;

class Safetensors : public ::testing::Test {
 protected:
  std::vector<SafetensorsTensor> read(const std::string& content) {
    const FileDescriptor file = memory_file(content);
    return read_safetensors_header(file.get(), file_);
  }

  static FileDescriptor memory_file(const std::string& content) {
    FileDescriptor file(::memfd_create("safetensors", MFD_CLOEXEC));
    write_fully(file.get(), "safetensors", content.data(), content.size(), 0);
    return file;
  }

  /// What a file is refused with, without its name; "good" if it is not.
  std::string refusal(const std::string& content) {
    try {
      read(content);
      return "good";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::bad_data);
      const std::string message = error.what();
      EXPECT_TRUE(message.starts_with(file_.string())) << message;
      return message.substr(file_.string().size());
    }
  }
  std::string refusal(const std::string& header, std::size_t bytes) {
    return refusal(safetensors_file(header, std::string(bytes, 'x')));
  }

  const fs::path file_ = "x.safetensors";
};

TEST_F(Safetensors, TensorsComeInTheOrderOfTheirBytes) {
  const std::string header =
      R"({"__metadata__":{"format":"pt","":"\u0000"},"b":{"shape":[2,3],"data_offsets":[2,14],"dtype":"BF16"},)"
      R"("scalar":{"dtype":"U8","shape":[],"data_offsets":[0,1]},"empty":{"dtype":"F64","shape":[3,0],)"
      R"("data_offsets":[1,1]},"é\n":{"dtype":"BOOL","shape":[1],"data_offsets":[1,2]}}   )";
  const std::vector<SafetensorsTensor> tensors = read(safetensors_file(header, std::string(14, 'x')));
  ASSERT_EQ(tensors.size(), 4U);
  const auto data = static_cast<std::int64_t>(8 + header.size());
  EXPECT_EQ(tensors[0].name, "scalar");
  EXPECT_EQ(tensors[0].shape, std::vector<std::int64_t>());
  EXPECT_EQ(tensors[0].begin, data);
  EXPECT_EQ(tensors[1].name, "empty");
  EXPECT_EQ(tensors[2].name, "é\n");
  EXPECT_EQ(tensors[3].name, "b");
  EXPECT_EQ(tensors[3].dtype, "BF16");
  EXPECT_EQ(tensors[3].shape, (std::vector<std::int64_t>{2, 3}));
  EXPECT_EQ(tensors[3].begin, data + 2);
  EXPECT_EQ(tensors[3].end, data + 14);
  EXPECT_TRUE(read(safetensors_file("{}")).empty());
  EXPECT_EQ(refusal(R"({"a":{"dtype":"F4","shape":[3,2],"data_offsets":[0,3]}})", 3), "good");
}

TEST_F(Safetensors, RefusesLengthsOfTheHeader) {
  EXPECT_THAT(refusal(""), HasSubstr(" has 0 bytes; "));
  EXPECT_THAT(refusal("\x02"), HasSubstr(" has 1 bytes; "));
  const auto with_length = [](std::uint64_t length) {
    std::string file = safetensors_file("{}");
    std::memcpy(file.data(), &length, sizeof length);
    return file;
  };
  EXPECT_THAT(refusal(with_length(3)), HasSubstr("a header of 3 bytes, but only 2 follow"));
  EXPECT_THAT(refusal(with_length(100'000'000)), HasSubstr("a header of 100000000 bytes, but only 2 follow"));
  EXPECT_THAT(refusal(with_length(100'000'001)), HasSubstr("has at most 100000000"));
  EXPECT_THAT(refusal(with_length((std::uint64_t{1} << 63U) - 1)), HasSubstr("9223372036854775807 bytes"));
  EXPECT_THAT(refusal(with_length(UINT64_MAX - 7)), HasSubstr("18446744073709551608 bytes"));
  EXPECT_THAT(refusal(with_length(0)), HasSubstr("does not begin with {"));
  EXPECT_THAT(refusal(with_length(1)), HasSubstr("parse error"));
}

TEST_F(Safetensors, RefusesTextThatIsNoHeader) {
  EXPECT_THAT(refusal(" {}", 0), HasSubstr("does not begin with {"));
  EXPECT_THAT(refusal("[]", 0), HasSubstr("does not begin with {"));
  EXPECT_THAT(refusal("{} {}", 0), HasSubstr("parse error"));
  EXPECT_THAT(refusal(std::string("{}\0", 3), 0), HasSubstr("a NUL byte"));
  EXPECT_THAT(refusal("{\"\xff\":{}}", 0), HasSubstr("UTF-8"));
  EXPECT_THAT(refusal(R"({"a":[]})", 0), HasSubstr("\"a\" is an array, not a tensor"));
  EXPECT_THAT(refusal(R"({"a":"b"})", 0), HasSubstr("\"a\" is text, not a tensor"));
  EXPECT_THAT(refusal(R"({"__metadata__":null})", 0), HasSubstr("is null, not a tensor"));
  EXPECT_THAT(refusal(R"({"__metadata__":{"a":1}})", 0),
              HasSubstr("__metadata__ holds a number, not only text"));
  EXPECT_THAT(refusal(R"({"__metadata__":{"a":{}}})", 0), HasSubstr("__metadata__ holds an object"));
  EXPECT_THAT(refusal(R"({"__metadata__":{"a":[]}})", 0), HasSubstr("__metadata__ holds an array"));
  std::string deep = R"({"a":{"shape":)";
  for (int i = 0; i < 1'000'000; ++i) deep += '[';
  EXPECT_THAT(refusal(deep, 0), HasSubstr("tensor \"a\": shape cannot hold an array"));
  EXPECT_THAT(refusal(R"({"a":{"b":{}}})", 0), HasSubstr("tensor \"a\" has the unknown key \"b\""));
  std::string long_name(10'000, 'n');
  EXPECT_LT(refusal("{\"" + long_name + "\":1}", 0).size(), 300U);
}

TEST_F(Safetensors, RefusesFieldsOfATensor) {
  const auto tensor = [](const std::string& fields) { return R"({"a":{)" + fields + "}}"; };
  const auto offsets = [&](const std::string& text) {
    return tensor(R"("dtype":"F32","shape":[1],"data_offsets":)" + text);
  };
  EXPECT_THAT(refusal(tensor(R"("dtype":"F32","shape":[1])"), 4),
              HasSubstr(R"(tensor "a" has no "data_offsets")"));
  EXPECT_THAT(refusal(tensor(R"("dtype":"F32","data_offsets":[0,4])"), 4), HasSubstr(R"(has no "shape")"));
  EXPECT_THAT(refusal(tensor(R"("shape":[1],"data_offsets":[0,4])"), 4), HasSubstr(R"(has no "dtype")"));
  EXPECT_THAT(refusal(tensor(R"("dtype":"F33","shape":[1],"data_offsets":[0,4])"), 4),
              HasSubstr(R"(tensor "a" has the unknown dtype "F33")"));
  EXPECT_THAT(refusal(tensor(R"("dtype":3)"), 4), HasSubstr("dtype cannot be a number"));
  EXPECT_THAT(refusal(tensor(R"("shape":"x")"), 4), HasSubstr("shape cannot be text"));
  EXPECT_THAT(refusal(tensor(R"("shape":[-1])"), 4), HasSubstr("shape cannot hold a negative number"));
  EXPECT_THAT(refusal(tensor(R"("shape":[1.0])"), 4), HasSubstr("shape cannot hold a fraction"));
  EXPECT_THAT(refusal(tensor(R"("shape":[9223372036854775808])"), 4), HasSubstr("9223372036854775808"));
  EXPECT_THAT(refusal(tensor(R"("shape":[1,1,1,1,1,1,1,1,1])"), 4), HasSubstr("more than 8 numbers"));
  EXPECT_THAT(refusal(tensor(R"("shape":[1],"sha\u0070e":[1])"), 4), HasSubstr(R"(has "shape" twice)"));
  EXPECT_THAT(refusal(offsets("[0]"), 4), HasSubstr("data_offsets has 1 numbers, not 2"));
  EXPECT_THAT(refusal(offsets("[0,4,4]"), 4), HasSubstr("data_offsets has 3 numbers, not 2"));
  EXPECT_THAT(refusal(offsets("[4,0]"), 4), HasSubstr("data_offsets [4, 0] do not hold exactly"));
  EXPECT_THAT(refusal(offsets("[0,3]"), 3), HasSubstr("data_offsets [0, 3] do not hold exactly"));
  EXPECT_THAT(refusal(offsets("[9223372036854775807,4]"), 4), HasSubstr("do not hold exactly"));
}

TEST_F(Safetensors, RefusesShapesWhoseProductOverflows) {
  const auto shape = [&](const std::string& extents, const std::string& dtype) {
    return refusal(R"({"a":{"dtype":")" + dtype + R"(","shape":[)" + extents + R"(],"data_offsets":[0,4]}})",
                   4);
  };
  EXPECT_THAT(shape("4294967296,4294967296", "F32"), HasSubstr("do not hold exactly"));
  EXPECT_THAT(shape("4611686018427387905", "F32"), HasSubstr("do not hold exactly"));  // 4 bytes modulo 2^64
  EXPECT_THAT(shape("2305843009213693953,4", "U8"), HasSubstr("do not hold exactly"));
  EXPECT_THAT(shape("7", "F4"), HasSubstr("do not hold exactly"));
  EXPECT_THAT(shape("9223372036854775807,9223372036854775807,0", "F32"), HasSubstr("do not hold exactly"));
}

TEST_F(Safetensors, RefusesHolesOverlapsAndOtherBytes) {
  const auto two = [&](const char* first, const char* second, std::size_t bytes) {
    return refusal(fmt::format(R"({{"a":{{"dtype":"U8","shape":[4],"data_offsets":{}}},)"
                               R"("b":{{"dtype":"U8","shape":[4],"data_offsets":{}}}}})",
                               first, second),
                   bytes);
  };
  EXPECT_EQ(two("[4,8]", "[0,4]", 8), "good");
  EXPECT_THAT(two("[0,4]", "[3,7]", 7),
              HasSubstr(R"(tensors "a" and "b" overlap: the second begins at 3, before 4)"));
  EXPECT_THAT(two("[0,4]", "[0,4]", 4), HasSubstr("overlap"));
  EXPECT_THAT(two("[0,4]", "[5,9]", 9), HasSubstr(R"(a hole before tensor "b": it begins at 5, not at 4)"));
  EXPECT_THAT(two("[1,5]", "[5,9]", 9), HasSubstr(R"(a hole before tensor "a": it begins at 1, not at 0)"));
  EXPECT_THAT(two("[0,4]", "[4,8]", 9), HasSubstr("its tensors end at 8, but 9 bytes follow the header"));
  EXPECT_THAT(two("[0,4]", "[4,8]", 7), HasSubstr("its tensors end at 8, but 7 bytes follow the header"));
  EXPECT_THAT(refusal("{}", 1), HasSubstr("its tensors end at 0, but 1 bytes follow the header"));
}

TEST_F(Safetensors, RefusesANameTwice) {
  const std::string fields = R"({"dtype":"U8","shape":[0],"data_offsets":[0,0]})";
  EXPECT_THAT(refusal(R"({"name":)" + fields + R"(,"name":)" + fields + "}", 0),
              HasSubstr(R"(has tensor "name" twice)"));
  EXPECT_THAT(refusal(R"({"name":)" + fields + R"(,"b":)" + fields + R"(,"n\u0061me":)" + fields + "}", 0),
              HasSubstr(R"(has tensor "name" twice)"));
  EXPECT_THAT(refusal(R"({"__metadata__":{},"__met\u0061data__":{}})", 0),
              HasSubstr("has __metadata__ twice"));
  EXPECT_THAT(refusal(R"({"__metadata__":{"a":"","\u0061":""}})", 0),
              HasSubstr(R"(__metadata__ has "a" twice)"));
}

TEST_F(Safetensors, RefusesWhatIsNoFile) {
  const ScratchDirectory scratch;
  const FileDescriptor open = open_file(scratch.path(), O_RDONLY);
  EXPECT_THROW(read_safetensors_header(open.get(), scratch.path()), Error);
}

std::string header_of(int tensors) {
  std::string header = "{";
  for (int i = 0; i < tensors; ++i) {
    header += fmt::format(R"({}"transformer.h.{}":{{"dtype":"U8","shape":[1],"data_offsets":[{},{}]}})",
                          i == 0 ? "" : ",", i, i, i + 1);
  }
  return header + "}";
}

TEST_F(Safetensors, AMillionTensorsTakeBoundedMemory) {
  constexpr int tensors = 1'000'000;
  const FileDescriptor file = memory_file(safetensors_file(header_of(tensors), std::string(tensors, 'x')));
  const pid_t child = ::fork();
  if (child == 0) ::_exit(read_safetensors_header(file.get(), file_).size() == tensors ? 0 : 1);
  int status = 0;
  rusage usage{};
  ASSERT_EQ(::wait4(child, &status, 0, &usage), child);
  EXPECT_EQ(status, 0);
#ifndef __SANITIZE_ADDRESS__
  EXPECT_LT(usage.ru_maxrss, 512 << 10);  // KiB, with what this process holds
#endif
  EXPECT_THAT(refusal(header_of(tensors + 1), tensors + 1), HasSubstr("has more than 1000000 tensors"));
}

}  // namespace
}  // namespace mylos::test
