//! Parameter kinds of operations: the Rust type of each, its form in the C interface, and its C++
//! reader.

use std::ffi::CString;

use smallvec::SmallVec;

use super::{
    Array, Failure, Raw, Result,
    codes::{ArgReduce, Binary, Order, Reduce, Unary},
};

/// A kind of parameter.
pub(crate) trait Parameter {
    /// The type in Rust.
    type Value<'a>;
    /// The value to keep alive until the call returns.
    type Held<'a>;
    /// The type in the C interface.
    type Raw: Copy;
    /// The C++ type at the boundary, and the C++ function that converts it; empty if no conversion
    /// is needed.
    const CPP: Cpp;

    fn hold(value: Self::Value<'_>) -> Result<Self::Held<'_>>;
    fn raw(held: &Self::Held<'_>) -> Self::Raw;
}

/// A parameter in C++.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cpp {
    pub(crate) ty: &'static str,
    pub(crate) read: &'static str,
}

/// Makes a C enum a parameter kind.
macro_rules! code_parameters {
    ($($name:ident)*) => { $(
        impl Parameter for $name {
            type Value<'a> = $name;
            type Held<'a> = $name;
            type Raw = $name;
            const CPP: Cpp = Cpp { ty: stringify!($name), read: "" };

            fn hold(value: Self::Value<'_>) -> Result<Self::Held<'_>> {
                Ok(value)
            }

            fn raw(held: &Self::Held<'_>) -> $name {
                *held
            }
        }
    )* };
}

code_parameters!(ArgReduce Binary Order Reduce Unary);

/// A list of sizes or axes in the C interface.
pub(crate) type Axes = SmallVec<[i64; 8]>;

/// Layout of quantized weights.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QuantLayout {
    pub(crate) group_size: i32,
    pub(crate) bits: i32,
    /// MLX's name of the format.
    pub(crate) mode: &'static str,
}

/// Quantized weights of a product.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QuantizedMatrix<'a> {
    pub(crate) w: &'a Array,
    pub(crate) scales: &'a Array,
    pub(crate) biases: Option<&'a Array>,
    pub(crate) layout: QuantLayout,
}

/// One axis of a convolution.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConvAxis {
    pub(crate) stride: i64,
    pub(crate) pad_low: i64,
    pub(crate) pad_high: i64,
    pub(crate) kernel_dilation: i64,
    pub(crate) input_dilation: i64,
}

fn raw_or_null(x: Option<&Array>) -> Raw {
    x.map_or(std::ptr::null_mut(), Array::raw)
}

fn terminated(text: &str) -> Result<CString> {
    CString::new(text).map_err(|_| Failure("a name holds a zero byte".into()))
}

/// The kinds, by the names that the operations' rows use.
pub(crate) mod kind {
    use std::ffi::{CString, c_char, c_int};

    use flambeau_tensor::DType;

    use super::{ConvAxis, Cpp, Parameter, QuantizedMatrix, raw_or_null, terminated};
    pub(crate) use crate::ffi::codes::{ArgReduce, Binary, Order, Reduce, Unary};
    use crate::ffi::{
        Array, Raw, Result,
        table::{self, Arrays, Ints},
    };

