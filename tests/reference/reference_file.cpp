// SPDX-License-Identifier: BSD-3-Clause
#include "tests/reference/reference_file.hpp"

#include <cstddef>
#include <type_traits>

#include <hdf5.h>

#include "core/base/error.hpp"
#include "io/hdf5_handle.hpp"

namespace mylos {
namespace {

template <class T>
hid_t memory_type() {
  static_assert(std::is_same_v<T, float> || std::is_same_v<T, double> || std::is_same_v<T, std::int32_t>);
  if constexpr (std::is_same_v<T, float>) {
    return H5T_NATIVE_FLOAT;
  } else if constexpr (std::is_same_v<T, double>) {
    return H5T_NATIVE_DOUBLE;
  } else {
    return H5T_NATIVE_INT32;
  }
}

}  // namespace

struct ReferenceFile::Impl {
  explicit Impl(const std::filesystem::path& file_path)
      : path(file_path.string()),
        file(check(H5Fopen(path.c_str(), H5F_ACC_RDONLY, h5_serial_access().get()), "open")) {}

  template <class Result>
  Result check(Result result, const std::string& what) const {
    return h5_check(result, ExitCode::bad_data, fmt::format("cannot read {}: {}", path, what));
  }

  H5Dataset open(const std::string& dataset) const {
    return H5Dataset(check(H5Dopen2(file.get(), dataset.c_str(), H5P_DEFAULT), dataset));
  }

  std::string path;
  H5File file;
};

ReferenceFile::ReferenceFile(const std::filesystem::path& path) : impl_(std::make_unique<Impl>(path)) {}
ReferenceFile::~ReferenceFile() = default;
ReferenceFile::ReferenceFile(ReferenceFile&&) noexcept = default;
ReferenceFile& ReferenceFile::operator=(ReferenceFile&&) noexcept = default;

template <class T>
std::vector<T> ReferenceFile::read(const std::string& dataset) const {
  const H5Dataset opened = impl_->open(dataset);
  const H5Dataspace space(impl_->check(H5Dget_space(opened.get()), dataset));
  const hssize_t count = impl_->check(H5Sget_simple_extent_npoints(space.get()), dataset);
  std::vector<T> values(static_cast<std::size_t>(count));
  impl_->check(H5Dread(opened.get(), memory_type<T>(), H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()),
               dataset);
  return values;
}

template std::vector<float> ReferenceFile::read(const std::string&) const;
template std::vector<double> ReferenceFile::read(const std::string&) const;
template std::vector<std::int32_t> ReferenceFile::read(const std::string&) const;

std::vector<std::int64_t> ReferenceFile::shape(const std::string& dataset) const {
  const H5Dataset opened = impl_->open(dataset);
  const H5Dataspace space(impl_->check(H5Dget_space(opened.get()), dataset));
  const int rank = impl_->check(H5Sget_simple_extent_ndims(space.get()), dataset);
  std::vector<hsize_t> extents(static_cast<std::size_t>(rank));
  impl_->check(H5Sget_simple_extent_dims(space.get(), extents.data(), nullptr), dataset);
  return {extents.begin(), extents.end()};
}

std::vector<std::string> ReferenceFile::list(const std::string& group) const {
  const H5Group opened(impl_->check(H5Gopen2(impl_->file.get(), group.c_str(), H5P_DEFAULT), group));
  std::vector<std::string> names;
  const auto add = [](hid_t, const char* name, const H5L_info_t*, void* data) -> herr_t {
    static_cast<std::vector<std::string>*>(data)->emplace_back(name);
    return 0;
  };
  impl_->check(H5Literate(opened.get(), H5_INDEX_NAME, H5_ITER_INC, nullptr, add, &names), group);
  return names;
}

double ReferenceFile::attribute(const std::string& name) const {
  const Handle<hid_t, H5Aclose> opened(
      impl_->check(H5Aopen(impl_->file.get(), name.c_str(), H5P_DEFAULT), name));
  double value = 0.0;
  impl_->check(H5Aread(opened.get(), H5T_NATIVE_DOUBLE, &value), name);
  return value;
}

}  // namespace mylos
