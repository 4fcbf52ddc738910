#include "cli/device_choice.hpp"

#include <algorithm>
#include <vector>

namespace inrush::engine {

Device choose_device_named(Loader& loader, const std::string& spelling) {
  if (spelling != "auto") return parse_device(spelling);
  const std::vector<Device> devices = loader.devices();
  const auto gpu = std::ranges::find(devices, DeviceKind::cuda, &Device::kind);
  return gpu == devices.end() ? Device{} : Device{gpu->kind, gpu->index};
}

}  // namespace inrush::engine
