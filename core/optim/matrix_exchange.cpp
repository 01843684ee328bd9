// SPDX-License-Identifier: BSD-3-Clause
#include "core/optim/matrix_exchange.hpp"

#include <algorithm>
#include <functional>
#include <utility>

#include "core/base/error.hpp"

namespace mylos {

namespace {

/// A block of a matrix in memory: rows [row, row + rows) and columns [column, column + columns).
struct Fragment {
  std::int64_t row = 0, column = 0, rows = 0, columns = 0;
  std::int64_t place = 0;  ///< of its first element, in the buffer of the rank's elements of matrices
  std::int64_t pitch = 0;  ///< between its rows there
  std::int64_t size() const { return rows * columns; }
};

/// A matrix of the unit.
struct WholeMatrix {
  const Parameter* parameter = nullptr;
  Box box;  ///< of the parameter's shape
  std::int64_t rows = 0, columns = 0;
  int owner = 0;
  std::int64_t place = 0;                        ///< of its first element, among what its owner owns
  std::vector<std::vector<Fragment>> fragments;  ///< by rank

  std::int64_t size() const { return rows * columns; }
  /// The multiplications of an iteration of Newton and Schulz: 2 products with the longer side, one without.
  double work() const {
    const auto small = static_cast<double>(std::min(rows, columns));
    return small * small * (2.0 * static_cast<double>(std::max(rows, columns)) + small);
  }
};

/// The places of the ranks of a group along the axes.
class GroupRanks {
 public:
  GroupRanks(const Coordinates& coordinates, AxisSet group) : coordinates_(coordinates), group_(group) {}

  int size() const { return size(group_); }
  int size(AxisSet axes) const { return coordinates_.extent(axes); }
  int own() const { return coordinates_.index(group_); }
  /// The place of rank `rank` of the group along `axis`.
  int along(int rank, Axis axis) const {
    if (!group_.contains(axis)) return coordinates_.index(axis);
    for (int i = 0; i < static_cast<int>(axis); ++i) {
      if (group_.contains(static_cast<Axis>(i))) rank /= coordinates_.extent(static_cast<Axis>(i));
    }
    return rank % coordinates_.extent(axis);
  }
  /// Its number among the ranks that differ along `axes`.
  int among(int rank, AxisSet axes) const {
    int number = 0;
    int stride = 1;
    for (int i = 0; i < num_axes; ++i) {
      const auto axis = static_cast<Axis>(i);
      if (!axes.contains(axis)) continue;
      number += stride * along(rank, axis);
      stride *= coordinates_.extent(axis);
    }
    return number;
  }

 private:
  const Coordinates& coordinates_;
  AxisSet group_;
};

/// Whether the ranks along `axis` hold different matrices of the parameter.
bool divides_stack(const Parameter& parameter, Axis axis) {
  const Placement placement = parameter.along(axis);
  return placement.kind == Placement::Kind::split &&
         parameter.view[static_cast<std::size_t>(placement.dimension)].name == parameter.stack;
}

/// The parameter as rank `rank` holds it.
Parameter parameter_of(const Parameter& own, const GroupRanks& ranks, int rank) {
  Parameter parameter = own;
  for (int i = 0; i < num_axes; ++i) {
    const auto axis = static_cast<Axis>(i);
    if (!own.is_split(axis)) continue;
    const auto d = static_cast<std::size_t>(own.along(axis).dimension);
    parameter.box.start[d] = ranks.along(rank, axis) * own.box.count[d];
  }
  return parameter;
}

/// The intersection of a matrix with a box of its parameter in memory; nothing if they share no element.
std::vector<Fragment> fragment_of(const Box& matrix, const PlacedBox& placed) {
  std::int64_t place = placed.offset;
  std::vector<std::int64_t> start, count;
  for (std::size_t d = 0; d < matrix.start.size(); ++d) {
    start.push_back(std::max(matrix.start[d], placed.box.start[d]));
    const std::int64_t end =
        std::min(matrix.start[d] + matrix.count[d], placed.box.start[d] + placed.box.count[d]);
    count.push_back(end - start[d]);
    if (count[d] <= 0) return {};
    place += (start[d] - placed.box.start[d]) * placed.stride[d];
  }
  const std::size_t row = start.size() - 2;
  return {{.row = start[row] - matrix.start[row],
           .column = start[row + 1] - matrix.start[row + 1],
           .rows = count[row],
           .columns = count[row + 1],
           .place = place,
           .pitch = placed.stride[row]}};
}

/// The exchange of one unit while it is made.
class Maker {
 public:
  Maker(const ParameterTable& table, const SteppedUnit& unit, const Coordinates& coordinates)
      : table_(table), unit_(unit), ranks_(coordinates, group_of(table, unit.part.unit)) {
    exchange_.group = group_of(table, unit.part.unit);
  }

