#include "base/worker.h"

#include <pthread.h>

#include <utility>

namespace bascule {

Worker::Worker(std::string name, std::function<void(std::stop_token)> body)
    : thread_([name = std::move(name), body = std::move(body)](std::stop_token stop) {
        pthread_setname_np(pthread_self(), name.substr(0, 15).c_str());
        body(std::move(stop));
      }) {}

}  // namespace bascule
