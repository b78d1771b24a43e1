//! The only unsafe room of the crate: the loaded shim behind safe types.
//!
//! - [`Api`]: the loaded shim, which stays loaded until the process ends, because MLX keeps its own
//!   threads.
//! - [`Array`]: a handle to an MLX array, freed on drop. Operations are lazy: they extend MLX's
//!   graph until an evaluation.
//! - [`Kernel`] and [`Closure`]: custom kernels and compiled functions.
//!
//! MLX binds its streams to threads. Operations work only on a thread that has chosen a device with
//! [`Api::use_device`]; elsewhere they fail with a message. Arrays of one device belong to one such
//! thread. Handles may be dropped on any thread: dropping touches only reference counts and MLX's
//! allocator, and the allocator has a lock.

#![allow(unsafe_code, reason = "calls through C pointers; nothing outside of this module is unsafe")]

mod array;
mod closure;
mod codes;
mod kernel;
mod operations;
mod parameter;
mod table;

use std::{
    ffi::{CStr, c_char, c_int},
    fmt,
    path::Path,
    ptr,
    sync::Mutex,
};

use self::table::{Raw, Table};
pub(crate) use self::{
    array::Array,
    closure::Closure,
    codes::{ArgReduce, Binary, Memory, Order, Reduce, Unary},
    kernel::{Kernel, KernelText, Kernels, Launch, Template},
    parameter::{Axes, ConvAxis, QuantLayout, QuantizedMatrix},
};
use crate::{Device, Error, Interface};

/// The shim's files that are written from tables here.
pub(crate) fn written_sources() -> [(&'static str, String); 2] {
    [("codes.h", codes::header()), ("operations.cpp", operations::definitions())]
}

/// Whether the message reports a failed allocation by MLX, CUDA or C++, or the shim's refusal of a
/// step for lack of memory.
fn is_of_memory(message: &str) -> bool {
    ["malloc] ", "cudaMalloc", "bad_alloc", "out of memory", " more bytes"].iter().any(|part| message.contains(part))
}

/// The message of a failed call.
#[derive(Clone, Debug, thiserror::Error)]
#[error("MLX: {0}")]
pub(crate) struct Failure(pub(crate) String);

/// Result of a call.
pub(crate) type Result<T, E = Failure> = std::result::Result<T, E>;

/// The loaded shim.
#[derive(Clone, Copy)]
pub(crate) struct Api(&'static Table);

/// The loaded shims, one table each. Engines that come and go share it.
static LOADED: Mutex<Vec<(Interface, &'static Table)>> = Mutex::new(Vec::new());

impl PartialEq for Api {
    fn eq(&self, other: &Api) -> bool {
        ptr::eq(self.0, other.0)
    }
}

impl fmt::Debug for Api {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Api({})", self.version(false))
    }
}

/// Calls an entry of the table and turns its status into a result.
macro_rules! call {
    ($api:expr, $($entry:ident).+($($arg:expr),* $(,)?)) => {{
        let api: $crate::ffi::Api = $api;
        // SAFETY: the table holds the entry's own signature. Lists, strings and the owners of
        // handles are borrowed until the statement ends. The entry writes only through the `*mut`
        // arguments, and these point to locals of the caller.
        let status = unsafe { (api.0.$($entry).+)($($arg),*) };
        api.status(status)
    }};
}
use call;

impl Api {
    /// Loads the shim and its dependencies, or takes the one that is loaded.
    ///
    /// # Errors
    /// [`Error::Load`] if the system's loader refuses it or an entry is missing.
    pub(crate) fn load(interface: &Interface) -> std::result::Result<Api, Error> {
        let mut loaded = LOADED.lock().unwrap_or_else(|e| e.into_inner());
        if let Some(&(_, table)) = loaded.iter().find(|(known, _)| known == interface) {
            return Ok(Api(table));
        }
        let table: &'static Table = Box::leak(Box::new(Api::table(interface)?));
        loaded.push((interface.clone(), table));
        Ok(Api(table))
    }

    /// The entries of a shim.
    fn table(interface: &Interface) -> std::result::Result<Table, Error> {
        let path = &interface.path;
        let refuse = |e: libloading::Error| Error::Load { path: path.clone(), what: e.to_string() };
        if let Some(library) = &interface.library {
            offer(library)?;
        }
        // SAFETY: the file is the shim that this crate's source compiles to (`shim.rs` names it by
        // the source's hash). The initialisers of the shim and of libmlx have no
        // preconditions.
        let library = unsafe { libloading::Library::new(path) }.map_err(refuse)?;
        // SAFETY: the library is this crate's own shim. Its entries have the signatures of the
        // header in `shim/`, and the table mirrors them line by line.
        unsafe { Table::new(library) }.map_err(refuse)
    }

    fn status(self, status: c_int) -> Result<()> {
        if status == 0 {
            return Ok(());
        }
        // SAFETY: the entry returns a thread-local terminated string, valid until this thread's
        // next failure.
        let what = unsafe { text((self.0.fl_error)()) };
        Err(Failure(if is_of_memory(&what) { self.with_memory(&what) } else { what }))
    }

    /// The message of a failed allocation with MLX's memory use.
    fn with_memory(self, what: &str) -> String {
        // Without the wrappers, whose failure would come here again.
        let read = |which: Memory| {
            let mut out = 0;
            // SAFETY: the entry writes one integer, through a pointer to a local.
            let status = unsafe { (self.0.fl_memory)(which, 0, &raw mut out) };
            (status == 0).then_some(out >> 20)
        };
        match (read(Memory::Active), read(Memory::Limit)) {
            (Some(active), Some(limit)) => format!("out of memory: arrays take {active} MiB and may take {limit} MiB ({what})"),
            _ => format!("out of memory ({what})"),
        }
    }

    /// Version of libmlx, or of the headers that the shim was compiled with.
    pub(crate) fn version(self, compiled: bool) -> String {
        // SAFETY: the entry returns a terminated string that is never freed.
        unsafe { text((self.0.fl_version)(c_int::from(compiled))) }
    }

    /// Number of devices of a kind.
    pub(crate) fn device_count(self, is_gpu: bool) -> Result<usize> {
        let mut count = 0;
        call!(self, fl_device_count(c_int::from(is_gpu), &raw mut count))?;
        Ok(usize::try_from(count).unwrap_or(0))
    }

    /// MLX's description of a device: one `key=value` per line.
    pub(crate) fn device_info(self, device: Device) -> Result<String> {
        let mut buffer = [0 as c_char; 4096];
        let (is_gpu, index) = device.parts();
        call!(self, fl_device_info(is_gpu, index, buffer.as_mut_ptr(), buffer.len()))?;
        // SAFETY: on success, the entry has written a terminated string to the buffer, which is
        // alive.
        Ok(unsafe { text(buffer.as_ptr()) })
    }

    /// Selects the device, with a new stream, for the calling thread.
    pub(crate) fn use_device(self, device: Device) -> Result<()> {
        let (is_gpu, index) = device.parts();
        call!(self, fl_use_device(is_gpu, index))
    }

    /// Waits for everything that the calling thread has submitted.
    pub(crate) fn synchronize(self) -> Result<()> {
        call!(self, fl_synchronize())
    }

    /// Reads or sets a property of MLX's memory, which the whole process shares.
    pub(crate) fn memory(self, what: Memory, value: u64) -> Result<u64> {
        let mut out = 0;
        call!(self, fl_memory(what, value, &raw mut out))?;
        Ok(out)
    }

    /// Number of array handles that are not freed, in the whole process.
    pub(crate) fn live_arrays(self) -> i64 {
        // SAFETY: the entry only reads a counter.
        unsafe { (self.0.fl_live_arrays)() }
    }

    /// Disables fusion of compiled functions in the whole process: they generate no kernels.
    pub(crate) fn fuse_nothing(self) -> Result<()> {
        call!(self, fl_fuse_nothing())
    }

    /// Computes the arrays and all they depend on.
    pub(crate) fn eval<'a>(self, arrays: impl IntoIterator<Item = &'a Array>) -> Result<()> {
        let handles: Vec<Raw> = arrays.into_iter().map(Array::raw).collect();
        call!(self, fl_eval(handles[..].into(), 0))
    }

    /// Submits the computation of the arrays and all they depend on.
    pub(crate) fn submit<'a>(self, arrays: impl IntoIterator<Item = &'a Array>) -> Result<()> {
        let handles: Vec<Raw> = arrays.into_iter().map(Array::raw).collect();
        call!(self, fl_eval(handles[..].into(), 1))
    }

    /// An array from an entry that makes one.
    fn make(self, entry: impl FnOnce(*mut Raw) -> Result<()>) -> Result<Array> {
        let mut raw = ptr::null_mut();
        entry(&raw mut raw)?;
        Ok(Array::own(self, raw))
    }
}

