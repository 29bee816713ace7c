#include "pool.h"

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <new>

namespace unpad {
namespace {

constexpr size_t kSmallUnit = size_t{64} << 10;
constexpr size_t kHugePage = size_t{2} << 20;
// What the free list holds beyond this, the system may take back when it needs it.
constexpr size_t kKept = size_t{1} << 30;

struct FreeList {
    std::mutex mutex;
    std::multimap<size_t, void*> blocks;
    size_t bytes = 0;
};

// Never destroyed: a tensor over a block may die after the statics.
FreeList& free_list() {
    static FreeList* list = new FreeList;
    return *list;
}

// The free list holds at most a quarter of the machine's memory; beyond it, the largest blocks go
// first.
size_t most_idle() {
    static const size_t bytes = [] {
        const long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
        const size_t quarter =
            pages > 0 && page > 0 ? static_cast<size_t>(pages) / 4 * static_cast<size_t>(page) : 0;
        return std::max(quarter, kKept);
    }();
    return bytes;
}

// A fork may come while another thread holds the list: the child would wait for it for ever.
[[maybe_unused]] const int fork_hooks =
    pthread_atfork([] { free_list().mutex.lock(); }, [] { free_list().mutex.unlock(); },
                   [] { free_list().mutex.unlock(); });

// Sizes in steps of an eighth of a power of two: calls of slightly different size share blocks.
size_t size_class(size_t bytes) {
    size_t unit = kSmallUnit;
    while (unit * 16 < bytes) unit *= 2;
    if (bytes >= kHugePage && unit < kHugePage) unit = kHugePage;
    return (bytes + unit - 1) / unit * unit;
}

void* map_block(size_t size) {
    const size_t slack = size >= kHugePage ? kHugePage : 0;
    void* p =
        mmap(nullptr, size + slack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) throw std::bad_alloc();
    if (slack == 0) return p;
    // Cut to a 2 MB boundary, or no huge page fits the ends.
    const uintptr_t begin = reinterpret_cast<uintptr_t>(p);
    const uintptr_t aligned = (begin + kHugePage - 1) / kHugePage * kHugePage;
    if (aligned > begin) munmap(p, aligned - begin);
    const size_t tail = begin + slack - aligned;
    void* data = reinterpret_cast<void*>(aligned);
    if (tail > 0) munmap(static_cast<char*>(data) + size, tail);
#ifdef MADV_HUGEPAGE
    madvise(data, size, MADV_HUGEPAGE);
#endif
    return data;
}

}  // namespace

Block acquire(size_t bytes) {
    const size_t size = size_class(bytes > 0 ? bytes : 1);
    FreeList& list = free_list();
    {
        std::lock_guard<std::mutex> lock(list.mutex);
        const auto it = list.blocks.lower_bound(size);
        if (it != list.blocks.end() && it->first <= 2 * size) {
            const Block block{it->second, it->first};
            list.bytes -= it->first;
            list.blocks.erase(it);
            return block;
        }
    }
    return {map_block(size), size};
}

void release(Block block) {
    if (block.data == nullptr) return;
    FreeList& list = free_list();
    std::lock_guard<std::mutex> lock(list.mutex);
    list.blocks.emplace(block.size, block.data);
    list.bytes += block.size;
#ifdef MADV_FREE
    if (list.bytes > kKept) madvise(block.data, block.size, MADV_FREE);
#endif
    while (list.bytes > most_idle()) {
        const auto largest = std::prev(list.blocks.end());
        munmap(largest->second, largest->first);
        list.bytes -= largest->first;
        list.blocks.erase(largest);
    }
}

size_t trim() {
    FreeList& list = free_list();
    std::lock_guard<std::mutex> lock(list.mutex);
    const size_t bytes = list.bytes;
    for (const auto& [size, data] : list.blocks) munmap(data, size);
    list.blocks.clear();
    list.bytes = 0;
    return bytes;
}

size_t idle_bytes() {
    FreeList& list = free_list();
    std::lock_guard<std::mutex> lock(list.mutex);
    return list.bytes;
}

}  // namespace unpad
