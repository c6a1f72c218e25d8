#include "tests/support/fake_cuda/event.h"

#include <sys/mman.h>
#include <unistd.h>

#include "tests/support/fake_cuda/ipc.h"

namespace bascule::fake_cuda {

std::shared_ptr<Event> Event::Map(UniqueFd fd, int device, bool is_shared) {
  void* const marks = mmap(nullptr, sizeof(Marks), PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (marks == MAP_FAILED) return nullptr;
  return std::shared_ptr<Event>(new Event(std::move(fd), static_cast<Marks*>(marks), device, is_shared));
}

std::shared_ptr<Event> Event::Make(int device, bool shared) {
  UniqueFd fd(memfd_create("fake_cuda_event", MFD_CLOEXEC));
  if (!fd.valid() || ftruncate(fd.get(), sizeof(Marks)) != 0) return nullptr;
  return Map(std::move(fd), device, shared);
}

std::shared_ptr<Event> Event::Open(const cudaIpcEventHandle_t& handle, int device) {
  UniqueFd fd = OpenNamed(ReadName(handle));
  // An opened event cannot be passed on.
  return fd.valid() ? Map(std::move(fd), device, /*is_shared=*/false) : nullptr;
}

Event::~Event() { munmap(marks_, sizeof(Marks)); }

void Event::Export(cudaIpcEventHandle_t* handle) const { WriteName(NameOf(fd_.get(), device_), *handle); }

void Event::Reach(std::uint64_t mark) {
  std::uint64_t reached = marks_->reached.load();
  while (reached < mark && !marks_->reached.compare_exchange_weak(reached, mark)) {
  }
}

}  // namespace bascule::fake_cuda
