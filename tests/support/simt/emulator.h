// Runs CUDA kernels on a processor, for tests: the kernels' own source, compiled with g++ against dialect.h. Each
// thread of a block is a fiber. Blocks run one after another in seeded random order, and so do the threads of a block
// between two points where they wait for each other, each as far as it gets: a thread that reads what another writes
// without a barrier between the two finds it not there yet, or too new, under most seeds. Shared memory is garbage when
// a block begins. It says nothing about speed.
//
// What no GPU would get out of ends the program with a message: threads that wait for one that has ended, lanes that
// do not agree on who takes part in an exchange.
//
// Thread-safety: thread-safe; one launch runs at a time, to its end, on the thread that makes it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace bascule::simt {

struct Index {
  unsigned x;
};

// From here on launches draw their orders from `seed`.
void SetSeed(std::uint64_t seed);

using Body = void (*)(void* context);
// Calls body(context) once for each thread of `blocks` blocks of `threads` each, at most 1024.
void RunGrid(std::uint64_t blocks, unsigned threads, Body body, void* context);

// Of the running kernel thread.
Index ThreadIndex();
Index BlockIndex();
Index BlockSize();
Index GridSize();
int Lane();  // of its warp
void BlockBarrier();
// Waits until every lane of `mask` is here, and returns what each of them brought, by lane, until its next exchange.
const std::uint64_t* Gather(std::uint32_t mask, std::uint64_t value);

// A kernel by name, for a runtime that is told names: `arguments` point to one value for each of its parameters.
struct Entry {
  void (*run)(std::uint64_t blocks, unsigned threads, void** arguments) = nullptr;
  std::span<const std::size_t> argument_bytes;  // how large each is
};
// The kernel that a compiler calls `mangled`; null when none of that name is linked in.
const Entry* FindKernel(std::string_view mangled);
bool RegisterKernel(std::string_view qualified_name, const Entry& entry);

}  // namespace bascule::simt
