/// What happens inside a step, reported to listeners: phases, memory that becomes live or dead, communication.
///
/// Arena, collectives and the step report here; the trace and the watchdog listen. Reports are plain host values with
/// labels and units; without a listener a report costs one branch. Not thread-safe: one thread drives a rank.
#pragma once

#include <cstdint>
#include <string_view>

namespace tessera::events {

using Clock = double;  // seconds since the process started (steady clock)
Clock now_s();

struct Region {  // a phase ("forward"), a unit ("forward/block.03") or a kernel that has ended
  std::string_view label;
  std::string_view stream;  // "compute" or "communication"
  double start_s, end_s;
};

struct MemoryChange {  // a tensor of the layout becomes live or dead; nothing is allocated
  std::string_view label, category, phase;
  std::int64_t bytes;
  bool is_begin;
  double time_s;
  std::string_view dtype = {};  // of its elements
};

struct CommunicationStart {  // a collective is about to begin: shows what a rank hangs in
  std::string_view operation, label;
  std::int64_t bytes;
  double time_s;
};

struct Communication {  // one collective that has ended
  std::string_view operation, label;
  std::int64_t bytes;
  double start_s, end_s;  // from enqueue to completion
  double exposed_s;       // seconds in which the rank did nothing but wait for it
};

class Listener {
 public:
  virtual ~Listener() = default;
  virtual void on(const Region&) {}
  virtual void on(const MemoryChange&) {}
  virtual void on(const CommunicationStart&) {}
  virtual void on(const Communication&) {}
};

void add_listener(Listener&);
void remove_listener(Listener&);
bool has_listeners();

void report(const Region&);
void report(const MemoryChange&);
void report(const CommunicationStart&);
void report(const Communication&);

}  // namespace tessera::events
