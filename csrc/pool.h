#pragma once

// Memory that is kept between calls. A first touch costs more than the arithmetic that follows
// (16 MB: 5 ms on 4 KB pages), so blocks come from mmap on 2 MB pages and go back to a free list.

#include <cstddef>
#include <cstdint>

namespace unpad {

struct Block {
    void* data = nullptr;  // aligned to 64 bytes at least; holds what its last user left
    size_t size = 0;       // size of the mapping, >= what was asked for
};

// Throws std::bad_alloc. Thread-safe.
Block acquire(size_t bytes);
void release(Block block);

// Gives the free list back to the system; returns the bytes that were in it.
size_t trim();

// Bytes in the free list.
size_t idle_bytes();

// A block for the length of a scope.
class Lease {
  public:
    explicit Lease(size_t bytes) : block_(acquire(bytes)) {}
    ~Lease() { release(block_); }
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;
    char* data() const { return static_cast<char*>(block_.data); }

  private:
    Block block_;
};

}  // namespace unpad
