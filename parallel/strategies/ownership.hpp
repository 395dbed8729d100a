/// Which elements a rank keeps and updates. Arithmetic only; used by plan, strategy, training state and checkpoint.
///
/// All parameters are contiguous in a flat index space, divided into units (embedding, each block, head). For S ranks
/// each unit is divided into S parts of equal length. S is arbitrary: the last parts may lie partly or wholly in
/// padding, which exists in memory but never in files.
///
///   flat       | unit 0     | unit 1        | ...            what files and random numbers count
///   whole      | unit 0 . . | unit 1 . . .  | ...            every unit padded to S parts
///   owned      | part of unit 0 | part of unit 1 | ...       what one rank keeps, padding included
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tessera::parallel {

/// Elements first .. first + count - 1 of the flat index space.
struct Range {
  std::int64_t first, count;
};

struct Unit {
  std::string label;
  std::int64_t first, count;  // in the flat index space, where each follows the one before
};

class Ownership {
 public:
  static constexpr std::int64_t kAlignment = 64;  // elements; every part is a multiple

  /// Throws  std::invalid_argument for fewer than one shard, or units that are not contiguous.
  Ownership(std::vector<Unit> units, int shards);

  int shards() const { return shards_; }
  int units() const { return static_cast<int>(units_.size()); }
  const Unit& operator[](int unit) const { return units_[unit]; }

  std::int64_t part(int unit) const { return parts_[unit]; }              // elements of each of its S parts
  std::int64_t padded(int unit) const { return shards_ * parts_[unit]; }  // of all S parts together

  std::int64_t whole_first(int unit) const { return shards_ * owned_first_[unit]; }  // where it begins in `whole`
  std::int64_t whole_count() const { return shards_ * owned_count(); }
  std::int64_t owned_first(int unit) const { return owned_first_[unit]; }  // where its part begins in `owned`
  std::int64_t owned_count() const { return owned_first_.back(); }

  /// The elements of a unit that shard `shard` owns; none if its part is all padding.
  Range owned(int unit, int shard) const;

 private:
  std::vector<Unit> units_;
  int shards_;
  std::vector<std::int64_t> parts_, owned_first_;  // [units], [units + 1]
};

/// For units opened in this order, `times` times over, in initially empty `places[unit]`: whether each opening finds
/// its unit still in place, because no other unit has used the place since.
std::vector<bool> stays_in_place(const std::vector<int>& openings, int times, const std::vector<int>& places);

}  // namespace tessera::parallel
