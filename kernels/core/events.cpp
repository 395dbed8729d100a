#include "kernels/core/events.hpp"

#include <algorithm>
#include <chrono>
#include <vector>

namespace tessera::events {
namespace {

std::vector<Listener*>& listeners() {
  static std::vector<Listener*> list;
  return list;
}

template <class Report>
void tell_all(const Report& report) {
  for (Listener* listener : listeners()) listener->on(report);
}

const auto process_start = std::chrono::steady_clock::now();

}  // namespace

Clock now_s() { return std::chrono::duration<double>(std::chrono::steady_clock::now() - process_start).count(); }

void add_listener(Listener& listener) { listeners().push_back(&listener); }
void remove_listener(Listener& listener) { std::erase(listeners(), &listener); }
bool has_listeners() { return !listeners().empty(); }

void report(const Region& region) { tell_all(region); }
void report(const MemoryChange& change) { tell_all(change); }
void report(const CommunicationStart& start) { tell_all(start); }
void report(const Communication& communication) { tell_all(communication); }

}  // namespace tessera::events
