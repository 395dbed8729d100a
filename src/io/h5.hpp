/// HDF5 for the rest of the program: files, groups, datasets and attributes as move-only handles.
///
/// Only h5*.cpp and h5_calls.hpp see hdf5.h. Files are written in the earliest format (any HDF5 from 1.6 on reads
/// them), datasets contiguous in row-major order, text as UTF-8 strings of variable length. Every call is checked,
/// closing included, because HDF5 may report a full disk only there.
///
/// Throws  tessera::Failure(Exit::files) with path, operation, HDF5's reason, and what to do next.
/// Limits  serial HDF5: one process writes a file, any number may read it. Threads may use different files at the same
///         time; h5_handle.hpp has the lock.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "io/h5_handle.hpp"

namespace tessera::io::h5 {

/// Meaning of a dataset; written as its attributes `units` and `description`. Units "1" for plain numbers.
struct Meaning {
  std::string_view units = "1";
  std::string_view description;
};

/// A virtual dataset's source in another file. A relative `file` starts at the virtual dataset's own file.
struct Source {
  std::string file;
  std::string path;         // of a dataset there: the same shape or, with a `count`, [count]
  std::int64_t first = 0;   // which entries of the virtual dataset it holds, counted in row-major order: those
  std::int64_t count = -1;  // from `first` to first + count - 1; -1: all
};

/// Base of files, groups and datasets: attributes, and a name for messages ("run.h5:/steps/loss").
class Object {
 public:
  void set_attribute(const std::string& name, std::string_view value);
  void set_attribute(const std::string& name, std::int64_t value);
  void set_attribute(const std::string& name, std::uint64_t value);
  void set_attribute(const std::string& name, double value);
  void set_attribute(const std::string& name, const std::vector<std::int64_t>& values);
  void set_attribute(const std::string& name, const std::vector<std::string>& values);

  bool has_attribute(const std::string& name) const;
  std::string text(const std::string& name) const;
  std::int64_t integer(const std::string& name) const;  // integers and booleans of any width
  std::uint64_t natural(const std::string& name) const;
  double number(const std::string& name) const;  // floats and integers
  std::vector<std::string> texts(const std::string& name) const;

  const std::string& where() const { return where_; }
  Id id() const { return handle_.id(); }

 protected:
  Object() = default;
  Object(Handle handle, std::string where) : handle_(std::move(handle)), where_(std::move(where)) {}
  Handle handle_;
  std::string where_;
};

class Dataset : public Object {
 public:
  Type type() const;
  Shape shape() const;
  std::int64_t size() const;  // product of the extents

  /// Reads the whole dataset, or just `out.size()` entries from `first` on in row-major order. Floats read floats and
  /// integers read integers, of any width; a value out of range or of the other kind is refused, not converted, as is a
  /// file that was shortened since it was opened.
  template <class T>
  void read(std::span<T> out) const {
    read_as(type_of<T>(), out.data(), static_cast<std::int64_t>(out.size()));
  }
  template <class T>
  void read_from(std::int64_t first, std::span<T> out) const {
    read_range_as(type_of<T>(), out.data(), first, static_cast<std::int64_t>(out.size()));
  }
  template <class T>
  std::vector<T> values() const {
    std::vector<T> out(static_cast<std::size_t>(size()));
    read(std::span<T>(out));
    return out;
  }
  std::vector<std::string> strings() const;

  /// Writes the entries from `first` on, in row-major order.
  template <class T>
  void write_from(std::int64_t first, std::span<const T> values) {
    write_range_as(type_of<T>(), values.data(), first, static_cast<std::int64_t>(values.size()));
  }

  /// Throws  Failure(Exit::files) unless all entries have been written, to this file, and can be read. HDF5 silently
  ///         reads zeros for a dataset or chunk that was never written, and for entries of a virtual or external one
  ///         whose files are missing or were shortened; a filter that this HDF5 lacks looks like damage.
  void require_contents() const;
  /// Of a virtual dataset: the files, as it names them, in which entries from `first` on lie.
  std::vector<std::string> sources_of(std::int64_t first, std::int64_t count) const;

  void make_scale(const std::string& name);           // becomes the dimension scale `name`
  void attach_scale(const Dataset& scale, int axis);  // its axis `axis` is measured by `scale`
  void set_label(int axis, const std::string& name);  // a word for an axis, besides or without a scale

 private:
  friend class Group;
  using Object::Object;
  void read_as(Type, void* out, std::int64_t count) const;
  void read_range_as(Type, void* out, std::int64_t first, std::int64_t count) const;
  void write_range_as(Type, const void* values, std::int64_t first, std::int64_t count);
};

class Group : public Object {
 public:
  bool has(const std::string& path) const;         // "a/b/c": false where any part is missing
  std::vector<std::string> names() const;          // members, sorted
  std::vector<std::string> dataset_paths() const;  // all datasets below, "a/b/c", sorted
  Group group(const std::string& path) const;
  Group make_group(const std::string& path);  // with its parent groups; an existing one is opened
  Dataset dataset(const std::string& path) const;

  /// A dataset of `shape` for write_from; creates its parent groups.
  template <class T>
  Dataset make(const std::string& path, const Shape& shape, const Meaning& meaning) {
    return make_as(path, type_of<T>(), shape, meaning, kDefault);
  }
  /// The same with its `values`.
  template <class T>
  Dataset write(const std::string& path, const Shape& shape, std::span<const T> values, const Meaning& meaning) {
    return write_as(path, type_of<T>(), shape, values.data(), static_cast<std::int64_t>(values.size()), meaning);
  }
  template <class T>
  Dataset write(const std::string& path, const std::vector<T>& column, const Meaning& meaning) {
    return write(path, {static_cast<std::int64_t>(column.size())}, std::span<const T>(column), meaning);
  }
  Dataset write(const std::string& path, const std::vector<std::string>& column, const Meaning& meaning);

  /// A virtual dataset, made of `sources`. HDF5 silently reads zeros for entries without a source and for sources whose
  /// file is missing: verify both first.
  Dataset write_virtual(const std::string& path, Type, const Shape&, std::span<const Source> sources, const Meaning&);

 protected:
  using Object::Object;

 private:
  Dataset make_as(const std::string& path, Type, const Shape&, const Meaning&, Id creation);
  Dataset write_as(const std::string& path, Type, const Shape&, const void* values, std::int64_t count, const Meaning&);
};

/// A file and its root group.
class File : public Group {
 public:
  static File create(const std::filesystem::path&);  // truncates
  static File open(const std::filesystem::path&);    // read only
  /// Read only, while virtual datasets of another file read it: HDF5 shares it with them in this mode alone.
  static File open_source(const std::filesystem::path&);
  /// What wrote the file, as the attribute /info format says, "tessera run"; "" if it does not. Older versions wrote
  /// "tessera-experiment".
  std::string format() const;
  void close();  // checked; required after writing
  File(File&&) noexcept = default;
  File& operator=(File&&) noexcept = default;
  ~File() { handle_.close(); }  // the root group before its file

 private:
  File(Handle file, std::filesystem::path path, bool is_writing);
  Handle file_;
  std::filesystem::path path_;
  bool is_writing_ = false;
};

}  // namespace tessera::io::h5
