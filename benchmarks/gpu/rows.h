// The groups of rows of the GPU benchmarks; each prints its rows and frees what it took.
//
// Thread-safety: confined to one thread.
#pragma once

#include "base/status.h"
#include "benchmarks/gpu/gpu_run.h"
#include "benchmarks/peer_process.h"

namespace bascule {

// Each kernel's bytes a second beside the device's copy.
Status KernelRows(GpuRun& run);
// Scatter of changed elements into a slot, by density.
Status ScatterRows(GpuRun& run);
// Stalls of flips while steps that read all weights run: shadow, in place, and a scatter between two steps.
Status FlipRows(GpuRun& run);
// A sync from another process, `trainer`, over cuda_ipc, while steps run: with buckets of 64 MiB, or (`large`) four
// times as large, which matter where two processes take turns on the device.
Status SyncRows(GpuRun& run, PeerLink& trainer, bool large);
// Tokens a second of our decoder, by batch, beside the bandwidth that reading the weights needs.
Status DecodeRows(GpuRun& run);

}  // namespace bascule
