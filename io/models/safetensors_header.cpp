// SPDX-License-Identifier: BSD-3-Clause
#include "io/models/safetensors_header.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <numeric>
#include <set>
#include <sys/stat.h>
#include <utility>

#include "core/base/error.hpp"
#include "core/base/join.hpp"
#include "io/file_util.hpp"
#include "io/json.hpp"

namespace mylos {

namespace fs = std::filesystem;

static_assert(std::endian::native == std::endian::little, "safetensors files are little endian");

namespace {

constexpr std::uint64_t most_header_bytes = 100'000'000;  // of the reference implementation
constexpr std::size_t most_tensors = 1'000'000;
constexpr std::size_t most_metadata = 65'536;
constexpr std::size_t most_dimensions = 8;
constexpr std::uint64_t most_number = std::numeric_limits<std::int64_t>::max();

struct ElementType {
  std::string_view name;
  std::uint64_t bits;
};
constexpr ElementType element_types[] = {
    {"BOOL", 8},        {"U8", 8},          {"I8", 8},      {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8},
    {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"I16", 16},    {"U16", 16},    {"F16", 16},    {"BF16", 16},
    {"I32", 32},        {"U32", 32},        {"F32", 32},    {"C64", 64},    {"F64", 64},    {"I64", 64},
    {"U64", 64},        {"F4", 4},          {"F6_E2M3", 6}, {"F6_E3M2", 6}};

/// Collects the tensors. The offsets are still those of the header, from the end of the header.
class HeaderVisitor final : public JsonVisitor {
 public:
  std::vector<SafetensorsTensor> take() { return std::move(tensors_); }

  void begin_object() override {
    if (level_ == 2 || in_array_) refuse("an object");
    if (++level_ == 1) return;
    is_metadata_ = name_ == "__metadata__";
    field_ = 0;
    seen_ = 0;
    numbers_.clear();
    if (is_metadata_ && std::exchange(has_metadata_, true))
      fail(ExitCode::bad_data, "has __metadata__ twice");
    if (!is_metadata_ && tensors_.size() == most_tensors)
      fail(ExitCode::bad_data, "has more than {} tensors", most_tensors);
    if (!is_metadata_) tensors_.emplace_back().name = name_;
  }

  void key(std::string& key) override {
    if (level_ == 1) {
      name_ = std::move(key);
    } else if (is_metadata_) {
      if (metadata_.size() == most_metadata)
        fail(ExitCode::bad_data, "__metadata__ has more than {} keys", most_metadata);
      const auto [place, is_new] = metadata_.insert(std::move(key));
      if (!is_new) fail(ExitCode::bad_data, "__metadata__ has {} twice", in_quotes(*place));
    } else {
      begin_field(key);
    }
  }

  void end_object() override {
    if (--level_ == 0 || is_metadata_) return;
    for (const unsigned field : {dtype, shape, offsets}) {
      if ((seen_ & field) == 0)
        fail(ExitCode::bad_data, "tensor {} has no \"{}\"", in_quotes(name_), name_of_field(field));
    }
    const SafetensorsTensor& tensor = tensors_.back();
    const std::uint64_t bytes = static_cast<std::uint64_t>(tensor.end - tensor.begin);
    if (tensor.begin > tensor.end || bytes_of(tensor) != bytes) {
      fail(ExitCode::bad_data,
           "tensor {}: data_offsets [{}, {}] do not hold exactly the bytes of {} elements of shape ({})",
           in_quotes(name_), tensor.begin, tensor.end, tensor.dtype, join(tensor.shape, ", "));
    }
  }

  void begin_array() override {
    if (level_ != 2 || in_array_ || is_metadata_ || (field_ & (shape | offsets)) == 0) refuse("an array");
    in_array_ = true;
  }