  MatrixExchange make(MatrixLoads& loads) {
    for (const int index : table_.unit(unit_.part.unit).parameters) {
      const Parameter& parameter = table_.parameters()[static_cast<std::size_t>(index)];
      if (parameter.is_matrix) add(parameter);
    }
    if (matrices_.empty()) return {};
    exchange_.divided = split_axes_.with(unit_.divided_axes).common(exchange_.group);
    exchange_.copies = exchange_.group.without(exchange_.divided);
    find_fragments();
    choose_owners(loads);
    // A matrix is collected if its elements lie on several ranks.
    const auto is_divided = [&](const WholeMatrix& matrix) {
      std::int64_t held = 0;
      for (const Fragment& fragment : matrix.fragments[at(matrix.owner)]) held += fragment.size();
      return held < matrix.size();
    };
    exchange_.collects = std::ranges::any_of(matrices_, is_divided);
    exchange_.returns = ranks_.size(exchange_.divided) > 1;
    plan_collection();
    if (ranks_.size(exchange_.copies) > 1) plan_shared();
    plan_result();
    return std::move(exchange_);
  }

  static AxisSet group_of(const ParameterTable& table, int unit) {
    AxisSet group = all_axes.without({Axis::pipeline});
    for (const int index : table.unit(unit).parameters) {
      const Parameter& parameter = table.parameters()[static_cast<std::size_t>(index)];
      for (int i = 0; i < num_axes && parameter.is_matrix; ++i) {
        if (divides_stack(parameter, static_cast<Axis>(i))) group = group.without({static_cast<Axis>(i)});
      }
    }
    return group;
  }

 private:
  static std::size_t at(int rank) { return static_cast<std::size_t>(rank); }

  void add(const Parameter& parameter) {
    for (int i = 0; i < num_axes; ++i) {
      const auto axis = static_cast<Axis>(i);
      if (parameter.is_split(axis) && !divides_stack(parameter, axis)) split_axes_ = split_axes_.with({axis});
    }
    const std::size_t rank = parameter.shape.size();
    for (Box& box : matrices_of(parameter)) {
      WholeMatrix matrix{.parameter = &parameter,
                         .box = {},
                         .rows = box.count[rank - 2],
                         .columns = box.count[rank - 1],
                         .fragments = {}};
      matrix.box = std::move(box);
      // Of a stack that is divided, the group holds some matrices.
      const Box whole = joined_own(parameter);
      if (matrix.box.overlaps(whole)) matrices_.push_back(std::move(matrix));
    }
  }

  /// The part of the parameter's shape that the group holds.
  Box joined_own(const Parameter& parameter) const {
    Box box = Box::whole(parameter.shape);
    for (int i = 0; i < num_axes; ++i) {
      const auto axis = static_cast<Axis>(i);
      if (!parameter.is_split(axis) || exchange_.group.contains(axis)) continue;
      const auto d = static_cast<std::size_t>(parameter.along(axis).dimension);
      require(d == 0, "a divided stack is the first dimension");
      box.start[d] = parameter.box.start[d];
      box.count[d] = parameter.box.count[d];
    }
    return box;
  }

  UnitPart part_of(int rank) const {
    const std::int64_t size = table_.unit(unit_.part.unit).size;
    const std::int64_t begin = std::min(ranks_.among(rank, unit_.divided_axes) * unit_.share, size);
    return {unit_.part.unit, begin, std::min(begin + unit_.share, size) - begin};
  }

