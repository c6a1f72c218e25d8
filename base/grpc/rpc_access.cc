#include "base/grpc/rpc_access.h"

#include <google/protobuf/descriptor.h>

#include <algorithm>
#include <array>
#include <string>

#include "bascule/v1/access.pb.h"

namespace bascule {
namespace {

constexpr std::array<std::string_view, 2> kServicesOfGrpc = {"grpc.health.v1.Health",
                                                             "grpc.reflection.v1alpha.ServerReflection"};

std::optional<Role> RoleOf(v1::Role role) {
  switch (role) {
    case v1::ROLE_READ:
      return Role::kRead;
    case v1::ROLE_GENERATE:
      return Role::kGenerate;
    case v1::ROLE_OPERATE:
      return Role::kOperate;
    case v1::ROLE_PUBLISH:
      return Role::kPublish;
    default:
      return std::nullopt;
  }
}

}  // namespace

std::optional<Role> RoleOfRpc(std::string_view path) {
  const std::size_t slash = path.rfind('/');
  if (!path.starts_with('/') || slash == 0) return std::nullopt;
  const std::string_view service = path.substr(1, slash - 1);
  if (std::find(kServicesOfGrpc.begin(), kServicesOfGrpc.end(), service) != kServicesOfGrpc.end()) return Role::kRead;
  const auto* const found = google::protobuf::DescriptorPool::generated_pool()->FindServiceByName(std::string(service));
  if (found == nullptr) return std::nullopt;
  const auto* const method = found->FindMethodByName(std::string(path.substr(slash + 1)));
  return method == nullptr ? std::nullopt : RoleOf(method->options().GetExtension(v1::role));
}

}  // namespace bascule
