#include "jobs/saving.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "jobs/checkpoints.hpp"
#include "jobs/run_file.hpp"
#include "kernels/core/events.hpp"
#include "parallel/errors.hpp"

namespace tessera::jobs {

Saving::Saving(parallel::World& world, Owner& owner, Note note)
    : world_(world), owner_(owner), note_(std::move(note)), background_(peers_of(world)) {}

void Saving::save(const std::function<void()>& flush, const std::function<io::Background::Work()>& prepare,
                  bool in_background) {
  const auto watch = world_.watch("a checkpoint", parallel::kPatience);
  double took_s = 0, flush_s = 0;
  timed(took_s, [&] {
    finish();
    timed(flush_s, flush);
    const io::Background::Work write = prepare();
    if (in_background) {
      background_.start(write);
    } else {
      write(peers_of(world_));
    }
  });
  seconds_ += took_s - flush_s;
  if (!in_background) return has_saved(took_s);
  longest_wait_s_ = std::max(longest_wait_s_, took_s);
}

void Saving::go_on() {
  background_.go_on();
  if (!is_under_way()) has_saved(background_.seconds());
}

void Saving::finish() {
  if (!is_under_way()) return;
  const auto watch = world_.watch("a checkpoint", parallel::kPatience);
  background_.finish();
  has_saved(background_.seconds());
}

void Saving::finish_after_failure() {
  try {
    finish();
  } catch (const parallel::AgreedError&) {
  } catch (const std::exception&) {
    if (world_.size() > 1) throw;  // the other ranks wait for this one
  }
}

void Saving::has_saved(double took_s) {
  longest_write_s_ = std::max(longest_write_s_, took_s);
  world_.agree_on_root([&] { note_(owner_.checkpoint_took(took_s)); });
}

std::string Saving::summary() const {
  if (longest_wait_s_ == 0) return "";
  return fmt::format(
      "checkpoints in the background: training waited at most {:.2f} s for one; writing took at most {:.2f} s\n",
      longest_wait_s_, longest_write_s_);
}

}  // namespace tessera::jobs
