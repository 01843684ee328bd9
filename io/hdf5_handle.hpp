// SPDX-License-Identifier: BSD-3-Clause
// HDF5 identifiers as owning types, and HDF5 errors as exceptions.
#pragma once

#include <algorithm>
#include <string>

#include <hdf5.h>

#include "core/base/error.hpp"
#include "core/base/memory_shortage.hpp"
#include "io/file_util.hpp"

namespace mylos {

using H5File = Handle<hid_t, H5Fclose>;
using H5Group = Handle<hid_t, H5Gclose>;
using H5Dataset = Handle<hid_t, H5Dclose>;
using H5Dataspace = Handle<hid_t, H5Sclose>;
using H5Type = Handle<hid_t, H5Tclose>;
using H5Properties = Handle<hid_t, H5Pclose>;

/// The innermost message of HDF5's error stack, on one line.
inline std::string h5_error_message() {
  std::string message = "HDF5 gives no reason";
  H5Ewalk2(
      H5E_DEFAULT, H5E_WALK_UPWARD,
      [](unsigned depth, const H5E_error2_t* entry, void* out) -> herr_t {
        if (depth == 0)
          *static_cast<std::string*>(out) = fmt::format("{}: {}", entry->func_name, entry->desc);
        return 0;
      },
      &message);
  std::replace(message.begin(), message.end(), '\n', ' ');
  return message;
}

/// Returns `result`. If it is negative, HDF5 failed: throws `code` with "what: HDF5's reason"; ExitCode::io
/// if the operating system reported the error, which only the text of HDF5's message shows;
/// ExitCode::internal if memory is short.
template <class Result>
Result h5_check(Result result, ExitCode code, const std::string& what) {
  if (result >= 0) return result;
  const std::string reason = h5_error_message();
  if (memory_is_short()) fail(ExitCode::internal, "out of memory in HDF5: {}: {}", what, reason);
  fail(reason.find("errno = ") == std::string::npos ? code : ExitCode::io, "{}: {}", what, reason);
}

/// Access properties for opening a file in one process, without file locks, so that others can read while it
/// is written. Also stops HDF5 from printing this thread's errors, which are thrown instead.
inline H5Properties h5_serial_access() {
  H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
  H5Properties access(
      h5_check(H5Pcreate(H5P_FILE_ACCESS), ExitCode::internal, "HDF5 file access properties"));
  h5_check(H5Pset_file_locking(access.get(), false, true), ExitCode::internal, "HDF5 file locking");
  return access;
}

}  // namespace mylos
