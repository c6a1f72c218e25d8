// A decoder on devices: one rank each, with weights, activations, key/value state and logits in its memory. Tables of a
// step go there through pinned memory, and tokens with their log-probabilities come back; logits do only for rules that
// a device does not draw by (sample_device.h).
//
// Work of a rank is on one stream; between ranks events order it. The host waits once a step, with a deadline. A step
// in which every row wants its next token is padded to the next power of two and launched as a graph, one for all
// ranks, where one has been captured for these weights and this number of rows (StepGraphs); the step that finds none
// is enqueued kernel by kernel, and while the devices compute it the same work is captured. So no flip waits for a
// graph.
//
// Numerics: everything but the products and the logarithm of a log-probability has the host's bits (kernels/). Products
// are cuBLAS's, within the bound of kernels/gemm_device.h of the exact ones: results differ from the host's by
// rounding, and by the number of rows that a step computes. The same steps in the same order give the same bits again,
// with graphs and without, on the same devices.
//
// Thread-safety: confined to the scheduler thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "engine_side/decode/decode_devices.h"
#include "engine_side/decode/decoder.h"
#include "engine_side/decode/device_rank.h"
#include "engine_side/decode/kv_cache.h"
#include "engine_side/decode/step_graphs.h"
#include "engine_side/decode/step_tables.h"

namespace bascule {

class DeviceDecoder final : public Decoder {
 public:
  // `devices` has as many as there are ranks; what it points to outlives the decoder.
  //
  // ResourceExhausted "device_memory"; Unavailable "no_cublas"; errors of the devices
  static Result<std::unique_ptr<DeviceDecoder>> Create(DecoderOptions options, DecodeDevices devices, const KvShape& kv,
                                                       std::int64_t pages, Clock& clock);
  // What a device that was given up may still use stays as long as the process.
  ~DeviceDecoder() override;

  Status CopyPages(std::span<const PageCopy> copies) override;
  Result<Draws> Step(std::span<const StepRow> rows, std::span<const SampleWish> wishes,
                     std::shared_ptr<StepWeights> weights) override;
  void Stop() override;
  // Not OK once a device is lost, or took longer than step_deadline: what it still does nobody knows.
  Status health() const override { return broken_; }

  // The logits of the last step's i-th row that wanted them, for tests.
  Result<std::vector<float>> ReadLogits(std::int64_t i);
  std::size_t graphs() const { return graphs_.count(); }

 private:
  DeviceDecoder(DecoderOptions options, DecodeDevices devices, Clock& clock);
  Status Allocate(const KvShape& kv, std::int64_t pages);

  DeviceRank& first() { return *ranks_.front(); }
  StepShape ShapeOf(std::span<const StepRow> rows) const;
  StepGraphs::Addresses Resolve(const StepWeights& weights);

  Status Enqueue(std::span<const StepRow> rows, std::span<const SampleWish> wishes, const StepWeights& weights);
  Status EnqueueModel(const StepShape& shape);
  Status EnqueueLayers(const StepShape& shape);
  Status EnqueueDraws(std::span<const SampleWish> wishes);
  void Capture(const StepShape& shape);
  // The other ranks' streams go on from where the first one is, and the first from where they are.
  Status Fork();
  Status Join();
  Status SumOverRanks(float* (DeviceRank::*part)(), std::int64_t rows);

  // Until what was enqueued before the last mark is done; and until all is that has been enqueued.
  Status Await(Duration patience);
  Status Drain(Duration patience);
  // After a failure: nothing of the step runs any more, or the decoder is given up.
  Status Settle(Status failure);
  Result<Draws> Collect(std::span<const SampleWish> wishes);
  Result<std::optional<SampledToken>> DrawOnHost(std::int64_t i, const SampleWish& wish);

  const DecoderOptions options_;
  const DecodeDevices devices_;
  Clock& clock_;
  std::unique_ptr<DeviceCollective> own_collective_;
  DeviceCollective* collective_ = nullptr;  // null: one rank
  std::vector<std::unique_ptr<DeviceRank>> ranks_;
  std::optional<StepTables> tables_;
  std::unique_ptr<DeviceEvent> forked_, done_;
  std::vector<std::unique_ptr<DeviceEvent>> joined_;  // of the ranks after the first

  // On the first device: what drawing works in, and what is drawn.
  DeviceArena drawing_;
  float* weights_of_draws_ = nullptr;
  double* sums_of_draws_ = nullptr;
  TokenLogprob* drawn_ = nullptr;
  std::unique_ptr<DeviceBuffer> drawn_here_, logits_here_;  // pinned
  std::vector<float> host_scratch_;
  std::vector<std::size_t> for_host_;  // wishes of this step that the host answers

  StepGraphs graphs_;
  bool captures_ = true;
  std::shared_ptr<StepWeights> held_;  // as long as a device may read them
  Status broken_;
};

}  // namespace bascule