  void end_array() override {
    in_array_ = false;
    SafetensorsTensor& tensor = tensors_.back();
    if (field_ == shape) {
      tensor.shape = numbers_;
    } else if (numbers_.size() != 2) {
      fail(ExitCode::bad_data, "tensor {}: data_offsets has {} numbers, not 2", in_quotes(name_),
           numbers_.size());
    } else {
      tensor.begin = numbers_[0];
      tensor.end = numbers_[1];
    }
    numbers_.clear();
  }

  void text(std::string& value) override {
    if (level_ == 2 && is_metadata_) return;
    if (level_ != 2 || in_array_ || field_ != dtype) refuse("text");
    const auto* type = std::ranges::find(element_types, std::string_view(value), &ElementType::name);
    if (type == std::end(element_types))
      fail(ExitCode::bad_data, "tensor {} has the unknown dtype {}", in_quotes(name_), in_quotes(value));
    tensors_.back().dtype = type->name;
  }

  void natural(std::uint64_t value) override {
    if (!in_array_) refuse("a number");
    if (value > most_number)
      fail(ExitCode::bad_data, "tensor {}: {} holds {}, beyond 2^63", in_quotes(name_), name_of_field(field_),
           value);
    if (numbers_.size() == most_dimensions) {
      fail(ExitCode::bad_data, "tensor {}: {} has more than {} numbers", in_quotes(name_),
           name_of_field(field_), most_dimensions);
    }
    numbers_.push_back(static_cast<std::int64_t>(value));
  }

  void other(const char* kind) override { refuse(kind); }

 private:
  static constexpr unsigned dtype = 1;
  static constexpr unsigned shape = 2;
  static constexpr unsigned offsets = 4;

  static std::string_view name_of_field(unsigned field) {
    return field == dtype ? "dtype" : field == shape ? "shape" : "data_offsets";
  }

  void begin_field(const std::string& key) {
    field_ = 0;
    for (const unsigned field : {dtype, shape, offsets})
      if (key == name_of_field(field)) field_ = field;
    if (field_ == 0)
      fail(ExitCode::bad_data, "tensor {} has the unknown key {}", in_quotes(name_), in_quotes(key));
    if ((seen_ & field_) != 0)
      fail(ExitCode::bad_data, "tensor {} has {} twice", in_quotes(name_), in_quotes(key));
    seen_ |= field_;
  }

  [[noreturn]] void refuse(std::string_view what) const {
    if (level_ < 2) fail(ExitCode::bad_data, "{} is {}, not a tensor", in_quotes(name_), what);
    if (is_metadata_) fail(ExitCode::bad_data, "__metadata__ holds {}, not only text", what);
    fail(ExitCode::bad_data, "tensor {}: {} cannot {} {}", in_quotes(name_), name_of_field(field_),
         in_array_ ? "hold" : "be", what);
  }

  /// The bytes that shape and dtype ask for; an impossible number if that overflows.
  static std::uint64_t bytes_of(const SafetensorsTensor& tensor) {
    constexpr std::uint64_t impossible = std::numeric_limits<std::uint64_t>::max();
    if (std::ranges::find(tensor.shape, 0) != tensor.shape.end()) return 0;
    std::uint64_t bits = std::ranges::find(element_types, tensor.dtype, &ElementType::name)->bits;
    for (const std::int64_t extent : tensor.shape)
      if (__builtin_mul_overflow(bits, static_cast<std::uint64_t>(extent), &bits)) return impossible;
    return bits % 8 == 0 ? bits / 8 : impossible;
  }

