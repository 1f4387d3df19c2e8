//! Ceph's librados, found when the program runs: nothing of it is needed to build, and where it is
//! absent that is an error with the package's name.
//!
//! The one crate of the workspace with `unsafe` code, so that no other needs any. It covers what
//! the lab does (connect, pools, write, read, remove, stat, list), every call blocking for at most
//! the timeouts among its options. Depends on no
//! other crate of the workspace.
//!
//! Signatures are those of `rados/librados.h`, stable since its first release: handles are opaque
//! pointers, results are 0 or more, or a negative errno.

#![allow(unsafe_code)]

mod connect;

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr;
use std::sync::Arc;

use libloading::Library;
use thiserror::Error;

pub use connect::ConnectError;

/// By the name of its ABI, which has not changed.
const LIBRARY: &str = "librados.so.2";

type Handle = *mut c_void;

#[derive(Debug, Error)]
pub enum RadosError {
    #[error(
        "{LIBRARY} is not on this machine ({0}): install librados2 (Debian, Ubuntu) or librados2 \
         of ceph-common (Red Hat)"
    )]
    Absent(String),
    #[error("{LIBRARY} lacks a function: {0}")]
    Function(String),
    #[error("{0:?} holds a zero byte")]
    Name(String),
    #[error("{call}: {}", std::io::Error::from_raw_os_error(*errno))]
    Call { call: &'static str, errno: i32 },
    #[error(transparent)]
    Connect(#[from] ConnectError),
}

impl RadosError {
    /// The errno of a call that failed.
    pub fn errno(&self) -> Option<i32> {
        match self {
            Self::Call { errno, .. } => Some(*errno),
            _ => None,
        }
    }
}

type Result<T> = std::result::Result<T, RadosError>;

const ENOENT: i32 = 2;

/// The functions, valid as long as the library is loaded, which `_library` sees to.
struct Functions {
    create: unsafe extern "C" fn(*mut Handle, *const c_char) -> c_int,
    conf_read_file: unsafe extern "C" fn(Handle, *const c_char) -> c_int,
    conf_set: unsafe extern "C" fn(Handle, *const c_char, *const c_char) -> c_int,
    conf_get: unsafe extern "C" fn(Handle, *const c_char, *mut c_char, usize) -> c_int,
    connect: unsafe extern "C" fn(Handle) -> c_int,
    shutdown: unsafe extern "C" fn(Handle),
    pool_create: unsafe extern "C" fn(Handle, *const c_char) -> c_int,
    pool_delete: unsafe extern "C" fn(Handle, *const c_char) -> c_int,
    ioctx_create: unsafe extern "C" fn(Handle, *const c_char, *mut Handle) -> c_int,
    ioctx_destroy: unsafe extern "C" fn(Handle),
    write_full: unsafe extern "C" fn(Handle, *const c_char, *const c_char, usize) -> c_int,
    write: unsafe extern "C" fn(Handle, *const c_char, *const c_char, usize, u64) -> c_int,
    read: unsafe extern "C" fn(Handle, *const c_char, *mut c_char, usize, u64) -> c_int,
    remove: unsafe extern "C" fn(Handle, *const c_char) -> c_int,
    stat: unsafe extern "C" fn(Handle, *const c_char, *mut u64, *mut i64) -> c_int,
    list_open: unsafe extern "C" fn(Handle, *mut Handle) -> c_int,
    list_next: unsafe extern "C" fn(
        Handle,
        *mut *const c_char,
        *mut *const c_char,
        *mut *const c_char,
    ) -> c_int,
    list_close: unsafe extern "C" fn(Handle),
    _library: Library,
}

impl Functions {
    fn load() -> Result<Self> {
        // SAFETY: librados's initialisers are those of an ordinary C++ library.
        let library = unsafe { Library::new(LIBRARY) }
            .map_err(|error| RadosError::Absent(error.to_string()))?;
        macro_rules! function {
            ($name:literal) => {
                // SAFETY: the field's type is the function's signature in librados.h.
                *unsafe { library.get(concat!($name, "\0").as_bytes()) }
                    .map_err(|error| RadosError::Function(error.to_string()))?
            };
        }
        Ok(Self {
            create: function!("rados_create"),
            conf_read_file: function!("rados_conf_read_file"),
            conf_set: function!("rados_conf_set"),
            conf_get: function!("rados_conf_get"),
            connect: function!("rados_connect"),
            shutdown: function!("rados_shutdown"),
            pool_create: function!("rados_pool_create"),
            pool_delete: function!("rados_pool_delete"),
            ioctx_create: function!("rados_ioctx_create"),
            ioctx_destroy: function!("rados_ioctx_destroy"),
            write_full: function!("rados_write_full"),
            write: function!("rados_write"),
            read: function!("rados_read"),
            remove: function!("rados_remove"),
            stat: function!("rados_stat"),
            list_open: function!("rados_nobjects_list_open"),
            list_next: function!("rados_nobjects_list_next"),
            list_close: function!("rados_nobjects_list_close"),
            _library: library,
        })
    }
}

/// Longer values of options are cut off by librados with an error.
const OPTION_BYTES: usize = 4096;

fn text(text: &str) -> Result<CString> {
    CString::new(text).map_err(|_| RadosError::Name(text.to_owned()))
}

fn check(call: &'static str, result: c_int) -> Result<usize> {
    usize::try_from(result).map_err(|_| RadosError::Call {
        call,
        errno: -result,
    })
}

/// A connection to a cluster. librados's handles may be used by many threads at once.
pub struct Cluster {
    functions: Functions,
    handle: Handle,
}

// SAFETY: librados documents its cluster and I/O handles as safe for concurrent use.
unsafe impl Send for Cluster {}
// SAFETY: as above.
unsafe impl Sync for Cluster {}

impl std::fmt::Debug for Cluster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Cluster")
    }
}