  void find_fragments() {
    for (WholeMatrix& matrix : matrices_) matrix.fragments.resize(at(ranks_.size()));
    for (int rank = 0; rank < ranks_.size(); ++rank) {
      const UnitPart part = part_of(rank);
      if (rank == ranks_.own()) {
        if (part.begin != unit_.part.begin || part.count != unit_.part.count)
          fail(ExitCode::usage, "an optimizer of whole matrices needs an exchange that divides units evenly");
      }
      std::int64_t place = 0;
      for (std::size_t i = 0; i < matrices_.size();) {
        const Parameter& own = *matrices_[i].parameter;
        const Parameter parameter = parameter_of(own, ranks_, rank);
        const std::int64_t begin = std::max(own.offset, part.begin);
        const std::int64_t end = std::min(own.offset + own.size(), part.begin + part.count);
        std::vector<PlacedBox> boxes;
        if (begin < end) {
          const Piece piece{parameter, begin - own.offset, end - begin, place};
          boxes = piece.boxes();
          if (rank == ranks_.own()) {
            exchange_.pieces.push_back({.parameter = static_cast<int>(&own - table_.parameters().data()),
                                        .begin = begin - part.begin,
                                        .count = end - begin,
                                        .place = place,
                                        .rows = matrices_[i].rows,
                                        .columns = matrices_[i].columns});
          }
          place += end - begin;
        }
        for (; i < matrices_.size() && matrices_[i].parameter == &own; ++i) {
          for (const PlacedBox& box : boxes) {
            for (const Fragment& fragment : fragment_of(matrices_[i].box, box))
              matrices_[i].fragments[at(rank)].push_back(fragment);
          }
        }
      }
      if (rank == ranks_.own()) exchange_.num_elements = place;
    }
  }

  /// In the order of work, the largest first, so that the loads come out even.
  void choose_owners(MatrixLoads& loads) {
    std::vector<double>& load = loads.try_emplace(exchange_.group, at(ranks_.size())).first->second;
    std::vector<WholeMatrix*> by_work;
    for (WholeMatrix& matrix : matrices_) by_work.push_back(&matrix);
    std::ranges::stable_sort(by_work, std::ranges::greater(), [](const WholeMatrix* m) { return m->work(); });
    for (WholeMatrix* matrix : by_work) {
      const auto least = std::ranges::min_element(load);
      matrix->owner = static_cast<int>(least - load.begin());
      *least += matrix->work();
    }
    // Matrices of one shape that a rank owns lie together.
    for (int rank = 0; rank < ranks_.size(); ++rank) {
      std::int64_t place = 0;
      std::map<std::pair<std::int64_t, std::int64_t>, std::vector<WholeMatrix*>> shapes;
      for (WholeMatrix& matrix : matrices_) {
        if (matrix.owner == rank) shapes[{matrix.rows, matrix.columns}].push_back(&matrix);
      }
      for (const auto& [shape, stack] : shapes) {
        if (rank == ranks_.own()) {
          exchange_.stacks.push_back({.count = static_cast<std::int64_t>(stack.size()),
                                      .rows = shape.first,
                                      .columns = shape.second,
                                      .begin = place});
        }
        for (WholeMatrix* matrix : stack) {
          matrix->place = place;
          place += matrix->size();
        }
      }
      if (rank == ranks_.own()) exchange_.num_owned = place;
    }
  }

  /// The number of a rank among those with the same copies, and among its copies.
  int part(int rank) const { return ranks_.among(rank, exchange_.divided); }
  int copy(int rank) const { return ranks_.among(rank, exchange_.copies); }
  /// Whether the rank exchanges messages with this one, or is this one.
  bool is_near(int rank) const { return copy(rank) == copy(ranks_.own()); }

  /// Calls visit(matrix, fragment) for the elements of matrices of `owner` that `rank` steps, in one order.
  void for_each(int owner, int rank, const auto& visit) const {
    for (const WholeMatrix& matrix : matrices_) {
      if (matrix.owner != owner) continue;
      for (const Fragment& fragment : matrix.fragments[at(rank)]) visit(matrix, fragment);
    }
  }

  /// A block between the elements of a rank (`place`, `pitch`) and a message, which has no gaps.
  static CopiedBlock packed(const Fragment& fragment, std::int64_t from, std::int64_t from_pitch,
                            std::int64_t to, std::int64_t to_pitch, bool is_from_other) {
    return {.rows = fragment.rows,
            .columns = fragment.columns,
            .from = from,
            .from_pitch = from_pitch,
            .to = to,
            .to_pitch = to_pitch,
            .is_from_other = is_from_other};
  }
  static std::int64_t place_in(const WholeMatrix& matrix, const Fragment& fragment) {
    return matrix.place + fragment.row * matrix.columns + fragment.column;
  }

