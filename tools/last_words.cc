#include "tools/last_words.h"

#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <exception>
#include <new>
#include <string_view>
#include <system_error>

#include "tools/outcome.h"

namespace bascule {
namespace {

struct LastWords {
  std::string_view text;
  std::string_view json;
};

// Written beforehand: there is no memory left to write them then.
constexpr LastWords kNoMemory = {"bascule: the process gets no more memory [out_of_memory]\n",
                                 R"({"error":{"code":"RESOURCE_EXHAUSTED","reason":"out_of_memory",)"
                                 R"("message":"the process gets no more memory","peer":null,"phase":null}})"
                                 "\n"};
constexpr LastWords kNoThread = {
    "bascule: the process gets no more threads, or no memory for them [thread_limit]\n",
    R"({"error":{"code":"RESOURCE_EXHAUSTED","reason":"thread_limit",)"
    R"("message":"the process gets no more threads, or no memory for them","peer":null,"phase":null}})"
    "\n"};

std::atomic<bool> wants_json = false;
std::terminate_handler otherwise = nullptr;

void Write(int fd, std::string_view words) {
  [[maybe_unused]] const ssize_t written = write(fd, words.data(), words.size());
}

[[noreturn]] void Say(const LastWords& words) {
  Write(STDERR_FILENO, words.text);
  if (wants_json) Write(STDOUT_FILENO, words.json);
  _exit(kExitFailed);
}

[[noreturn]] void OnTerminate() {
  try {
    if (std::current_exception() != nullptr) throw;
  } catch (const std::bad_alloc&) {
    Say(kNoMemory);
  } catch (const std::system_error& error) {
    if (error.code() == std::errc::resource_unavailable_try_again) Say(kNoThread);
  } catch (...) {
    // A defect, which the handler that was there shows best.
  }
  otherwise();
  std::abort();
}

}  // namespace

void SpeakLastWords(bool json) {
  wants_json = json;
  otherwise = std::set_terminate(&OnTerminate);
}

}  // namespace bascule
