//! Operations on arrays. They only extend MLX's graph; invalid operands fail at once.

use std::{ffi::c_int, fmt::Write};

use libloading::Library;

use super::{
    Api, Array, Raw, Result, call,
    parameter::{Cpp, Parameter, kind},
};

/// One operation in C++: a function of the parameters in order, followed by the stream.
struct Definition {
    name: &'static str,
    parameters: &'static [(&'static str, Cpp)],
    function: &'static str,
}

/// Expands the rows, each an entry of the shim with its C++ definition. Rows under `of an array`
/// are methods of an array, their first parameter.
macro_rules! operations {
    (
        of an array {
            $($(#[$doc:meta])* $method:ident($($arg:ident: $kind:ident),*) = $function:literal;)*
        }
        of none {
            $($(#[$free_doc:meta])* $free:ident($($free_arg:ident: $free_kind:ident),*) = $free_function:literal;)*
        }
    ) => {
        /// Pointers to the entries.
        pub(super) struct Operations {
            $($method: unsafe extern "C" fn(Raw $(, <kind::$kind as Parameter>::Raw)*, *mut Raw) -> c_int,)*
            $($free: unsafe extern "C" fn($(<kind::$free_kind as Parameter>::Raw,)* *mut Raw) -> c_int,)*
        }

        impl Operations {
            /// Looks every entry up.
            ///
            /// # Safety
            /// The library must be the shim, built from [`definitions`].
            pub(super) unsafe fn new(library: &Library) -> std::result::Result<Operations, libloading::Error> {
                Ok(Operations {
                    // SAFETY: the library is the shim, whose entries are generated from the same
                    // rows as these types. It outlives the pointers, since `Table` holds both.
                    $($method: *unsafe { library.get(concat!("fl_", stringify!($method), "\0").as_bytes()) }?,)*
                    // SAFETY: the shim's entry has this type, and `Table` keeps the library as long
                    // as the pointer.
                    $($free: *unsafe { library.get(concat!("fl_", stringify!($free), "\0").as_bytes()) }?,)*
                })
            }
        }

        impl Array {
            $($(#[$doc])*
            pub(crate) fn $method(&self $(, $arg: <kind::$kind as Parameter>::Value<'_>)*) -> Result<Array> {
                $(let $arg = kind::$kind::hold($arg)?;)*
                self.api().make(|out| call!(self.api(), operations.$method(self.raw() $(, kind::$kind::raw(&$arg))*, out)))
            })*

            $($(#[$free_doc])*
            pub(crate) fn $free(api: Api $(, $free_arg: <kind::$free_kind as Parameter>::Value<'_>)*) -> Result<Array> {
                $(let $free_arg = kind::$free_kind::hold($free_arg)?;)*
                api.make(|out| call!(api, operations.$free($(kind::$free_kind::raw(&$free_arg),)* out)))
            })*
        }

        const DEFINITIONS: &[Definition] = &[
            $(Definition {
                name: stringify!($method),
                parameters: &[
                    ("x", kind::Operand::CPP),
                    $((stringify!($arg), kind::$kind::CPP)),*
                ],
                function: $function,
            },)*
            $(Definition {
                name: stringify!($free),
                parameters: &[$((stringify!($free_arg), kind::$free_kind::CPP)),*],
                function: $free_function,
            },)*
        ];
    };
}

operations! {
    of an array {
        unary(op: Unary) = "fl::unary";
        binary(op: Binary, b: Operand) = "fl::binary";
        /// `self ? y : z`.
        choose(y: Operand, z: Operand) = "mx::where";
        /// To the nearest, ties to even.
        round(decimals: Int) = "mx::round";
        cast(dtype: ElementType) = "mx::astype";
        /// The same bits as another type.
        view_as(dtype: ElementType) = "mx::view";
        reduce(op: Reduce, axes: Axes, keepdims: Flag, ddof: Int) = "fl::reduce";
        arg_reduce(op: ArgReduce, axis: Int, keepdims: Flag) = "fl::arg_reduce";
        order(op: Order, axis: Int) = "fl::order";
        cumsum(axis: Int, reverse: Flag, inclusive: Flag) = "mx::cumsum";
        cumprod(axis: Int, reverse: Flag, inclusive: Flag) = "mx::cumprod";
        softmax(axis: Int, precise: Flag) = "mx::softmax";

        reshape(shape: Shape) = "mx::reshape";
        transpose(perm: Axes) = "mx::transpose";
        broadcast(shape: Shape) = "mx::broadcast_to";
        expand_dims(axes: Axes) = "mx::expand_dims";
        squeeze(axes: Axes) = "mx::squeeze";
        tile(reps: Axes) = "mx::tile";
        /// Elements of the row-major array at `offset + sum(i * strides)`; the caller has proved
        /// that they exist.
        as_strided(shape: Shape, strides: Strides, offset: Offset) = "mx::as_strided";
        slice(start: Bounds, stop: Bounds, step: Bounds) = "mx::slice";
        slice_update(update: Operand, start: Bounds, stop: Bounds, step: Bounds) = "mx::slice_update";
        /// Mode `constant` fills with `value`, `edge` repeats the border.
        pad(low: Bounds, high: Bounds, value: Operand, mode: Text) = "fl::pad";
        repeat(repeats: Int, axis: Int) = "mx::repeat";
        /// `j <= i + k` of the last two axes.
        tril(k: Int) = "mx::tril";
        /// `j >= i + k` of the last two axes.
        triu(k: Int) = "mx::triu";
        roll(shift: Int, axis: Int) = "mx::roll";

        // MLX checks no index: callers prove or clamp them.
        take(indices: Operand, axis: Int) = "mx::take";
        take_along_axis(indices: Operand, axis: Int) = "mx::take_along_axis";
        scatter_add(indices: Operand, updates: Operand, axis: Int) = "mx::scatter_add_axis";
        gather(indices: Operands, axes: Axes, sizes: Bounds) = "mx::gather";
        /// `updates` has the shape of the indices, then the shape of the slices; slices have size 1
        /// on `axes`.
        scatter(indices: Operands, updates: Operand, axes: Axes) = "mx::scatter";
        /// The region of size `sizes` that begins at `start` on `axes`. `start` is an array and
        /// need not be computed yet.
        slice_at(start: Operand, axes: Axes, sizes: Shape) = "mx::slice";
        /// With the region at `start` on `axes` replaced by `update`.
        slice_update_at(update: Operand, start: Operand, axes: Axes) = "mx::slice_update";

        /// `alpha * (a @ b) + beta * self`.
        addmm(a: Operand, b: Operand, alpha: Float, beta: Float) = "mx::addmm";
        gather_mm(b: Operand, lhs: OptionalOperand, rhs: OptionalOperand, sorted: Flag) = "mx::gather_mm";
        /// `self @ w`, or `self @ w^T` if `transpose`.
        quantized_matmul(w: Quantized, transpose: Flag) = "fl::quantized_matmul";
        /// As [`Array::quantized_matmul`], with matrices chosen by the index lists.
        gather_qmm(w: Quantized, lhs: OptionalOperand, rhs: OptionalOperand, transpose: Flag, sorted: Flag) = "fl::gather_qmm";
        /// Channels last: self `[N, .., Ci]`, w `[Co, .., Ci / groups]`; `flip` reverses the
        /// kernel.
        conv(w: Operand, axes: ConvAxes, groups: Int, flip: Flag) = "fl::conv";
        rms_norm(weight: OptionalOperand, eps: Float) = "mx::fast::rms_norm";
        layer_norm(weight: OptionalOperand, bias: OptionalOperand, eps: Float) = "mx::fast::layer_norm";
        /// Rotates by an integer `offset`; `freqs` are periods and replace `base`.
        rope(dims: Int, traditional: Flag, base: Float, scale: Float, offset: Operand, freqs: OptionalOperand) = "fl::rope";
        /// Mode is empty, `causal` or `array` (with a mask).
        attention(k: Operand, v: Operand, scale: Float, mode: Text, mask: OptionalOperand) = "fl::attention";
        /// Threefry bits of `width` bytes under a key `[2]` of u32.
        random_bits(shape: Shape, width: Int) = "fl::random_bits";
    }
    of none {
        full(shape: Shape, value: Double, dtype: ElementType) = "fl::full";
        /// `start, start + step, ..` below `stop`.
        arange(start: Double, stop: Double, step: Double, dtype: ElementType) = "mx::arange";
        concatenate(parts: Operands, axis: Int) = "mx::concatenate";
        stack(parts: Operands, axis: Int) = "mx::stack";
        /// Unpacked weights in MLX's own type for the format.
        dequantize(w: Quantized) = "fl::dequantize";
    }
}

/// The entries in C++, for the shim to include.
pub(super) fn definitions() -> String {
    let mut text = "// Written by src/ffi/operations.rs.\n".to_owned();
    for Definition { name, parameters, function } in DEFINITIONS {
        let declared = parameters.iter().map(|(name, cpp)| format!("{} {name}, ", cpp.ty)).collect::<String>();
        let read =
            |(name, cpp): &(&str, Cpp)| if cpp.read.is_empty() { format!("{name}, ") } else { format!("{}({name}), ", cpp.read) };
        let passed = parameters.iter().map(read).collect::<String>();
        let _ = write!(
            text,
            "\nFL_API int fl_{name}({declared}fl_array* out) {{\n  return make(out, [&] {{ return {function}({passed}stream()); }});\n}}\n"
        );
    }
    text
}

#[cfg(test)]
mod tests {
    #[test]
    fn rows_become_entries() {
        let entry = "FL_API int fl_roll(fl_array x, int shift, int axis, fl_array* out) {\n\
                     \x20 return make(out, [&] { return mx::roll(get(x), shift, axis, stream()); });\n}\n";
        let text = super::definitions();
        assert!(text.contains(entry), "{text}");
    }
}
