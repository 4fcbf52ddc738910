#include "gpu/raw_driver.hpp"

#include <dlfcn.h>

#include <stdexcept>

namespace inrush::gpu_tests {

namespace {

using Address = unsigned long long;

// Two kernels as PTX text: bytes that differ are counted; a wait by the GPU's own nanosecond clock.
constexpr const char* kernels = R"(
.version 7.0
.target sm_70
.address_size 64

.visible .entry compare(.param .u64 first, .param .u64 second, .param .u64 size, .param .u64 result)
{
  .reg .u32 %r<4>;
  .reg .u64 %d<11>;
  .reg .u16 %h<2>;
  .reg .pred %p<2>;
  ld.param.u64 %d0, [first];
  ld.param.u64 %d1, [second];
  ld.param.u64 %d2, [size];
  ld.param.u64 %d3, [result];
  mov.u32 %r0, %ctaid.x;
  mov.u32 %r1, %ntid.x;
  mov.u32 %r2, %tid.x;
  mul.wide.u32 %d4, %r0, %r1;
  cvt.u64.u32 %d5, %r2;
  add.u64 %d4, %d4, %d5;
  mov.u32 %r3, %nctaid.x;
  mul.wide.u32 %d6, %r3, %r1;
loop:
  setp.ge.u64 %p0, %d4, %d2;
  @%p0 bra done;
  add.u64 %d7, %d0, %d4;
  add.u64 %d8, %d1, %d4;
  ld.global.u8 %h0, [%d7];
  ld.global.u8 %h1, [%d8];
  add.u64 %d4, %d4, %d6;
  setp.eq.u16 %p1, %h0, %h1;
  @%p1 bra loop;
  atom.global.add.u64 %d9, [%d3], 1;
  bra loop;
done:
  ret;
}

.visible .entry spin(.param .u64 nanoseconds)
{
  .reg .u64 %d<3>;
  .reg .pred %p0;
  ld.param.u64 %d0, [nanoseconds];
  mov.u64 %d1, %globaltimer;
  add.u64 %d0, %d0, %d1;
again:
  mov.u64 %d2, %globaltimer;
  setp.lt.u64 %p0, %d2, %d0;
  @%p0 bra again;
  ret;
}
)";

}  // namespace

struct RawDriver::Entries {
  int (*init)(unsigned);
  int (*device_get)(int*, int);
  int (*retain)(void**, int);
  int (*release)(int);
  int (*set_current)(void*);
  int (*mem_alloc)(Address*, std::size_t);
  int (*mem_free)(Address);
  int (*mem_get_info)(std::size_t*, std::size_t*);
  int (*memset)(Address, unsigned char, std::size_t);
  int (*upload)(Address, const void*, std::size_t);
  int (*download)(void*, Address, std::size_t);
  int (*copy_async)(Address, Address, std::size_t, void*);
  int (*module_load)(void**, const void*);
  int (*module_unload)(void*);
  int (*module_function)(void**, void*, const char*);
  int (*launch)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**,
                void**);
  int (*stream_create)(void**, unsigned);
  int (*stream_destroy)(void*);
  int (*stream_synchronize)(void*);
  int (*synchronize)();
  int device = 0;
};

namespace {

template <typename Function>
void find(void* library, const char* name, Function& entry) {
  entry = reinterpret_cast<Function>(::dlsym(library, name));
  if (entry == nullptr) throw std::runtime_error(std::string("no entry point ") + name);
}

}  // namespace

