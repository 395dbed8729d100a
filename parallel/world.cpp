#include "parallel/world.hpp"

#include "parallel/collectives/collective.hpp"
#include "parallel/collectives/mpi.hpp"
#include "parallel/collectives/mpi_check.hpp"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <numeric>
#include <stdexcept>

#include <fmt/format.h>

#include "kernels/core/events.hpp"
#include "kernels/core/words.hpp"

namespace tessera::parallel {

namespace {

/// A recorder in memory that the ranks of this host share.
std::unique_ptr<FlightRecorder> make_recorder(MPI_Comm host, int rank, int ranks) {
  if (ranks == 1) return std::make_unique<FlightRecorder>();
  int slot = 0, slots = 1;
  MPI_CHECK(MPI_Comm_rank(host, &slot));
  MPI_CHECK(MPI_Comm_size(host, &slots));
  const std::size_t bytes = FlightRecorder::bytes_for(slots);
  std::unique_ptr<SharedMemory> memory;
  SharedMemory::Address address{};
  if (slot == 0) {
    memory = std::make_unique<SharedMemory>(bytes);
    address = memory->address();
  }
  MPI_CHECK(MPI_Bcast(address.data(), static_cast<int>(address.size()), MPI_CHAR, 0, host));
  if (slot > 0) memory = std::make_unique<SharedMemory>(bytes, address);
  MPI_CHECK(MPI_Barrier(host));
  memory->close_to_others();
  return std::make_unique<FlightRecorder>(std::move(memory), slot, slots, rank, ranks);
}

}  // namespace

World::World(int& argc, char**& argv, Meaning meaning) : meaning_(std::move(meaning)) {
  int is_running = 0, provided = 0;
  MPI_CHECK(MPI_Initialized(&is_running));
  owns_mpi_ = !is_running;
  if (owns_mpi_) MPI_CHECK(MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &provided));
  MPI_CHECK(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
  MPI_CHECK(MPI_Comm_rank(MPI_COMM_WORLD, &rank_));
  MPI_CHECK(MPI_Comm_size(MPI_COMM_WORLD, &size_));

  MPI_Comm host = MPI_COMM_NULL;
  MPI_CHECK(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &host));
  MPI_CHECK(MPI_Comm_rank(host, &local_rank_));
  MPI_CHECK(MPI_Comm_size(host, &local_size_));
  recorder_ = make_recorder(host, rank_, size_);
  MPI_CHECK(MPI_Comm_free(&host));

  char name[MPI_MAX_PROCESSOR_NAME];
  int length = 0;
  MPI_CHECK(MPI_Get_processor_name(name, &length));
  std::vector<int> local_ranks(size_);
  MPI_CHECK(MPI_Allgather(&local_rank_, 1, MPI_INT, local_ranks.data(), 1, MPI_INT, MPI_COMM_WORLD));
  const std::vector<std::string> names = all_gather(std::string(name, length));
  for (int r = 0; r < size_; ++r) places_.push_back({.rank = r, .local_rank = local_ranks[r], .host = names[r]});
  mpi_ = make_mpi_collectives(*recorder_, [this] { made_progress(); });
}

World::~World() {
  watchdog_.reset();
  in_use_.reset();
  mpi_.reset();
  int is_finalized = 0;
  MPI_Finalized(&is_finalized);
  if (owns_mpi_ && !is_finalized) MPI_Finalize();
}

void World::use(std::unique_ptr<Collectives> collectives) {
  const std::lock_guard lock(asking_);
  in_use_ = std::move(collectives);
}

void World::start_watchdog(double limit_s, int exit_code) {
  watchdog_.reset();
  if (limit_s <= 0 || size_ == 1) return;
  // The thread that holds the lock may hang: the watchdog never waits for it.
  const auto fault = [this] {
    const std::unique_lock lock(asking_, std::try_to_lock);
    return lock && in_use_ && !is_leaving_ ? in_use_->fault() : std::string();
  };
  const auto abandon = [this] {
    const std::unique_lock lock(asking_, std::try_to_lock);
    if (lock && in_use_) in_use_->abandon();
  };
  watchdog_ = std::make_unique<Watchdog>(rank_, limit_s, exit_code, fault, abandon, recorder_.get());
}

