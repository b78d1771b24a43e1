//! The border between C and Rust: pointers become references, panics become errors.

use std::{
    any::Any,
    ffi::{CStr, c_char},
    mem,
    panic::{self, AssertUnwindSafe},
    ptr::{self, NonNull},
    slice,
    sync::{Mutex, MutexGuard},
};

use crate::failure::{self, Failure, Kind};

/// Runs the body of an entry. A failure becomes an error that the caller owns, and so does a panic.
pub(crate) fn entry(body: impl FnOnce() -> Result<(), Failure>) -> *mut Failure {
    // A panic may leave state half written. Mutexes guard all state, and `lock` finds them
    // poisoned.
    let result = panic::catch_unwind(AssertUnwindSafe(body));
    failure::raw(result.unwrap_or_else(|payload| Err(Failure::new(Kind::Bug, panic_text(payload)))))
}

/// Runs the body of an entry that cannot fail; `fallback` is for a panic.
pub(crate) fn value<T>(fallback: T, body: impl FnOnce() -> T) -> T {
    panic::catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|payload| {
        mem::forget(payload);
        fallback
    })
}

fn panic_text(payload: Box<dyn Any + Send>) -> String {
    let text = payload.downcast_ref::<String>().map(String::as_str).or_else(|| payload.downcast_ref::<&str>().copied());
    let text = format!("a bug in Flambeau: {}", text.unwrap_or("a panic without a text"));
    // The payload may be of any type, and dropping it may panic again.
    mem::forget(payload);
    text
}

/// Locks what one thread at a time uses.
///
/// # Errors
/// A panic ended an earlier use, so the state behind the lock may be half written.
pub(crate) fn lock<'a, T>(mutex: &'a Mutex<T>, what: &str) -> Result<MutexGuard<'a, T>, Failure> {
    mutex.lock().map_err(|_| Failure::new(Kind::Bug, format!("an earlier use of the {what} ended with a bug: load it again")))
}

/// The object behind a pointer.
///
/// # Errors
/// The pointer is null.
///
/// # Safety
/// The pointer is null, or the object lives and is not changed for `'a`.
pub(crate) unsafe fn object<'a, T>(pointer: *const T, name: &str) -> Result<&'a T, Failure> {
    // SAFETY: passed on to the caller.
    unsafe { pointer.as_ref() }.ok_or_else(|| null(name))
}

/// A text in UTF-8 that ends with a zero byte.
///
/// # Errors
/// The pointer is null, or the bytes are not UTF-8.
///
/// # Safety
/// The pointer is null, or a text that ends with a zero byte lives and is not changed for `'a`.
pub(crate) unsafe fn text<'a>(pointer: *const c_char, name: &str) -> Result<&'a str, Failure> {
    if pointer.is_null() {
        return Err(null(name));
    }
    // SAFETY: passed on to the caller.
    let bytes = unsafe { CStr::from_ptr(pointer) };
    bytes.to_str().map_err(|_| Failure::input(format!("`{name}` is not UTF-8")))
}

/// Elements of an array; null is an array of no elements.
///
/// # Errors
/// The pointer is null though there are elements, is not aligned, or the array is larger than
/// memory.
///
/// # Safety
/// The pointer is null, or `count` elements live behind it and are not changed for `'a`.
pub(crate) unsafe fn array<'a, T>(pointer: *const T, count: usize, name: &str) -> Result<&'a [T], Failure> {
    if count == 0 {
        return Ok(&[]);
    }
    if pointer.is_null() {
        return Err(null(name));
    }
    let size = count.checked_mul(size_of::<T>()).filter(|&size| isize::try_from(size).is_ok());
    if size.is_none() || !pointer.is_aligned() {
        return Err(Failure::input(format!("`{name}` is no array of {count} elements")));
    }
    // SAFETY: not null, aligned, and not larger than an object may be; the rest is passed on to the
    // caller.
    Ok(unsafe { slice::from_raw_parts(pointer, count) })
}

/// Texts of an array.
///
/// # Errors
/// As [`array`] and [`text`].
///
/// # Safety
/// As [`array`], and as [`text`] for each element.
pub(crate) unsafe fn texts(pointer: *const *const c_char, count: usize, name: &str) -> Result<Vec<String>, Failure> {
    // SAFETY: passed on to the caller.
    let pointers = unsafe { array(pointer, count, name)? };
    // SAFETY: passed on to the caller.
    pointers.iter().map(|&pointer| unsafe { text(pointer, name) }.map(str::to_owned)).collect()
}

/// Destination of an entry's result.
#[derive(Debug)]
pub(crate) struct Out<T>(NonNull<T>);

impl<T> Out<T> {
    /// # Errors
    /// The pointer is null.
    ///
    /// # Safety
    /// The pointer is null, or a `T` may be written behind it until the entry returns.
    pub(crate) unsafe fn new(pointer: *mut T, name: &str) -> Result<Out<T>, Failure> {
        NonNull::new(pointer).map(Out).ok_or_else(|| null(name))
    }

    /// Writes the result.
    pub(crate) fn set(self, value: T) {
        // SAFETY: `new` was promised that a `T` may be written here.
        unsafe { self.0.write(value) }
    }
}

