// What streams run.
#pragma once

#include <functional>

namespace bascule::fake_cuda {

// A piece of work. It may run once `ready` says so; where there is none, at once. Where there is `done`, it runs again
// and again until that says so.
struct Work {
  std::function<bool()> ready;
  std::function<void()> run;
  std::function<bool()> done;
};

}  // namespace bascule::fake_cuda
