// SPDX-License-Identifier: BSD-3-Clause
#include "io/inspect/inspect.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <fcntl.h>
#include <iterator>
#include <optional>
#include <string_view>
#include <vector>

#include "core/base/error.hpp"
#include "core/base/join.hpp"
#include "core/base/what_is_at.hpp"
#include "core/model/parameters.hpp"
#include "io/checkpoint/checkpoint.hpp"
#include "io/checkpoint/checkpoint_manifest.hpp"
#include "io/file_util.hpp"
#include "io/json.hpp"
#include "io/metrics/metrics.hpp"
#include "io/models/model_file.hpp"
#include "io/tokens/content_kind.hpp"
#include "io/tokens/hugging_face_tokenizer.hpp"
#include "io/tokens/token_dataset.hpp"

namespace mylos {

namespace fs = std::filesystem;

namespace {

/// The top-level entries of state.json; long ones are truncated.
std::string summarise_state(const std::string& text) {
  constexpr std::size_t max_width = 80;
  const std::optional<Json> state = Json::parse_if_whole(text);
  if (!state || !state->is_object()) return fmt::format("  {} bytes, not a JSON object\n", text.size());
  std::string summary;
  for (const auto& [key, value] : state->members()) {
    std::string shown = value.ascii();
    if (shown.size() > max_width) shown = shown.substr(0, max_width) + "...";
    summary += fmt::format("  {}: {}\n", key, shown);
  }
  return summary;
}

std::string inspect_checkpoint(IoThread& io, const fs::path& path) {
  const CheckpointReader reader(io, path);
  std::string text = fmt::format("checkpoint of step {}\n", reader.state().step);
  for (const ManifestFile& file : read_manifest(path).files) {
    text += fmt::format("{}: {} bytes\n", file.name, file.bytes);
    if (file.name == "state.json") text += summarise_state(reader.state().json);
    if (!file.name.ends_with(".h5")) continue;
    std::int64_t elements = 0;
    const std::vector<TensorInfo> tensors = reader.tensors(file.name);
    for (const TensorInfo& tensor : tensors) {
      text += fmt::format("  {:<40} ({})\n", tensor.name, join(tensor.shape, ", "));
      elements += tensor.size();
    }
    text += fmt::format("  {} tensors, {} elements, fp32\n", tensors.size(), elements);
  }
  return text;
}

std::string inspect_metrics(IoThread& io, const fs::path& path) {
  std::string text = "metrics\n";
  for (const auto& [table, rows] : metrics_tables(io, path)) {
    text += fmt::format("/{}: {} rows; last:\n", table, rows);
    for (const auto& [column, values] : read_metrics(io, path, table)) {
      text +=
          fmt::format("  {:<40} {}\n", column, values.empty() ? "" : fmt::format("{:.6g}", values.back()));
    }
  }
  return text;
}

std::string inspect_run(IoThread& io, const fs::path& path) {
  // By step, not by name: step_1000000 follows step_999999. Everything else comes after the checkpoints.
  const fs::path checkpoints = path / "checkpoints";
  std::vector<fs::path> entries;
  for (const std::int64_t step : list_steps(checkpoints)) entries.push_back(checkpoints / step_name(step));
  const std::ptrdiff_t steps = std::ssize(entries);
  for (const auto& entry : fs::directory_iterator(checkpoints)) {
    if (std::ranges::find(entries, entry.path()) == entries.end()) entries.push_back(entry.path());
  }
  std::sort(entries.begin() + steps, entries.end());
  std::string text = fmt::format("run {}\ncheckpoints:{}\n", path.string(), entries.empty() ? " none" : "");
  for (const fs::path& entry : entries) {
    text += fmt::format("  {:<30} {:>10.1f} MB\n", entry.filename().string(),
                        static_cast<double>(bytes_in(entry)) * 1e-6);
  }
  const fs::path metrics = path / "metrics.h5";
  return text + (fs::exists(metrics) ? inspect_metrics(io, metrics) : "no metrics\n");
}

std::string inspect_tokens(const fs::path& path) {
  constexpr std::ptrdiff_t num_shown = 16;
  constexpr std::int64_t block = std::int64_t{1} << 20U;
  const TokenFile file(path);
  std::vector<std::uint16_t> tokens;
  std::vector<std::uint16_t> shown;
  std::uint16_t largest = 0;
  for (std::int64_t first = 0; first < file.size(); first += block) {
    tokens.resize(static_cast<std::size_t>(std::min(block, file.size() - first)));
    file.read(first, tokens);
    if (first == 0) shown.assign(tokens.begin(), tokens.begin() + std::min(num_shown, std::ssize(tokens)));
    largest = std::max(largest, std::ranges::max(tokens));
  }
  return fmt::format("token file: {} tokens, largest id {}\n  begins {}\n", file.size(), largest,
                     join(shown, " "));
}

/// A model in another program's format: what its headers say.
std::string inspect_model(const fs::path& path) {
  std::string warnings;
  const auto file =
      open_model_file(path, [&](const std::string& text) { warnings += fmt::format("warning: {}\n", text); });
  const ModelDescription& found = file->description();
  const ModelConfig& model = found.model;
  std::string text = fmt::format(
      "{}: {}, {} parameters, {}\nmodel: layers {}, heads {}, {}, context {}, vocabulary {}, {}, "
      "dropout "
      "{}\n",
      path.string(), found.format, parameters_of(model).num_parameters(), name_of(found.dtype), model.layers,
      model.heads, width_text(model), model.context, model.vocab, model.tied ? "tied" : "untied",
      model.dropout);
  std::error_code unknown;
  if (fs::is_directory(path, unknown)) {
    const FoundTokenizer tokenizer = find_tokenizer(path);
    text += tokenizer.tokenizer != nullptr
                ? fmt::format("tokenizer: {}\n", tokenizer.tokenizer->identity().text())
                : fmt::format("tokenizer: none that mylos has: {}\n", tokenizer.reason);
  }
  return text + warnings;
}

}  // namespace

std::string inspect(IoThread& io, const fs::path& path) {
  constexpr std::string_view hdf5_signature = "\x89HDF\r\n\x1a\n";
  std::error_code error;
  if (!fs::exists(path, error)) {
    const std::string present = what_is_at(path);
    if (present == "nothing") fail(ExitCode::bad_data, "{} does not exist", path.string());
    fail(ExitCode::bad_data, "cannot inspect {}: there is {}", path.string(), present);
  }
  if (fs::exists(path / "checkpoints", error)) return inspect_run(io, path);
  if (fs::is_directory(path, error)) {
    if (!fs::exists(path / "manifest.json", error) && is_model_file(path)) return inspect_model(path);
    if (!fs::exists(path / "manifest.json", error))
      fail(ExitCode::bad_data, "{} is neither a run nor a checkpoint: there is {} without manifest.json",
           path.string(), what_is_at(path));
    return inspect_checkpoint(io, path);
  }

  std::array<char, 8> head{};
  const auto bytes = std::min<std::uintmax_t>(head.size(), fs::file_size(path, error));
  if (!error) read_fully(open_file(path, O_RDONLY).get(), path, head.data(), bytes, 0);
  const std::string_view own = own_kind(path);
  const bool is_hdf5 = std::string_view(head.data(), head.size()) == hdf5_signature;
  if (is_hdf5 && own != "checkpoint's file") return inspect_metrics(io, path);
  std::int32_t magic = 0;
  std::memcpy(&magic, head.data(), sizeof(magic));
  if (magic == token_file_magic) return inspect_tokens(path);
  if (is_model_file(path)) return inspect_model(path);
  if (own == "checkpoint's file")
    fail(ExitCode::bad_data, "{} is a file of a checkpoint: mylos inspect {}", path.string(),
         path.parent_path().string());
  const std::string beginning = content_head(path);
  const std::string_view kind = content_kind(beginning).name;
  const std::string what = !own.empty()                ? fmt::format("a {}", own)
                           : !kind.empty()             ? std::string(kind)
                           : is_surely_text(beginning) ? "a text (inspect --program shows what a deck runs)"
                                                       : what_is_at(path);
  fail(ExitCode::bad_data,
       "{} is {}, neither a run, nor a checkpoint, nor a model, nor a metrics file, nor a token file",
       path.string(), what);
}

}  // namespace mylos
