//! Base of the comparison: the allocator that counts, and one line of output.

#[global_allocator]
static HEAP: peak_alloc::PeakAlloc = peak_alloc::PeakAlloc;

fn main() {
    ruvllm_embedded::report("empty", HEAP.peak_usage());
}