  MatrixMessages without_elements() const {
    const std::vector<std::int64_t> counts(at(ranks_.size(exchange_.divided)));
    return {.sent = counts, .received = counts, .pack = {}, .unpack = {}};
  }

  void plan_collection() {
    MatrixMessages& messages = exchange_.collection = without_elements();
    const int own = ranks_.own();
    for (int owner = 0; owner < ranks_.size(); ++owner) {
      if (owner == own || !is_near(owner)) continue;
      for_each(owner, own, [&](const WholeMatrix&, const Fragment& f) {
        messages.pack.add(packed(f, f.place, f.pitch, messages.num_sent, f.columns, false));
        messages.sent[at(part(owner))] += f.size();
        messages.num_sent += f.size();
      });
    }
    for (int from = 0; from < ranks_.size(); ++from) {
      if (!is_near(from)) continue;
      for_each(own, from, [&](const WholeMatrix& matrix, const Fragment& f) {
        const std::int64_t to = place_in(matrix, f);
        if (from == own) {
          messages.unpack.add(packed(f, f.place, f.pitch, to, matrix.columns, false));
          return;
        }
        messages.unpack.add(packed(f, messages.num_received, f.columns, to, matrix.columns, true));
        messages.received[at(part(from))] += f.size();
        messages.num_received += f.size();
      });
    }
  }

  void plan_result() {
    MatrixMessages& messages = exchange_.result = without_elements();
    const int own = ranks_.own();
    for (int to = 0; to < ranks_.size(); ++to) {
      if (to == own || !is_near(to)) continue;
      for_each(own, to, [&](const WholeMatrix& matrix, const Fragment& f) {
        messages.pack.add(
            packed(f, place_in(matrix, f), matrix.columns, messages.num_sent, f.columns, false));
        messages.sent[at(part(to))] += f.size();
        messages.num_sent += f.size();
      });
    }
    std::int64_t shared = own_shared_;
    for (int owner = 0; owner < ranks_.size(); ++owner) {
      if (!is_near(owner)) continue;
      for_each(owner, own, [&](const WholeMatrix& matrix, const Fragment& f) {
        const bool is_shared = exchange_.shared.count > 0;
        const std::int64_t to = is_shared ? shared : f.place;
        const std::int64_t pitch = is_shared ? f.columns : f.pitch;
        shared += f.size();
        if (owner == own) {
          messages.unpack.add(packed(f, place_in(matrix, f), matrix.columns, to, pitch, false));
          return;
        }
        messages.unpack.add(packed(f, messages.num_received, f.columns, to, pitch, true));
        messages.received[at(part(owner))] += f.size();
        messages.num_received += f.size();
      });
    }
  }

  void plan_shared() {
    SharedResults& shared = exchange_.shared;
    for (int root = 0; root < ranks_.size(exchange_.copies); ++root) {
      const std::int64_t begin = shared.count;
      if (root == copy(ranks_.own())) own_shared_ = begin;
      for (int owner = 0; owner < ranks_.size(); ++owner) {
        if (copy(owner) != root) continue;
        for_each(owner, ranks_.own(), [&](const WholeMatrix&, const Fragment& f) {
          shared.unpack.add(packed(f, shared.count, f.columns, f.place, f.pitch, false));
          shared.count += f.size();
        });
      }
      if (shared.count > begin)
        shared.ranges.push_back({.root = root, .begin = begin, .count = shared.count - begin});
    }
  }

  const ParameterTable& table_;
  const SteppedUnit& unit_;
  GroupRanks ranks_;
  AxisSet split_axes_;  // along which the unit's matrices are divided
  std::vector<WholeMatrix> matrices_;
  std::int64_t own_shared_ = 0;  // where the results that this rank broadcasts begin among the shared ones
  MatrixExchange exchange_;
};

}  // namespace

void BlockCopy::add(CopiedBlock block) {
  block.first_row = num_rows;
  num_rows += block.rows;
  blocks.push_back(block);
}

MatrixExchange exchange_matrices(const ParameterTable& table, const SteppedUnit& unit,
                                 const Coordinates& coordinates, MatrixLoads& loads) {
  return Maker(table, unit, coordinates).make(loads);
}

}  // namespace mylos
