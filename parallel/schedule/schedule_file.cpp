// SPDX-License-Identifier: BSD-3-Clause
#include "parallel/schedule/schedule_file.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <optional>
#include <utility>

#include "core/base/error.hpp"
#include "parallel/schedule/simulation.hpp"

namespace mylos {

namespace {

/// The passes, with their letters in files.
constexpr std::array<std::pair<ActionKind, char>, 4> letters = {{{ActionKind::forward, 'F'},
                                                                 {ActionKind::backward, 'B'},
                                                                 {ActionKind::backward_input, 'I'},
                                                                 {ActionKind::backward_weight, 'W'}}};

std::string cell_of(const Action& pass) {
  return fmt::format("{}{}{}", pass.chunk, letter_of(pass.kind), pass.micro_batch);
}

std::optional<Action> pass_of(std::string_view cell) {
  Action pass;
  const char* const end = cell.data() + cell.size();
  const auto read = [&](const char* from, int& number) {
    const auto [rest, error] = std::from_chars(from, end, number);
    return error == std::errc() && *from != '-' ? rest : nullptr;
  };
  const char* const letter = read(cell.data(), pass.chunk);
  if (letter == nullptr || letter == end) return std::nullopt;
  const auto kind = std::ranges::find(letters, *letter, &std::pair<ActionKind, char>::second);
  if (kind == letters.end() || read(letter + 1, pass.micro_batch) != end) return std::nullopt;
  pass.kind = kind->first;
  return pass;
}

/// Takes the text up to the next `separator`, or all of it, from `text`.
std::string_view take(std::string_view& text, char separator) {
  const std::size_t length = std::min(text.find(separator), text.size());
  const std::string_view taken = text.substr(0, length);
  text.remove_prefix(std::min(length + 1, text.size()));
  return taken;
}

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view blank = " \t\r\n";
  const std::size_t begin = std::min(text.find_first_not_of(blank), text.size());
  return text.substr(begin, text.find_last_not_of(blank) + 1 - begin);
}

class Parser {
 public:
  std::vector<Schedule> parse(std::string_view text) {
    text = text.substr(0, text.find_last_not_of(" \t\r\n") + 1);
    if (text.empty()) fail(ExitCode::usage, "the schedule is empty");
    while (!text.empty()) read_row(take(text, '\n'));
    find_extent();
    place_passes();
    check_completeness();
    for (std::size_t row = 0; row < stages_.size(); ++row) check_order(row);
    for (Schedule& stage : stages_) {
      stage.micro_batches = micro_batches_;
      stage.chunks = chunks_;
    }
    check_deadlock();
    for (Schedule& stage : stages_) {
      stage.actions.push_back({ActionKind::reduce});
      stage.actions.push_back({ActionKind::step});
    }
    return std::move(stages_);
  }

 private:
  /// The places of the passes of a micro-batch in a chunk, as indices in the list of the chunk's row.
  struct Passes {
    std::array<int, letters.size()> at = {none, none, none, none};

    int& of(ActionKind kind) { return at[static_cast<std::size_t>(kind)]; }
    /// Of the pass that makes the gradient of the input.
    int back() { return std::max(of(ActionKind::backward), of(ActionKind::backward_input)); }
  };
  static constexpr int none = -1;

  template <class... Args>
  [[noreturn]] void fail_at(std::size_t row, std::size_t index, fmt::format_string<Args...> format,
                            Args&&... args) const {
    fail(ExitCode::usage, "row {}, cell {}: {} {}", row + 1, cells_[row][index],
         cell_of(stages_[row].actions[index]), fmt::format(format, std::forward<Args>(args)...));
  }
  Passes& passes(int chunk, int micro_batch) {
    return passes_[static_cast<std::size_t>(chunk) * static_cast<std::size_t>(micro_batches_) +
                   static_cast<std::size_t>(micro_batch)];
  }
  void for_each_pass(const auto& visit) {
    for (std::size_t row = 0; row < stages_.size(); ++row) {
      for (std::size_t i = 0; i < stages_[row].actions.size(); ++i) visit(row, i, stages_[row].actions[i]);
    }
  }

  void read_row(std::string_view line) {
    Schedule& stage = stages_.emplace_back();
    std::vector<int>& cells = cells_.emplace_back();
    for (int number = 1; !line.empty(); ++number) {
      const std::string_view cell = trimmed(take(line, ','));
      if (cell.empty()) continue;
      const std::optional<Action> pass = pass_of(cell);
      if (!pass) {
        fail(
            ExitCode::usage,
            "row {}, cell {}: '{}' is no pass: a chunk, one of F, B, I and W, and a micro-batch, such as 0F0",
            stages_.size(), number, cell);
      }
      stage.actions.push_back(*pass);
      cells.push_back(number);
    }
    if (cells.empty()) fail(ExitCode::usage, "row {} has no pass", stages_.size());
  }

  void find_extent() {
    std::size_t num_passes = 0;
    int chunk = 0;
    int micro_batch = 0;
    for_each_pass([&](std::size_t, std::size_t, const Action& pass) {
      ++num_passes;
      chunk = std::max(chunk, pass.chunk);
      micro_batch = std::max(micro_batch, pass.micro_batch);
    });
    // A step has two or three passes per chunk and micro-batch. Far fewer are not worth a table of them.
    const double expected = 2.0 * (chunk + 1.0) * (micro_batch + 1.0);
    for_each_pass([&](std::size_t row, std::size_t i, const Action& pass) {
      if ((pass.chunk == chunk || pass.micro_batch == micro_batch) &&
          expected > 16.0 * static_cast<double>(num_passes) + 65536.0)
        fail_at(row, i, "would be one of {} passes or more, but the file has {}", expected, num_passes);
    });
    chunks_ = chunk + 1;
    micro_batches_ = micro_batch + 1;
  }

