/// Shared by the parts of the HDF5 wrapper: decoded errors, types, spaces. Only for src/io/h5*.cpp.
///
/// Throws  Failure(Exit::files) with HDF5's innermost reason and what to do; Failure(Exit::out_of_memory) where HDF5
///         could not allocate memory.
#pragma once

#include <hdf5.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "io/h5_handle.hpp"

namespace tessera::io::h5::detail {

/// Advice for a file whose contents cannot be right.
inline constexpr const char* kDamaged =
    "The file is damaged or not of the expected kind: inspect it with h5dump -H, or use another copy.";

[[noreturn]] void fail(const std::string& where, std::string_view doing);

template <class Result>
Result check(Result result, const std::string& where, std::string_view doing) {
  if (result < 0) fail(where, doing);
  return result;
}
#define H5_CHECK(call, where, doing) ::tessera::io::h5::detail::check((call), (where), (doing))

/// Called before any other HDF5 function. Turns off the printing of error stacks (a setting per thread), and HDF5's
/// clean-up at exit, which in 1.10 crashes after a failed flush to a full disk; handles close everything instead.
void start_library();

/// The type in memory, or with `is_stored` the one in files: little-endian everywhere.
Handle make_type(Type type, bool is_stored);
Handle make_space(const Shape& shape);
std::int64_t product(const Shape& shape);
std::vector<const char*> pointers_to(const std::vector<std::string>& texts);
/// Reads `count` strings of either kind and frees HDF5's copies; `read` fills a given buffer with values of a given
/// type.
std::vector<std::string> read_strings(hid_t stored, std::size_t count, const std::string& where,
                                      const std::function<herr_t(hid_t, void*)>& read);
/// Transfer properties that refuse a number that does not fit its new type, instead of clipping it.
Handle strict_transfer();

/// Throws  Failure(Exit::files) if a file that is only read cannot hold so many entries of the dataset. Not for virtual
///         datasets and others whose entries lie elsewhere.
void require_room(hid_t dataset, std::int64_t entries, const std::string& where);

}  // namespace tessera::io::h5::detail
