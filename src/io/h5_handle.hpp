/// What the parts of the HDF5 wrapper share with its users: identifiers, shapes, element types.
#pragma once

#include <cstdint>
#include <type_traits>
#include <utility>
#include <vector>

namespace tessera::io::h5 {

using Id = std::int64_t;                  // hid_t
inline constexpr Id kDefault = 0;         // H5P_DEFAULT
using Shape = std::vector<std::int64_t>;  // extents, slowest first; empty: a scalar

enum class Type { float32, float64, int32, int64, uint8, uint16, uint32, uint64, text };

template <class T>
consteval Type type_of() {
  if (std::is_same_v<T, float>) return Type::float32;
  if (std::is_same_v<T, double>) return Type::float64;
  if (std::is_same_v<T, std::int32_t>) return Type::int32;
  if (std::is_same_v<T, std::int64_t>) return Type::int64;
  if (std::is_same_v<T, std::uint8_t>) return Type::uint8;
  if (std::is_same_v<T, std::uint16_t>) return Type::uint16;
  if (std::is_same_v<T, std::uint32_t>) return Type::uint32;
  if (std::is_same_v<T, std::uint64_t>) return Type::uint64;
  throw "no HDF5 type for this element";
}

/// HDF5 serves one thread at a time, in the order of arrival: each function of this wrapper holds a lock. A thread that
/// makes many calls may hold it over all of them; others then wait once.
class Lock {
 public:
  Lock();
  ~Lock();
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;
};

/// One HDF5 identifier; closes it in the destructor (quietly) or in close() (checked).
class Handle {
 public:
  using Closer = int (*)(Id);
  Handle() = default;
  Handle(Id id, Closer closer) : id_(id), closer_(closer) {}
  Handle(Handle&& other) noexcept { *this = std::move(other); }
  Handle& operator=(Handle&& other) noexcept;
  ~Handle();
  Id id() const { return id_; }
  bool is_open() const { return id_ >= 0; }
  int close();  // HDF5's status, negative on failure

 private:
  Id id_ = -1;
  Closer closer_ = nullptr;
};

}  // namespace tessera::io::h5
