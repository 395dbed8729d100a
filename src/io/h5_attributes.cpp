#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "errors.hpp"
#include "io/h5.hpp"  // attributes of its objects
#include "io/h5_calls.hpp"

namespace tessera::io::h5 {

using namespace detail;

namespace {

void write_attribute(const Object& object, const std::string& name, Type type, const void* value,
                     const Shape& shape = {}) {
  const Lock lock;
  const std::string where = fmt::format("{}@{}", object.where(), name);
  if (H5Aexists(object.id(), name.c_str()) > 0)
    H5_CHECK(H5Adelete(object.id(), name.c_str()), where, "replacing the attribute");
  const Handle space = make_space(shape);
  const Handle stored = make_type(type, true), native = make_type(type, false);
  Handle attribute(H5_CHECK(H5Acreate2(object.id(), name.c_str(), stored.id(), space.id(), H5P_DEFAULT, H5P_DEFAULT),
                            where, "making the attribute"),
                   H5Aclose);
  if (shape != Shape{0}) H5_CHECK(H5Awrite(attribute.id(), native.id(), value), where, "writing the attribute");
  H5_CHECK(attribute.close(), where, "closing the attribute");
}

struct OpenAttribute {
  Handle handle;
  std::size_t count;  // of values
};
OpenAttribute open_attribute(const Object& object, const std::string& name, const std::string& where) {
  if (H5Aexists(object.id(), name.c_str()) <= 0) {
    throw Failure(Exit::files, "{}: the attribute is missing. Give a file that has it.", where);
  }
  Handle attribute(H5_CHECK(H5Aopen(object.id(), name.c_str(), H5P_DEFAULT), where, "opening the attribute"), H5Aclose);
  const Handle space(H5_CHECK(H5Aget_space(attribute.id()), where, "reading the attribute's shape"), H5Sclose);
  const hssize_t count = H5_CHECK(H5Sget_simple_extent_npoints(space.id()), where, "reading the attribute's shape");
  return {std::move(attribute), static_cast<std::size_t>(count)};
}

void require_one(std::size_t count, const std::string& where) {
  if (count != 1) throw Failure(Exit::files, "{}: the attribute is an array. Write one value.", where);
}

/// Reads one number; h5py writes booleans as enums over int8, so those count as integers.
template <class T>
T read_number(const Object& object, const std::string& name) {
  const Lock lock;
  const std::string where = fmt::format("{}@{}", object.where(), name);
  const auto [attribute, count] = open_attribute(object, name, where);
  require_one(count, where);
  Handle stored(H5_CHECK(H5Aget_type(attribute.id()), where, "reading the attribute's type"), H5Tclose);
  const bool is_enum = H5Tget_class(stored.id()) == H5T_ENUM;
  if (is_enum) {
    std::int64_t wide = 0;
    std::vector<char> raw(H5Tget_size(stored.id()));
    H5_CHECK(H5Aread(attribute.id(), stored.id(), raw.data()), where, "reading the attribute");
    const Handle base(H5Tget_super(stored.id()), H5Tclose);
    raw.resize(std::max(raw.size(), sizeof wide));
    H5_CHECK(H5Tconvert(base.id(), H5T_NATIVE_INT64, 1, raw.data(), nullptr, H5P_DEFAULT), where,
             "reading the attribute");
    std::copy_n(raw.data(), sizeof wide, reinterpret_cast<char*>(&wide));
    return static_cast<T>(wide);
  }
  const H5T_class_t kind = H5Tget_class(stored.id());
  if (kind != H5T_INTEGER && !(kind == H5T_FLOAT && std::is_floating_point_v<T>)) {
    throw Failure(Exit::files, "{}: not {}. Write the attribute as one.", where,
                  std::is_floating_point_v<T> ? "a number" : "an integer");
  }
  T value{};
  H5_CHECK(H5Aread(attribute.id(), make_type(type_of<T>(), false).id(), &value), where, "reading the attribute");
  return value;
}

}  // namespace

void Object::set_attribute(const std::string& name, std::string_view value) {
  const std::string text(value);
  const char* pointer = text.c_str();
  write_attribute(*this, name, Type::text, &pointer);
}
void Object::set_attribute(const std::string& name, std::int64_t value) {
  write_attribute(*this, name, Type::int64, &value);
}
void Object::set_attribute(const std::string& name, std::uint64_t value) {
  write_attribute(*this, name, Type::uint64, &value);
}
void Object::set_attribute(const std::string& name, double value) {
  write_attribute(*this, name, Type::float64, &value);
}
void Object::set_attribute(const std::string& name, const std::vector<std::int64_t>& values) {
  write_attribute(*this, name, Type::int64, values.data(), {std::ssize(values)});
}
void Object::set_attribute(const std::string& name, const std::vector<std::string>& values) {
  write_attribute(*this, name, Type::text, pointers_to(values).data(), {std::ssize(values)});
}

bool Object::has_attribute(const std::string& name) const {
  const Lock lock;
  return H5Aexists(id(), name.c_str()) > 0;
}

std::string Object::text(const std::string& name) const {
  std::vector<std::string> values = texts(name);
  require_one(values.size(), fmt::format("{}@{}", where_, name));
  return std::move(values.front());
}
std::int64_t Object::integer(const std::string& name) const { return read_number<std::int64_t>(*this, name); }
std::uint64_t Object::natural(const std::string& name) const { return read_number<std::uint64_t>(*this, name); }
double Object::number(const std::string& name) const { return read_number<double>(*this, name); }
std::vector<std::string> Object::texts(const std::string& name) const {
  const Lock lock;
  const std::string where = fmt::format("{}@{}", where_, name);
  const OpenAttribute attribute = open_attribute(*this, name, where);
  const Handle stored(H5_CHECK(H5Aget_type(attribute.handle.id()), where, "reading the attribute's type"), H5Tclose);
  if (attribute.count == 0) return {};
  return read_strings(stored.id(), attribute.count, where,
                      [&](hid_t type, void* out) { return H5Aread(attribute.handle.id(), type, out); });
}

}  // namespace tessera::io::h5
