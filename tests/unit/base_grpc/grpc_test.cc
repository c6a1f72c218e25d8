#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <string>

#include "base/grpc/grpc_channel.h"
#include "base/grpc/grpc_server.h"
#include "base/grpc/grpc_status.h"
#include "base/net_address.h"

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

// C-043.
TEST(NetAddressTest, AnythingElseIsABadAddress) {
  const std::string long_path = "unix:/" + std::string(200, 'x');
  for (const char* text : {"", "host", "host:", ":80", "host:65536", "host:-1", "host:8x", "a b:7", "a/b:7", "::1:80",
                           "[]:80", "[[]]:7", "[host]:7", "[::1%]:7", "[::1:7", "unix:relative", long_path.c_str()}) {
    EXPECT_EQ(NetAddress::Parse(text).status().reason(), "bad_address") << text;
  }
  EXPECT_EQ(NetAddress::Parse({"unix:/a\0b", 9}).status().reason(), "bad_address");
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
