// The two ends of a WeightSync stream behind one interface, so that one channel serves both.
#pragma once

#include <string>

#include "base/status.h"

namespace bascule {

namespace v1 {
class SessionFrame;
}

// Thread-safety: one thread reads, one writes; Cancel from any.
class FrameStream {
 public:
  virtual ~FrameStream() = default;  // the stream is at its end, or cancelled
  // False at the end of the stream, whoever ended it.
  virtual bool Read(v1::SessionFrame* frame) = 0;
  virtual bool Write(const v1::SessionFrame& frame) = 0;
  // Nothing more will be written.
  virtual void WritesDone() = 0;
  // After Read has returned false: why the stream ended; OK when the peer just closed it.
  virtual Status Finish() = 0;
  virtual void Cancel() = 0;
  virtual std::string peer() const = 0;
};

}  // namespace bascule
