//! How a static program looks names up.
//!
//! glibc asks the modules that `/etc/nsswitch.conf` names. Two of them, `files` and `dns`, are inside `libc.a`.
//! All others (`resolve`, `mymachines`, `mdns4_minimal`, `sss`, `systemd`) are shared libraries. A static program
//! would load them, and the machine's libc with them, beside the libc that it has inside: where the two differ, it
//! crashes. So the program that is released says at its start which modules it asks. It loads no other.
//!
//! A program with shared libraries is left alone: it finds what the machine finds.

#[cfg(all(target_env = "gnu", target_feature = "crt-static"))]
pub(crate) use built_in::ask_built_in_sources;

/// A program with shared libraries, or with another libc, looks names up as the machine does.
#[cfg(not(all(target_env = "gnu", target_feature = "crt-static")))]
pub(crate) fn ask_built_in_sources() {}

#[cfg(all(target_env = "gnu", target_feature = "crt-static"))]
#[expect(unsafe_code, reason = "glibc offers this as a C function only")]
mod built_in {
    use std::ffi::{CStr, c_char, c_int};

    /// What is looked up here: addresses, and the name of the user for the text that tells who holds a lock.
    const SOURCES: [(&CStr, &CStr); 3] =
        [(c"hosts", c"files dns"), (c"passwd", c"files"), (c"group", c"files")];

    unsafe extern "C" {
        /// Replaces what `/etc/nsswitch.conf` says of a database, for this process.
        fn __nss_configure_lookup(database: *const c_char, sources: *const c_char) -> c_int;
    }

    /// Keeps a static program from loading modules. To be called before anything is looked up, and before there
    /// are threads.
    pub(crate) fn ask_built_in_sources() {
        for (database, sources) in SOURCES {
            // SAFETY: both are texts that end with a zero and live for ever, and glibc only reads them. It sets
            // variables of its own without a lock, and there is no other thread yet.
            let refused = unsafe { __nss_configure_lookup(database.as_ptr(), sources.as_ptr()) };
            assert_eq!(refused, 0, "glibc knows the database {database:?} and the sources {sources:?}");
        }
    }
}
