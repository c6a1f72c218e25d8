#include <arpa/inet.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <netdb.h>
#include <netinet/in.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <latch>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/grpc/grpc_channel.h"
#include "base/grpc/grpc_server.h"
#include "base/grpc/grpc_status.h"
#include "base/grpc/name_lookup_internal.h"
#include "base/net_address.h"
#include "base/worker.h"

namespace bascule {
namespace {

Deadline In(Duration time) { return Deadline::After(Clock::Real(), time); }

class UnixPath {
 public:
  explicit UnixPath(const char* name) : path_(::testing::TempDir() + name + std::to_string(getpid())) {
    unlink(path_.c_str());
  }
  ~UnixPath() { unlink(path_.c_str()); }
  std::string address() const { return "unix:" + path_; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// C-043.
TEST(NetAddressTest, TheThreeFormsRoundTrip) {
  for (const char* text :
       {"127.0.0.1:80", "[::1]:0", "[fe80::1%eth0]:9", "host.example:65535", "unix:/run/bascule.sock"}) {
    EXPECT_EQ(NetAddress::Parse(text)->ToString(), text);
  }
}

// C-037: nobody dials the address of every host, however it is spelled.
TEST(NetAddressTest, AnAddressInDigitsHasOneSpelling) {
  for (const char* text :
       {"0:80", "0.0:80", "0x0:80", "000.0.0.0:80", "[::0]:80", "[0:0:0:0:0:0:0:0]:80", "[::ffff:0.0.0.0]:80"}) {
    EXPECT_TRUE(NetAddress::Parse(text)->is_wildcard()) << text;
  }
  for (const char* text : {"127.1:80", "127.0.1.1:80", "2130706433:80", "[0:0::1]:80", "[::ffff:127.0.0.1]:80"}) {
    EXPECT_TRUE(NetAddress::Parse(text)->is_loopback()) << text;
  }
  for (const char* text : {"128.0.0.1:80", "127.example:80", "[::2]:80", "[::ffff:10.0.0.1]:80"}) {
    EXPECT_FALSE(NetAddress::Parse(text)->is_loopback()) << text;
  }
  EXPECT_EQ(NetAddress::Parse("[FE80:0:0::A]:80")->ToString(), "[fe80::a]:80");
  EXPECT_EQ(NetAddress::Parse("0.example:80")->ToString(), "0.example:80");
}

// C-043.
TEST(NetAddressTest, AnythingElseIsABadAddress) {
  const std::string long_path = "unix:/" + std::string(200, 'x');
  for (const char* text : {"", "host", "host:", ":80", "host:65536", "host:-1", "host:8x", "a b:7", "a/b:7", "::1:80",
                           "[]:80", "[[]]:7", "[host]:7", "[::1%]:7", "[::1:7", "unix:relative", long_path.c_str()}) {
    EXPECT_EQ(NetAddress::Parse(text).status().reason(), "bad_address") << text;
  }
  EXPECT_EQ(NetAddress::Parse({"unix:/a\0b", 9}).status().reason(), "bad_address");
}

// C-043.
TEST(LookUpTest, AnAddressInDigitsAsksNobodyAndGetsThePort) {
  const Resolver nobody = [](const std::string&, std::vector<SocketAddress>&) { return ADD_FAILURE(), EAI_AGAIN; };
  for (const char* digits : {"127.0.0.1", "0.0.0.0", "::1"}) {
    const auto found = LookUp(digits, 4711, In(std::chrono::seconds(10)), Clock::Real(), nobody);

    ASSERT_TRUE(found.ok()) << found.status().ToString();
    ASSERT_EQ(found->size(), 1U);
    const sockaddr_storage& bytes = (*found)[0].bytes;
    EXPECT_EQ(ntohs(bytes.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(bytes).sin6_port
                                                : reinterpret_cast<const sockaddr_in&>(bytes).sin_port),
              4711);
  }
}

// C-043.
TEST(LookUpTest, EveryAddressOfANameIsFound) {
  const Resolver two = [](const std::string&, std::vector<SocketAddress>& found) {
    return ResolveBySystem("127.0.0.1", found) + ResolveBySystem("::1", found);
  };

  EXPECT_EQ(LookUp("engine", 1, In(std::chrono::seconds(10)), Clock::Real(), two)->size(), 2U);
}

// C-043.
TEST(LookUpTest, WhatAResolverDoesNotKnowIsSaidInItsWords) {
  for (const int error : {EAI_NONAME, EAI_AGAIN, EAI_FAIL}) {
    const Resolver failing = [error](const std::string&, std::vector<SocketAddress>&) { return error; };

    const Status status = LookUp("engine", 1, In(std::chrono::seconds(10)), Clock::Real(), failing).status();

    EXPECT_EQ(status, Status::Unavailable("name_unknown", std::string("engine: ") + gai_strerror(error)));
  }
}

// C-043.
TEST(LookUpTest, AResolverThatDoesNotAnswerIsGivenUpAtTheDeadline) {
  const auto answer = std::make_shared<std::latch>(1);
  const Resolver stuck = [answer](const std::string&, std::vector<SocketAddress>&) {
    answer->wait();
    return EAI_AGAIN;
  };

  const Status status = LookUp("engine", 1, In(std::chrono::milliseconds(5)), Clock::Real(), stuck).status();

  EXPECT_EQ(status, Status::Unavailable("name_unknown", "engine: no resolver answered in time"));
  answer->count_down();
}

TEST(GrpcStatusTest, EveryCodeAndTheReasonSurviveTheEdge) {
  for (int code = 1; code <= static_cast<int>(StatusCode::kInternal); ++code) {
    const Status status(static_cast<StatusCode>(code), "some_reason", "got=3");

    EXPECT_EQ(FromGrpc(ToGrpc(status)), status);
  }
  EXPECT_TRUE(FromGrpc(ToGrpc(OkStatus())).ok());
}

// C-041.
TEST(GrpcStatusTest, ALongErrorTextIsCutToTheBound) {
  const Status status = Status::DataLoss("reason", std::string(64 << 10, 'x'));

  EXPECT_EQ(FromGrpc(ToGrpc(status)).message().size(), kGrpcErrorTextBytes);
}

TEST(GrpcStatusTest, AnErrorOfGrpcItselfGetsAReason) {
  EXPECT_EQ(FromGrpc(grpc::Status(grpc::UNAVAILABLE, "socket closed")).reason(), "peer_lost");
  EXPECT_EQ(FromGrpc(grpc::Status(grpc::UNKNOWN, "?")).reason(), "rpc_failed");
}

// C-035.
TEST(GrpcServerTest, PortZeroBindsAFreePortAndSaysWhich) {
  auto server = GrpcServer::Start("127.0.0.1:0", {});
  ASSERT_TRUE(server.ok()) << server.status().ToString();

  EXPECT_NE(NetAddress::Parse((*server)->address())->port, 0);
  EXPECT_TRUE(ConnectGrpcChannel((*server)->address(), In(std::chrono::seconds(10)), Clock::Real()).ok());
}

// C-035.
TEST(GrpcServerTest, ServersThatStartAtOnceAllGetPortsOfTheirOwn) {
  constexpr int kThreads = 8, kEach = 8;
  std::vector<std::unique_ptr<GrpcServer>> servers[kThreads];
  {
    std::latch together(kThreads);
    std::vector<Worker> starting;
    for (auto& own : servers) {
      starting.emplace_back("starting", [&own, &together](std::stop_token) {
        together.arrive_and_wait();
        for (int i = 0; i < kEach; ++i) own.push_back(*GrpcServer::Start("127.0.0.1:0", {}));
      });
    }
  }

  std::set<std::string> addresses;
  for (const auto& own : servers) {
    for (const auto& server : own) addresses.insert(server->address());
  }
  EXPECT_EQ(addresses.size(), std::size_t{kThreads} * kEach);
}

// C-035.
TEST(GrpcServerTest, ASecondServerOnThePortIsRefusedAndTheFirstGoesOn) {
  auto first = *GrpcServer::Start("127.0.0.1:0", {});

  const Status second = GrpcServer::Start(first->address(), {}).status();

  EXPECT_EQ(second.reason(), "address_in_use");
  EXPECT_NE(second.message().find(first->address()), std::string::npos);
  EXPECT_TRUE(ConnectGrpcChannel(first->address(), In(std::chrono::seconds(10)), Clock::Real()).ok());
}

TEST(GrpcServerTest, ASecondServerOnAUnixSocketIsRefusedAndADeadSocketIsReplaced) {
  const UnixPath path("bascule_grpc_test");
  auto first = *GrpcServer::Start(path.address(), {});

  EXPECT_EQ(GrpcServer::Start(path.address(), {}).status().reason(), "address_in_use");
  EXPECT_TRUE(ConnectGrpcChannel(path.address(), In(std::chrono::seconds(10)), Clock::Real()).ok());

  first.reset();
  EXPECT_TRUE(GrpcServer::Start(path.address(), {}).ok());
}

TEST(GrpcServerTest, AFileInTheWayOfAUnixSocketIsLeftAlone) {
  const UnixPath path("bascule_grpc_file");
  std::ofstream(path.path()) << "precious";

  EXPECT_EQ(GrpcServer::Start(path.address(), {}).status().reason(), "address_in_use");
  EXPECT_EQ(access(path.path().c_str(), F_OK), 0);
}

// C-038.
TEST(GrpcServerTest, AHostThatIsNotOursCannotBeListenedOn) {
  EXPECT_EQ(GrpcServer::Start("192.0.2.1:0", {}).status().reason(), "cannot_listen");
}

TEST(GrpcChannelTest, WhereNobodyListensThePeerIsUnreachableAtOnce) {
  std::string address;
  { address = (*GrpcServer::Start("127.0.0.1:0", {}))->address(); }

  const Status status = ConnectGrpcChannel(address, In(std::chrono::hours(1)), Clock::Real()).status();

  EXPECT_EQ(status.reason(), "peer_unreachable");
  EXPECT_NE(status.message().find(address), std::string::npos);
}

TEST(GrpcChannelTest, ProxyVariablesOfTheEnvironmentAreNotUsed) {
  for (const char* name : {"http_proxy", "https_proxy", "grpc_proxy"}) setenv(name, "http://127.0.0.1:9", 1);
  auto server = *GrpcServer::Start("127.0.0.1:0", {});

  EXPECT_TRUE(ConnectGrpcChannel(server->address(), In(std::chrono::seconds(10)), Clock::Real()).ok());

  for (const char* name : {"http_proxy", "https_proxy", "grpc_proxy"}) unsetenv(name);
}

}  // namespace
}  // namespace bascule
