#include "bridge/layout/canonical_encoding.h"
#include "bridge/plan/plan.h"

namespace bascule {
namespace {

void EncodeSlice(const Slice& slice, CanonicalEncoding& encoding) {
  encoding.Number(slice.tensor);
  encoding.BoxOf(slice.logical_box);
  encoding.Number(slice.sender_tensor);
  encoding.BoxOf(slice.sender_box);
  encoding.Number(slice.engine_tensor);
  encoding.BoxOf(slice.engine_box);
  encoding.Number(static_cast<int>(slice.conversion));
  encoding.Number(static_cast<int>(slice.counts));
  encoding.Number(slice.payload_offset);
  encoding.Number(slice.payload_bytes);
}

void EncodeNames(const std::vector<std::string>& names, CanonicalEncoding& encoding) {
  encoding.Number(names.size());
  for (const std::string& name : names) encoding.Text(name);
}

void EncodeScope(const Plan& plan, CanonicalEncoding& encoding) {
  EncodeNames(plan.scope, encoding);
  encoding.Number(plan.carried.size());
  for (const std::int32_t tensor : plan.carried) encoding.Number(tensor);
}

}  // namespace

Hash256 PlanDigest(const Plan& plan) {
  CanonicalEncoding encoding("bascule plan 1");
  encoding.Number(plan.tensors.size());
  for (const TensorSpec& tensor : plan.tensors) encoding.Tensor(tensor);
  encoding.Number(plan.routes.size());
  for (const Route& route : plan.routes) {
    encoding.Number(route.sender_rank);
    encoding.Number(route.engine_rank);
  }
  encoding.Number(plan.buckets.size());
  for (const Bucket& bucket : plan.buckets) {
    encoding.Number(bucket.route);
    encoding.Number(bucket.payload_bytes);
    encoding.Number(bucket.slices.size());
    for (const Slice& slice : bucket.slices) EncodeSlice(slice, encoding);
  }
  EncodeNames(plan.names.expected, encoding);
  EncodeNames(plan.names.loaded, encoding);
  EncodeNames(plan.names.ignored, encoding);
  EncodeNames(plan.names.unexpected, encoding);
  encoding.Number(plan.payload_bytes);
  encoding.Hash(plan.sender_layout);
  encoding.Hash(plan.engine_layout);
  if (!plan.scope.empty()) EncodeScope(plan, encoding);
  return encoding.Digest();
}

}  // namespace bascule
