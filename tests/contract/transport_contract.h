// What a transport brings to the contract suite: a listener and a dialer that can reach it, in one process.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <ostream>
#include <string>

#include "bridge/transport/transport.h"

namespace bascule {

class TransportWorld {
 public:
  virtual ~TransportWorld() = default;
  virtual TransportListener& listener() = 0;
  virtual TransportDialer& dialer() = 0;
  // Destroys the listener, and whatever server it needs.
  virtual void CloseListener() = 0;
};

struct TransportCase {
  std::string name;
  TransportKind kind;
  bool wants_checksum;
  std::size_t pool_threads;  // by how much a library's own pool may grow, whatever the number of routes
  std::function<std::unique_ptr<TransportWorld>()> make_world;
};
inline void PrintTo(const TransportCase& transport, std::ostream* out) { *out << transport.name; }

// Each transport's file instantiates the suite of transport_contract_test.cc:
//   INSTANTIATE_TEST_SUITE_P(Loopback, TransportContractTest, testing::Values(TransportCase{...}));
class TransportContractTest : public testing::TestWithParam<TransportCase> {
 protected:
  void SetUp() override { world_ = GetParam().make_world(); }

  std::unique_ptr<TransportWorld> world_;
};

}  // namespace bascule
