// The two ends of a cuda_ipc route: an shm route, whose frames have a second part on the device.
#pragma once

#include <memory>

#include "bridge/transport/cuda_ipc/device_end.h"
#include "bridge/transport/cuda_ipc/retired_ends.h"
#include "bridge/transport/shm/route.h"

namespace bascule {

// `retired` takes over the device memory that the other end may still read when the sender goes.
std::unique_ptr<BucketSender> MakeCudaIpcSender(std::unique_ptr<ShmSender> host, std::shared_ptr<DeviceEnd> own,
                                                std::shared_ptr<DeviceEnd> peer, std::shared_ptr<RetiredEnds> retired,
                                                Clock& clock);
std::unique_ptr<BucketReceiver> MakeCudaIpcReceiver(std::unique_ptr<ShmReceiver> host, std::shared_ptr<DeviceEnd> own,
                                                    std::shared_ptr<DeviceEnd> peer, Clock& clock);

}  // namespace bascule
