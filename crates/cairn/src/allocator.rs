//! The allocator, and the delay after which it returns memory to the system.

/// Requests make many small allocations on one thread and free them on another.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// mimalloc's `mi_option_purge_delay`, the 16th of its options; its crate does not name it.
const PURGE_DELAY: libmimalloc_sys::mi_option_t = libmimalloc_sys::mi_option_use_numa_nodes - 1;
/// mimalloc's default is a second: memory freed after a burst of requests then stays until the next
/// burst, of other sizes, has allocated as much again.
const PURGE_DELAY_MS: std::ffi::c_long = 10;

/// Sets the delay, once at the start, unless `MIMALLOC_PURGE_DELAY` is in the environment.
#[allow(unsafe_code)]
pub(crate) fn set_up() {
    // SAFETY: an option that exists, and a value that it may have.
    unsafe { libmimalloc_sys::mi_option_set_default(PURGE_DELAY, PURGE_DELAY_MS) }
}

/// Frees the calling thread's empty pages, and returns those to the system that have been free for
/// the delay.
#[allow(unsafe_code)]
pub(crate) fn give_back() {
    // SAFETY: no arguments that could be wrong, and sound on any thread at any time.
    unsafe { libmimalloc_sys::mi_collect(false) }
}

#[cfg(test)]
mod tests {
    #[test]
    #[allow(unsafe_code)]
    fn the_option_is_the_one_meant() {
        const SECOND: std::ffi::c_long = 1000;
        // SAFETY: an option that exists.
        let before = unsafe { libmimalloc_sys::mi_option_get(super::PURGE_DELAY) };
        assert_eq!(before, SECOND);
        super::set_up();
        // SAFETY: as above.
        let after = unsafe { libmimalloc_sys::mi_option_get(super::PURGE_DELAY) };
        assert_eq!(after, super::PURGE_DELAY_MS);
    }
}
