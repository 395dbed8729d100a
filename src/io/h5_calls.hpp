/// What the wrapper of HDF5 shares among its parts: decoded errors, types, spaces. Only for src/io/h5*.cpp.
///
/// Throws  Failure(Exit::files) with HDF5's innermost reason and what to do.
#pragma once

#include <hdf5.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "io/h5.hpp"

namespace tessera::io::h5::detail {

[[noreturn]] void fail(const std::string& where, std::string_view doing);

template <class Result>
Result check(Result result, const std::string& where, std::string_view doing) {
  if (result < 0) fail(where, doing);
  return result;
}
#define H5_CHECK(call, where, doing) ::tessera::io::h5::detail::check((call), (where), (doing))

/// Before the first call: turns off the printing of error stacks (a setting per thread), and HDF5's clean-up at exit,
/// which in 1.10 crashes after a file could not be flushed to a full disk. Handles close everything instead.
void start_library();

Handle text_type();
/// The type in memory, or with `is_stored` the one in files: little-endian everywhere.
Handle make_type(Type type, bool is_stored);
Handle make_space(const Shape& shape);
std::int64_t product(const Shape& shape);
/// Transfers that stop where a number does not fit its new type, instead of clipping it.
Handle strict_transfer();

}  // namespace tessera::io::h5::detail