World::Watch::Watch(World& world, std::string_view what, double patience)
    : world_(world), watch_(world.watchdog_.get(), what, patience), exceptions_(std::uncaught_exceptions()) {
  world_.is_leaving_ = false;
}

World::Watch::~Watch() {
  if (std::uncaught_exceptions() == exceptions_ || world_.is_leaving_) return;
  world_.leave();
  const std::lock_guard lock(world_.asking_);
  if (world_.in_use_) world_.in_use_->abandon();
}

void World::made_progress() {
  if (watchdog_) watchdog_->made_progress();
}

void World::expect_silence(double silence_s) {
  if (watchdog_) watchdog_->expect_silence(silence_s);
}

void World::leave() {
  if (watchdog_) watchdog_->leave();
}

void World::leave(const std::exception& caught) {
  leave();  // first: finding the cause may itself wait for the GPU
  const Departure departure = meaning_(*this, caught);
  if (watchdog_) watchdog_->leave(departure);
}

void World::stay() {
  if (watchdog_) watchdog_->stay();
  barrier();  // none watches the others before all stay
  is_leaving_ = false;
}

void World::leave_together() {
  is_leaving_ = true;  // before anyone can get past the barrier
  barrier();
}

/// "4 its message"; other text is bytes of another exchange, if ranks are out of step.
std::string World::problem_by(const std::exception& caught) const {
  const Departure departure = meaning_(*this, caught);
  return fmt::format("{} {}", departure.exit_code, departure.why);
}

std::string World::problem_of(const std::function<void()>& work) const {
  try {
    work();
  } catch (const std::exception& caught) {
    return problem_by(caught);
  }
  return "";
}

void World::fail(const std::exception& common) {
  agree(problem_by(common));
  throw std::logic_error("World::fail: no rank has failed");
}

void World::fail(const std::string& problem, const std::string& where) {
  int code = 0;
  const char* const end = problem.data() + problem.size();
  const auto [space, error] = std::from_chars(problem.data(), end, code);
  const bool is_whole = error == std::errc() && space != end && *space == ' ';
  const Departure departure =
      is_whole ? Departure{code, std::string(space + 1, end)} : meaning_(*this, EnvironmentError(problem));
  {
    const Watch watch(*this, "the end of all ranks", kPatience);
    leave_together();
  }
  throw AgreedError({departure.exit_code, where + departure.why});
}

void World::agree(const std::string& problem) {
  const std::vector<std::string> problems = all_gather(problem);
  std::vector<int> failed;
  for (int rank = 0; rank < size_; ++rank) {
    if (!problems[rank].empty()) failed.push_back(rank);
  }
  if (failed.empty()) return;
  fail(problems[failed[0]], std::ssize(failed) == size_ ? "" : fmt::format("rank {}: ", fmt::join(failed, ", ")));
}

void World::agree_on_root(const std::function<void()>& work) {
  const std::string problem = broadcast(rank_ == 0 ? problem_of(work) : "");
  if (!problem.empty()) fail(problem, "");
}

std::vector<std::string> World::all_gather(const std::function<std::string()>& work) {
  std::string result;
  const std::string problem = problem_of([&] { result = work(); });
  std::vector<std::string> all = all_gather(problem.empty() ? "+" + result : "-" + problem);
  for (std::string& text : all) {
    if (!text.starts_with('+')) fail(text.substr(std::min<std::size_t>(1, text.size())), "");
    text.erase(0, 1);
  }
  return all;
}

/// Reports only the start, since exchanges are short: a rank hangs in the last one reported.
template <class Action>
void World::exchange(std::string_view name, std::int64_t bytes, const Action& action) const {
  constexpr std::string_view kLabel = "host values";
  events::report(events::CommunicationStart{name, kLabel, bytes, events::now_s()});
  const std::uint64_t number = recorder_->begin(recorder_->name(name, kLabel), bytes);
  action();
  recorder_->end(number);
}

