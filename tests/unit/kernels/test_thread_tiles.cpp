// Which thread of a team owns which elements of a tile.
#include <gtest/gtest.h>

#include <map>
#include <utility>

#include "kernels/core/thread_tiles.hpp"

namespace tessera::test {
namespace {

/// How often the threads of a team own each pair of numbers that own(tiles) names.
template <class Tiles, class Own>
std::map<std::pair<int, int>, int> owners(const Own& own) {
  std::map<std::pair<int, int>, int> count;
  for (int rank = 0; rank < Tiles::kThreads; ++rank) own(Tiles(rank), [&](int a, int b) { ++count[{a, b}]; });
  return count;
}

::testing::AssertionResult covers_once(const std::map<std::pair<int, int>, int>& count, int rows, int columns) {
  if (static_cast<int>(count.size()) != rows * columns)
    return ::testing::AssertionFailure() << count.size() << " of " << rows * columns << " elements are owned";
  for (const auto& [at, times] : count) {
    if (times != 1 || at.first < 0 || at.first >= rows || at.second < 0 || at.second >= columns)
      return ::testing::AssertionFailure()
             << "(" << at.first << ", " << at.second << ") is owned " << times << " times";
  }
  return ::testing::AssertionSuccess();
}

template <class Real, int kDown, int kAcross>
void owns_every_element_once() {
  SCOPED_TRACE(::testing::Message() << kDown << " x " << kAcross << " threads");
  constexpr int kRows = kernels::kPacketElements<Real> * (kDown % 2 + 1), kColumns = 3, kPackets = 2;
  using Tiles = kernels::ThreadTiles<Real, kDown, kAcross, kRows>;
  const auto scores = owners<Tiles>([](const Tiles& own, auto visit) {
    for (int i = 0; i < kRows; ++i)
      for (int j = 0; j < kColumns; ++j) visit(own.row(i), own.column(j));
  });
  EXPECT_TRUE(covers_once(scores, kDown * kRows, kAcross * kColumns));
  const auto output = owners<Tiles>([](const Tiles& own, auto visit) {
    for (int i = 0; i < kRows; ++i)
      for (int g = 0; g < kPackets; ++g)
        for (int e = 0; e < Tiles::kPack; ++e) visit(own.row(i), own.channel(g) + e);
  });
  EXPECT_TRUE(covers_once(output, kDown * kRows, kAcross * kPackets * Tiles::kPack));
  const auto transposed = owners<Tiles>([](const Tiles& own, auto visit) {
    for (int i = 0; i < kRows; ++i)
      for (int j = 0; j < kColumns; ++j) visit(own.column(j), own.position(i));
  });
  EXPECT_TRUE(covers_once(transposed, kAcross * kColumns, kDown * kRows));
}

template <class Real, int... kCells>
void owns_every_element_once(std::integer_sequence<int, kCells...>) {
  (owns_every_element_once<Real, kCells / 16 + 1, kCells % 16 + 1>(), ...);
}

TEST(ThreadTiles, own_every_element_of_a_tile_once_in_teams_of_1_to_256) {
  owns_every_element_once<float>(std::make_integer_sequence<int, 256>());
}

TEST(ThreadTiles, own_every_element_of_a_tile_once_in_doubles) {
  owns_every_element_once<double, 1, 1>();
  owns_every_element_once<double, 3, 5>();
  owns_every_element_once<double, 8, 4>();
  owns_every_element_once<double, 16, 16>();
}

}  // namespace
}  // namespace tessera::test
