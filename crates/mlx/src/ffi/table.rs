//! The entries of the shim: those that `shim/flambeau_mlx.h` declares, and the [`Operations`].

use std::ffi::{c_char, c_int, c_void};

use libloading::Library;

use super::{
    codes::{Memory, TemplateKind},
    operations::Operations,
};

/// An array that the shim owns.
pub(crate) type Raw = *mut c_void;

/// Releases a context.
pub(super) type Release = unsafe extern "C" fn(*mut c_void);

/// A function that MLX traces.
pub(super) type Traced = unsafe extern "C" fn(*mut c_void, *const Raw, usize, *mut Raw, usize) -> c_int;

/// A list of integers that lives as long as its slice.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Ints {
    data: *const i64,
    len: usize,
}

impl From<&[i64]> for Ints {
    fn from(list: &[i64]) -> Ints {
        Ints { data: list.as_ptr(), len: list.len() }
    }
}

/// A list of borrowed arrays that lives as long as its slice.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Arrays {
    data: *const Raw,
    len: usize,
}

impl From<&[Raw]> for Arrays {
    fn from(list: &[Raw]) -> Arrays {
        Arrays { data: list.as_ptr(), len: list.len() }
    }
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Quantized {
    pub(super) w: Raw,
    pub(super) scales: Raw,
    pub(super) biases: Raw,
    pub(super) group_size: i32,
    pub(super) bits: i32,
    pub(super) mode: *const c_char,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct ConvAxes {
    pub(super) stride: Ints,
    pub(super) pad_low: Ints,
    pub(super) pad_high: Ints,
    pub(super) kernel_dilation: Ints,
    pub(super) input_dilation: Ints,
}

#[repr(C)]
pub(super) struct KernelText {
    pub(super) is_cuda: i32,
    pub(super) name: *const c_char,
    pub(super) source: *const c_char,
    pub(super) header: *const c_char,
    pub(super) inputs: *const *const c_char,
    pub(super) n_inputs: usize,
    pub(super) outputs: *const *const c_char,
    pub(super) n_outputs: usize,
    pub(super) row_contiguous: i32,
    pub(super) atomic_outputs: i32,
    pub(super) shared_memory: i32,
}

#[repr(C)]
pub(super) struct Launch {
    pub(super) shapes: *const i64,
    pub(super) ranks: *const usize,
    pub(super) dtypes: *const i32,
    pub(super) n_outputs: usize,
    pub(super) grid: [i32; 3],
    pub(super) threads: [i32; 3],
    pub(super) template_names: *const *const c_char,
    pub(super) template_kinds: *const TemplateKind,
    pub(super) template_values: *const i32,
    pub(super) n_templates: usize,
    pub(super) has_init: i32,
    pub(super) init: f32,
}

macro_rules! table {
    ($(fn $name:ident($($arg:ty),* $(,)?) $(-> $ret:ty)?;)*) => {
        /// Pointers to the entries, and the library that holds them.
        pub(super) struct Table {
            $(pub(super) $name: unsafe extern "C" fn($($arg),*) $(-> $ret)?,)*
            pub(super) operations: Operations,
            _library: Library,
        }

        impl Table {
            /// Looks every entry up.
            ///
            /// # Safety
            /// The library must be the shim, built from the header that this table mirrors.
            pub(super) unsafe fn new(library: Library) -> Result<Table, libloading::Error> {
                Ok(Table {
                    // SAFETY: the library is the shim, as `Api::load` requires, and each entry has
                    // the type that the header declares. `_library` keeps the code loaded as long
                    // as the pointers exist.
                    $($name: *unsafe { library.get(concat!(stringify!($name), "\0").as_bytes()) }?,)*
                    // SAFETY: the caller's library is the shim, which is built from the same
                    // operation definitions.
                    operations: unsafe { Operations::new(&library) }?,
                    _library: library,
                })
            }
        }
    };
}

table! {
    fn fl_error() -> *const c_char;
    fn fl_fail(*const c_char) -> c_int;
    fn fl_version(c_int) -> *const c_char;
    fn fl_device_count(c_int, *mut i64) -> c_int;
    fn fl_device_info(c_int, c_int, *mut c_char, usize) -> c_int;
    fn fl_use_device(c_int, c_int) -> c_int;
    fn fl_synchronize() -> c_int;
    fn fl_fuse_nothing() -> c_int;
    fn fl_memory(Memory, u64, *mut u64) -> c_int;
    fn fl_live_arrays() -> i64;
    fn fl_array_new(*mut c_void, Ints, c_int, Release, *mut c_void, *mut Raw) -> c_int;
    fn fl_array_clone(Raw, *mut Raw) -> c_int;
    fn fl_array_free(Raw);
    fn fl_array_spec(Raw, *mut i64, usize, *mut usize, *mut c_int) -> c_int;
    fn fl_array_data(Raw, *mut *const c_void, *mut usize) -> c_int;
    fn fl_eval(Arrays, c_int) -> c_int;
    fn fl_compile(Traced, *mut c_void, Release, usize, *mut Raw) -> c_int;
    fn fl_closure_call(Raw, Arrays, *mut Raw) -> c_int;
    fn fl_closure_free(Raw);

    fn fl_kernel_new(*const KernelText, *mut Raw) -> c_int;
    fn fl_kernel_call(Raw, Arrays, *const Launch, *mut Raw) -> c_int;
    fn fl_kernel_free(Raw);
}