    macro_rules! plain {
        ($($(#[$doc:meta])* $kind:ident: $value:ty as $raw:ty, $ty:literal $(, $read:literal)?;)*) => { $(
            $(#[$doc])*
            pub(crate) struct $kind;

            impl Parameter for $kind {
                type Value<'a> = $value;
                type Held<'a> = $value;
                type Raw = $raw;
                const CPP: Cpp = Cpp { ty: $ty, read: concat!($($read)?) };

                fn hold(value: Self::Value<'_>) -> Result<Self::Held<'_>> {
                    Ok(value)
                }

                fn raw(held: &Self::Held<'_>) -> $raw {
                    (*held).into()
                }
            }
        )* };
    }

    plain! {
        Int: i32 as c_int, "int";
        Flag: bool as c_int, "int", "bool";
        Float: f32 as f32, "float";
        Double: f64 as f64, "double";
        Offset: u64 as u64, "uint64_t";
    }

    /// Lists of integers, by their C++ type.
    macro_rules! lists {
        ($($kind:ident: $read:literal;)*) => { $(
            pub(crate) struct $kind;

            impl Parameter for $kind {
                type Value<'a> = &'a [i64];
                type Held<'a> = &'a [i64];
                type Raw = Ints;
                const CPP: Cpp = Cpp { ty: "fl_ints", read: $read };

                fn hold(value: Self::Value<'_>) -> Result<Self::Held<'_>> {
                    Ok(value)
                }

                fn raw(held: &Self::Held<'_>) -> Ints {
                    (*held).into()
                }
            }
        )* };
    }

    lists! {
        Axes: "ints_of";
        Bounds: "shape_of";
        Strides: "strides_of";
    }

    pub(crate) struct Shape;

    impl Parameter for Shape {
        type Value<'a> = &'a [usize];
        type Held<'a> = super::Axes;
        type Raw = Ints;
        const CPP: Cpp = Cpp { ty: "fl_ints", read: "shape_of" };

        fn hold(value: Self::Value<'_>) -> Result<Self::Held<'_>> {
            Ok(value.iter().map(|&size| size as i64).collect())
        }

        fn raw(held: &Self::Held<'_>) -> Ints {
            held[..].into()
        }
    }

    pub(crate) struct ElementType;

    impl Parameter for ElementType {
        type Value<'a> = DType;
        type Held<'a> = DType;
        type Raw = c_int;
        const CPP: Cpp = Cpp { ty: "int", read: "dtype_of" };

        fn hold(value: Self::Value<'_>) -> Result<Self::Held<'_>> {
            Ok(value)
        }

        fn raw(held: &Self::Held<'_>) -> c_int {
            held.code().into()
        }
    }

    pub(crate) struct Text;

    impl Parameter for Text {
        type Value<'a> = &'a str;
        type Held<'a> = CString;
        type Raw = *const c_char;
        const CPP: Cpp = Cpp { ty: "const char*", read: "" };

        fn hold(value: Self::Value<'_>) -> Result<Self::Held<'_>> {
            terminated(value)
        }

        fn raw(held: &Self::Held<'_>) -> *const c_char {
            held.as_ptr()
        }
    }

    pub(crate) struct Operand;

    impl Parameter for Operand {
        type Value<'a> = &'a Array;
        type Held<'a> = &'a Array;
        type Raw = Raw;
        const CPP: Cpp = Cpp { ty: "fl_array", read: "get" };

        fn hold(value: Self::Value<'_>) -> Result<Self::Held<'_>> {
            Ok(value)
        }

        fn raw(held: &Self::Held<'_>) -> Raw {
            Array::raw(held)
        }
    }

    pub(crate) struct OptionalOperand;

    impl Parameter for OptionalOperand {
        type Value<'a> = Option<&'a Array>;
        type Held<'a> = Option<&'a Array>;
        type Raw = Raw;
        const CPP: Cpp = Cpp { ty: "fl_array", read: "maybe" };

        fn hold(value: Self::Value<'_>) -> Result<Self::Held<'_>> {
            Ok(value)
        }

        fn raw(held: &Self::Held<'_>) -> Raw {
            raw_or_null(*held)
        }
    }

    pub(crate) struct Operands;

    impl Parameter for Operands {
        type Value<'a> = &'a [Array];
        type Held<'a> = Vec<Raw>;
        type Raw = Arrays;
        const CPP: Cpp = Cpp { ty: "fl_arrays", read: "arrays_of" };

        fn hold(value: Self::Value<'_>) -> Result<Self::Held<'_>> {
            Ok(value.iter().map(Array::raw).collect())
        }

        fn raw(held: &Self::Held<'_>) -> Arrays {
            held[..].into()
        }
    }

    pub(crate) struct Quantized;

    impl Parameter for Quantized {
        type Value<'a> = QuantizedMatrix<'a>;
        type Held<'a> = (QuantizedMatrix<'a>, CString);
        type Raw = table::Quantized;
        const CPP: Cpp = Cpp { ty: "fl_quantized", read: "" };

        fn hold(value: Self::Value<'_>) -> Result<Self::Held<'_>> {
            Ok((value, terminated(value.layout.mode)?))
        }

        fn raw((matrix, mode): &Self::Held<'_>) -> table::Quantized {
            table::Quantized {
                w: matrix.w.raw(),
                scales: matrix.scales.raw(),
                biases: raw_or_null(matrix.biases),
                group_size: matrix.layout.group_size,
                bits: matrix.layout.bits,
                mode: mode.as_ptr(),
            }
        }
    }

    pub(crate) struct ConvAxes;

    impl Parameter for ConvAxes {
        type Value<'a> = &'a [ConvAxis];
        /// Strides, padding before and after, dilations of the kernel and of the input.
        type Held<'a> = [super::Axes; 5];
        type Raw = table::ConvAxes;
        const CPP: Cpp = Cpp { ty: "fl_conv_axes", read: "" };

        fn hold(value: Self::Value<'_>) -> Result<Self::Held<'_>> {
            let column = |field: fn(&ConvAxis) -> i64| value.iter().map(field).collect();
            Ok([
                column(|a| a.stride),
                column(|a| a.pad_low),
                column(|a| a.pad_high),
                column(|a| a.kernel_dilation),
                column(|a| a.input_dilation),
            ])
        }

        fn raw(held: &Self::Held<'_>) -> table::ConvAxes {
            let [stride, pad_low, pad_high, kernel_dilation, input_dilation] = held.each_ref().map(|list| list[..].into());
            table::ConvAxes { stride, pad_low, pad_high, kernel_dilation, input_dilation }
        }
    }
}