impl Cluster {
    /// Connects as `user` (`None`: admin) with the conf file (`None`: the usual places) and with
    /// options set over it.
    ///
    /// # Errors
    /// `Absent` or `Function` for the library, `Name` for an argument with a zero byte, `Connect`
    /// if the cause is known, `Call` with the errno if not.
    pub fn connect(
        user: Option<&str>,
        conf: Option<&str>,
        options: &[(&str, &str)],
    ) -> Result<Arc<Self>> {
        let cluster = Self::configured(user, conf, options)?;
        // SAFETY: the handle is configured and not yet connected.
        let connected = unsafe { (cluster.functions.connect)(cluster.handle) };
        match check("rados_connect", connected) {
            Ok(_) => Ok(Arc::new(cluster)),
            Err(error) => {
                let errno = error.errno().unwrap_or_default();
                Err(connect::cause(&cluster, user, conf, errno).map_or(error, RadosError::from))
            }
        }
    }

    /// A handle with its options, not connected.
    fn configured(
        user: Option<&str>,
        conf: Option<&str>,
        options: &[(&str, &str)],
    ) -> Result<Self> {
        let functions = Functions::load()?;
        let (id, path) = (user.map(text).transpose()?, conf.map(text).transpose()?);
        let pointer = |text: &Option<CString>| text.as_ref().map_or(ptr::null(), |t| t.as_ptr());
        let mut handle = ptr::null_mut();
        // SAFETY: `handle` is where the result goes; the name is null or ends with a zero.
        check("rados_create", unsafe {
            (functions.create)(&mut handle, pointer(&id))
        })?;
        let cluster = Self { functions, handle };
        // SAFETY: the handle was made above; the path is null or ends with a zero.
        let read = unsafe { (cluster.functions.conf_read_file)(handle, pointer(&path)) };
        match (check("rados_conf_read_file", read), conf) {
            (Err(error), Some(path)) => {
                let errno = error.errno().unwrap_or_default();
                let path = path.to_owned();
                return Err(ConnectError::Conf { path, errno }.into());
            }
            // Without a conf of its own options may say all there is to know.
            (Err(error), None) if options.is_empty() => return Err(error),
            _ => {}
        }
        for (name, value) in options {
            let (name, value) = (text(name)?, text(value)?);
            // SAFETY: both end with a zero and live through the call.
            let set =
                unsafe { (cluster.functions.conf_set)(handle, name.as_ptr(), value.as_ptr()) };
            check("rados_conf_set", set)?;
        }
        Ok(cluster)
    }

