#include "parallel/strategies/sharded.hpp"

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "kernels/core/byte_copies.hpp"
#include "parallel/collectives/parts.hpp"
#include "parallel/collectives/squares.hpp"

namespace tessera::parallel {

using kernels::Device;

Sharded::Sharded(Collectives& all, const Device& exec, const Ownership& ownership, std::vector<UnitMemory> memory,
                 ShardedOptions options)
    : all_(all),
      exec_(exec),
      ownership_(ownership),
      shard_(all.rank() % ownership.shards()),
      memory_(std::move(memory)),
      options_(std::move(options)),
      is_alone_(ownership_.shards() == 1 && options_.shards_weights && !options_.shards_gradients),
      gather_order_(ownership.units() + 1) {
  const auto units = static_cast<std::size_t>(ownership_.units());
  if (memory_.size() != units) throw std::invalid_argument("sharded: each unit needs a place");
  if (all.size() % ownership_.shards() != 0) {
    throw std::invalid_argument("sharded: " + std::to_string(ownership_.shards()) + " shards do not divide " +
                                std::to_string(all.size()) + " ranks");
  }
  const auto is_on_host = [](const UnitMemory& unit) { return unit.host_weights.count > 0; };
  if (options_.shards_weights && !options_.shards_gradients &&
      !(is_alone_ && std::all_of(memory_.begin(), memory_.end(), is_on_host))) {
    throw std::invalid_argument("sharded: sharded weights require sharded gradients");
  }
  for (int unit = 0; unit < ownership_.units(); ++unit) {
    if (!options_.shards_gradients && !keeps_part_in_place(unit)) {
      throw std::invalid_argument("sharded: gradients that are kept whole hold this rank's part");
    }
  }
  params_.resize(units);
  for (const int unit : options_.unit_of_param) ++params_.at(static_cast<std::size_t>(unit));
  open_.resize(units);
  stays_.resize(units);
  is_gathered_.resize(units);
  is_summing_replicas_.resize(units);
}

/// Groups are made collectively, and transfers belong to them: hence here, not in the constructor. They take events, or
/// staging of bounded size (mpi.hpp); memory that grows with the model has been allocated before.
void Sharded::connect() {
  shards_ = &all_;
  if (is_alone_) {
    replicas_ = all_.size() > 1 ? &all_ : nullptr;
  } else if (ownership_.shards() < all_.size()) {
    own_shards_ = all_.make_group(all_.rank() / ownership_.shards());
    own_replicas_ = all_.make_group(all_.rank() % ownership_.shards());
    shards_ = own_shards_.get();
    replicas_ = own_replicas_.get();
  }
  const int units = ownership_.units();
  if (options_.shards_weights) {
    step_ = make_schedule(options_.openings, options_.micro_steps);
    std::vector<int> in_order(static_cast<std::size_t>(units));
    std::iota(in_order.begin(), in_order.end(), 0);
    inference_ = make_schedule(in_order, 1);
  } else {
    for (int unit = 0; unit < units; ++unit) gathers_.push_back(make_gather(unit));
  }
  // The times of asynchronous transfers are read after the step, so each micro-step has transfers of its own.
  const int times = options_.shards_gradients ? options_.micro_steps : 1;
  for (int i = 0; i < times * units; ++i) scatters_.push_back(make_scatter(i % units, i / units));
  for (int unit = 0; replicas_ && unit < units; ++unit) {
    const UnitMemory& memory = memory_[unit];
    const Span wire = memory.wire.count == 0 ? Span{} : own_slice(memory.wire);
    replica_sums_.push_back({replicas_->make_all_reduce(memory.own_gradient, wire),
                             replicas_->label(Operation::all_reduce), "grad." + ownership_[unit].label,
                             wire.count == 0 ? memory.own_gradient.bytes() : wire.bytes()});
  }
  if (const Span& total = options_.norm.total; total.count > 0) {
    norm_sum_ = {all_.make_all_reduce(total, {}, Overlap::none), all_.label(Operation::all_reduce), total.label,
                 total.bytes()};
  }
  // With several micro-steps or groups, one's sums are not yet the gradients.
  if (!is_alone_ && !replicas_ && (options_.micro_steps == 1 || !options_.shards_gradients)) {
    std::vector<Transfer*> sums;
    for (const Move& scatter : scatters_) sums.push_back(scatter.transfer.get());
    squares_ = Squares::left_by(sums, options_.norm.squares);
  }

  std::size_t moves = 0;
  const auto connect = [&](Move& move) {
    if (!move.transfer) return;
    move.transfer->connect();
    ++moves;
  };
  for (Schedule* schedule : {&step_, &inference_}) {
    for (Visit& visit : schedule->visits) connect(visit.gather);
  }
  for (std::vector<Move>* list : {&gathers_, &scatters_, &replica_sums_}) {
    for (Move& move : *list) connect(move);
  }
  connect(norm_sum_);
  moved_.reserve(moves);
  under_way_.reserve(moves);
  pending_.reserve(std::max(moves, memory_.size()));
  is_connected_ = true;
}

Move Sharded::make_gather(int unit) {
  const UnitMemory& memory = memory_[unit];
  return {is_alone_ ? nullptr : shards_->make_all_gather(memory.own_weights, memory.weights),
          shards_->label(Operation::all_gather), "params." + ownership_[unit].label, memory.weights.bytes()};
}

/// The first micro-step's sum goes into the kept part; later ones are added to it.
Move Sharded::make_scatter(int unit, int micro_step) {
  const UnitMemory& memory = memory_[unit];
  const Span& message = memory.wire.count == 0 ? memory.gradient : memory.wire;
  const Span part = micro_step == 0 && !keeps_part_in_place(unit) ? memory.own_gradient : Span{};
  return {is_alone_ ? nullptr : shards_->make_reduce_scatter(memory.gradient, memory.wire, part),
          shards_->label(Operation::reduce_scatter), "grad." + ownership_[unit].label, message.bytes()};
}

bool Sharded::keeps_part_in_place(int unit) const {
  return memory_[unit].own_gradient.data == own_slice(memory_[unit].gradient).data;
}

/// The openings, `times` times over.
Sharded::Schedule Sharded::make_schedule(const std::vector<int>& openings, int times) {
  std::vector<int> places;
  for (const UnitMemory& memory : memory_) places.push_back(memory.weights_place);
  const std::vector<bool> stays = stays_in_place(openings, times, places);
  std::vector<int> last_visit(memory_.size(), -1);  // of each unit
  Schedule schedule;
  for (std::size_t i = 0; i < stays.size(); ++i) {
    const int unit = openings[i % openings.size()];
    if (stays[i]) schedule.visits[last_visit[unit]].stays = true;
    last_visit[unit] = static_cast<int>(i);
    schedule.visits.push_back({.unit = unit});
    if (!stays[i]) schedule.visits.back().gather = make_gather(unit);
  }
  return schedule;
}

void Sharded::begin_passes(Schedule& schedule) {
  if (!is_connected_) throw std::logic_error("sharded: connect it before the first step");
  std::fill(open_.begin(), open_.end(), 0);
  under_way_.clear();
  schedule_ = &schedule;
  schedule.next = schedule.started = 0;
  if (options_.shards_weights) return;
  for (int unit = 0; unit < ownership_.units() && options_.poisons; ++unit) poison_other_parts(unit);
  has_started_gathers_ = false;
  std::fill(is_gathered_.begin(), is_gathered_.end(), 0);
}

/// Gathers, at most one for each opening; a scatter for each gradient that is sent; sums over the replicas; the norm.
int Sharded::most_waits() const {
  const std::size_t units = memory_.size(), micro_steps = static_cast<std::size_t>(options_.micro_steps);
  const std::size_t gathers = options_.shards_weights ? micro_steps * options_.openings.size() : units;
  return static_cast<int>(gathers + (options_.shards_gradients ? micro_steps : 1) * units + units + 1);
}

void Sharded::begin_step(WaitTimes* waits) {
  is_in_step_ = true;
  waits_ = waits;
  moved_.clear();
  pending_.clear();
  std::fill(is_summing_replicas_.begin(), is_summing_replicas_.end(), 0);
  exposed_s_ = 0;
  micro_ = -1;
  begin_passes(step_);
}

void Sharded::begin_inference() {
  is_in_step_ = false;
  waits_ = nullptr;
  begin_passes(inference_);
}

void Sharded::begin(bool completes) {
  ++micro_;
  completes_ = completes;
  missing_ = params_;
}

void Sharded::open(int unit) {
  if (open_[unit]++ > 0) return;
  if (!options_.shards_weights) {
    if (!std::exchange(has_started_gathers_, true)) {  // not earlier: without a pass they would never be joined
      for (int each = 0; each < ownership_.units(); ++each) start_gather(gathers_[each], each);
    }
    if (!std::exchange(is_gathered_[unit], 1)) join_gather(gathers_[unit], unit);
    return;
  }
  Schedule& s = *schedule_;
  if (!is_in_step_ && s.next == s.visits.size()) s.next = s.started = 0;  // the next pass
  if (s.next == s.visits.size() || s.visits[s.next].unit != unit) {
    throw std::logic_error("sharded: '" + ownership_[unit].label + "' is opened out of turn");
  }
  const std::size_t last = std::min(s.next + static_cast<std::size_t>(options_.prefetch), s.visits.size() - 1);
  for (; s.started <= last && has_place(s, s.started); ++s.started) {
    Visit& visit = s.visits[s.started];
    if (visit.gather.exists()) start_gather(visit.gather, visit.unit);
  }
  Visit& visit = s.visits[s.next];
  if (s.started <= s.next) throw std::logic_error("sharded: the place of '" + ownership_[unit].label + "' is in use");
  if (visit.gather.exists()) join_gather(visit.gather, unit);
  stays_[unit] = visit.stays;
  ++s.next;
}

/// Whether a visit's place is free: no other unit in it is open, or is opened before this visit.
bool Sharded::has_place(const Schedule& schedule, std::size_t visit) const {
  const int unit = schedule.visits[visit].unit, place = memory_[unit].weights_place;
  const auto is_in_its_way = [&](int other) { return other != unit && memory_[other].weights_place == place; };
  for (int other = 0; other < ownership_.units(); ++other) {
    if (open_[other] > 0 && is_in_its_way(other)) return false;
  }
  for (std::size_t earlier = schedule.next; earlier < visit; ++earlier) {
    if (is_in_its_way(schedule.visits[earlier].unit)) return false;
  }
  return true;
}

void Sharded::close(int unit) {
  if (open_[unit] == 0) throw std::logic_error("sharded: '" + ownership_[unit].label + "' is closed twice");
  if (--open_[unit] == 0 && options_.poisons && options_.shards_weights && !stays_[unit]) {
    poison(memory_[unit].weights);
  }
}

void Sharded::begin_gradients(int unit) {
  if (!options_.shards_gradients) return;
  const int place = memory_[unit].gradient_place;
  const auto is_there = [&](const Pending& p) { return memory_[p.unit].gradient_place == place; };
  const auto last = std::find_if(pending_.rbegin(), pending_.rend(), is_there);
  const auto end = last.base();  // what was started before it has completed, too
  for (auto pending = pending_.begin(); pending != end; ++pending) complete(*pending);
  pending_.erase(pending_.begin(), end);
}

void Sharded::gradient_enqueued(int param) {
  const int unit = options_.unit_of_param.at(static_cast<std::size_t>(param));
  if (--missing_[unit] > 0 || (!options_.shards_gradients && !completes_)) return;
  if (missing_[unit] < 0)
    throw std::logic_error("sharded: a gradient of '" + ownership_[unit].label + "' is ready twice");
  const std::size_t number = static_cast<std::size_t>(micro_ * ownership_.units() + unit) % scatters_.size();
  if (is_alone_) {  // each unit's gradient and wire have their own memory
    return complete({unit, &scatters_[number], completes_, keeps_part_in_place(unit)});
  }
  free_wire(unit);
  start(scatters_[number]);
  pending_.push_back({unit, &scatters_[number], completes_, micro_ == 0 || keeps_part_in_place(unit)});
}

void Sharded::finish() {
  for (const Pending& pending : pending_) complete(pending);
  pending_.clear();
  for (int unit = 0; unit < ownership_.units(); ++unit) join_replica_sum(unit);
}

/// Sums over the replicas also use the wire of their unit's place.
void Sharded::free_wire(int unit) {
  if (memory_[unit].wire.count == 0) return;
  for (int other = 0; other < ownership_.units(); ++other) {
    if (memory_[other].gradient_place == memory_[unit].gradient_place) join_replica_sum(other);
  }
}

void Sharded::join_replica_sum(int unit) {
  if (std::exchange(is_summing_replicas_[unit], 0)) join(replica_sums_[unit]);
}

/// The sums of a unit's gradient become or join the part that is kept.
void Sharded::complete(const Pending& pending) {
  join(*pending.move);
  if (!pending.is_in_part) add_to_part(pending.unit);
  if (!replicas_ || !pending.completes) return;
  start(replica_sums_[pending.unit]);
  is_summing_replicas_[pending.unit] = 1;
}

void Sharded::add_to_part(int unit) const {
  const Span from = own_slice(memory_[unit].gradient);
  const Span& to = memory_[unit].own_gradient;
  const void* const parts[] = {to.data, from.data};
  sum_parts(exec_, parts, to);
}

void Sharded::sum() {
  start(norm_sum_);
  join(norm_sum_);
  is_in_step_ = false;
}

/// Copies this rank's part if it is on the host, and gathers the rest; exec_ has left the unit's place.
void Sharded::start_gather(Move& move, int unit) {
  const UnitMemory& memory = memory_[unit];
  if (memory.host_weights.count == 0 && !options_.await_update) return start(move);
  const Device& stream = gather_stream_.instance();
  const int left = ownership_.units();
  gather_order_.record(exec_, left);
  gather_order_.wait(stream, left);
  if (options_.await_update) options_.await_update(stream, unit);
  if (memory.host_weights.count > 0) {
    kernels::send_bytes(stream, memory.host_weights.data, memory.own_weights.data, memory.host_weights.bytes());
  }
  gather_order_.record(stream, unit);
  start(move, stream);
}

void Sharded::join_gather(Move& move, int unit) {
  if (move.transfer) return join(move);
  gather_order_.wait(exec_, unit);
}

void Sharded::start(Move& move, const Device& after) {
  if (!move.transfer) return;
  move.start(after);
  if (!all_.is_asynchronous()) {
    under_way_.push_back(&move);
  } else if (is_in_step_) {
    moved_.push_back(&move);
  }
}

void Sharded::join(Move& move) {
  if (!move.transfer) return;
  parallel::join(*move.transfer, exec_, waits_);
  if (all_.is_asynchronous()) return;
  std::erase(under_way_, &move);
  const Transfer::Times times = move.transfer->times();
  exposed_s_ += move.report(times, times.joined_s);
}

void Sharded::progress() {
  std::erase_if(under_way_, [](Move* move) { return move->transfer->test(); });
}

double Sharded::collect() {
  if (!all_.is_asynchronous()) return exposed_s_;
  double exposed_s = 0;
  for (const Move* move : moved_) {
    const Transfer::Times times = move->transfer->times();
    exposed_s += move->report(times, times.joined_s);
  }
  return exposed_s;
}

void Sharded::poison(const Span& weights) const {
  if (weights.count > 0) Kokkos::deep_copy(exec_, weights.as<unsigned char>(), static_cast<unsigned char>(0xFF));
}

/// Poisons weights that other ranks have updated and this one has not yet gathered.
void Sharded::poison_other_parts(int unit) const {
  const Span& whole = memory_[unit].weights;
  const std::int64_t before = shard_ * ownership_.part(unit), part = ownership_.part(unit);
  poison(whole.part(0, before));
  poison(whole.part(before + part, whole.count - before - part));
}

/// This rank's part of a whole unit.
Span Sharded::own_slice(const Span& whole) const {
  const std::int64_t part = whole.count / ownership_.shards();
  return whole.part(shard_ * part, part);
}

}  // namespace tessera::parallel
