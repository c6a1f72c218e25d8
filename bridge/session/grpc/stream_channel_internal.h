// A control channel over a stream of frames: messages are cut into frames and put together again. Two threads of its
// own keep callers free: none of them ever waits for a peer that does not read.
#pragma once

#include <cstddef>
#include <deque>
#include <memory>
#include <string>

#include "base/mutex.h"
#include "base/worker.h"
#include "bridge/session/control.h"
#include "bridge/session/grpc/frame_stream_internal.h"

namespace bascule {

class StreamChannel final : public ControlChannel {
 public:
  // ResourceExhausted "thread_limit"
  static Result<std::unique_ptr<StreamChannel>> Open(std::unique_ptr<FrameStream> stream, Clock& clock);
  // What was sent goes out first, if the peer takes it soon.
  ~StreamChannel() override;

  Status Send(const SessionMessage& message) override EXCLUDES(mu_);
  Result<SessionMessage> Receive(Deadline deadline) override EXCLUDES(mu_);
  void StopReceiving() override EXCLUDES(mu_);
  void Cancel() override EXCLUDES(mu_);
  std::string peer() const override { return peer_; }

 private:
  StreamChannel(std::unique_ptr<FrameStream> stream, Clock& clock);
  Status Start() EXCLUDES(mu_);
  void ReadFrames() EXCLUDES(mu_);
  Status ReadMessage(std::string* message);
  Status WhyEnded();
  // The message's own status. Waits while the inbox is full.
  Status Put(Result<SessionMessage> message, std::size_t bytes) EXCLUDES(mu_);
  void WriteMessages() EXCLUDES(mu_);
  bool WriteMessage(const std::string& message);
  void WaitForTheEnd() EXCLUDES(mu_);

  const std::unique_ptr<FrameStream> stream_;
  Clock& clock_;
  const std::string peer_;
  Mutex mu_;  // Guards the queues; not held while the stream reads or writes.
  CondVar changed_;
  struct Received {
    Result<SessionMessage> message;
    std::size_t bytes;  // on the wire
  };
  std::deque<Received> inbox_ GUARDED_BY(mu_);
  std::size_t inbox_bytes_ GUARDED_BY(mu_) = 0;
  std::deque<std::string> outbox_ GUARDED_BY(mu_);
  std::size_t outbox_bytes_ GUARDED_BY(mu_) = 0;
  bool cancelled_ GUARDED_BY(mu_) = false;
  bool deaf_ GUARDED_BY(mu_) = false;  // receives no more, still sends
  bool closing_ GUARDED_BY(mu_) = false;
  bool ended_ GUARDED_BY(mu_) = false;      // the stream
  bool read_over_ GUARDED_BY(mu_) = false;  // the threads
  bool write_over_ GUARDED_BY(mu_) = false;
  Status lost_ GUARDED_BY(mu_);
  Worker reader_;
  Worker writer_;
};

}  // namespace bascule