    /// An option as it stands, of the conf file or its default.
    ///
    /// # Errors
    /// `Name` for a zero byte in it; `Call` for an unknown option, or a value of 4 KiB or more.
    pub fn option(&self, name: &str) -> Result<String> {
        let name = text(name)?;
        let mut value = vec![0u8; OPTION_BYTES];
        // SAFETY: a live handle, a name that ends with a zero, a buffer as long as said.
        let got = unsafe {
            (self.functions.conf_get)(
                self.handle,
                name.as_ptr(),
                value.as_mut_ptr().cast(),
                value.len(),
            )
        };
        check("rados_conf_get", got)?;
        let end = value.iter().position(|byte| *byte == 0);
        value.truncate(end.unwrap_or(value.len()));
        Ok(String::from_utf8_lossy(&value).into_owned())
    }

    /// Creates a pool.
    ///
    /// # Errors
    /// `Name` for a zero byte in its name; `Call` with the errno, EEXIST if there is one.
    pub fn create_pool(&self, name: &str) -> Result<()> {
        let name = text(name)?;
        // SAFETY: a live handle, a string that ends with a zero.
        let made = unsafe { (self.functions.pool_create)(self.handle, name.as_ptr()) };
        check("rados_pool_create", made).map(|_| ())
    }

    /// Deletes a pool with its objects.
    ///
    /// # Errors
    /// `Name` for a zero byte in its name; `Call` with the errno, ENOENT if there is none.
    pub fn delete_pool(&self, name: &str) -> Result<()> {
        let name = text(name)?;
        // SAFETY: a live handle, a string that ends with a zero.
        let deleted = unsafe { (self.functions.pool_delete)(self.handle, name.as_ptr()) };
        check("rados_pool_delete", deleted).map(|_| ())
    }

    /// Opens a pool.
    ///
    /// # Errors
    /// `Name` for a zero byte in its name; `Call` with the errno, ENOENT if there is none.
    pub fn pool(self: &Arc<Self>, name: &str) -> Result<Pool> {
        let name = text(name)?;
        let mut handle = ptr::null_mut();
        // SAFETY: a live handle, a string that ends with a zero, and where the result goes.
        let made =
            unsafe { (self.functions.ioctx_create)(self.handle, name.as_ptr(), &mut handle) };
        check("rados_ioctx_create", made)?;
        Ok(Pool {
            cluster: self.clone(),
            handle,
        })
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // SAFETY: pools keep the cluster alive, so nothing uses the handle any more.
        unsafe { (self.functions.shutdown)(self.handle) }
    }
}

/// Objects of one pool.
///
/// A call fails with [`RadosError::Name`] for an object's name with a zero byte, and else with
/// [`RadosError::Call`], whose errno is ENOENT if there is no such object.
pub struct Pool {
    cluster: Arc<Cluster>,
    handle: Handle,
}

// SAFETY: see `Cluster`.
unsafe impl Send for Pool {}
// SAFETY: see `Cluster`.
unsafe impl Sync for Pool {}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Pool")
    }
}

impl Pool {
    /// Replaces the object's content.
    ///
    /// # Errors
    /// As every call: see [`Pool`].
    pub fn write_full(&self, object: &str, bytes: &[u8]) -> Result<()> {
        let object = text(object)?;
        let write = self.cluster.functions.write_full;
        // SAFETY: the buffer is as long as said; librados copies it before it returns.
        let result = unsafe {
            write(
                self.handle,
                object.as_ptr(),
                bytes.as_ptr().cast(),
                bytes.len(),
            )
        };
        check("rados_write_full", result).map(|_| ())
    }

    /// Writes into the object from `offset` on.
    ///
    /// # Errors
    /// As every call: see [`Pool`].
    pub fn write_at(&self, object: &str, bytes: &[u8], offset: u64) -> Result<()> {
        let object = text(object)?;
        let write = self.cluster.functions.write;
        let (name, buffer) = (object.as_ptr(), bytes.as_ptr().cast());
        // SAFETY: the buffer is as long as said; librados copies it before it returns.
        let result = unsafe { write(self.handle, name, buffer, bytes.len(), offset) };
        check("rados_write", result).map(|_| ())
    }

