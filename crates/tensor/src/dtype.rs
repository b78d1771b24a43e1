//! Element types, their numbers in ExecuTorch files, and the Rust types that store them.

use std::fmt;

use bytemuck::{Pod, Zeroable};
use half::{bf16, f16};

/// An element type. Programs may hold all of them, and archives all but complex numbers. Tensors
/// of MLX graphs have one of the ten in [`DType::is_node_dtype`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DType {
    U8,
    I8,
    I16,
    I32,
    I64,
    F16,
    F32,
    F64,
    Bool,
    BF16,
    U16,
    U32,
    U64,
    F8E5M2,
    F8E4M3,
    F8E8M0,
    /// A complex number: real and imaginary part in f16.
    C32,
    /// A complex number: real and imaginary part in f32.
    C64,
}

/// The promotion category of an element type, in PyTorch's order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DTypeClass {
    Bool,
    Integer,
    Float,
    Complex,
}

/// Rows of (type, ExecuTorch's `ScalarType` number, size in bytes, name).
const TABLE: [(DType, i8, usize, &str); 18] = [
    (DType::U8, 0, 1, "u8"),
    (DType::I8, 1, 1, "i8"),
    (DType::I16, 2, 2, "i16"),
    (DType::I32, 3, 4, "i32"),
    (DType::I64, 4, 8, "i64"),
    (DType::F16, 5, 2, "f16"),
    (DType::F32, 6, 4, "f32"),
    (DType::F64, 7, 8, "f64"),
    (DType::Bool, 11, 1, "bool"),
    (DType::BF16, 15, 2, "bf16"),
    (DType::U16, 27, 2, "u16"),
    (DType::U32, 28, 4, "u32"),
    (DType::U64, 29, 8, "u64"),
    (DType::F8E5M2, 23, 1, "f8e5m2"),
    (DType::F8E4M3, 24, 1, "f8e4m3"),
    (DType::F8E8M0, 44, 1, "f8e8m0"),
    (DType::C32, 8, 4, "c32"),
    (DType::C64, 9, 8, "c64"),
];

impl DType {
    /// The type with ExecuTorch's `ScalarType` number `code`, if tensors can store it.
    pub fn from_code(code: i8) -> Option<DType> {
        TABLE.iter().find(|row| row.1 == code).map(|row| row.0)
    }

    fn row(self) -> &'static (DType, i8, usize, &'static str) {
        &TABLE[self as usize]
    }

    /// ExecuTorch `ScalarType` number.
    pub fn code(self) -> i8 {
        self.row().1
    }

    /// Bytes of one element.
    pub fn size(self) -> usize {
        self.row().2
    }

    /// Short lower-case name, as text forms and messages print it.
    pub fn name(self) -> &'static str {
        self.row().3
    }

    /// The type with that [`DType::name`].
    pub fn from_name(name: &str) -> Option<DType> {
        TABLE.iter().find(|row| row.3 == name).map(|row| row.0)
    }

    /// Whether MLX graphs can carry the type: u8 i8 i16 i32 i64 u32 f16 bf16 f32 bool.
    pub fn is_node_dtype(self) -> bool {
        use DType::*;
        matches!(self, U8 | I8 | I16 | I32 | I64 | U32 | F16 | BF16 | F32 | Bool)
    }

    /// Promotion category.
    pub fn class(self) -> DTypeClass {
        use DType::*;
        match self {
            Bool => DTypeClass::Bool,
            U8 | I8 | I16 | U16 | I32 | U32 | I64 | U64 => DTypeClass::Integer,
            F16 | BF16 | F32 | F64 | F8E5M2 | F8E4M3 | F8E8M0 => DTypeClass::Float,
            C32 | C64 => DTypeClass::Complex,
        }
    }

    /// The type of the real and imaginary parts of complex numbers.
    pub fn part(self) -> Option<DType> {
        match self {
            DType::C32 => Some(DType::F16),
            DType::C64 => Some(DType::F32),
            _ => None,
        }
    }

    /// Whether the class is [`DTypeClass::Float`].
    pub fn is_float(self) -> bool {
        self.class() == DTypeClass::Float
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A stored boolean: any non-zero byte is true, so that foreign bytes can be viewed without a
/// check.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(transparent)]
pub struct Bool(pub u8);

impl Bool {
    /// The truth value.
    #[inline(always)]
    pub fn get(self) -> bool {
        self.0 != 0
    }
}

impl From<bool> for Bool {
    #[inline(always)]
    fn from(value: bool) -> Bool {
        Bool(u8::from(value))
    }
}

impl PartialEq for Bool {
    fn eq(&self, other: &Bool) -> bool {
        self.get() == other.get()
    }
}

/// A Rust type that stores one [`DType`].
pub trait Element: Pod + Send + Sync + fmt::Debug {
    const DTYPE: DType;
}

macro_rules! elements {
    ($($ty:ty => $dtype:ident),* $(,)?) => { $(impl Element for $ty { const DTYPE: DType = DType::$dtype; })* };
}

elements! {
    u8 => U8, i8 => I8, i16 => I16, u16 => U16, i32 => I32, u32 => U32, i64 => I64, u64 => U64,
    f16 => F16, bf16 => BF16, f32 => F32, f64 => F64, Bool => Bool,
}

/// Runs `$body` with `$t` bound to the Rust type of `$dtype`, which must be one of the listed
/// types; otherwise `$other`.
///
/// The match happens once, outside of every loop: `with_dtype!(x.dtype(), T in [F32, F16] =>
/// f::<T>(x), else => Err(..))`.
#[macro_export]
macro_rules! with_dtype {
    ($dtype:expr, $t:ident in [$($d:ident),+ $(,)?] => $body:expr, else => $other:expr) => {
        match $dtype {
            $( $crate::DType::$d => { type $t = $crate::element!($d); $body } )+
            #[allow(unreachable_patterns, reason = "the list may name every dtype")]
            _ => $other,
        }
    };
}

/// The Rust type that stores a [`DType`] variant.
#[macro_export]
macro_rules! element {
    (U8) => {
        u8
    };
    (I8) => {
        i8
    };
    (I16) => {
        i16
    };
    (U16) => {
        u16
    };
    (I32) => {
        i32
    };
    (U32) => {
        u32
    };
    (I64) => {
        i64
    };
    (U64) => {
        u64
    };
    (F16) => {
        $crate::f16
    };
    (BF16) => {
        $crate::bf16
    };
    (F32) => {
        f32
    };
    (F64) => {
        f64
    };
    (Bool) => {
        $crate::Bool
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_rows_stand_in_enum_order() {
        for (i, row) in TABLE.iter().enumerate() {
            assert_eq!(row.0 as usize, i);
            assert_eq!(DType::from_code(row.1), Some(row.0));
            assert_eq!(DType::from_name(row.3), Some(row.0));
        }
        assert_eq!(DType::from_code(10), None);
    }

    #[test]
    fn with_dtype_binds_the_storage_type() {
        let size = |d: DType| with_dtype!(d, T in [F32, BF16, Bool] => size_of::<T>(), else => 0);
        assert_eq!((size(DType::F32), size(DType::BF16), size(DType::Bool), size(DType::I64)), (4, 2, 1, 0));
    }
}
