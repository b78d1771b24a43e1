//! Choice of code by element type.

use flambeau_tensor::DType;

/// Runs `$body` with `$t` bound to the Rust type of an array of any element type that graphs carry.
macro_rules! any_dtype {
    ($dtype:expr, $t:ident => $body:expr) => {
        flambeau_tensor::with_dtype!($dtype, $t in [U8, I8, I16, U16, I32, I64, U32, F16, BF16, F32, Bool] => $body,
            else => Err($crate::error::OpError::DType($dtype)))
    };
}

/// As `any_dtype!`, for integers.
macro_rules! int_dtype {
    ($dtype:expr, $t:ident => $body:expr) => {
        flambeau_tensor::with_dtype!($dtype, $t in [U8, I8, I16, U16, I32, I64, U32] => $body,
            else => Err($crate::error::OpError::DType($dtype)))
    };
}

/// The element type for code that is not specialised for every type. A float type stays itself; all
/// others become `i64`, which represents every integer and boolean.
pub(crate) fn wide(dtype: DType) -> DType {
    if dtype.is_float() { dtype } else { DType::I64 }
}

/// As `any_dtype!`, for arrays of a type that [`wide`] names.
macro_rules! wide_dtype {
    ($dtype:expr, $t:ident => $body:expr) => {
        flambeau_tensor::with_dtype!($dtype, $t in [I64, F32, BF16, F16] => $body, else => Err($crate::error::OpError::DType($dtype)))
    };
}

/// As `any_dtype!`, for floats.
macro_rules! float_dtype {
    ($dtype:expr, $t:ident => $body:expr) => {
        flambeau_tensor::with_dtype!($dtype, $t in [F32, BF16, F16] => $body, else => Err($crate::error::OpError::DType($dtype)))
    };
}

/// As `any_dtype!`, for arrays seen as bare bits (see [`bits`](crate::copy::bits)).
macro_rules! bits_dtype {
    ($dtype:expr, $t:ident => $body:expr) => {
        flambeau_tensor::with_dtype!($dtype, $t in [U8, U16, U32, U64] => $body, else => Err($crate::error::OpError::DType($dtype)))
    };
}

pub(crate) use {any_dtype, bits_dtype, float_dtype, int_dtype, wide_dtype};