  void place_passes() {
    rows_.assign(static_cast<std::size_t>(chunks_), none);
    passes_.resize(rows_.size() * static_cast<std::size_t>(micro_batches_));
    for_each_pass([&](std::size_t row, std::size_t i, const Action& pass) {
      int& own = rows_[static_cast<std::size_t>(pass.chunk)];
      if (own == none) own = static_cast<int>(row);
      if (own != static_cast<int>(row))
        fail_at(row, i, "is of chunk {}, which lies on row {}", pass.chunk, own + 1);
      Passes& same = passes(pass.chunk, pass.micro_batch);
      if (same.of(pass.kind) != none)
        fail_at(row, i, "is in cell {} already", cell_at(row, same.of(pass.kind)));
      same.of(pass.kind) = static_cast<int>(i);
      const int whole = same.of(ActionKind::backward);
      const int part = std::max(same.of(ActionKind::backward_input), same.of(ActionKind::backward_weight));
      if (whole != none && part != none) {
        fail_at(row, i, "and cell {} make the backward pass twice, whole and divided",
                cell_at(row, pass.kind == ActionKind::backward ? part : whole));
      }
    });
  }
  int cell_at(std::size_t row, int index) const { return cells_[row][static_cast<std::size_t>(index)]; }

  /// Fails if a pass is missing, at another pass of the same micro-batch and chunk, if there is one.
  void check_completeness() {
    for (int chunk = 0; chunk < chunks_; ++chunk) {
      const int row = rows_[static_cast<std::size_t>(chunk)];
      if (row == none) fail(ExitCode::usage, "chunk {} is on no row", chunk);
      for (int m = 0; m < micro_batches_; ++m) {
        Passes& own = passes(chunk, m);
        const int last = std::ranges::max(own.at);
        const auto needs = [&](bool is_there, ActionKind kind, std::string_view what) {
          if (is_there) return;
          const std::string missing = cell_of({kind, m, chunk});
          if (last == none) fail(ExitCode::usage, "row {}: {} is missing", row + 1, missing);
          fail_at(static_cast<std::size_t>(row), static_cast<std::size_t>(last), "has no {}, {}", what,
                  missing);
        };
        needs(own.of(ActionKind::forward) != none, ActionKind::forward, "forward pass");
        const bool is_divided = own.of(ActionKind::backward_weight) != none;
        needs(own.back() != none, is_divided ? ActionKind::backward_input : ActionKind::backward,
              is_divided ? "input gradient" : "backward pass");
        needs(is_divided || own.of(ActionKind::backward) != none, ActionKind::backward_weight,
              "weight gradients");
      }
    }
  }

  /// Fails if a pass of a row comes before its input, if that is in the row.
  void check_order(std::size_t row) {
    const std::vector<Action>& actions = stages_[row].actions;
    for (std::size_t i = 0; i < actions.size(); ++i) {
      const Action& pass = actions[i];
      const auto needs = [&](int input) {
        if (input > static_cast<int>(i)) {
          fail_at(row, i, "comes before its input, {} in cell {}",
                  cell_of(actions[static_cast<std::size_t>(input)]), cell_at(row, input));
        }
      };
      const auto is_here = [&](int chunk) {
        return chunk >= 0 && chunk < chunks_ &&
               rows_[static_cast<std::size_t>(chunk)] == static_cast<int>(row);
      };
      Passes& own = passes(pass.chunk, pass.micro_batch);
      if (pass.kind == ActionKind::forward) {
        if (is_here(pass.chunk - 1)) needs(passes(pass.chunk - 1, pass.micro_batch).of(ActionKind::forward));
      } else if (pass.kind == ActionKind::backward_weight) {
        needs(own.of(ActionKind::backward_input));
      } else {
        needs(own.of(ActionKind::forward));
        if (is_here(pass.chunk + 1)) needs(passes(pass.chunk + 1, pass.micro_batch).back());
      }
    }
  }

  void check_deadlock() {
    const auto stuck = simulate(stages_).stuck;
    if (!stuck) return;
    const Action& pass = stages_[stuck->stage].actions[stuck->index];
    const bool is_forward = pass.kind == ActionKind::forward;
    const int chunk = pass.chunk + (is_forward ? -1 : 1);
    const auto row = static_cast<std::size_t>(rows_[static_cast<std::size_t>(chunk)]);
    Passes& input = passes(chunk, pass.micro_batch);
    const int index = is_forward ? input.of(ActionKind::forward) : input.back();
    fail_at(stuck->stage, stuck->index, "waits forever for {} of row {}, cell {}: rows wait for each other",
            cell_of(stages_[row].actions[static_cast<std::size_t>(index)]), row + 1, cell_at(row, index));
  }

  std::vector<Schedule> stages_;
  std::vector<std::vector<int>> cells_;  // numbers, by row and index of the pass
  int chunks_ = 0;
  int micro_batches_ = 0;
  std::vector<int> rows_;       // by chunk
  std::vector<Passes> passes_;  // by chunk and micro-batch
};

}  // namespace

char letter_of(ActionKind kind) {
  return std::ranges::find(letters, kind, &std::pair<ActionKind, char>::first)->second;
}

std::vector<Schedule> parse_schedule(std::string_view text) {
  return Parser().parse(text);
}

std::string schedule_text(const std::vector<Schedule>& stages) {
  std::string text;
  for (const Schedule& stage : stages) {
    std::string_view separator;
    for (const Action& action : stage.actions) {
      if (!is_of_micro_batch(action.kind) || is_message(action.kind)) continue;
      text += separator;
      text += cell_of(action);
      separator = ",";
    }
    text += "\n";
  }
  return text;
}

}  // namespace mylos
