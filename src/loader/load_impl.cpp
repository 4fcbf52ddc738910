#include "loader/load_impl.hpp"

#include <inrush/error.hpp>

#include "base/engine_thread.hpp"
#include "base/text.hpp"
#include "loader/host_facts.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <system_error>
#include <utility>
#include <vector>

namespace inrush::engine {

namespace {

// Allocations one upon the other hold the driver's lock, and the first copies of the path wait for it: on an
// H200 the first copy of a load of 48 slabs started after 5 ms, where one slab let it start after 2. So after
// the first few there is a pause.
constexpr std::uint32_t slabs_ahead = 2;
constexpr auto allocation_pause = std::chrono::microseconds(50);

Clock::time_point deadline_of(const LoadParts& parts) {
  return parts.request.deadline.count() > 0 ? later(parts.start, parts.request.deadline)
                                            : Clock::time_point::max();
}

std::vector<std::uint32_t> pieces_by_file(const Plan& plan, std::size_t file_count) {
  std::vector<std::uint32_t> counts(file_count);
  for (const Piece& piece : plan.pieces) ++counts[piece.file];
  return counts;
}

std::uint64_t payload_bytes(const Plan& plan, const Piece& piece) {
  std::uint64_t bytes = 0;
  for (std::uint32_t i = 0; i < piece.segment_count; ++i) {
    const Segment& segment = plan.segments[piece.first_segment + i];
    bytes += segment.row_bytes * segment.row_count;
  }
  return bytes;
}

}  // namespace

LoadImpl::LoadImpl(LoadParts parts)
    : kept_parts_(std::make_unique<const LoadParts>(std::move(parts))),
      parts_(*kept_parts_),
      pid_(::getpid()),
      interruption_(parts_.request.interrupted),
      stop_(deadline_of(parts_)),
      report_(parts_.start),
      files_(*parts_.store, parts_.checkpoint, pieces_by_file(parts_.plan, parts_.checkpoint.files().size())),
      state_(std::make_unique<LoadState>(parts_.plan, parts_.request.window_bytes_max)) {}

LoadImpl::~LoadImpl() {
  if (::getpid() != pid_) {
    // A forked child: the threads exist only in the parent, and the driver may not be touched. Left to the
    // end of the process.
    static_cast<void>(path_thread_.release());
    static_cast<void>(staging_.release());
    // Destroying a condition variable waits for its waiters, and the parent's thread never leaves here.
    static_cast<void>(state_.release());
    static_cast<void>(kept_parts_.release());
    return;
  }
  close();
}

void LoadImpl::close() noexcept {
  if (::getpid() != pid_) return;  // a forked child has no thread to join
  stop_.cancel();
  try {
    settle();
  } catch (...) {  // host memory for a log line: nothing to tell anybody about
  }
}

void LoadImpl::begin() {
  Report report;
  report.device = parts_.gpu->device();
  report.path = parts_.plan.path;
  report.planned_bytes = parts_.plan.loaded_bytes;
  // Tensors without bytes are complete from the start.
  report.tensor_count = static_cast<std::uint64_t>(
      std::count_if(parts_.plan.placements.begin(), parts_.plan.placements.end(),
                    [](const Placement& placement) { return placement.size_bytes == 0; }));
  report.notes.assign(parts_.checkpoint.notes().begin(), parts_.checkpoint.notes().end());
  report_.begin(std::move(report));
  report_.end_stage(&Stages::plan, parts_.plan_seconds);
  if (parts_.plan.pieces.empty()) {  // nothing to read: no ring, no thread
    report_.end_stage(&Stages::last_byte);
    return state_->ended(nullptr);
  }
  files_.open_first([this] { check_interruption(); });
  report_.end_stage(&Stages::open, parts_.plan_seconds + files_.open_seconds());
  report_.end_stage(&Stages::headers);
  staging_ = parts_.pool->lend({.gpu = parts_.gpu,
                                .shape = {parts_.plan.slot_bytes, parts_.plan.slot_count},
                                .reader_count = parts_.plan.reader_count,
                                .path_reads = parts_.plan.path_reads,
                                .io_uring = parts_.io_uring});
  set_kernel_use();
  if (!parts_.gpu->is_host()) state_->promise_first_slab();  // there reads land in the slab itself
  try {
    path_thread_ = std::make_unique<std::thread>(start_engine_thread("inrush-path", [this] { run_path(); }));
  } catch (const std::system_error& error) {
    throw Error(ErrorCode::out_of_memory, fmt::format("start a thread: {}", error.what()),
                error.code().value());
  }
  allocate_in_window();
  open_targets();
}

// --- the path's thread ---

void LoadImpl::run_path() noexcept {
  try {
    prepare_for_observer();
    run_transfer();
    report_.end_stage(&Stages::last_byte);
    tell_ended(nullptr);
  } catch (const Error& error) {
    state_->seal();  // what is taken from now on would be missing from the list
    report_.set_suspects(taken_tensors_of_changed_file());
    if (error.code() == ErrorCode::device_failed) staging_is_spoilt_ = true;
    const std::string place = "load " + printable(parts_.checkpoint.path());
    tell_ended(std::make_exception_ptr(with_progress(error).within(place)));
  } catch (const std::bad_alloc&) {
    tell_ended(
        std::make_exception_ptr(Error(ErrorCode::out_of_memory, "host memory ran out during the load")));
  } catch (const std::exception& error) {
    tell_ended(std::make_exception_ptr(Error(ErrorCode::internal, error.what())));
  }
}

// Pinning may wait for streams (CUDA's guide says so; one try on an H200 did not), and takes tens of
// milliseconds the first time, so it is not the caller's thread that does it.
void LoadImpl::prepare_for_observer() {
  if (parts_.observer == nullptr) return;
  if (parts_.streams_wait_for_values) staging_->ring->pin_all(*parts_.gpu);
  parts_.observer->prepared();
}

void LoadImpl::tell_ended(std::exception_ptr error) noexcept {
  if (parts_.observer != nullptr) parts_.observer->ended(error);
  state_->ended(std::move(error));
}

// A deadline is a matter of speed: the message says what came in the time.
Error LoadImpl::with_progress(const Error& error) const {
  if (error.code() != ErrorCode::timed_out) return error;
  const double allowed = std::chrono::duration<double>(parts_.request.deadline).count();
  return {
      ErrorCode::timed_out,
      fmt::format(
          "{} after {:.3g} s, with {} of {} loaded; give it more time, or find out why the storage is slow",
          error.what(), allowed, bytes_text(report_.loaded_bytes()), bytes_text(parts_.plan.loaded_bytes))};
}

std::optional<Work> LoadImpl::take() {
  const std::optional<LoadState::PieceToRead> piece = state_->take_piece();
  if (!piece) return std::nullopt;
  return Work{piece->piece, files_.acquire(parts_.plan.pieces[piece->piece].file), piece->slab,
              piece->place_owner};
}

bool LoadImpl::exhausted() const { return state_->pieces_exhausted(); }

void LoadImpl::wait_for_work(Clock::time_point until) { state_->wait_for_piece(until); }

std::byte* LoadImpl::slab_of(std::uint32_t piece) const {
  return state_->memory_of(parts_.plan.pieces[piece].slab).data;
}

void LoadImpl::wait_for_slab(Clock::time_point until) { state_->wait_for_first_slab(until); }

std::string LoadImpl::describe(std::uint32_t piece) const {
  const Piece& read = parts_.plan.pieces[piece];
  const TensorInfo first = parts_.checkpoint.tensor(parts_.plan.placements[read.first_placement].tensor);
  const std::string more =
      read.placement_count > 1 ? fmt::format(" and {} more", read.placement_count - 1) : std::string();
  return fmt::format("tensor \"{}\"{}", printable(first.name), more);
}

void LoadImpl::first_byte() { report_.end_stage(&Stages::first_byte); }

void LoadImpl::submitted(std::uint32_t piece) {
  if (parts_.observer != nullptr) parts_.observer->submitted(parts_.plan.pieces[piece]);
}

void LoadImpl::arrived(const Arrival& arrival) {
  const Piece& piece = parts_.plan.pieces[arrival.piece];
  report_.add(arrival, payload_bytes(parts_.plan, piece));
  files_.release(piece.file);
  report_.add_tensors(state_->arrived(arrival.piece));
  if (parts_.observer != nullptr) parts_.observer->arrived(piece);
}

void LoadImpl::orphaned(std::uint64_t count) noexcept {
  staging_is_spoilt_ = true;
  report_.add_orphans(count);
}

std::vector<std::string> LoadImpl::taken_tensors_of_changed_file() const {
  std::vector<std::string> names;
  if (!files_.changed_file()) return names;
  for (std::uint32_t i = 0; i < parts_.plan.placements.size(); ++i) {
    const TensorInfo tensor = parts_.checkpoint.tensor(parts_.plan.placements[i].tensor);
    if (tensor.file == *files_.changed_file() && state_->is_taken(i)) names.emplace_back(tensor.name);
  }
  return names;
}

// --- the consumer's thread ---

// Joins the path's thread and lends its staging back. After a device error or with orphans it is not fit for
// another load.
void LoadImpl::settle() {
  if (path_thread_ != nullptr && path_thread_->joinable()) path_thread_->join();
  if (staging_ == nullptr) return;
  report_.set_staging({.pinned_bytes = staging_->ring->pinned_bytes(),
                       .used_bytes = staging_->ring->used_bytes(),
                       .fallbacks = staging_->fallbacks->list()});
  log_fallbacks();
  if (staging_is_spoilt_) {
    parts_.pool->abandon(std::move(staging_));
  } else {
    parts_.pool->give_back(std::move(staging_));
  }
}

void LoadImpl::log_fallbacks() const {
  if (!parts_.log) return;
  for (const Fallback& fallback : report().fallbacks) {
    parts_.log(LogLevel::warning,
               fmt::format("load {}: no {}: {} ({} times)", printable(parts_.checkpoint.path()),
                           fallback.what, fallback.reason, fallback.count));
  }
}

void LoadImpl::require_own_process() const {
  if (::getpid() != pid_) {
    throw Error(ErrorCode::invalid_request,
                "this Load belongs to the parent process; a forked child needs a Loader of its own "
                "(with Python's multiprocessing: use spawn)");
  }
}

// Ends the load on the consumer's side; `error` is what next() says from now on. Afterwards nothing is
// written any more, also to targets.
void LoadImpl::end_with(std::exception_ptr error) {
  state_->fail(std::move(error));
  stop_.cancel();
  settle();
}

// Before the error of a load reaches the caller: from then on nothing may be written any more, also to
// targets. The path has waited for its copies, unless the events that tell failed too; the end of the stream
// waits for those.
void LoadImpl::settle_if_failed() {
  if (state_->has_failed()) settle();
}

void LoadImpl::check_interruption() {
  try {
    interruption_.check();
  } catch (...) {
    end_with(std::current_exception());
    throw;
  }
}

void LoadImpl::check_interruption_when_due() {
  if (interruption_.is_due()) check_interruption();
}

void LoadImpl::allocate_in_window() {
  std::uint32_t allocated_count = 0;
  while (const std::optional<std::uint32_t> slab = state_->slab_to_allocate()) {
    check_interruption();
    const bool has_time = parts_.observer == nullptr;  // else somebody waits for all of them
    if (++allocated_count > slabs_ahead && has_time) std::this_thread::sleep_for(allocation_pause);
    allocate_slab(*slab);
  }
  note_allocated();
}

void LoadImpl::note_allocated() {
  if (state_->all_allocated()) report_.end_stage(&Stages::allocate);
}

void LoadImpl::allocate_slab(std::uint32_t slab) {
  try {
    state_->allocated(slab, allocate_memory(parts_.plan.slabs[slab]));
  } catch (...) {
    end_with(std::current_exception());
    throw;
  }
}

// The last step of start(): a start() that throws has written to no target, since nobody could ask which.
void LoadImpl::open_targets() {
  const std::vector<Slab>& slabs = parts_.plan.slabs;
  const auto first =
      std::find_if(slabs.begin(), slabs.end(), [](const Slab& slab) { return slab.target_address != 0; });
  if (first == slabs.end()) return;
  const Targets& targets = parts_.request.targets;
  if (targets.stream_ordered) staging_->stream->order_after(targets.stream);  // invariant 10
  for (auto slab = first; slab != slabs.end(); ++slab) {
    auto* const data = reinterpret_cast<std::byte*>(static_cast<std::uintptr_t>(slab->target_address));
    state_->allocated(static_cast<std::uint32_t>(slab - slabs.begin()), {data, targets.owner, nullptr});
  }
  note_allocated();
}

SlabMemory LoadImpl::allocate_memory(const Slab& slab) {
  if (!parts_.request.allocate) {
    std::shared_ptr<void> owner = parts_.gpu->allocate(slab.size_bytes, slab.alignment_bytes);
    auto* const data = static_cast<std::byte*>(owner.get());
    return {data, owner, parts_.gpu->is_host() ? owner : nullptr};
  }
  Allocation given = parts_.request.allocate(slab.device, slab.size_bytes, slab.alignment_bytes);
  if (given.pointer == nullptr ||
      reinterpret_cast<std::uintptr_t>(given.pointer) % slab.alignment_bytes != 0) {
    throw Error(
        ErrorCode::invalid_request,
        fmt::format("allocate() returned {} for {}: it must return memory aligned to {} bytes or throw",
                    given.pointer, bytes_text(slab.size_bytes), slab.alignment_bytes));
  }
  // The block may still be in use by what is queued on its owner's stream (invariant 10).
  if (given.stream_ordered) staging_->stream->order_after(given.stream);
  return {static_cast<std::byte*>(given.pointer), std::move(given.owner), nullptr};
}

std::optional<Tensor> LoadImpl::next() { return next_for(std::chrono::nanoseconds::max()); }

std::optional<Tensor> LoadImpl::next_for(std::chrono::nanoseconds wait_max) {
  std::optional<LoadState::Taken> taken;
  take_until(later(Clock::now(), wait_max), [&] {
    taken = state_->take_next();
    return taken.has_value();
  });
  return taken ? std::optional(make_tensor(*taken)) : std::nullopt;
}

std::vector<Tensor> LoadImpl::take(const TakeLimits& limits) {
  std::vector<LoadState::Taken> taken;
  take_until(Clock::time_point::max(), [&] {
    taken = state_->take_ready(limits);
    return !taken.empty();
  });
  std::vector<Tensor> tensors;
  tensors.reserve(taken.size());
  for (const LoadState::Taken& one : taken) tensors.push_back(make_tensor(one));
  return tensors;
}

// Calls `take` until it says that there was something, and comes back without once all were taken.
void LoadImpl::take_until(Clock::time_point until, const std::function<bool()>& take) {
  require_own_process();
  try {
    while (true) {
      check_interruption_when_due();
      allocate_in_window();
      if (take()) return;
      if (state_->finished()) return settle();
      if (Clock::now() >= until) return;
      state_->wait_for_next(std::min(until, interruption_.due()));
    }
  } catch (...) {
    settle_if_failed();
    throw;
  }
}

Tensor LoadImpl::get(std::string_view name) {
  require_own_process();
  const std::uint32_t placement = placement_of(name);
  if (state_->is_taken(placement)) {
    throw Error(ErrorCode::invalid_request,
                fmt::format("tensor \"{}\" was handed out already", printable(name)));
  }
  try {
    return wait_for_tensor(placement);
  } catch (...) {
    settle_if_failed();
    throw;
  }
}

Tensor LoadImpl::wait_for_tensor(std::uint32_t placement) {
  if (std::optional<LoadState::Taken> taken = state_->take(placement)) return make_tensor(*taken);
  const Placement& place = parts_.plan.placements[placement];
  if (place.size_bytes > 0 && !state_->is_allocated(place.slab)) allocate_slab(place.slab);
  if (place.size_bytes > 0) state_->prefer(placement);
  while (true) {
    check_interruption_when_due();
    if (std::optional<LoadState::Taken> taken = state_->take(placement)) return make_tensor(*taken);
    state_->wait_for(placement, interruption_.due());
  }
}

std::uint32_t LoadImpl::placement_of(std::string_view name) const {
  const std::optional<std::size_t> tensor = parts_.checkpoint.find(name);
  if (tensor) {
    // Three runs, each in the order of the checkpoint: tensors without bytes, then those that memory is
    // allocated for, then targets.
    const std::vector<Placement>& placements = parts_.plan.placements;
    const auto filled = std::find_if(placements.begin(), placements.end(),
                                     [](const Placement& p) { return p.size_bytes > 0; });
    const auto targets = std::partition_point(filled, placements.end(), [&](const Placement& p) {
      return parts_.plan.slabs[p.slab].target_address == 0;
    });
    const auto is_before = [](const Placement& placement, std::size_t index) {
      return placement.tensor < index;
    };
    for (const auto& [first, last] : {std::pair(placements.begin(), filled), std::pair(filled, targets),
                                      std::pair(targets, placements.end())}) {
      const auto found = std::lower_bound(first, last, *tensor, is_before);
      if (found != last && found->tensor == *tensor)
        return static_cast<std::uint32_t>(found - placements.begin());
    }
  }
  throw Error(ErrorCode::invalid_request,
              fmt::format("tensor \"{}\" is not part of this load{}", printable(name),
                          tensor ? "" : ", nor of its checkpoint"));
}

Tensor LoadImpl::make_tensor(const LoadState::Taken& taken) const {
  const Placement& place = parts_.plan.placements[taken.placement];
  const TensorInfo info = parts_.checkpoint.tensor(place.tensor);
  Tensor tensor{.name = std::string(info.name),
                .dtype = info.dtype,
                .shape = {info.shape.begin(), info.shape.end()},
                .device = parts_.gpu->device(),
                .data = taken.memory.data == nullptr ? nullptr : taken.memory.data + place.slab_offset,
                .size_bytes = place.size_bytes,
                .memory = taken.memory.owner};
  if (place.slice) tensor.shape[place.slice->dimension] = place.slice->length;
  if (place.size_bytes == 0) set_empty_target(tensor);
  return tensor;
}

Tensor LoadImpl::tensor_of(std::uint32_t placement) const {
  const Placement& place = parts_.plan.placements[placement];
  return make_tensor({placement, place.size_bytes > 0 ? state_->memory_of(place.slab) : SlabMemory{}});
}

// A tensor without bytes has no slab, but it may have a target.
void LoadImpl::set_empty_target(Tensor& tensor) const {
  const Targets& targets = parts_.request.targets;
  const auto target = targets.by_name.find(tensor.name);
  if (target == targets.by_name.end()) return;
  tensor.data = target->second.pointer;
  tensor.memory = targets.owner;
}

bool LoadImpl::done() const {
  require_own_process();
  return state_->all_taken();
}

void LoadImpl::cancel() noexcept { stop_.cancel(); }

Progress LoadImpl::progress() const {
  require_own_process();
  return {report_.loaded_bytes(), parts_.plan.loaded_bytes, report_.seconds()};
}

Report LoadImpl::report() const {
  require_own_process();
  Report report = report_.snapshot();
  for (Fallback& fallback : fallbacks_.list()) report.fallbacks.push_back(std::move(fallback));
  for (const std::uint32_t placement : state_->overwritten_targets())
    report.overwritten_targets.emplace_back(
        parts_.checkpoint.tensor(parts_.plan.placements[placement].tensor).name);
  report.host_peak_bytes = peak_resident_bytes();
  if (parts_.ahead != nullptr) report.read_ahead_bytes = parts_.ahead->read_bytes();
  return report;
}

}  // namespace inrush::engine
