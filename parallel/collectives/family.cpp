#include "parallel/collectives/family.hpp"

#include <exception>

#include "parallel/errors.hpp"
#include "parallel/world.hpp"

namespace tessera::parallel {

void Family::add(Member& member) {
  const std::lock_guard lock(mutex_);
  members_.push_back(&member);
}

void Family::remove(Member& member) {
  const std::lock_guard lock(mutex_);
  std::erase(members_, &member);
}

std::string Family::fault() {
  const Lock lock(mutex_, kPatience);
  if (!lock || was_abandoned_) return "";
  for (const Member* member : members_) {
    if (const std::string text = member->own_fault(); !text.empty()) return text;
  }
  return "";
}

void Family::abandon() {
  was_abandoned_ = true;
  const Lock lock(mutex_, kPatience);
  if (!lock) return;
  for (Member* member : members_) member->abandon_own();
}

bool Family::ends_in_order(const World&) {
  if (!fault().empty()) abandon();
  return std::uncaught_exceptions() == 0 && !was_abandoned_;
}

}  // namespace tessera::parallel