RawDriver::RawDriver() : entries_(new Entries{}) {
  void* const library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) throw std::runtime_error(::dlerror());
  find(library, "cuInit", entries_->init);
  find(library, "cuDeviceGet", entries_->device_get);
  find(library, "cuDevicePrimaryCtxRetain", entries_->retain);
  find(library, "cuDevicePrimaryCtxRelease_v2", entries_->release);
  find(library, "cuCtxSetCurrent", entries_->set_current);
  find(library, "cuMemAlloc_v2", entries_->mem_alloc);
  find(library, "cuMemFree_v2", entries_->mem_free);
  find(library, "cuMemGetInfo_v2", entries_->mem_get_info);
  find(library, "cuMemsetD8_v2", entries_->memset);
  find(library, "cuMemcpyHtoD_v2", entries_->upload);
  find(library, "cuMemcpyDtoH_v2", entries_->download);
  find(library, "cuMemcpyDtoDAsync_v2", entries_->copy_async);
  find(library, "cuModuleLoadData", entries_->module_load);
  find(library, "cuModuleUnload", entries_->module_unload);
  find(library, "cuModuleGetFunction", entries_->module_function);
  find(library, "cuLaunchKernel", entries_->launch);
  find(library, "cuStreamCreate", entries_->stream_create);
  find(library, "cuStreamDestroy_v2", entries_->stream_destroy);
  find(library, "cuStreamSynchronize", entries_->stream_synchronize);
  find(library, "cuCtxSynchronize", entries_->synchronize);
  void* context = nullptr;
  check(entries_->init(0), "cuInit");
  check(entries_->device_get(&entries_->device, 0), "cuDeviceGet");
  check(entries_->retain(&context, entries_->device), "cuDevicePrimaryCtxRetain");
  check(entries_->set_current(context), "cuCtxSetCurrent");
  check(entries_->module_load(&module_, kernels), "cuModuleLoadData");
  check(entries_->module_function(&compare_, module_, "compare"), "cuModuleGetFunction");
  check(entries_->module_function(&spin_, module_, "spin"), "cuModuleGetFunction");
}

RawDriver::~RawDriver() {
  entries_->module_unload(module_);
  entries_->set_current(nullptr);
  entries_->release(entries_->device);
  delete entries_;
}

void RawDriver::check(int result, const char* call) const {
  if (result != 0) throw std::runtime_error(std::string(call) + " answers " + std::to_string(result));
}

std::uint64_t RawDriver::allocate(std::uint64_t size_bytes) {
  Address address = 0;
  check(entries_->mem_alloc(&address, size_bytes), "cuMemAlloc");
  return address;
}

void RawDriver::free(std::uint64_t address) { check(entries_->mem_free(address), "cuMemFree"); }

void RawDriver::fill(std::uint64_t address, unsigned char value, std::uint64_t size_bytes) {
  check(entries_->memset(address, value, size_bytes), "cuMemsetD8");
  check(entries_->synchronize(), "cuCtxSynchronize");
}

void RawDriver::upload(std::uint64_t address, std::span<const std::byte> bytes) {
  check(entries_->upload(address, bytes.data(), bytes.size()), "cuMemcpyHtoD");
}

std::uint64_t RawDriver::free_bytes() {
  std::size_t free = 0;
  std::size_t total = 0;
  check(entries_->mem_get_info(&free, &total), "cuMemGetInfo");
  return free;
}

std::uint64_t RawDriver::count_different(std::uint64_t a, std::uint64_t b, std::uint64_t size_bytes) {
  std::uint64_t result = allocate(8);
  fill(result, 0, 8);
  void* arguments[] = {&a, &b, &size_bytes, &result};
  launch(compare_, nullptr, 1024, arguments);
  check(entries_->synchronize(), "cuCtxSynchronize");
  std::uint64_t count = 0;
  check(entries_->download(&count, result, 8), "cuMemcpyDtoH");
  free(result);
  return count;
}

void* RawDriver::open_stream() {
  void* stream = nullptr;
  check(entries_->stream_create(&stream, 1), "cuStreamCreate");  // 1: never waits for the default stream
  return stream;
}

void RawDriver::close_stream(void* stream) { check(entries_->stream_destroy(stream), "cuStreamDestroy"); }

void RawDriver::spin(void* stream, std::uint64_t nanoseconds) {
  void* arguments[] = {&nanoseconds};
  launch(spin_, stream, 1, arguments);
}

void RawDriver::copy_on(void* stream, std::uint64_t target, std::uint64_t source, std::uint64_t size_bytes) {
  check(entries_->copy_async(target, source, size_bytes, stream), "cuMemcpyDtoDAsync");
}

void RawDriver::synchronize(void* stream) {
  check(entries_->stream_synchronize(stream), "cuStreamSynchronize");
}

void RawDriver::launch(void* function, void* stream, unsigned blocks, void** arguments) {
  check(entries_->launch(function, blocks, 1, 1, 256, 1, 1, 0, stream, arguments, nullptr), "cuLaunchKernel");
}

}  // namespace inrush::gpu_tests
