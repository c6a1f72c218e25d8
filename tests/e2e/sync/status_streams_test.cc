// Watchers of a status, over gRPC.
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <array>
#include <optional>

#include "bascule/v1/version_status.grpc.pb.h"
#include "base/grpc/grpc_channel.h"
#include "base/grpc/grpc_server.h"
#include "base/grpc/grpc_status.h"
#include "engine_side/grpc/version_status_service.h"
#include "tests/e2e/sync/sync_fixture.h"
#include "tests/support/process_census.h"

namespace bascule {
namespace {

constexpr int kMaxWatchers = 2;

class StatusStreamsTest : public SyncFixture {
 protected:
  StatusStreamsTest() {
    UseLoopback();
    receiver_options_.layout = ShardedTrainer::EngineLayout(1, kRows);
    receiver_options_.listeners = {listener_.get()};
    receiver_ = *WeightReceiver::Create(receiver_options_, hooks_);
    service_.emplace(*receiver_,
                     VersionStatusOptions{
                         .model = "model", .serving = [] { return ServingStatus(); }, .max_watchers = kMaxWatchers});
    server_ = *GrpcServer::Start("127.0.0.1:0", {&service_->service()});
  }
  ~StatusStreamsTest() override {
    service_->Stop();
    server_.reset();
    receiver_.reset();
    listener_.reset();
  }

  Deadline Soon() const { return Deadline::After(Clock::Real(), std::chrono::seconds(60)); }
  std::unique_ptr<v1::VersionStatus::Stub> Stub() {
    return v1::VersionStatus::NewStub(*ConnectGrpcChannel(server_->address(), Soon(), Clock::Real(), {}));
  }

  std::optional<EngineVersionStatusService> service_;
  std::unique_ptr<GrpcServer> server_;
};

// A watch from its first line on.
struct Watcher {
  explicit Watcher(v1::VersionStatus::Stub& stub) : stream(stub.WatchStatus(&context, {})) {
    v1::WatchStatusResponse line;
    sees = stream->Read(&line);
    if (!sees) end = FromGrpc(stream->Finish());
  }
  ~Watcher() {
    if (!sees) return;
    context.TryCancel();
    stream->Finish();
  }

  grpc::ClientContext context;
  std::unique_ptr<grpc::ClientReader<v1::WatchStatusResponse>> stream;
  bool sees = false;
  Status end;  // of one that sees nothing
};

TEST_F(StatusStreamsTest, AsManyAsMayWatchDoAndOneThatLeavesMakesRoom) {
  const auto stub = Stub();
  std::array<std::optional<Watcher>, kMaxWatchers> watchers;
  for (auto& watcher : watchers) ASSERT_TRUE(watcher.emplace(*stub).sees);

  const Status third = Watcher(*stub).end;
  EXPECT_EQ(third.code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(third.reason(), "too_many_callers");
  grpc::ClientContext context;
  v1::GetStatusResponse status;
  EXPECT_TRUE(stub->GetStatus(&context, {}, &status).ok()) << "who asks once does not watch";

  watchers[0].reset();
  EXPECT_TRUE(Eventually([&] { return Watcher(*stub).sees; }, Soon()));
}

}  // namespace
}  // namespace bascule
