#include "tests/support/fake_nccl/operation.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "base/status.h"
#include "tests/support/fake_nccl/multiprocessors.h"

namespace bascule::fake_nccl {
namespace {

// Both copy all bytes or end the process: a memfd takes no time and has no peer.
void WriteAll(int fd, const void* from, std::size_t bytes) {
  if (bytes > 0) CHECK(pwrite(fd, from, bytes, 0) == static_cast<ssize_t>(bytes));
}
bool ReadAll(int fd, void* to, std::size_t bytes) {
  return bytes == 0 || pread(fd, to, bytes, 0) == static_cast<ssize_t>(bytes);
}

}  // namespace

Sent& Sent::Get() {
  static Sent sent;
  return sent;
}

void Operation::Begin() {
  begun_ = true;
  done_ = false;
  board_ = communicator_->board_;
  for (Sending& sending : sends_) {
    sending.message = communicator_->sent_.at(static_cast<std::size_t>(sending.to))++;
    sending.state = State::kWaits;
  }
  for (Receiving& receiving : receives_) {
    receiving.message = communicator_->received_.at(static_cast<std::size_t>(receiving.from))++;
    receiving.state = State::kWaits;
  }
}

bool Operation::MayStep(const Sending& sending) const {
  const Place& place = PlaceOf(sending);
  const bool is_there = !sending.is_forwarded || AllReceived();
  return (sending.state == State::kWaits && is_there && IsFree(place, sending.message)) ||
         (sending.state == State::kUnderWay && IsTaken(place, sending.message));
}

bool Operation::MayStep(const Receiving& receiving) const {
  const Place& place = PlaceOf(receiving);
  return receiving.state == State::kWaits && IsHere(place, receiving.message) && place.tag == receiving.tag;
}

bool Operation::Launch() const {
  const DeviceOfRank& device = communicator_->device();
  return Multiprocessors::Get().Launch(this, device.number, device.multiprocessors, communicator_->ctas());
}

bool Operation::MayStep() {
  if (communicator_->aborted()) return true;
  if (!Launch() || lost_) return false;
  return !begun_ || std::ranges::any_of(sends_, [&](const Sending& sending) { return MayStep(sending); }) ||
         std::ranges::any_of(receives_, [&](const Receiving& receiving) { return MayStep(receiving); });
}

void Operation::Step(Sending& sending) {
  Place& place = PlaceOf(sending);
  if (sending.state == State::kUnderWay) {
    sending.state = State::kDone;
    return;
  }
  sending.memory = UniqueFd(memfd_create("fake_nccl_message", MFD_CLOEXEC));
  CHECK(sending.memory.valid());
  WriteAll(sending.memory.get(), sending.from, sending.tag.bytes);
  place.tag = sending.tag;
  place.memory = fake_cuda::NameOf(sending.memory.get(), /*device=*/0);
  ++place.state;
  sending.state = State::kUnderWay;
}

void Operation::Step(Receiving& receiving) {
  Place& place = PlaceOf(receiving);
  receiving.state = State::kUnderWay;
  const UniqueFd memory = fake_cuda::OpenNamed(place.memory);
  if (!memory.valid()) return;
  receiving.kept.resize(receiving.to == nullptr ? receiving.tag.bytes : 0);
  void* const to = receiving.to == nullptr ? receiving.kept.data() : receiving.to;
  if (!ReadAll(memory.get(), to, receiving.tag.bytes)) return;
  receiving.state = State::kDone;
  ++place.state;
}

void Operation::Step() {
  const MutexLock lock(communicator_->mu_);  // An abort comes before memory is touched, or behind.
  if (communicator_->aborted_) return End();
  if (!begun_) Begin();
  for (Sending& sending : sends_) {
    if (MayStep(sending)) Step(sending);
  }
  for (Receiving& receiving : receives_) {
    if (MayStep(receiving)) Step(receiving);
  }
  if (!AllDone()) return;
  Finish();
  End();
}

bool Operation::AllReceived() const {
  return std::ranges::all_of(receives_, [](const Receiving& receiving) { return receiving.state == State::kDone; });
}

bool Operation::AllDone() const {
  return AllReceived() &&
         std::ranges::all_of(sends_, [](const Sending& sending) { return sending.state == State::kDone; });
}

void Operation::Finish() {
  if (finish_ == nullptr) return;
  std::vector<std::vector<std::byte>> kept;
  for (Receiving& receiving : receives_) {
    if (receiving.to == nullptr) kept.push_back(std::move(receiving.kept));
  }
  finish_(kept);
}

void Operation::End() {
  for (Sending& sending : sends_) sending.memory = UniqueFd();
  Multiprocessors::Get().End(this, communicator_->device().number);
  --communicator_->under_way_;
  begun_ = false;
  done_ = true;
}

}  // namespace bascule::fake_nccl
