// Draws how far a publish has come, as its first replica sees it. Only on a terminal.
//
// Thread-safety: confined to one thread.
#pragma once

#include <memory>
#include <string>

#include "tools/grpc/version_status_client.h"
#include "tools/output.h"

namespace bascule {

class PublishProgress {
 public:
  PublishProgress(std::string replica, bool wanted) : replica_(std::move(replica)), bar_(wanted) {}
  // Asks the replica and draws. A replica that does not answer shows nothing.
  void Update();

 private:
  const std::string replica_;
  std::unique_ptr<VersionStatusClient> client_;
  ProgressBar bar_;
};

}  // namespace bascule
