#include "base/start_worker.h"

#include <system_error>
#include <utility>

namespace bascule {

Result<Worker> StartWorker(std::string name, std::function<void(std::stop_token)> body) {
  try {
    return Worker(name, std::move(body));
  } catch (const std::system_error& none) {
    return Status::ResourceExhausted("thread_limit", fmt::format("thread={}: {}", name, none.what()));
  }
}

}  // namespace bascule
