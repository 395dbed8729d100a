/// Which library performs the collectives: as the deck requests and the machine allows.
#pragma once

#include <memory>

#include "parallel/collectives/collective.hpp"
#include "parallel/device.hpp"
#include "parallel/world.hpp"

namespace tessera::parallel {

/// Whether this build has NCCL.
#ifdef TESSERA_HAVE_NCCL
inline constexpr bool kHasNccl = true;
#else
inline constexpr bool kHasNccl = false;
#endif

/// For all ranks, each with its own GPU, in builds with NCCL: copy engines if all ranks are on one host and can access
/// each other's memory, else NCCL's ring. Beside copy engines, the ring still carries broadcasts and groups and detects
/// lost ranks. Collective; create and destroy it as make_nccl_collectives() says (parallel/collectives/nccl.hpp).
/// Throws  EnvironmentError if the ranks cannot be connected, or not by the requested method.
std::unique_ptr<Collectives> make_gpu_collectives(const World& world, TransferMethod method);

enum class Library { automatic, mpi, nccl };

struct CollectivesOptions {
  Library library = Library::automatic;
  TransferMethod transfers = TransferMethod::automatic;
  bool forms_groups =
      false;  // ranks exchange data in groups, which copy engines do not serve: automatic takes the ring
};

/// The requested collectives, in use while this exists. Create it after Kokkos has started on the rank's device, and
/// destroy it before Kokkos ends. automatic: NCCL if the build has it and each of several ranks has its own GPU, else
/// MPI.
class CollectivesChoice {
 public:
  /// Collective.
  /// Throws  EnvironmentError if NCCL, or a transfer method, is requested and not available.
  CollectivesChoice(World& world, const CollectivesOptions& options, const DeviceChoice& device);
  ~CollectivesChoice();
  CollectivesChoice(const CollectivesChoice&) = delete;
  CollectivesChoice& operator=(const CollectivesChoice&) = delete;

 private:
  World& world_;
};

}  // namespace tessera::parallel
