/// How a training run saves: at once or, with checkpoint.background, between later steps. All but is_busy() is
/// collective.
#pragma once

#include <functional>
#include <string>

#include "io/background.hpp"
#include "jobs/note.hpp"
#include "jobs/owner.hpp"
#include "parallel/world.hpp"

namespace tessera::jobs {

class Saving {
 public:
  /// `owner` and `note` hear of every checkpoint's end, on rank 0.
  Saving(parallel::World& world, Owner& owner, Note note);

  /// Saves, or with `in_background` begins to, once the checkpoint before is complete and `flush` has written run.h5: a
  /// resume continues from here, so the rows up to here must be on disk. `prepare` returns what writes the checkpoint.
  void save(const std::function<void()>& flush, const std::function<io::Background::Work()>& prepare,
            bool in_background);

  bool is_under_way() const { return background_.is_under_way(); }
  /// Whether this rank is still at work on its part, so that ranks cannot go on. Local.
  bool is_busy() const { return is_under_way() && !background_.can_go_on(); }
  /// Between steps, when no rank is busy.
  void go_on();
  /// Waits for the end of what is under way, if anything is.
  void finish();
  /// The same after a failure, which is the one to report.
  void finish_after_failure();

  double seconds() const { return seconds_; }  // that training waited, without run.h5's
  std::string summary() const;                 // a line about checkpoints in the background; "" if there were none

 private:
  void has_saved(double took_s);

  parallel::World& world_;
  Owner& owner_;
  const Note note_;
  io::Background background_;
  double seconds_ = 0, longest_wait_s_ = 0;
  double longest_write_s_ = 0;  // in the background
};

}  // namespace tessera::jobs
