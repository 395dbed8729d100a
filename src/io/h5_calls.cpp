#include "io/h5_calls.hpp"

#include <algorithm>
#include <condition_variable>
#include <cstdlib>
#include <functional>
#include <mutex>
#include <numeric>
#include <thread>
#include <vector>

#include "io/files.hpp"

namespace tessera::io::h5 {
namespace {

/// Threads take turns by number; a mutex would let the one that has just left it come back first.
struct Turns {
  std::mutex mutex;
  std::condition_variable changed;
  std::uint64_t next = 0, served = 0;
  std::thread::id holder = {};
  int depth = 0;  // locks of the holder
} turns;

}  // namespace

Lock::Lock() {
  std::unique_lock guard(turns.mutex);
  if (turns.holder != std::this_thread::get_id()) {
    const std::uint64_t mine = turns.next++;
    turns.changed.wait(guard, [&] { return turns.served == mine; });
    turns.holder = std::this_thread::get_id();
  }
  ++turns.depth;
}

Lock::~Lock() {
  const std::lock_guard guard(turns.mutex);
  if (--turns.depth > 0) return;
  turns.holder = {};
  ++turns.served;
  turns.changed.notify_all();
}

}  // namespace tessera::io::h5

namespace tessera::io::h5::detail {

static_assert(std::is_same_v<Id, hid_t> && kDefault == H5P_DEFAULT, "h5.hpp has no hdf5.h, which stays in h5*.cpp");

namespace {

struct Reason {
  std::string text;
  bool is_memory = false;  // an allocation of memory failed (of space in a file it would be another major number)
};

/// The innermost entry of HDF5's error stack: the actual cause.
Reason innermost_reason() {
  Reason reason;
  H5Ewalk2(
      H5E_DEFAULT, H5E_WALK_UPWARD,
      [](unsigned, const H5E_error2_t* entry, void* out) -> herr_t {
        const std::string text = entry->desc != nullptr ? entry->desc : "";
        const bool is_memory = (entry->maj_num == H5E_RESOURCE && entry->min_num == H5E_NOSPACE) ||
                               text.find("memory allocation failed") != std::string::npos;
        *static_cast<Reason*>(out) = {text, is_memory};
        return 1;  // one is enough
      },
      &reason);
  H5Eclear2(H5E_DEFAULT);
  return reason;
}

/// The errno inside a reason such as "file write failed: ..., errno = 28, error message = '...'", behind a path that
/// may hold anything; 0: none.
int errno_in(const std::string& reason) {
  const auto at = reason.rfind("errno = ");
  return at == std::string::npos ? 0 : std::atoi(reason.c_str() + at + 8);
}

}  // namespace

void fail(const std::string& where, std::string_view doing) {
  const auto [reason, is_memory] = innermost_reason();
  const int error = errno_in(reason);
  if (reason.starts_with("unable to lock")) {
    throw Failure(Exit::files,
                  "{}: {} failed: {}. Another program may have the file open for writing: end it; if the file system "
                  "cannot lock files, set HDF5_USE_FILE_LOCKING=FALSE in the environment.",
                  where, doing, reason);
  }
  if (error != 0) throw file_failure(where, doing, error);
  if (is_memory) {
    throw Failure(Exit::out_of_memory,
                  "{}: {} failed: {}. {}. If there is enough, the file asks for too much: inspect it with h5dump -H.",
                  where, doing, reason, kMoreMemory);
  }
  throw Failure(Exit::files, "{}: {} failed: {}. {}", where, doing, reason.empty() ? "HDF5 gives no reason" : reason,
                kDamaged);
}

void start_library() {
  const Lock lock;
  static const herr_t without_clean_up = H5dont_atexit();
  static thread_local const herr_t is_quiet = H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
  static_cast<void>(without_clean_up);
  static_cast<void>(is_quiet);
}

Handle make_type(Type type, bool is_stored) {
  const Lock lock;
  const auto copy = [&](hid_t native, hid_t stored) { return Handle(H5Tcopy(is_stored ? stored : native), H5Tclose); };
  switch (type) {
    case Type::float32: return copy(H5T_NATIVE_FLOAT, H5T_IEEE_F32LE);
    case Type::float64: return copy(H5T_NATIVE_DOUBLE, H5T_IEEE_F64LE);
    case Type::int32: return copy(H5T_NATIVE_INT32, H5T_STD_I32LE);
    case Type::int64: return copy(H5T_NATIVE_INT64, H5T_STD_I64LE);
    case Type::uint8: return copy(H5T_NATIVE_UINT8, H5T_STD_U8LE);
    case Type::uint16: return copy(H5T_NATIVE_UINT16, H5T_STD_U16LE);
    case Type::uint32: return copy(H5T_NATIVE_UINT32, H5T_STD_U32LE);
    case Type::uint64: return copy(H5T_NATIVE_UINT64, H5T_STD_U64LE);
    case Type::text: break;
  }
  Handle text = copy(H5T_C_S1, H5T_C_S1);
  H5Tset_size(text.id(), H5T_VARIABLE);
  H5Tset_cset(text.id(), H5T_CSET_UTF8);
  return text;
}

std::int64_t product(const Shape& shape) {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

std::vector<const char*> pointers_to(const std::vector<std::string>& texts) {
  std::vector<const char*> pointers;
  for (const std::string& text : texts) pointers.push_back(text.c_str());
  return pointers;
}

std::vector<std::string> read_strings(hid_t stored, std::size_t count, const std::string& where,
                                      const std::function<herr_t(hid_t, void*)>& read) {
  std::vector<std::string> out;
  if (H5Tget_class(stored) != H5T_STRING) {
    throw Failure(Exit::files, "{}: holds no text. Write it as a UTF-8 string.", where);
  }
  if (H5Tis_variable_str(stored) > 0) {
    std::vector<char*> pointers(count, nullptr);
    H5_CHECK(read(stored, pointers.data()), where, "reading text");
    for (char* pointer : pointers) {
      out.emplace_back(pointer != nullptr ? pointer : "");
      H5free_memory(pointer);
    }
    return out;
  }
  const std::size_t width = H5Tget_size(stored);
  std::string buffer(count * width, '\0');
  H5_CHECK(read(stored, buffer.data()), where, "reading text");
  const char padding = H5Tget_strpad(stored) == H5T_STR_SPACEPAD ? ' ' : '\0';
  for (std::size_t i = 0; i < count; ++i) {
    std::string entry = buffer.substr(i * width, width);
    entry.resize(std::min(entry.find_last_not_of(padding) + 1, width));
    out.push_back(std::move(entry));
  }
  return out;
}

Handle make_space(const Shape& shape) {
  if (shape.empty()) return {H5Screate(H5S_SCALAR), H5Sclose};
  const std::vector<hsize_t> extents(shape.begin(), shape.end());
  return {H5Screate_simple(static_cast<int>(extents.size()), extents.data(), nullptr), H5Sclose};
}

Handle strict_transfer() {
  Handle plist(H5Pcreate(H5P_DATASET_XFER), H5Pclose);
  H5Pset_type_conv_cb(
      plist.id(),
      [](H5T_conv_except_t kind, hid_t, hid_t, void*, void*, void*) {
        const bool is_range = kind == H5T_CONV_EXCEPT_RANGE_HI || kind == H5T_CONV_EXCEPT_RANGE_LOW;
        return is_range ? H5T_CONV_ABORT : H5T_CONV_UNHANDLED;
      },
      nullptr);
  return plist;
}

}  // namespace tessera::io::h5::detail
