// SPDX-License-Identifier: BSD-3-Clause
//
// The file is readable at every moment. A row is written to space that is already allocated, flushed, and
// only then counted, so HDF5's own structures never change in the file that others read. If they must change,
// for a new table, a new column or the next 4096 rows, the change is made to a copy, which then replaces the
// file.
#include "io/metrics/metrics.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <exception>
#include <limits>
#include <mutex>
#include <optional>
#include <unistd.h>

#include "core/base/error.hpp"
#include "core/base/watched_call.hpp"
#include "io/file_util.hpp"
#include "io/hdf5_handle.hpp"

namespace mylos {

namespace fs = std::filesystem;

namespace {

constexpr hsize_t block_rows = 4096;
constexpr std::int64_t max_rows = std::int64_t{1} << 40U;
constexpr double no_value = std::numeric_limits<double>::quiet_NaN();
constexpr const char* count_name = "num_rows";
constexpr const char* temporary_suffix = ".tmp";

class MetricsFile {
 public:
  explicit MetricsFile(fs::path path, unsigned flags = H5F_ACC_RDONLY) : path_(std::move(path)) {
    // HDF5 would treat an empty file that is opened for writing as a new one.
    std::error_code error;
    if (fs::file_size(path_, error) == 0 && !error) fail(ExitCode::bad_data, "{} is empty", path_.string());
    file_ = H5File(check_read(H5Fopen(path_.c_str(), flags, h5_serial_access().get()), "open"));
    H5G_info_t info{};
    const H5Group root(check_read(H5Gopen2(file_.get(), "/", H5P_DEFAULT), "/"));
    check_read(H5Gget_info(root.get(), &info), "/");
    for (hsize_t i = 0; i < info.nlinks; ++i) open_table(name_of(root.get(), i));
  }

  /// Creates a file without tables; throws if it exists.
  static void create(const fs::path& path) {
    const std::string what = "cannot create " + path.string();
    H5File file(h5_check(H5Fcreate(path.c_str(), H5F_ACC_EXCL, H5P_DEFAULT, h5_serial_access().get()),
                         ExitCode::io, what));
    h5_check(file.close(), ExitCode::io, what);
  }

  struct Table {
    std::int64_t num_rows = 0;
    std::int64_t capacity = 0;
    H5Dataset count;
    std::map<std::string, H5Dataset> columns;
  };

  bool has(const std::string& table) const { return tables_.contains(table); }
  const Table& table(const std::string& name) const { return tables_.at(name); }
  const std::map<std::string, Table>& tables() const { return tables_; }

  void create_table(const std::string& name, const MetricsRow& row) {
    const H5Group group(
        check_write(H5Gcreate2(file_.get(), name.c_str(), H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT), name));
    for (const auto& [column, value] : row) create_column(group.get(), column, block_rows);
    const hsize_t one = 1;
    const H5Dataspace space(check_write(H5Screate_simple(1, &one, nullptr), name));
    // Allocated now, so that writing it later changes no structure.
    const H5Properties creation = creation_properties();
    const H5Dataset count(check_write(H5Dcreate2(group.get(), count_name, H5T_STD_I64LE, space.get(),
                                                 H5P_DEFAULT, creation.get(), H5P_DEFAULT),
                                      name));
    const std::int64_t none = 0;
    check_write(H5Dwrite(count.get(), H5T_NATIVE_INT64, H5S_ALL, H5S_ALL, H5P_DEFAULT, &none), name);
  }

  /// Adds the columns of `row` that the table lacks; they are NaN in the existing rows.
  void add_columns(const std::string& name, const MetricsRow& row) {
    Table& table = tables_.at(name);
    const H5Group group(check_write(H5Gopen2(file_.get(), name.c_str(), H5P_DEFAULT), name));
    for (const auto& [column, value] : row) {
      if (table.columns.contains(column)) continue;
      create_column(group.get(), column, static_cast<hsize_t>(table.capacity));
    }
  }

  void extend(const std::string& name) {
    Table& table = tables_.at(name);
    table.capacity += static_cast<std::int64_t>(block_rows);
    const auto extent = static_cast<hsize_t>(table.capacity);
    for (auto& [column, dataset] : table.columns)
      check_write(H5Dset_extent(dataset.get(), &extent), name + "/" + column);
  }

