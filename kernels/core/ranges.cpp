#include "kernels/core/ranges.hpp"

#include <algorithm>
#include <vector>

namespace tessera::ranges {
namespace {

Sink* sink = nullptr;
Id last = kNone;
std::vector<Id> opened;  // a stack, and so in ascending order

}  // namespace

void set_sink(Sink* next) {
  if (!opened.empty()) close(opened.front());
  sink = next;
}

bool has_sink() { return sink != nullptr; }

Id open(const char* label) {
  if (!sink) return kNone;
  opened.push_back(++last);
  sink->push(label);
  return last;
}

void close(Id range) {
  if (range == kNone || !std::binary_search(opened.begin(), opened.end(), range)) return;
  for (bool is_closed = false; !is_closed;) {
    is_closed = opened.back() == range;
    opened.pop_back();
    sink->pop();
  }
}

}  // namespace tessera::ranges
