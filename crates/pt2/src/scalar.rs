//! The schema's enumerations. Their numbers differ from ExecuTorch's.

use std::fmt;

use flambeau_tensor::DType;

use crate::{Error, Result};

/// An element type of an archive: a storable type, or another type by PyTorch's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ScalarType {
    Known(DType),
    /// A type that the compiler does not support.
    Other(&'static str),
}

/// All element types: (schema number, PyTorch's name, type).
const SCALAR_TYPES: [(i64, &str, Option<DType>); 22] = [
    (0, "unknown", None),
    (1, "uint8", Some(DType::U8)),
    (2, "int8", Some(DType::I8)),
    (3, "int16", Some(DType::I16)),
    (4, "int32", Some(DType::I32)),
    (5, "int64", Some(DType::I64)),
    (6, "float16", Some(DType::F16)),
    (7, "float32", Some(DType::F32)),
    (8, "float64", Some(DType::F64)),
    (9, "complex32", Some(DType::C32)),
    (10, "complex64", Some(DType::C64)),
    (11, "complex128", None),
    (12, "bool", Some(DType::Bool)),
    (13, "bfloat16", Some(DType::BF16)),
    (28, "uint16", Some(DType::U16)),
    (29, "float8_e4m3fn", Some(DType::F8E4M3)),
    (30, "float8_e5m2", Some(DType::F8E5M2)),
    (31, "float8_e4m3fnuz", None),
    (32, "float8_e5m2fnuz", None),
    (33, "float8_e8m0fnu", Some(DType::F8E8M0)),
    (34, "uint32", Some(DType::U32)),
    (35, "uint64", Some(DType::U64)),
];

impl ScalarType {
    /// The type with the schema's number.
    ///
    /// # Errors
    /// [`Error::Enumeration`].
    pub fn from_number(number: i64) -> Result<ScalarType> {
        let row = SCALAR_TYPES
            .into_iter()
            .find(|row| row.0 == number)
            .ok_or(Error::Enumeration { what: "element type", found: number })?;
        Ok(row.2.map_or(ScalarType::Other(row.1), ScalarType::Known))
    }

    /// The type with PyTorch's name, without `torch.`.
    pub fn from_torch_name(name: &str) -> Option<ScalarType> {
        let row = SCALAR_TYPES.into_iter().find(|row| row.1 == name && row.0 != 0)?;
        Some(row.2.map_or(ScalarType::Other(row.1), ScalarType::Known))
    }

    /// PyTorch's name, without `torch.`.
    pub fn torch_name(self) -> &'static str {
        match self {
            ScalarType::Known(dtype) => SCALAR_TYPES.into_iter().find(|row| row.2 == Some(dtype)).map_or("unknown", |row| row.1),
            ScalarType::Other(name) => name,
        }
    }

    /// The storable type, if there is one.
    pub fn dtype(self) -> Option<DType> {
        match self {
            ScalarType::Known(dtype) => Some(dtype),
            ScalarType::Other(_) => None,
        }
    }
}

impl From<DType> for ScalarType {
    fn from(dtype: DType) -> ScalarType {
        ScalarType::Known(dtype)
    }
}

/// Formats as `torch.float32`.
impl fmt::Display for ScalarType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "torch.{}", self.torch_name())
    }
}

macro_rules! enumeration {
    ($(#[$doc:meta])* $name:ident, $what:literal, $($variant:ident = $number:literal $text:literal),+ $(,)?) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name { $($variant),+ }

        impl $name {
            /// The value with the schema's number.
            ///
            /// # Errors
            /// [`Error::Enumeration`].
            pub fn from_number(number: i64) -> Result<$name> {
                match number {
                    $($number => Ok($name::$variant),)+
                    found => Err(Error::Enumeration { what: $what, found }),
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self { $($name::$variant => $text),+ })
            }
        }
    };
}

enumeration! {
    /// Memory layout of a tensor. Only strided tensors can be compiled.
    Layout, "layout",
    Unknown = 0 "torch.unknown_layout", SparseCoo = 1 "torch.sparse_coo", SparseCsr = 2 "torch.sparse_csr",
    SparseCsc = 3 "torch.sparse_csc", SparseBsr = 4 "torch.sparse_bsr", SparseBsc = 5 "torch.sparse_bsc",
    Mkldnn = 6 "torch._mkldnn", Strided = 7 "torch.strided",
}

enumeration! {
    /// The order of strides that an operator requests.
    MemoryFormat, "memory format",
    Unknown = 0 "torch.unknown_format", Contiguous = 1 "torch.contiguous_format", ChannelsLast = 2 "torch.channels_last",
    ChannelsLast3d = 3 "torch.channels_last_3d", Preserve = 4 "torch.preserve_format",
}

/// Device of a tensor during capture.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Device {
    /// `cpu`, `cuda`, `mps`, …
    pub kind: String,
    pub index: Option<i64>,
}

impl Device {
    /// The host.
    pub fn cpu() -> Device {
        Device { kind: "cpu".into(), index: None }
    }
}

/// Formats as `cpu` or `cuda:0`.
impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.index {
            Some(index) => write!(f, "{}:{index}", self.kind),
            None => f.write_str(&self.kind),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scalar_numbers_and_names_agree() {
        for (number, name, dtype) in SCALAR_TYPES.into_iter().skip(1) {
            let scalar = ScalarType::from_number(number).unwrap();
            assert_eq!((scalar.torch_name(), scalar.dtype(), ScalarType::from_torch_name(name)), (name, dtype, Some(scalar)));
        }
        assert_eq!(ScalarType::from_number(13).unwrap().to_string(), "torch.bfloat16");
        assert!(matches!(ScalarType::from_number(14), Err(Error::Enumeration { found: 14, .. })));
    }
}