  /// Columns that `row` lacks become NaN: a dropped or uncounted row may have left a value there.
  void append(const std::string& name, const MetricsRow& row) {
    Table& table = tables_.at(name);
    for (const auto& [column, dataset] : table.columns) {
      const auto entry = std::ranges::find(row, column, &MetricsRow::value_type::first);
      write_value(dataset, table.num_rows, entry == row.end() ? no_value : entry->second);
    }
    flush();
    set_num_rows(name, table.num_rows + 1);
  }

  void set_num_rows(const std::string& name, std::int64_t rows) {
    Table& table = tables_.at(name);
    check_write(H5Dwrite(table.count.get(), H5T_NATIVE_INT64, H5S_ALL, H5S_ALL, H5P_DEFAULT, &rows), name);
    flush();
    table.num_rows = rows;
  }

  std::vector<double> read_column(const std::string& name, const std::string& column) const {
    const Table& table = tables_.at(name);
    std::vector<double> values(static_cast<std::size_t>(table.num_rows));
    if (values.empty()) return values;
    const hsize_t first = 0;
    const hsize_t count = values.size();
    const H5Dataset& dataset = table.columns.at(column);
    const H5Dataspace in_file(check_read(H5Dget_space(dataset.get()), name));
    check_read(H5Sselect_hyperslab(in_file.get(), H5S_SELECT_SET, &first, nullptr, &count, nullptr), name);
    const H5Dataspace in_memory(check_read(H5Screate_simple(1, &count, nullptr), name));
    check_read(
        H5Dread(dataset.get(), H5T_NATIVE_DOUBLE, in_memory.get(), in_file.get(), H5P_DEFAULT, values.data()),
        name + "/" + column);
    return values;
  }

  void close() {
    tables_.clear();
    check_write(file_.close(), "close");
  }

 private:
  template <class Result>
  Result check_read(Result result, const std::string& what) const {
    return h5_check(result, ExitCode::bad_data, fmt::format("cannot read {}: {}", path_.string(), what));
  }
  template <class Result>
  Result check_write(Result result, const std::string& what) const {
    return h5_check(result, ExitCode::io, fmt::format("cannot write {}: {}", path_.string(), what));
  }

  void flush() { check_write(H5Fflush(file_.get(), H5F_SCOPE_LOCAL), "flush"); }

  std::string name_of(hid_t group, hsize_t index) const {
    std::array<char, 256> name{};
    const ssize_t length = check_read(H5Lget_name_by_idx(group, ".", H5_INDEX_NAME, H5_ITER_INC, index,
                                                         name.data(), name.size(), H5P_DEFAULT),
                                      "names");
    if (length == 0 || static_cast<std::size_t>(length) >= name.size()) {
      fail(ExitCode::bad_data, "{} is not a metrics file: a name has {} characters", path_.string(), length);
    }
    return name.data();
  }

  /// The number of elements of a one-dimensional dataset.
  std::int64_t length_of(const H5Dataset& dataset, const std::string& name) const {
    const H5Dataspace space(check_read(H5Dget_space(dataset.get()), name));
    if (H5Sget_simple_extent_ndims(space.get()) != 1) {
      fail(ExitCode::bad_data, "{} is not a metrics file: {} is not a column", path_.string(), name);
    }
    return check_read(H5Sget_simple_extent_npoints(space.get()), name);
  }

  void open_table(const std::string& name) {
    const H5Group group(check_read(H5Gopen2(file_.get(), name.c_str(), H5P_DEFAULT), name));
    H5G_info_t info{};
    check_read(H5Gget_info(group.get(), &info), name);
    Table table;
    table.capacity = std::numeric_limits<std::int64_t>::max();
    for (hsize_t i = 0; i < info.nlinks; ++i) {
      const std::string column = name_of(group.get(), i);
      const std::string full_name = name + "/" + column;
      H5Dataset dataset(check_read(H5Dopen2(group.get(), column.c_str(), H5P_DEFAULT), full_name));
      const std::int64_t length = length_of(dataset, full_name);
      if (column == count_name) {
        if (length != 1)
          fail(ExitCode::bad_data, "{}: {} has {} elements", path_.string(), full_name, length);
        table.count = std::move(dataset);
      } else {
        table.capacity = std::min(table.capacity, length);
        table.columns.emplace(column, std::move(dataset));
      }
    }
    if (!table.count || table.columns.empty()) {
      fail(ExitCode::bad_data, "{} is not a metrics file: {} is not a table", path_.string(), name);
    }
    check_read(H5Dread(table.count.get(), H5T_NATIVE_INT64, H5S_ALL, H5S_ALL, H5P_DEFAULT, &table.num_rows),
               name);
    if (table.num_rows < 0 || table.num_rows > std::min(table.capacity, max_rows)) {
      fail(ExitCode::bad_data, "{}: {} counts {} rows; its columns have {}", path_.string(), name,
           table.num_rows, table.capacity);
    }
    tables_.emplace(name, std::move(table));
  }