  std::vector<SafetensorsTensor> tensors_;
  std::set<std::string> metadata_;
  int level_ = 0;  // objects that have begun
  std::string name_;
  bool is_metadata_ = false;
  bool has_metadata_ = false;
  unsigned field_ = 0;
  unsigned seen_ = 0;
  bool in_array_ = false;
  std::vector<std::int64_t> numbers_;
};

std::string read_header_text(int fd, const fs::path& file, std::int64_t file_bytes) {
  std::uint64_t length = 0;
  if (file_bytes < std::int64_t{sizeof length}) {
    fail(ExitCode::bad_data,
         "{} has {} bytes; a safetensors file begins with 8 bytes that give the length of "
         "its header",
         file.string(), file_bytes);
  }
  read_fully(fd, file, &length, sizeof length, 0);
  const std::uint64_t rest = static_cast<std::uint64_t>(file_bytes) - sizeof length;
  if (length > most_header_bytes) {
    fail(ExitCode::bad_data, "{}: offset 0: a header of {} bytes; a safetensors file has at most {}",
         file.string(), length, most_header_bytes);
  }
  if (length > rest) {
    fail(ExitCode::bad_data, "{}: offset 0: a header of {} bytes, but only {} follow", file.string(), length,
         rest);
  }
  std::string text(static_cast<std::size_t>(length), '\0');
  read_fully(fd, file, text.data(), text.size(), sizeof length);
  if (!text.starts_with('{'))
    fail(ExitCode::bad_data, "{}: offset 8: the header does not begin with {{", file.string());
  return text;
}

void check_names(const std::vector<SafetensorsTensor>& tensors) {
  std::vector<std::uint32_t> order(tensors.size());
  std::iota(order.begin(), order.end(), 0U);
  const auto name = [&](std::uint32_t i) -> const std::string& { return tensors[i].name; };
  std::ranges::sort(order, {}, name);
  if (const auto twice = std::ranges::adjacent_find(order, {}, name); twice != order.end())
    fail(ExitCode::bad_data, "has tensor {} twice", in_quotes(name(*twice)));
}

/// Sorts the tensors by their bytes, which must cover all `bytes` of data.
void check_offsets(std::vector<SafetensorsTensor>& tensors, std::int64_t bytes) {
  std::ranges::sort(tensors, {},
                    [](const SafetensorsTensor& tensor) { return std::pair(tensor.begin, tensor.end); });
  std::int64_t covered = 0;
  std::string_view last;
  for (const SafetensorsTensor& tensor : tensors) {
    if (tensor.begin < covered) {
      fail(ExitCode::bad_data, "tensors {} and {} overlap: the second begins at {}, before {}",
           in_quotes(last), in_quotes(tensor.name), tensor.begin, covered);
    }
    if (tensor.begin > covered) {
      fail(ExitCode::bad_data, "a hole before tensor {}: it begins at {}, not at {}", in_quotes(tensor.name),
           tensor.begin, covered);
    }
    covered = tensor.end;
    last = tensor.name;
  }
  if (covered != bytes) {
    fail(ExitCode::bad_data, "its tensors end at {}, but {} bytes follow the header", covered, bytes);
  }
}

}  // namespace

std::vector<SafetensorsTensor> read_safetensors_header(int fd, const fs::path& file) {
  struct stat info {};
  check_call(::fstat(fd, &info), "read", file);
  if (!S_ISREG(info.st_mode)) fail(ExitCode::bad_data, "{} is not a regular file", file.string());
  const std::string text = read_header_text(fd, file, info.st_size);
  const std::int64_t data = static_cast<std::int64_t>(sizeof(std::uint64_t) + text.size());
  return at_place(file.string(), [&] {
    HeaderVisitor visitor;
    visit_json(text, visitor);
    std::vector<SafetensorsTensor> tensors = visitor.take();
    check_names(tensors);
    check_offsets(tensors, info.st_size - data);
    for (SafetensorsTensor& tensor : tensors) {
      tensor.begin += data;
      tensor.end += data;
    }
    return tensors;
  });
}

std::string in_quotes(std::string_view name) {
  constexpr std::size_t most_bytes = 120;
  if (name.size() <= most_bytes) return Json(name).ascii();
  std::size_t end = most_bytes;
  while (end > 0 && (static_cast<unsigned char>(name[end]) & 0xc0U) == 0x80U) --end;  // within a character
  return Json(name.substr(0, end)).ascii() + "...";
}

}  // namespace mylos
