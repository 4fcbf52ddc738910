// A pool of threads that call File::read(): every read that io_uring does not take. Owned by a queue;
// submit() from any thread. Destroying it joins the threads that are idle and leaves the ones inside a read
// to end on their own when that returns.
#pragma once

#include "base/fallbacks.hpp"
#include "storage/completion_list.hpp"
#include "storage/read_queue.hpp"

#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

namespace inrush::engine {

// What the parts of a queue share, also with threads that outlive it.
struct QueueLinks {
  std::shared_ptr<CompletionList> completions;
  std::shared_ptr<Fallbacks> fallbacks;
};

class ReaderThreads {
 public:
  // Starts fewer where the system has no more threads, and records it; throws out_of_memory where not even
  // one starts.
  ReaderThreads(std::uint32_t reader_count, QueueLinks links);
  ~ReaderThreads();
  ReaderThreads(const ReaderThreads&) = delete;
  ReaderThreads& operator=(const ReaderThreads&) = delete;

  // The completion must be expected already.
  void submit(ReadRequest request) noexcept;
  // Does, on the caller's thread, the next waiting read of a local file through the page cache. False: there
  // is none, or it would wait for storage.
  bool read_one_resident() noexcept;

 private:
  struct Shared;

  void put_back(ReadRequest request) noexcept;
  template <typename Push>
  void add(ReadRequest request, Push&& push) noexcept;

  std::shared_ptr<Shared> shared_;
  std::vector<std::thread> threads_;
};

}  // namespace inrush::engine
