// SPDX-License-Identifier: BSD-3-Clause
// Files of multiple choice questions: any content is either read, and then encoded in both styles, or refused
// as bad data.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <sys/mman.h>
#include <unistd.h>

#include "core/base/error.hpp"
#include "io/choices/choice_encoder.hpp"
#include "io/choices/choice_file.hpp"
#include "io/choices/choice_scores.hpp"

namespace {

using namespace mylos;

void read_all(const std::string& name, ChoiceStyle style, std::int64_t max_length) {
  static const auto tokenizer = make_tokenizer("bytes");
  ChoiceFile file(name, style);
  ChoiceEncoder encoder(style, tokenizer.get(), file.has_tokens() ? 65536 : tokenizer->vocab_size());
  std::vector<ChoiceScore> scores;
  while (const auto example = file.next()) {
    const EncodedChoice choice = encoder.encode(*example);
    std::vector<EndingLoss> losses;
    for (std::size_t i = 0; i < choice.endings.size(); ++i) {
      const ChoiceRow row = choice.row(i, max_length);
      if (row.num_targets < 1 || row.num_targets >= std::ssize(row.tokens) ||
          std::ssize(row.tokens) > max_length + 1)
        std::abort();
      losses.push_back({.loss = static_cast<double>(row.tokens[0]), .tokens = row.num_targets});
    }
    scores.push_back(score_choice(choice, losses));
    if (scores.back().number != std::ssize(scores) - 1) std::abort();
  }
  if (summarize_choices(scores).examples != std::ssize(scores)) std::abort();
}

}  // namespace

/// Byte 0: style and the longest row; the rest is the file.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 1) return 0;
  static const int file = memfd_create("choices", MFD_CLOEXEC);
  static const std::string name = "/proc/self/fd/" + std::to_string(file);
  const std::size_t bytes = size - 1;
  if (ftruncate(file, 0) != 0 || pwrite(file, data + 1, bytes, 0) != static_cast<ssize_t>(bytes))
    std::abort();
  const bool is_harness = data[0] % 2 == 1;
  try {
    read_all(name, is_harness ? ChoiceStyle::harness : ChoiceStyle::llmc, 1 + data[0] / 2);
  } catch (const Error& error) {
    if (error.code() != ExitCode::bad_data && !(is_harness && error.code() == ExitCode::usage)) std::abort();
  }
  return 0;
}
