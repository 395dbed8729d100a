/// The ranks of this launch: who am I, who shares my host, and the few exchanges of small host values.
///
/// Owns MPI: constructed once in main, finalised when it goes; where MPI runs already (a test, a host program) it only
/// borrows it. MPI runs FUNNELED: only the main thread calls in.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "parallel/collective.hpp"

namespace tessera::parallel {

class World {
 public:
  World(int& argc, char**& argv);
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  int local_rank() const { return local_rank_; }  // among the ranks of this host
  int local_size() const { return local_size_; }
  const std::string& hosts() const { return hosts_; }  // "node1: 4 ranks, node2: 4 ranks"

  Collectives& collectives() { return *collectives_; }

  // Small values, collective, blocking.
  bool any(bool mine) const;
  int max(int mine) const;
  std::vector<double> sum(std::vector<double> mine) const;
  std::vector<std::string> all_gather(const std::string& mine) const;
  std::string broadcast(std::string from_root) const;
  void barrier() const;

  /// Ends every rank of the launch with `code`.
  [[noreturn]] void abort(int code) const;

 private:
  bool owns_mpi_ = false;
  int rank_ = 0, size_ = 1, local_rank_ = 0, local_size_ = 1;
  std::string hosts_;
  std::unique_ptr<Collectives> collectives_;
};

/// Throws Failure(Exit::environment) when MPI has `ranks` ranks and `slurm_ntasks` (null: not under Slurm) says
/// otherwise.
void check_launcher(int ranks, const char* slurm_ntasks);

/// The device of a rank: its local rank. -1 where there are no devices. Throws Failure(Exit::environment) when ranks
/// would share a device, unless `allow_shared`.
int choose_device(int local_rank, int local_ranks, int devices, bool allow_shared);

std::unique_ptr<Collectives> make_mpi_collectives();

}  // namespace tessera::parallel