  H5Properties creation_properties() const {
    H5Properties creation(check_write(H5Pcreate(H5P_DATASET_CREATE), "properties"));
    check_write(H5Pset_alloc_time(creation.get(), H5D_ALLOC_TIME_EARLY), "properties");
    check_write(H5Pset_obj_track_times(creation.get(), false), "properties");
    return creation;
  }

  void create_column(hid_t group, const std::string& name, hsize_t rows) {
    const hsize_t unlimited = H5S_UNLIMITED;
    const H5Dataspace space(check_write(H5Screate_simple(1, &rows, &unlimited), name));
    const H5Properties creation = creation_properties();
    const hsize_t block = block_rows;
    check_write(H5Pset_chunk(creation.get(), 1, &block), name);
    check_write(H5Pset_fill_value(creation.get(), H5T_NATIVE_DOUBLE, &no_value), name);
    const H5Dataset dataset(check_write(H5Dcreate2(group, name.c_str(), H5T_IEEE_F64LE, space.get(),
                                                   H5P_DEFAULT, creation.get(), H5P_DEFAULT),
                                        name));
  }

  void write_value(const H5Dataset& dataset, std::int64_t row, double value) {
    const auto first = static_cast<hsize_t>(row);
    const hsize_t one = 1;
    const H5Dataspace in_file(check_write(H5Dget_space(dataset.get()), "row"));
    check_write(H5Sselect_hyperslab(in_file.get(), H5S_SELECT_SET, &first, nullptr, &one, nullptr), "row");
    const H5Dataspace in_memory(check_write(H5Screate_simple(1, &one, nullptr), "row"));
    check_write(
        H5Dwrite(dataset.get(), H5T_NATIVE_DOUBLE, in_memory.get(), in_file.get(), H5P_DEFAULT, &value),
        "row");
  }

  fs::path path_;
  H5File file_;
  std::map<std::string, Table> tables_;
};

}  // namespace

struct MetricsWriter::Impl {
  Impl(IoThread& thread, fs::path file_path, std::function<void(const std::string&)> on_damage)
      : io(thread), path(std::move(file_path)), warn(std::move(on_damage)) {}

  /// Runs `job` on the I/O thread; later calls of the writer throw its error.
  void queue(std::function<void()> job) {
    rethrow();
    io.submit([this, work = std::move(job)] {
      const WatchedCall call(CallKind::io, "append", path.native());
      try {
        rethrow();  // a job that failed before may have left no file open
        work();
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (!error) error = std::current_exception();
      }
    });
  }

  void rethrow() {
    const std::lock_guard lock(mutex);
    if (error) std::rethrow_exception(error);
  }

  void open() {
    clear_temporary();
    if (fs::exists(path)) {
      check_call(::access(path.c_str(), R_OK | W_OK), "write", path);
      with_damage_set_aside([this] { file.emplace(path, H5F_ACC_RDWR); });
    } else {
      create();
    }
  }

  /// The name of the temporary file, after removing any entry of that name: a link there is not followed.
  fs::path clear_temporary() const {
    fs::path temporary = path.string() + temporary_suffix;
    fs::remove(temporary);
    return temporary;
  }

  void create() {
    const fs::path temporary = clear_temporary();
    MetricsFile::create(temporary);
    replace(temporary);
    file.emplace(path, H5F_ACC_RDWR);
  }

  /// If `work` finds the file damaged, renames it and starts a new one.
  void with_damage_set_aside(const std::function<void()>& work) {
    try {
      work();
    } catch (const Error& damage) {
      if (damage.code() != ExitCode::bad_data) throw;
      file.reset();
      const fs::path aside = unused_name(path.string() + ".damaged");
      fs::rename(path, aside);
      create();
      warn(fmt::format("metrics start from the beginning; the damaged file is now {}: {}", aside.string(),
                       damage.what()));
    }
  }

