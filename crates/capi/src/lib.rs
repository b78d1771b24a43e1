//! The C interface of Flambeau. `include/flambeau.h` is its contract: it states ownership and
//! thread safety of each function.
//!
//! Each entry is a function without a mangled name. It turns pointers into references in one place,
//! runs its body behind [`border::entry`], which catches panics, and reports failures as owned
//! error objects.

mod border;
mod delegate;
mod engine;
mod error;
mod failure;
mod language;
mod program;
mod speech;
mod tensor;
mod text;
mod value;
mod version;

/// The CMake project of ExecuTorch's backend over this interface: text by file name.
pub const EXECUTORCH_PROJECT: [(&str, &str); 4] = [
    ("CMakeLists.txt", include_str!("../executorch/CMakeLists.txt")),
    ("mlx_backend.cpp", include_str!("../executorch/mlx_backend.cpp")),
    ("values.h", include_str!("../executorch/values.h")),
    ("flambeau.h", include_str!("../include/flambeau.h")),
];
