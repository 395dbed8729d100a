/// Collectives that end together: those of all ranks, and the groups made from them. A fault of one is a fault of all,
/// and abandoning one abandons all, so the watchdog need only know the collectives in use.
#pragma once

#include <atomic>
#include <chrono>
#include <mutex>
#include <string>
#include <vector>

namespace tessera::parallel {

class World;

/// The watchdog calls fault() and abandon() from its own thread while the main thread adds and removes members.
class Family {
 public:
  class Member {
   public:
    virtual ~Member() = default;
    /// A fault of another rank that it has detected; empty: none.
    virtual std::string own_fault() const { return ""; }
    /// After this, none of its work waits for other ranks. One thread at a time calls this and own_fault().
    virtual void abandon_own() = 0;
  };

  void add(Member& member);
  void remove(Member& member);

  /// The fault of the first member that has one; empty: none, or the family is abandoned.
  std::string fault();

  void abandon();

  /// Whether a member may wait for the other ranks in its destructor. Collective: if any rank has found a fault or
  /// abandoned its family, all abandon theirs. A rank that an exception unwinds does not ask the others, who may never
  /// answer: it abandons nothing else and gets false.
  bool ends_in_order(const World& world);

 private:
  // A thread that holds it may hang in a library, so neither fault() nor abandon() waits for long.
  using Lock = std::unique_lock<std::timed_mutex>;
  static constexpr std::chrono::seconds kPatience{1};

  std::timed_mutex mutex_;
  std::vector<Member*> members_;
  std::atomic<bool> was_abandoned_ = false;
};

}  // namespace tessera::parallel