  /// Changes HDF5's structures in a copy, which then replaces the file.
  void restructure(const std::function<void(MetricsFile&)>& change) {
    const fs::path temporary = clear_temporary();
    file->close();
    file.reset();
    fs::copy_file(path, temporary);  // opens `temporary` with O_EXCL
    MetricsFile copy(temporary, H5F_ACC_RDWR);
    change(copy);
    copy.close();
    replace(temporary);
    file.emplace(path, H5F_ACC_RDWR);
  }

  void replace(const fs::path& temporary) {
    sync_path(temporary);
    rename_file(temporary, path);
  }

  void append(const std::string& table, const MetricsRow& row) {
    if (!file->has(table)) {
      restructure([&](MetricsFile& copy) { copy.create_table(table, row); });
    }
    const auto& columns = file->table(table).columns;
    if (!std::ranges::all_of(row, [&](const auto& entry) { return columns.contains(entry.first); })) {
      restructure([&](MetricsFile& copy) { copy.add_columns(table, row); });
    }
    if (file->table(table).num_rows == file->table(table).capacity) {
      restructure([&](MetricsFile& copy) { copy.extend(table); });
    }
    file->append(table, row);
  }

  void truncate_after(std::int64_t step, std::int64_t evaluation) {
    for (const std::string_view name : {"steps", "eval", "choices", "checkpoints"}) {
      const std::string table(name);
      const std::int64_t last = name == "eval" || name == "choices" ? evaluation : step;
      if (!file->has(table) || !file->table(table).columns.contains("step")) continue;
      const std::vector<double> steps = file->read_column(table, "step");
      const auto first_after = std::find_if(steps.begin(), steps.end(),
                                            [&](double value) { return value > static_cast<double>(last); });
      file->set_num_rows(table, first_after - steps.begin());
    }
  }

  IoThread& io;
  fs::path path;
  std::function<void(const std::string&)> warn;
  std::optional<MetricsFile> file;  // used on the I/O thread only
  std::mutex mutex;
  std::exception_ptr error;
};

MetricsWriter::MetricsWriter(IoThread& io, const fs::path& file,
                             const std::function<void(const std::string&)>& warn)
    : impl_(std::make_unique<Impl>(io, file, warn)) {
  io.run([this] { impl_->open(); });
}

MetricsWriter::~MetricsWriter() {
  impl_->io.run([this] { impl_->file.reset(); });
}

void MetricsWriter::append(const std::string& table, const MetricsRow& row) {
  impl_->queue([this, table, row] { impl_->append(table, row); });
}

void MetricsWriter::truncate_after(std::int64_t step, std::int64_t evaluation) {
  flush();
  impl_->io.run(
      [=, this] { impl_->with_damage_set_aside([=, this] { impl_->truncate_after(step, evaluation); }); });
}

void MetricsWriter::flush() {
  impl_->io.run([] {});
  impl_->rethrow();
}

MetricsTable read_metrics(IoThread& io, const fs::path& file, const std::string& table) {
  MetricsTable columns;
  io.run([&] {
    std::error_code error;
    if (!fs::exists(file, error)) fail(ExitCode::bad_data, "no metrics file {}", file.string());
    const MetricsFile metrics(file);
    if (!metrics.has(table)) return;
    for (const auto& [name, dataset] : metrics.table(table).columns)
      columns[name] = metrics.read_column(table, name);
  });
  return columns;
}

std::string csv_of(const MetricsTable& table) {
  std::vector<MetricsTable::const_iterator> columns;
  for (auto column = table.begin(); column != table.end(); ++column) columns.push_back(column);
  std::ranges::stable_partition(columns, [](const auto& column) { return column->first == "step"; });
  std::string text;
  for (const auto& column : columns) text += fmt::format("{}{}", text.empty() ? "" : ",", column->first);
  text += "\n";
  const std::size_t rows = columns.empty() ? 0 : columns.front()->second.size();
  for (std::size_t row = 0; row < rows; ++row) {
    for (std::size_t i = 0; i < columns.size(); ++i) {
      const double value = columns[i]->second[row];
      text += fmt::format("{}{}", i == 0 ? "" : ",", std::isnan(value) ? "" : fmt::format("{}", value));
    }
    text += "\n";
  }
  return text;
}

std::map<std::string, std::int64_t> metrics_tables(IoThread& io, const fs::path& file) {
  std::map<std::string, std::int64_t> rows;
  io.run([&] {
    const MetricsFile metrics(file);
    for (const auto& [name, table] : metrics.tables()) rows[name] = table.num_rows;
  });
  return rows;
}

}  // namespace mylos
