/// A group of equally long columns along one axis, as h5py and xarray read it: the axis's dimension scale comes first,
/// and every column is attached to it.
#pragma once

#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "io/h5.hpp"

namespace tessera::io {

class Table {
 public:
  template <class T>
  Table(h5::Group& parent, const std::string& path, const std::string& axis, const std::vector<T>& scale,
        const h5::Meaning& meaning)
      : group_(parent.make_group(path)), scale_(group_.write(axis, scale, meaning)) {
    scale_.make_scale(axis);
  }
  template <class T>
  void add(const std::string& name, const std::vector<T>& values, const h5::Meaning& meaning) {
    group_.write(name, values, meaning).attach_scale(scale_, 0);
  }
  h5::Group& group() { return group_; }
  const h5::Dataset& scale() const { return scale_; }

 private:
  h5::Group group_;
  h5::Dataset scale_;
};

/// One member of every row.
template <class Row, class Member>
auto column(const std::vector<Row>& rows, Member member) {
  using Value = std::remove_cvref_t<decltype(std::declval<Row>().*member)>;
  std::vector<Value> values;
  values.reserve(rows.size());
  for (const Row& row : rows) values.push_back(row.*member);
  return values;
}

/// A column that older files may lack: `count` times `missing` for those.
template <class T>
std::vector<T> load_column(const h5::Group& group, const std::string& path, std::size_t count, T missing) {
  return group.has(path) ? group.dataset(path).values<T>() : std::vector<T>(count, missing);
}

}  // namespace tessera::io