    /// How many bytes were read; 0 at the end.
    ///
    /// # Errors
    /// As every call: see [`Pool`].
    pub fn read_at(&self, object: &str, buffer: &mut [u8], offset: u64) -> Result<usize> {
        let object = text(object)?;
        let read = self.cluster.functions.read;
        let (name, room) = (object.as_ptr(), buffer.as_mut_ptr().cast());
        // SAFETY: the buffer is ours alone and as long as said.
        let result = unsafe { read(self.handle, name, room, buffer.len(), offset) };
        check("rados_read", result)
    }

    /// Removes the object.
    ///
    /// # Errors
    /// As every call: see [`Pool`].
    pub fn remove(&self, object: &str) -> Result<()> {
        let object = text(object)?;
        // SAFETY: a live handle, a string that ends with a zero.
        let result = unsafe { (self.cluster.functions.remove)(self.handle, object.as_ptr()) };
        check("rados_remove", result).map(|_| ())
    }

    /// Calls `each` with the names of the pool's objects, in no order, until it returns false.
    ///
    /// # Errors
    /// As every call: see [`Pool`].
    pub fn list(&self, mut each: impl FnMut(&[u8]) -> bool) -> Result<()> {
        let functions = &self.cluster.functions;
        let mut list = ptr::null_mut();
        // SAFETY: a live handle, and where the result goes.
        let opened = unsafe { (functions.list_open)(self.handle, &mut list) };
        check("rados_nobjects_list_open", opened)?;
        let ended = loop {
            let mut name = ptr::null();
            // SAFETY: an open list; locator and namespace may be null.
            let got =
                unsafe { (functions.list_next)(list, &mut name, ptr::null_mut(), ptr::null_mut()) };
            match check("rados_nobjects_list_next", got) {
                Err(error) if error.errno() == Some(ENOENT) => break Ok(()),
                Err(error) => break Err(error),
                Ok(_) if name.is_null() => break Ok(()),
                Ok(_) => {}
            }
            // SAFETY: librados's own string, which lives until the next call on this list.
            let name = unsafe { CStr::from_ptr(name) };
            if !each(name.to_bytes()) {
                break Ok(());
            }
        };
        // SAFETY: opened above, closed once.
        unsafe { (functions.list_close)(list) };
        ended
    }

    /// The object's size in bytes.
    ///
    /// # Errors
    /// As every call: see [`Pool`].
    pub fn size(&self, object: &str) -> Result<u64> {
        let object = text(object)?;
        let (mut size, mut modified) = (0u64, 0i64);
        let stat = self.cluster.functions.stat;
        // SAFETY: both results have a place; time_t has 64 bits on all platforms Ceph runs on.
        let result = unsafe { stat(self.handle, object.as_ptr(), &mut size, &mut modified) };
        check("rados_stat", result).map(|_| size)
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // SAFETY: made by `Cluster::pool`, destroyed once; the cluster is still connected.
        unsafe { (self.cluster.functions.ioctx_destroy)(self.handle) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_the_library_or_a_cluster_it_says_so() {
        let options = [("mon_host", "127.0.0.1:1"), ("client_mount_timeout", "1")];
        match Cluster::connect(Some("nobody"), None, &options) {
            Err(RadosError::Absent(_)) => {}
            // Without a keyring there is nothing to ask a monitor with.
            Err(RadosError::Connect(
                ConnectError::Keyring { .. } | ConnectError::Silent { .. },
            )) => {}
            other => panic!("{other:?}"),
        }
        assert!(text("a\0b").is_err());
        match Cluster::connect(None, Some("/no/such/ceph.conf"), &options) {
            Err(RadosError::Absent(_)) => {}
            Err(error) => assert!(error.to_string().contains("/no/such/ceph.conf"), "{error}"),
            Ok(_) => panic!("connected without a conf"),
        }
    }
}