impl<T> Out<*mut T> {
    /// A place for a handle, which is null until one is given.
    ///
    /// # Errors
    /// As [`new`](Out::new).
    ///
    /// # Safety
    /// As [`new`](Out::new).
    pub(crate) unsafe fn handle(pointer: *mut *mut T, name: &str) -> Result<Out<*mut T>, Failure> {
        // SAFETY: passed on to the caller.
        let out = unsafe { Out::new(pointer, name)? };
        // SAFETY: `Out::new` refuses null, and the caller lets the library write there.
        unsafe { out.0.write(ptr::null_mut()) };
        Ok(out)
    }

    /// Transfers an object to the caller.
    pub(crate) fn give(self, object: T) {
        self.set(Box::into_raw(Box::new(object)));
    }
}

/// A struct that begins with its size in bytes. Later versions can add fields at its end.
///
/// # Safety
/// The type is `repr(C)`, its first field is the `usize`, all bytes are values of its fields, and
/// it has no padding at its end.
pub(crate) unsafe trait Prefixed: Copy {}

/// Writes as much of `value` as the caller's struct has room for. The caller's size stays.
///
/// # Errors
/// The pointer is null, or the size was not set.
///
/// # Safety
/// The pointer is null, or leads to a struct of as many bytes as its first field says.
pub(crate) unsafe fn write_prefixed<T: Prefixed>(pointer: *mut T, value: &T, name: &str) -> Result<(), Failure> {
    // SAFETY: passed on to the caller.
    let size = unsafe { size_of_struct(pointer, name)? };
    let (start, room) = (size_of::<usize>(), size.min(size_of::<T>()));
    // SAFETY: both structs have `room` bytes, and they are different objects, since `value` is a
    // reference of ours.
    unsafe {
        let from = ptr::from_ref(value).cast::<u8>();
        ptr::copy_nonoverlapping(from.add(start), pointer.cast::<u8>().add(start), room - start);
    }
    Ok(())
}

/// The caller's struct, with `default` in fields that it does not have, and in the place of null.
///
/// # Errors
/// The size was not set, or a field that only later versions have is not zero.
///
/// # Safety
/// As [`write_prefixed`].
pub(crate) unsafe fn read_prefixed<T: Prefixed>(pointer: *const T, default: T, name: &str) -> Result<T, Failure> {
    if pointer.is_null() {
        return Ok(default);
    }
    // SAFETY: passed on to the caller.
    let size = unsafe { size_of_struct(pointer, name)? };
    let (mut value, known) = (default, size.min(size_of::<T>()));
    // SAFETY: both structs have `known` bytes, and all bytes are values of the fields.
    unsafe { ptr::copy_nonoverlapping(pointer.cast::<u8>(), ptr::from_mut(&mut value).cast::<u8>(), known) };
    // SAFETY: the caller's struct has `size` bytes.
    let later = unsafe { slice::from_raw_parts(pointer.cast::<u8>().add(known), size - known) };
    if later.iter().any(|&byte| byte != 0) {
        return Err(Failure::input(format!("`{name}` sets a field that version {} does not have", env!("CARGO_PKG_VERSION"))));
    }
    Ok(value)
}

/// # Safety
/// As [`write_prefixed`].
unsafe fn size_of_struct<T: Prefixed>(pointer: *const T, name: &str) -> Result<usize, Failure> {
    // SAFETY: the first field is the size.
    let size = *unsafe { object(pointer.cast::<usize>(), name)? };
    if size < size_of::<usize>() {
        return Err(Failure::input(format!("`{name}->struct_size` is {size}: set it to the size of the struct")));
    }
    Ok(size)
}

/// Frees a handle; null does nothing.
///
/// # Safety
/// The pointer is null, or comes from [`Out::give`] and is not used afterwards.
pub(crate) unsafe fn free<T>(pointer: *mut T) {
    if !pointer.is_null() {
        // SAFETY: the object was boxed by `Out::give` or `failure::raw`, and the caller gives it
        // back.
        let object = unsafe { Box::from_raw(pointer) };
        value((), || drop(object));
    }
}

fn null(name: &str) -> Failure {
    Failure::input(format!("`{name}` is NULL"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_an_error() {
        let error = entry(|| panic!("lost {}", "count"));
        // SAFETY: the entry gave an owned error.
        let error = unsafe { Box::from_raw(error) };
        assert_eq!(error.kind_and_text(), (Kind::Bug, "a bug in Flambeau: lost count"));
        assert_eq!(value(7, || panic!("no value")), 7);
    }

    #[test]
    fn state_that_a_panic_left_is_refused() {
        let state = Mutex::new(1);
        let error = entry(|| {
            let _held = lock(&state, "method")?;
            panic!("half done")
        });
        // SAFETY: the entry gave an owned error.
        unsafe { free(error) };
        let failure = lock(&state, "method").err().unwrap();
        assert_eq!(failure.kind_and_text(), (Kind::Bug, "an earlier use of the method ended with a bug: load it again"));
    }

    #[test]
    fn pointers_are_checked() {
        // SAFETY: null is allowed, and the other arguments are literals.
        unsafe {
            assert_eq!(text(ptr::null(), "path").unwrap_err().kind_and_text(), (Kind::Input, "`path` is NULL"));
            assert_eq!(text(c"\xff".as_ptr(), "path").unwrap_err().kind_and_text(), (Kind::Input, "`path` is not UTF-8"));
            assert!(array::<u32>(ptr::null(), 0, "ids").unwrap().is_empty());
            assert!(array::<u32>(ptr::null(), 1, "ids").is_err());
            assert!(array([1u32].as_ptr(), usize::MAX, "ids").is_err());
        }
    }
}
