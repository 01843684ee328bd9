// SPDX-License-Identifier: BSD-3-Clause
#include "io/metrics/target_file.hpp"

#include <numeric>
#include <utility>

#include "core/base/watched_call.hpp"
#include "io/hdf5_handle.hpp"

namespace mylos {

namespace fs = std::filesystem;

using H5Attribute = Handle<hid_t, H5Aclose>;

struct TargetFileWriter::Impl {
  Impl(const fs::path& name, const TargetFileInfo& info) : path(name), temporary(name) {
    total = std::accumulate(info.targets.begin(), info.targets.end(), std::int64_t{0});
    const WatchedCall call(CallKind::io, "create", path.native());
    file = H5File(check(
        H5Fcreate(temporary.path().c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, h5_serial_access().get()), "create"));
    text_attribute("what", "loss in nats of each target token of an evaluation");
    text_attribute("model", info.model);
    number_attribute("step", info.step);
    number_attribute("context", info.context);
    number_attribute("stride", info.stride);
    text_attribute("data", info.data);
    token = make_dataset("token", H5T_STD_I32LE, total);
    loss = make_dataset("loss", H5T_IEEE_F32LE, total);
    correct = make_dataset("correct", H5T_STD_U8LE, total);
    const H5Dataset targets = make_dataset("targets", H5T_STD_I64LE, std::ssize(info.targets));
    write(targets, H5T_NATIVE_INT64, 0, info.targets);
  }

  void append(std::span<const TargetResult> results) {
    require(written + std::ssize(results) <= total, "the targets of all files");
    const WatchedCall call(CallKind::io, "write", path.native(), results.size() * sizeof(TargetResult));
    std::vector<std::int32_t> tokens;
    std::vector<float> losses;
    std::vector<std::uint8_t> hits;
    for (const TargetResult& result : results) {
      tokens.push_back(result.token);
      losses.push_back(result.loss);
      hits.push_back(result.is_correct ? 1 : 0);
    }
    write(token, H5T_NATIVE_INT32, written, tokens);
    write(loss, H5T_NATIVE_FLOAT, written, losses);
    write(correct, H5T_NATIVE_UINT8, written, hits);
    written += std::ssize(results);
  }

  void finish() {
    require(written == total, "every target has a result");
    const WatchedCall call(CallKind::io, "close", path.native());
    for (H5Dataset* dataset : {&token, &loss, &correct}) check(dataset->close(), "close");
    check(file.close(), "close");
    temporary.commit();
  }

  template <class Result>
  Result check(Result result, const char* what) const {
    return h5_check(result, ExitCode::io, fmt::format("cannot write {}: {}", path.string(), what));
  }

  void attribute(const char* name, hid_t stored, hid_t given, const void* value) const {
    const H5Dataspace scalar(check(H5Screate(H5S_SCALAR), name));
    const H5Attribute made(
        check(H5Acreate2(file.get(), name, stored, scalar.get(), H5P_DEFAULT, H5P_DEFAULT), name));
    check(H5Awrite(made.get(), given, value), name);
  }
  void number_attribute(const char* name, std::int64_t value) const {
    attribute(name, H5T_STD_I64LE, H5T_NATIVE_INT64, &value);
  }
  void text_attribute(const char* name, const std::string& value) const {
    const H5Type type(check(H5Tcopy(H5T_C_S1), name));
    check(H5Tset_size(type.get(), H5T_VARIABLE), name);
    check(H5Tset_cset(type.get(), H5T_CSET_UTF8), name);
    const char* text = value.c_str();
    attribute(name, type.get(), type.get(), &text);
  }

  H5Dataset make_dataset(const char* name, hid_t type, std::int64_t count) const {
    const auto extent = static_cast<hsize_t>(count);
    const H5Dataspace space(check(H5Screate_simple(1, &extent, nullptr), name));
    const H5Properties creation(check(H5Pcreate(H5P_DATASET_CREATE), name));
    check(H5Pset_obj_track_times(creation.get(), false), name);  // equal results make equal files
    return H5Dataset(check(
        H5Dcreate2(file.get(), name, type, space.get(), H5P_DEFAULT, creation.get(), H5P_DEFAULT), name));
  }

  /// Writes `values` from element `begin` of the dataset on.
  template <class T>
  void write(const H5Dataset& dataset, hid_t type, std::int64_t begin, const std::vector<T>& values) const {
    if (values.empty()) return;
    const auto first = static_cast<hsize_t>(begin);
    const hsize_t count = values.size();
    const H5Dataspace in_file(check(H5Dget_space(dataset.get()), "elements"));
    check(H5Sselect_hyperslab(in_file.get(), H5S_SELECT_SET, &first, nullptr, &count, nullptr), "elements");
    const H5Dataspace in_memory(check(H5Screate_simple(1, &count, nullptr), "elements"));
    check(H5Dwrite(dataset.get(), type, in_memory.get(), in_file.get(), H5P_DEFAULT, values.data()),
          "elements");
  }

  fs::path path;
  TemporaryFile temporary;
  H5File file;
  H5Dataset token, loss, correct;
  std::int64_t total = 0;
  std::int64_t written = 0;
};

TargetFileWriter::TargetFileWriter(IoThread& io, const fs::path& file, const TargetFileInfo& info) : io_(io) {
  io_.run([&] { impl_ = std::make_unique<Impl>(file, info); });
}

TargetFileWriter::~TargetFileWriter() {
  io_.run([this] { impl_.reset(); });
}

void TargetFileWriter::append(std::span<const TargetResult> results) {
  io_.run([&] { impl_->append(results); });
}

void TargetFileWriter::finish() {
  io_.run([this] { impl_->finish(); });
}

}  // namespace mylos
