// SPDX-License-Identifier: BSD-3-Clause
// Reads the files of TargetFileWriter.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "io/hdf5_handle.hpp"
#include "io/io_thread.hpp"

namespace mylos::test {

struct StoredTargets {
  std::vector<std::int32_t> token;
  std::vector<float> loss;
  std::vector<std::uint8_t> correct;
  std::vector<std::int64_t> targets;
  std::string what, model, data;
  std::int64_t step = 0, context = 0, stride = 0;
  bool operator==(const StoredTargets&) const = default;
};

/// Throws ExitCode::bad_data if the file lacks something, or has it with another type.
inline StoredTargets read_targets(IoThread& io, const std::filesystem::path& path) {
  StoredTargets stored;
  const auto check = [](auto result) { return h5_check(result, ExitCode::bad_data, "the stored targets"); };
  io.run([&] {
    const H5File file(check(H5Fopen(path.c_str(), H5F_ACC_RDONLY, h5_serial_access().get())));
    const auto expect_type = [&](hid_t seen, hid_t expected, const char* name) {
      if (check(H5Tequal(seen, expected)) == 0) fail(ExitCode::bad_data, "{} has another type", name);
    };
    const auto column = [&](const char* name, hid_t type, hid_t memory_type, auto& values) {
      const H5Dataset dataset(check(H5Dopen2(file.get(), name, H5P_DEFAULT)));
      const H5Dataspace space(check(H5Dget_space(dataset.get())));
      const H5Type stored_type(check(H5Dget_type(dataset.get())));
      expect_type(stored_type.get(), type, name);
      values.resize(static_cast<std::size_t>(check(H5Sget_simple_extent_npoints(space.get()))));
      check(H5Dread(dataset.get(), memory_type, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()));
    };
    column("token", H5T_STD_I32LE, H5T_NATIVE_INT32, stored.token);
    column("loss", H5T_IEEE_F32LE, H5T_NATIVE_FLOAT, stored.loss);
    column("correct", H5T_STD_U8LE, H5T_NATIVE_UINT8, stored.correct);
    column("targets", H5T_STD_I64LE, H5T_NATIVE_INT64, stored.targets);
    using Attribute = Handle<hid_t, H5Aclose>;
    const auto number = [&](const char* name) {
      const Attribute attribute(check(H5Aopen(file.get(), name, H5P_DEFAULT)));
      std::int64_t value = 0;
      check(H5Aread(attribute.get(), H5T_NATIVE_INT64, &value));
      return value;
    };
    const auto text = [&](const char* name) {
      const Attribute attribute(check(H5Aopen(file.get(), name, H5P_DEFAULT)));
      const H5Type type(check(H5Aget_type(attribute.get())));
      if (check(H5Tis_variable_str(type.get())) == 0) fail(ExitCode::bad_data, "{} is no text", name);
      char* read = nullptr;
      check(H5Aread(attribute.get(), type.get(), &read));
      std::string value = read;
      check(H5free_memory(read));
      return value;
    };
    stored.what = text("what");
    stored.model = text("model");
    stored.data = text("data");
    stored.step = number("step");
    stored.context = number("context");
    stored.stride = number("stride");
  });
  return stored;
}

}  // namespace mylos::test
