// The page cache copied from where it lies: what goes that way, what does not, and what is left pinned.
#include "conformance/transfer_path_fixture.hpp"

#include <string_view>
#include <vector>

namespace inrush::engine {
namespace {

using namespace fakes;

bool has(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

class WindowPathTest : public TransferPathTest {
 protected:
  void SetUp() override { write_checkpoint(); }

  std::optional<Error> load(const Plan& plan) {
    PlanSink sink(plan, *gpu_, open_files());
    const auto queue = open_queue();
    std::optional<Error> failure = run(plan, sink, *queue);
    if (!failure) expect_bytes(plan, sink);
    pieces_by_route_ = sink.pieces_by_route;
    return failure;
  }

  std::vector<std::string> reasons() const {
    std::vector<std::string> texts;
    for (const Fallback& fallback : fallbacks_->list()) {
      if (fallback.what == "page cache windows") texts.push_back(fallback.reason);
    }
    return texts;
  }

  std::map<Route, std::uint64_t> pieces_by_route_;
};

TEST_P(WindowPathTest, WhatIsCachedComesByWindowsAndNothingStaysPinned) {
  const Plan plan = make();
  const std::uint64_t registered_bytes = cuda_->live().registered_bytes;
  EXPECT_FALSE(load(plan));
  EXPECT_EQ(pieces_by_route_[Route::cached_window], plan.pieces.size());
  EXPECT_GT(window_peak_bytes_, 0U);
  EXPECT_LE(window_peak_bytes_, 3 * plan.slot_bytes);
  EXPECT_EQ(cuda_->live().registered_bytes, registered_bytes);
  EXPECT_EQ(reasons(), std::vector<std::string>{});
}

TEST_P(WindowPathTest, WhatIsColdGoesAsEver) {
  const Plan plan = make();
  drop_page_cache();
  EXPECT_FALSE(load(plan));
  const Route cold = plan.page_cache == PageCachePolicy::keep ? Route::populated_ring : Route::direct_ring;
  EXPECT_GT(pieces_by_route_[cold], 0U);  // some pieces share pages with one that came before
}

TEST_P(WindowPathTest, WhatTheDriverRefusesComesByTheRing) {
  cuda_->fail_from("cuMemHostRegister", 1, CuResult::out_of_memory);
  const Plan plan = make();
  EXPECT_FALSE(load(plan));
  EXPECT_EQ(pieces_by_route_[Route::cached_window], 0U);
  EXPECT_EQ(pieces_by_route_[Route::cached_ring], plan.pieces.size());
  ASSERT_GE(reasons().size(), 2U) << "a reason a file, and those that were on their way";
  EXPECT_TRUE(has(reasons()[0], "cuMemHostRegister")) << reasons()[0];
  EXPECT_TRUE(has(reasons()[0], "safetensors")) << reasons()[0];
}

TEST_P(WindowPathTest, OneRegistrationThatFailsSendsOnlyItsFileAnotherWay) {
  cuda_->fail("cuMemHostRegister", 3, CuResult::out_of_memory);
  EXPECT_FALSE(load(make()));
  EXPECT_EQ(reasons().size(), 1U);
  EXPECT_GT(pieces_by_route_[Route::cached_window], 2U);
  EXPECT_GT(pieces_by_route_[Route::cached_ring], 0U);
}

// Populating says so; a touch by the CPU would end the process.
TEST_P(WindowPathTest, AFileThatWasCutIsCorrupt) {
  const Plan plan = make();
  const std::string path = checkpoint_.files()[0].path;
  for (const std::uint64_t left_bytes : {100 * kib + 1, 8 * kib, std::uint64_t{0}}) {
    ASSERT_EQ(::truncate(path.c_str(), static_cast<off_t>(left_bytes)), 0);
    const std::optional<Error> failure = load(plan);
    ASSERT_TRUE(failure);
    EXPECT_EQ(failure->code(), ErrorCode::corrupt_checkpoint) << failure->what();
  }
}

INSTANTIATE_TEST_SUITE_P(Windows, WindowPathTest,
                         testing::Combine(testing::Values(PathKind::windows), testing::Values(Queue::uring),
                                          testing::Values(PageCachePolicy::keep, PageCachePolicy::bypass)),
                         [](const auto& parameter) {
                           const bool is_kept =
                               std::get<PageCachePolicy>(parameter.param) == PageCachePolicy::keep;
                           return std::string(is_kept ? "keep" : "bypass");
                         });

}  // namespace
}  // namespace inrush::engine
