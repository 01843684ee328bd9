// SPDX-License-Identifier: BSD-3-Clause
// The sidecar of a token file.
#include "io/tokens/sidecar.hpp"

#include <fstream>

#include <gmock/gmock.h>

#include "core/base/error.hpp"
#include "tests/io/io_test_util.hpp"

namespace mylos::test {
namespace {

using testing::HasSubstr;

const Sidecar of_gpt2 = {.tokenizer = {.name = "gpt2", .ranks = "0123456789abcdef0123456789abcdef"},
                         .vocab = 50257,
                         .tokens = 100,
                         .content = "00000000000000000000000000000001",
                         .documents = 7};

std::string error_of(const auto& action) {
  try {
    action();
    return "good";
  } catch (const Error& error) {
    return fmt::format("{} {}", static_cast<int>(error.code()), error.what());
  }
}

TEST(Sidecar, IsReadAsWritten) {
  const ScratchDirectory scratch;
  const fs::path file = scratch.path() / "train.bin";
  EXPECT_FALSE(read_sidecar(file));
  Sidecar written = of_gpt2;
  for (const char* ranks : {"0123456789abcdef0123456789abcdef", ""}) {
    written.tokenizer.ranks = ranks;
    write_sidecar(file, written);
    const auto read = read_sidecar(file);
    ASSERT_TRUE(read);
    EXPECT_EQ(read->tokenizer, written.tokenizer);
    EXPECT_EQ(read->vocab, 50257);
    EXPECT_EQ(read->tokens, 100);
    EXPECT_EQ(read->content, written.content);
    EXPECT_EQ(read->documents, 7);
  }
}

TEST(Sidecar, ThatIsBrokenIsNamed) {
  const ScratchDirectory scratch;
  const fs::path file = scratch.path() / "train.bin";
  for (const char* text :
       {"", "{", "[]", "{\"tokenizer\": \"gpt2\"}",
        R"({"tokenizer": "gpt2", "vocab": "many", "tokens": 1, "content": "", "documents": 1})"}) {
    spill(sidecar_path(file), text);
    EXPECT_THAT(error_of([&] { (void)read_sidecar(file); }),
                testing::StartsWith("65 " + sidecar_path(file).string()))
        << text;
  }
}

TEST(Sidecar, OfAnotherTokenizerIsRefused) {
  EXPECT_EQ(error_of([] { check_tokenizer("a.bin", of_gpt2, of_gpt2.tokenizer, "b.bin"); }), "good");
  for (const TokenizerIdentity& other :
       {TokenizerIdentity{.name = "bytes", .ranks = ""}, TokenizerIdentity{.name = "gpt2", .ranks = "f"}}) {
    const std::string error = error_of([&] { check_tokenizer("a.bin", of_gpt2, other, "b.bin"); });
    EXPECT_THAT(error, testing::StartsWith("2 a.bin holds tokens of gpt2 (ranks 0123"));
    EXPECT_THAT(error, HasSubstr("b.bin holds tokens of " + other.text()));
  }
}

}  // namespace
}  // namespace mylos::test