/// Loads libmlx for the libraries that are loaded later and name none. It stays loaded.
fn offer(library: &Path) -> std::result::Result<(), Error> {
    let refuse = |what: String| Error::Load { path: library.to_owned(), what };
    #[cfg(unix)]
    {
        use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};
        // SAFETY: the file is an installed libmlx, whose initialisers have no preconditions.
        let library = unsafe { Library::open(Some(library), RTLD_NOW | RTLD_GLOBAL) };
        library.map(std::mem::forget).map_err(|e| refuse(e.to_string()))
    }
    #[cfg(not(unix))]
    Err(refuse("interfaces that were compiled ahead are for Unix".into()))
}

/// The text behind a pointer.
///
/// # Safety
/// `pointer` must point to a NUL-terminated string that does not change during the call.
unsafe fn text(pointer: *const c_char) -> String {
    // SAFETY: every caller passes a NUL-terminated string of the shim. Only this thread can change
    // it.
    unsafe { CStr::from_ptr(pointer) }.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::is_of_memory;

    #[test]
    fn failed_allocations_are_told_from_other_failures() {
        let check = |message: &str, expected| assert_eq!(is_of_memory(message), expected, "{message}");
        check("[malloc] Unable to allocate 4096 bytes.", true);
        check("[metal::malloc] Attempting to allocate 4096 bytes which is greater than the maximum allowed buffer size", true);
        check("cudaMallocManaged(&data, size) failed: out of memory", true);
        check("std::bad_alloc", true);
        check("Concatenate needs 4096 more bytes", true);
        check("[reshape] Cannot reshape array of size 4 into shape (3).", false);
    }
}