bool World::any(bool mine) const { return max(mine ? 1 : 0) != 0; }

int World::max(int mine) const { return static_cast<int>(max(std::vector{static_cast<double>(mine)})[0]); }

std::vector<double> World::max(std::vector<double> mine) const {
  exchange("max[mpi]", static_cast<std::int64_t>(mine.size() * sizeof(double)), [&] {
    MPI_CHECK(
        MPI_Allreduce(MPI_IN_PLACE, mine.data(), static_cast<int>(mine.size()), MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD));
  });
  return mine;
}

std::vector<double> World::sum(std::vector<double> mine) const {
  exchange("sum[mpi]", static_cast<std::int64_t>(mine.size() * sizeof(double)), [&] {
    MPI_CHECK(
        MPI_Allreduce(MPI_IN_PLACE, mine.data(), static_cast<int>(mine.size()), MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD));
  });
  return mine;
}

std::vector<std::string> World::all_gather(const std::string& mine) const {
  std::vector<int> lengths(size_), offsets(size_);
  std::string all;
  exchange("all_gather[mpi]", static_cast<std::int64_t>(mine.size()), [&] {
    const int length = static_cast<int>(mine.size());
    MPI_CHECK(MPI_Allgather(&length, 1, MPI_INT, lengths.data(), 1, MPI_INT, MPI_COMM_WORLD));
    std::exclusive_scan(lengths.begin(), lengths.end(), offsets.begin(), 0);
    all.resize(static_cast<std::size_t>(offsets.back() + lengths.back()));
    MPI_CHECK(MPI_Allgatherv(mine.data(), length, MPI_CHAR, all.data(), lengths.data(), offsets.data(), MPI_CHAR,
                             MPI_COMM_WORLD));
  });
  std::vector<std::string> texts;
  for (int r = 0; r < size_; ++r) texts.push_back(all.substr(offsets[r], lengths[r]));
  return texts;
}

std::string World::broadcast(std::string from_root) const {
  exchange("broadcast[mpi]", static_cast<std::int64_t>(from_root.size()), [&] {
    int length = static_cast<int>(from_root.size());
    MPI_CHECK(MPI_Bcast(&length, 1, MPI_INT, 0, MPI_COMM_WORLD));
    from_root.resize(length);
    MPI_CHECK(MPI_Bcast(from_root.data(), length, MPI_CHAR, 0, MPI_COMM_WORLD));
  });
  return from_root;
}

void World::barrier() const {
  exchange("barrier[mpi]", 0, [] { MPI_CHECK(MPI_Barrier(MPI_COMM_WORLD)); });
}

void World::abort(int code) const {
  MPI_Abort(MPI_COMM_WORLD, code);
  std::_Exit(code);
}

void check_launcher(int ranks, const std::function<const char*(const char*)>& environment) {
  // What Open MPI's mpirun and MPICH's set, and what of it is the number of ranks.
  constexpr std::pair<const char*, const char*> kMpiruns[] = {{"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_SIZE"},
                                                              {"MPI_LOCALNRANKS", "PMI_SIZE"}};
  for (const auto& [sign, count] : kMpiruns) {
    if (!environment(sign)) continue;
    const char* const started = environment(count);
    if (!started || std::atoi(started) == ranks) return;
    throw EnvironmentError(
        "MPI has {} but mpirun started {}: it belongs to another MPI than the program's, which tessera --show-config "
        "names; start with that one's",
        counted(ranks, "rank"), started);
  }
  const char* const tasks = environment("SLURM_STEP_NUM_TASKS");
  if (!tasks || !environment("SLURM_STEP_ID") || std::atoi(tasks) == ranks) return;
  throw EnvironmentError(
      "MPI has {} but SLURM_STEP_NUM_TASKS is {}: start with srun --mpi=pmix (srun --mpi=list names what this Slurm "
      "has), or with mpirun",
      counted(ranks, "rank"), tasks);
}

}  // namespace tessera::parallel
