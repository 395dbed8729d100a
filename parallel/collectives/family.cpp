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

bool Family::ends_in_order(const World& world) {
  if (!fault().empty()) abandon();
  if (std::uncaught_exceptions() > 0) return false;
  try {
    if (world.any(was_abandoned_) && !was_abandoned_) abandon();
  } catch (const LossError&) {  // no rank is left to wait for
    abandon();
  }
  return !was_abandoned_;
}

}  // namespace tessera::parallel
