//! Codes that cross the C interface. Each is written here once; [`header`] is the C++ half.

use std::fmt::Write;

use flambeau_tensor::DType;

/// C++ text of enums.
struct Declaration(&'static str);

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident { $($(#[$note:meta])* $variant:ident),* $(,)? })*) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Copy, Debug, PartialEq, Eq)]
            #[repr(i32)]
            pub(crate) enum $name { $($(#[$note])* $variant),* }
        )*

        const CODES: &[Declaration] = &[$(Declaration(
            concat!("enum class ", stringify!($name), " : int32_t { ", $(stringify!($variant), ", ",)* "};\n")
        )),*];
    };
}

/// Codes of functions of one signature, each with its C++ name.
macro_rules! functions {
    ($($(#[$doc:meta])* $name:ident as $list:literal { $($(#[$note:meta])* $variant:ident: $function:literal),* $(,)? })*) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Copy, Debug, PartialEq, Eq)]
            #[repr(i32)]
            pub(crate) enum $name { $($(#[$note])* $variant),* }
        )*

        const FUNCTIONS: &[Declaration] = &[$(Declaration(concat!(
            "enum class ", stringify!($name), " : int32_t { ", $(stringify!($variant), ", ",)* "};\n",
            "#define ", $list, "(CASE)", $(" CASE(", stringify!($variant), ", ", $function, ")",)* "\n",
        ))),*];
    };
}

functions! {
    /// Functions of one array.
    Unary as "FL_UNARY" {
        Abs: "mx::abs",
        Negative: "mx::negative",
        Sign: "mx::sign",
        Floor: "mx::floor",
        Ceil: "mx::ceil",
        Square: "mx::square",
        Sqrt: "mx::sqrt",
        Rsqrt: "mx::rsqrt",
        Reciprocal: "mx::reciprocal",
        Exp: "mx::exp",
        Expm1: "mx::expm1",
        Log: "mx::log",
        Log2: "mx::log2",
        Log10: "mx::log10",
        Log1p: "mx::log1p",
        Sin: "mx::sin",
        Cos: "mx::cos",
        Tan: "mx::tan",
        Arcsin: "mx::arcsin",
        Arccos: "mx::arccos",
        Arctan: "mx::arctan",
        Sinh: "mx::sinh",
        Cosh: "mx::cosh",
        Tanh: "mx::tanh",
        Arcsinh: "mx::arcsinh",
        Arccosh: "mx::arccosh",
        Arctanh: "mx::arctanh",
        Erf: "mx::erf",
        Sigmoid: "mx::sigmoid",
        LogicalNot: "mx::logical_not",
        BitwiseInvert: "mx::bitwise_invert",
        IsNan: "mx::isnan",
        /// The same elements in row-major storage.
        Contiguous: "row_major",
    }

    /// Functions of two arrays that broadcast, and the matrix product.
    Binary as "FL_BINARY" {
        Add: "mx::add",
        Subtract: "mx::subtract",
        Multiply: "mx::multiply",
        Divide: "mx::divide",
        /// Integers divide toward zero, and zero divisors end the process: see `ops::elementwise`.
        FloorDivide: "mx::floor_divide",
        Remainder: "mx::remainder",
        Power: "mx::power",
        Maximum: "mx::maximum",
        Minimum: "mx::minimum",
        Arctan2: "mx::arctan2",
        LogAddExp: "mx::logaddexp",
        Less: "mx::less",
        LessEqual: "mx::less_equal",
        Greater: "mx::greater",
        GreaterEqual: "mx::greater_equal",
        Equal: "mx::equal",
        NotEqual: "mx::not_equal",
        LogicalAnd: "mx::logical_and",
        LogicalOr: "mx::logical_or",
        BitwiseAnd: "mx::bitwise_and",
        BitwiseOr: "mx::bitwise_or",
        BitwiseXor: "mx::bitwise_xor",
        LeftShift: "mx::left_shift",
        RightShift: "mx::right_shift",
        Matmul: "mx::matmul",
    }
}

codes! {
    Reduce { Sum, Prod, Max, Min, Mean, Var, Std, Any, All, LogSumExp }

    ArgReduce { Max, Min }

    Order { Sort, Argsort }

    /// The kind of a kernel's template argument.
    TemplateKind { Int, Bool, DType }

    /// A memory figure to read or change.
    Memory {
        /// Bytes in use.
        Active,
        /// Peak number of bytes in use since the start or the last reset.
        Peak,
        /// Freed bytes that MLX keeps for reuse.
        Cache,
        Limit,
        SetLimit,
        SetCacheLimit,
        SetWiredLimit,
        ClearCache,
        ResetPeak,
    }
}

/// Element types that MLX has.
const DTYPES: [(DType, &str); 13] = [
    (DType::U8, "mx::uint8"),
    (DType::I8, "mx::int8"),
    (DType::I16, "mx::int16"),
    (DType::I32, "mx::int32"),
    (DType::I64, "mx::int64"),
    (DType::F16, "mx::float16"),
    (DType::F32, "mx::float32"),
    (DType::F64, "mx::float64"),
    (DType::Bool, "mx::bool_"),
    (DType::BF16, "mx::bfloat16"),
    (DType::U16, "mx::uint16"),
    (DType::U32, "mx::uint32"),
    (DType::U64, "mx::uint64"),
];

/// The codes as C++, for the shim to include.
pub(crate) fn header() -> String {
    let mut text = "// Written by src/ffi/codes.rs.\n#pragma once\n\n#include <cstdint>\n\n".to_owned();
    text.extend(FUNCTIONS.iter().chain(CODES).map(|declaration| declaration.0));
    text += "#define FL_DTYPES(CASE)";
    for (dtype, name) in DTYPES {
        let _ = write!(text, " CASE({}, {name})", dtype.code());
    }
    text += "\n";
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_names_every_code_in_the_order_of_its_enum() {
        let header = header();
        for line in [
            "enum class ArgReduce : int32_t { Max, Min, };",
            "enum class Order : int32_t { Sort, Argsort, };",
            "enum class TemplateKind : int32_t { Int, Bool, DType, };",
        ] {
            assert!(header.lines().any(|l| l == line), "{header}");
        }
        let cases: Vec<&str> = header.lines().filter(|l| l.starts_with("#define")).collect();
        assert!(cases[0].starts_with("#define FL_UNARY(CASE) CASE(Abs, mx::abs) CASE(Negative, mx::negative)"), "{header}");
        assert!(cases[2].ends_with(" CASE(28, mx::uint32) CASE(29, mx::uint64)"), "{header}");
        for (cases, name) in cases.iter().zip(["Unary", "Binary"]) {
            let declared = header.lines().find(|l| l.starts_with(&format!("enum class {name} :"))).expect("each enum is declared");
            assert_eq!(cases.matches(" CASE(").count(), declared.matches(", ").count(), "{header}");
        }
    }
}
