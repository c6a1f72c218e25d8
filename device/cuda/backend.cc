#include "device/backend.h"

#include <dlfcn.h>

#include <algorithm>
#include <map>

#include "base/mutex.h"
#include "device/cuda/device.h"

BASCULE_MODULE_ENTRY const bascule::BackendEntry* bascule_cuda_backend();

namespace bascule {
namespace {

class CudaBackend final : public DeviceBackend {
 public:
  std::string_view name() const override { return "cuda"; }
  Result<std::vector<DeviceDescription>> Devices() override { return DescribeCudaDevices(); }

  Result<Device*> Open(const DeviceUuid& uuid) override {
    return OpenWhere([&](const DeviceDescription& device) { return device.uuid == uuid; }, uuid.ToString());
  }
  Result<Device*> Open(int ordinal) override {
    return OpenWhere([&](const DeviceDescription& device) { return device.ordinal == ordinal; },
                     fmt::format("ordinal {}", ordinal));
  }

  void* Part(const std::string& part) override {
    Dl_info here{};
    if (dladdr(reinterpret_cast<const void*>(&bascule_cuda_backend), &here) == 0) return nullptr;
    void* const module = dlopen(here.dli_fname, RTLD_NOW | RTLD_NOLOAD);
    if (module == nullptr) return nullptr;
    void* const symbol = dlsym(module, ("bascule_cuda_" + part).c_str());
    dlclose(module);  // only the count: the module stays
    return symbol;
  }

 private:
  template <typename Predicate>
  Result<Device*> OpenWhere(Predicate wanted, const std::string& what) EXCLUDES(mu_) {
    ASSIGN_OR_RETURN(const std::vector<DeviceDescription> devices, DescribeCudaDevices());
    const auto found = std::ranges::find_if(devices, wanted);
    if (found == devices.end()) return NoSuchDevice(what, devices);
    const MutexLock lock(mu_);
    std::unique_ptr<CudaDevice>& device = opened_[found->ordinal];
    if (device == nullptr) device = std::make_unique<CudaDevice>(*found);
    return device.get();
  }

  static Status NoSuchDevice(const std::string& what, const std::vector<DeviceDescription>& devices) {
    std::string there;
    for (const DeviceDescription& device : devices) {
      there += fmt::format("{}{} {}", there.empty() ? "" : ", ", device.ordinal, device.uuid.ToString());
    }
    return Status::NotFound("no_such_device", fmt::format("{}; there are: {}", what, there));
  }

  Mutex mu_;
  std::map<int, std::unique_ptr<CudaDevice>> opened_ GUARDED_BY(mu_);
};

}  // namespace
}  // namespace bascule

const bascule::BackendEntry* bascule_cuda_backend() {
  static const bascule::BackendEntry entry = {bascule::BackendBuildId().data(), []() -> bascule::DeviceBackend* {
                                                // Never destroyed: devices and their memory may be in use while the
                                                // program ends.
                                                static auto* const backend = new bascule::CudaBackend;
                                                return backend;
                                              }};
  return &entry;
}
