#include "parallel/watch/flight_recorder.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>

#include <fmt/format.h>

namespace tessera::parallel {
namespace {

constexpr std::size_t kShown = 8;           // of a lane's latest transfers, and
constexpr std::size_t kShownUnderWay = 16;  // of those under way

template <class Number>
Number load(const Number& from, std::memory_order order = std::memory_order_relaxed) {
  return std::atomic_ref(const_cast<Number&>(from)).load(order);
}
template <class Number>
void store(Number& to, Number value, std::memory_order order = std::memory_order_relaxed) {
  std::atomic_ref(to).store(value, order);
}

std::string size_of(std::int64_t bytes) {
  if (bytes < 10'000) return fmt::format("{} bytes", bytes);
  if (bytes < 10'000'000) return fmt::format("{:.1f} kB", 1e-3 * static_cast<double>(bytes));
  return fmt::format("{:.1f} MB", 1e-6 * static_cast<double>(bytes));
}

double seconds_since(std::int64_t ns) { return 1e-9 * static_cast<double>(FlightRecorder::now_ns() - ns); }

std::string place_of(int lane) { return lane == 0 ? "" : fmt::format(" on stream {}", lane); }

}  // namespace

static_assert(sizeof(FlightRecorder::Lane) == FlightRecorder::kPage);

FlightRecorder::FlightRecorder(std::unique_ptr<SharedMemory> memory, int slot, int slots, int rank, int ranks)
    : memory_(std::move(memory)),
      pages_(static_cast<Page*>(memory_->data())),
      slot_(slot),
      slots_(slots),
      rank_(rank),
      ranks_(ranks) {
  store(mine().head.rank_and_1, std::int64_t{rank} + 1, std::memory_order_release);
}

FlightRecorder::FlightRecorder() : FlightRecorder(std::make_unique<SharedMemory>(bytes_for(1)), 0, 1, 0, 1) {
  memory_->close_to_others();
}

std::int64_t FlightRecorder::now_ns() {
  using namespace std::chrono;
  return duration_cast<nanoseconds>(steady_clock::now().time_since_epoch()).count();
}

std::uint32_t FlightRecorder::name(std::string_view operation, std::string_view label) {
  const std::lock_guard lock(words_);
  const auto is_it = [&](const Name& name) { return name.operation == operation && name.label == label; };
  const auto known = std::find_if(names_.begin(), names_.end(), is_it);
  const auto number = static_cast<std::uint32_t>(known - names_.begin());
  if (known == names_.end()) names_.push_back({std::string(operation), std::string(label)});
  return number;
}

std::uint64_t FlightRecorder::begin(std::uint32_t name, std::int64_t bytes) {
  Lane& lane = mine().lanes[0];
  const std::uint64_t number = load(lane.started) + 1;
  Entry& entry = lane.ring[number % kKept];
  constexpr auto release = std::memory_order_release;  // who reads any of the new entry also sees the number before it
  store(entry.start_ns, now_ns(), release);
  store(entry.end_ns, std::int64_t{0}, release);
  store(entry.bytes, bytes, release);
  store(entry.name, std::uint64_t{name}, release);
  store(lane.started, number, release);
  return number;
}

void FlightRecorder::end(std::uint64_t number) {
  Lane& lane = mine().lanes[0];
  if (number + kKept > load(lane.started)) store(lane.ring[number % kKept].end_ns, now_ns());
  store(lane.completed, load(lane.completed) + 1, std::memory_order_release);
}

FlightRecorder::Lane* FlightRecorder::take_lane() {
  const auto free = std::find(is_taken_.begin(), is_taken_.end(), false);
  if (free == is_taken_.end()) return nullptr;
  *free = true;
  return &mine().lanes[free - is_taken_.begin()];
}

void FlightRecorder::give_back(Lane* lane) {
  if (lane) is_taken_[static_cast<std::size_t>(lane - mine().lanes)] = false;
}

void FlightRecorder::explain(std::string why) {
  const std::lock_guard lock(words_);
  why_not_recorded_ = std::move(why);
}

void FlightRecorder::beat() { store(mine().head.beat_ns, now_ns()); }
void FlightRecorder::rest() { store(mine().head.beat_ns, std::int64_t{0}); }

/// This rank's transfers whose entries are complete, oldest first.
std::vector<FlightRecorder::Kept> FlightRecorder::kept_in(int number) const {
  const Lane& lane = mine().lanes[number];
  constexpr auto acquire = std::memory_order_acquire;
  const std::uint64_t last = load(lane.started, acquire);
  std::vector<Kept> kept;
  for (std::uint64_t n = last < kKept ? 1 : last - kKept + 1; n <= last; ++n) {
    const Entry& entry = lane.ring[n % kKept];
    kept.push_back({n,
                    {load(entry.start_ns, acquire), load(entry.end_ns, acquire), load(entry.bytes, acquire),
                     load(entry.name, acquire)}});
  }
  const std::uint64_t latest = load(lane.started);  // the one after it may be in the middle of being written
  std::erase_if(kept, [&](const Kept& k) { return k.number + kKept <= latest + 1; });
  return kept;
}

std::vector<FlightRecorder::Progress> FlightRecorder::progress_in(int lane) const {
  std::vector<Progress> all;
  for (int slot = 0; slot < slots_; ++slot) {
    const Page& page = pages_[slot];
    const auto rank = load(page.head.rank_and_1, std::memory_order_acquire) - 1;
    const std::uint64_t completed = load(page.lanes[lane].completed, std::memory_order_acquire);
    if (rank >= 0) all.push_back({static_cast<int>(rank), load(page.lanes[lane].started), completed});
  }
  return all;
}

std::string FlightRecorder::words_for(const Entry& entry) {
  const std::unique_lock lock(words_, std::try_to_lock);  // the thread that holds it may be the one that hangs
  const Name name = lock && entry.name < names_.size() ? names_[entry.name] : Name{"a transfer", "unknown name"};
  return fmt::format("{} of {} ({})", name.operation, name.label, size_of(entry.bytes));
}

/// "; waiting ..." for the transfer that this rank has had under way for longest in a lane, from number `first` on;
/// empty: none.
std::string FlightRecorder::awaited_in(int lane, std::uint64_t first) {
  for (const Kept& kept : kept_in(lane)) {
    if (kept.number < first || kept.entry.end_ns != 0) continue;
    return fmt::format("; waiting for it: {}, for {:.1f} s", words_for(kept.entry), seconds_since(kept.entry.start_ns));
  }
  return "";
}

/// Whether any rank is behind in that lane, by that measure.
bool FlightRecorder::report_behind(int lane, std::uint64_t Progress::*measure, std::vector<std::string>& lines) {
  std::vector<Progress> all = progress_in(lane);
  std::uint64_t most = 0;
  for (const Progress& progress : all) most = std::max(most, progress.*measure);
  std::erase_if(all, [&](const Progress& progress) { return progress.*measure == most; });
  const bool is_of_starts = measure == &Progress::started;
  for (const Progress& late : all) {
    const std::string line =
        fmt::format("rank {}{} is behind: it has {} {} transfers{}, {} {}", late.rank,
                    late.rank == rank_ ? ", this one," : "", is_of_starts ? "started" : "completed", late.*measure,
                    place_of(lane), all.size() == 1 ? "the others" : "the foremost", most);
    const std::uint64_t first = is_of_starts ? late.started + 1 : 1;
    lines.push_back(late.rank == rank_ ? line : line + awaited_in(lane, first));
  }
  return !all.empty();
}

/// 0: it gives no signs of life, or is this rank.
double FlightRecorder::silence_s(int slot) const {
  const std::int64_t beat_ns = slot == slot_ ? 0 : load(pages_[slot].head.beat_ns);
  return beat_ns == 0 ? 0 : seconds_since(beat_ns);
}

double FlightRecorder::longest_silence_s() const {
  double longest_s = 0;
  for (int slot = 0; slot < slots_; ++slot) longest_s = std::max(longest_s, silence_s(slot));
  return longest_s;
}

bool FlightRecorder::report_silent(double silent_s, std::vector<std::string>& lines) {
  const std::size_t before = lines.size();
  for (int slot = 0; slot < slots_; ++slot) {
    const double silence = silence_s(slot);
    if (silence == 0 || silence < silent_s) continue;
    std::string awaited;
    for (int lane = 0; lane < kLanes && awaited.empty(); ++lane) awaited = awaited_in(lane, 1);
    lines.push_back(
        fmt::format("rank {} has given no sign of life for {:.1f} s: it is stopped, or its process is gone{}",
                    load(pages_[slot].head.rank_and_1) - 1, silence, awaited));
  }
  return lines.size() > before;
}

void FlightRecorder::report_unseen(std::vector<std::string>& lines) const {
  const auto seen = static_cast<int>(progress_in(0).size());
  if (!memory_->fault().empty()) {
    lines.push_back("the progress of the other ranks is not visible here: " + memory_->fault());
  } else if (seen < ranks_) {
    lines.push_back(fmt::format("{} of {} ranks, those of other hosts, are not visible here: see their own messages",
                                ranks_ - seen, ranks_));
  }
}

/// Those under way, then the latest completed ones, each oldest first.
void FlightRecorder::report_latest(int lane, std::vector<std::string>& lines) {
  const std::vector<Kept> kept = kept_in(lane);
  if (kept.empty()) return;
  std::vector<Kept> under_way, over;
  for (const Kept& k : kept) (k.entry.end_ns == 0 ? under_way : over).push_back(k);
  if (over.size() > kShown) over.erase(over.begin(), over.end() - kShown);
  lines.push_back("its transfers under way" + place_of(lane) +
                  (under_way.empty() ? ": none; the last:" : ", and the last:"));
  const auto show = [&](const Kept& k, const std::string& state) {
    lines.push_back(fmt::format("  #{}  {}, {}", k.number, words_for(k.entry), state));
  };
  for (std::size_t i = 0; i < under_way.size() && i < kShownUnderWay; ++i) {
    show(under_way[i], fmt::format("started {:.3f} s ago, under way", seconds_since(under_way[i].entry.start_ns)));
  }
  if (under_way.size() > kShownUnderWay) {
    lines.push_back(fmt::format("  and {} more under way", under_way.size() - kShownUnderWay));
  }
  for (const Kept& k : over) {
    show(k, fmt::format("ended {:.3f} s ago after {:.3f} ms", seconds_since(k.entry.end_ns),
                        1e-6 * static_cast<double>(k.entry.end_ns - k.entry.start_ns)));
  }
}

std::vector<std::string> FlightRecorder::report(double silent_s) {
  std::vector<std::string> lines;
  bool is_anyone_late = report_silent(silent_s, lines);  // first: most likely the cause of all the rest
  for (int lane = 0; lane < kLanes; ++lane) is_anyone_late |= report_behind(lane, &Progress::started, lines);
  if (!is_anyone_late) {  // completions say less about who is late
    for (int lane = 0; lane < kLanes; ++lane) is_anyone_late |= report_behind(lane, &Progress::completed, lines);
  }
  if (!is_anyone_late && memory_->fault().empty()) {
    std::uint64_t started = 0;
    for (const Lane& lane : mine().lanes) started += load(lane.started);
    lines.push_back(fmt::format("no rank of this host is behind: each has started {} transfers", started));
  }
  report_unseen(lines);
  if (const std::unique_lock lock(words_, std::try_to_lock); lock && !why_not_recorded_.empty()) {
    lines.push_back("transfers of the GPU are not recorded: " + why_not_recorded_);
  }
  for (int lane = 0; lane < kLanes; ++lane) report_latest(lane, lines);
  return lines;
}

}  // namespace tessera::parallel
