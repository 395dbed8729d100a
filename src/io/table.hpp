/// A group of equally long columns along one axis, as h5py and xarray read it: the axis's dimension scale comes first,
/// and every column is attached to it. One list of columns per table serves writing and loading.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "io/h5.hpp"

namespace tessera::io {

template <class Row>
struct Column {
  const char* name;
  h5::Meaning meaning;
  std::variant<double Row::*, std::int64_t Row::*, std::int32_t Row::*, std::uint8_t Row::*, std::string Row::*> member;
  bool is_optional = false;  // older files may lack it
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

inline std::vector<std::int64_t> numbers_up_to(std::size_t count) {
  std::vector<std::int64_t> numbers(count);
  std::iota(numbers.begin(), numbers.end(), 0);
  return numbers;
}

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
  template <class Row, std::size_t kCount>
  void add(const Column<Row> (&columns)[kCount], const std::vector<Row>& rows) {
    for (const Column<Row>& c : columns) {
      std::visit([&](auto member) { add(c.name, column(rows, member), c.meaning); }, c.member);
    }
  }
  /// Columns of numbers. Their first `kept` rows are copied from `earlier` in pieces; what it lacks has its default.
  template <class Row, std::size_t kCount>
  void add(const Column<Row> (&columns)[kCount], const h5::Group* earlier, std::int64_t kept,
           const std::vector<Row>& rows) {
    constexpr std::int64_t kPiece = 1 << 14;
    for (const Column<Row>& c : columns) {
      const bool is_known = kept > 0 && earlier->has(c.name);
      std::visit(
          [&]<class T>(T Row::*member) {
            if constexpr (std::is_same_v<T, std::string>)
              throw std::logic_error("a column of text");
            else {
              h5::Dataset made = group_.make<T>(c.name, {kept + std::ssize(rows)}, c.meaning);
              made.attach_scale(scale_, 0);
              std::vector<T> piece;
              for (std::int64_t first = 0; first < kept; first += kPiece) {
                piece.assign(static_cast<std::size_t>(std::min(kPiece, kept - first)), Row{}.*member);
                if (is_known) earlier->dataset(c.name).read_from(first, std::span<T>(piece));
                made.write_from(first, std::span<const T>(piece));
              }
              piece = column(rows, member);
              made.write_from(kept, std::span<const T>(piece));
            }
          },
          c.member);
    }
  }
  h5::Group& group() { return group_; }
  const h5::Dataset& scale() const { return scale_; }

 private:
  h5::Group group_;
  h5::Dataset scale_;
};

template <class T>
std::vector<T> values_of(const h5::Dataset& dataset) {
  if constexpr (std::is_same_v<T, std::string>) {
    return dataset.strings();
  } else {
    return dataset.values<T>();
  }
}

/// As many rows as the column `longest` has, from a group of columns.
/// Throws  std::out_of_range if the others differ in length.
template <class Row, std::size_t kCount>
std::vector<Row> load_rows(const h5::Group& group, const std::string& longest, const Column<Row> (&columns)[kCount]) {
  std::vector<Row> rows(static_cast<std::size_t>(group.dataset(longest).size()));
  for (const Column<Row>& c : columns) {
    if (c.is_optional && !group.has(c.name)) continue;
    std::visit(
        [&]<class T>(T Row::*member) {
          const std::vector<T> values = values_of<T>(group.dataset(c.name));
          if (values.size() != rows.size()) throw std::out_of_range(c.name);
          for (std::size_t i = 0; i < rows.size(); ++i) rows[i].*member = values[i];
        },
        c.member);
  }
  return rows;
}

}  // namespace tessera::io
