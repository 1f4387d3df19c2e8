//! The allocator.

/// Requests make many small allocations on one thread and free them on another.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Frees the calling thread's pages that hold nothing any more, and gives the system those that
/// have been free for a while.
#[allow(unsafe_code)]
pub(crate) fn give_back() {
    // SAFETY: no arguments that could be wrong, and sound on any thread at any time.
    unsafe { libmimalloc_sys::mi_collect(false) }
}
