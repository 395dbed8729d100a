#include "parallel/soundness.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <vector>

#include <fmt/format.h>

#include "parallel/errors.hpp"
#include "parallel/world.hpp"

namespace tessera::parallel {
namespace {

constexpr int kMostNamed = 8;

bool share_devices(std::span<const Place> places) {
  return std::any_of(places.begin(), places.end(),
                     [&](const Place& place) { return count_ranks_on_device(places, place) > 1; });
}

/// By the GPU's name.
std::map<std::string, double> medians(std::span<const Place> places, std::span<const Soundness> found) {
  std::map<std::string, std::vector<double>> measured;
  for (std::size_t rank = 0; rank < places.size(); ++rank) {
    if (found[rank].gbyte_per_s > 0) measured[places[rank].gpu].push_back(found[rank].gbyte_per_s);
  }
  std::map<std::string, double> result;
  for (auto& [gpu, values] : measured) {
    const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
    std::nth_element(values.begin(), middle, values.end());
    result[gpu] = *middle;
  }
  return result;
}

}  // namespace

std::string unsound_ranks(std::span<const Place> places, std::span<const Soundness> found) {
  const std::map<std::string, double> median_of =
      share_devices(places) ? std::map<std::string, double>{} : medians(places, found);
  std::string text;
  int faults = 0;
  for (std::size_t rank = 0; rank < places.size(); ++rank) {
    const Place& place = places[rank];
    std::string fault;
    const auto median = median_of.find(place.gpu);
    if (!found[rank].wrong.empty()) {
      fault = "computes wrongly: " + found[rank].wrong;
    } else if (median != median_of.end() && found[rank].gbyte_per_s < kLeastBandwidth * median->second) {
      fault = fmt::format("is slow: its memory copies {} GB/s, the ranks' median is {}",
                          std::lround(found[rank].gbyte_per_s), std::lround(median->second));
    }
    if (fault.empty() || ++faults > kMostNamed) continue;
    const std::string device = place.gpu.empty()
                                   ? "processor of " + place.host
                                   : "GPU " + device_name(place) + (place.uuid.empty() ? "" : " (" + place.uuid + ")");
    text += fmt::format("the {}, rank {}'s, {}\n", device, rank, fault);
  }
  if (faults == 0) return "";
  if (faults > kMostNamed) text += fmt::format("and {} more\n", faults - kMostNamed);
  return text +
         "start without that host or GPU (sbatch --exclude, CUDA_VISIBLE_DEVICES) and have it looked at; of a slow "
         "one, first see with nvidia-smi whether another program uses it";
}

void require_sound(World& world, const Soundness& mine) {
  const std::vector<std::string> wrong = world.all_gather(mine.wrong);
  std::vector<double> measured(2 * world.size());  // of each rank the rate and the time
  measured[2 * world.rank()] = mine.gbyte_per_s;
  measured[2 * world.rank() + 1] = mine.took_s;
  measured = world.sum(std::move(measured));
  std::vector<Soundness> found;
  std::vector<Place> places = world.places();
  for (int rank = 0; rank < world.size(); ++rank) {
    found.push_back({wrong[rank], measured[2 * rank], measured[2 * rank + 1]});
    places[rank].gbyte_per_s = found[rank].gbyte_per_s;
    places[rank].check_s = found[rank].took_s;
  }
  const std::string text = unsound_ranks(places, found);
  if (!text.empty()) world.fail(EnvironmentError(text));
  world.set_places(std::move(places));
}

}  // namespace tessera::parallel
