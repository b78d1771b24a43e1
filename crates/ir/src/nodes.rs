//! The only list of nodes: wire tag, name, and fields with types and defaults, in wire order.
//!
//! Tags and field positions are ExecuTorch's and append-only. A field's type states its role (`In`,
//! `Out`, …) and its codec. A default makes the field optional on the wire. These rows expand to
//! the structs, the [`Node`](crate::Node) enum, slot walks, text, JSON, the wire codec and the
//! generated documentation.
//!
//! The brackets behind a row state its [`Effect`](crate::Effect) and its [`Cost`](crate::Cost).
//! `FloatFunction` marks a function of each element of `x`, computed in `flt(x)`. Its shape rule
//! and its code in both engines expand from the row
//! ([`for_each_float_function`](crate::for_each_float_function)). They call the functions of the
//! same name in the kernels and in MLX.
//!
//! Notation in the docs: `promo` is MLX's promotion of the operand types. `flt(d)` is `d` if it is
//! floating, else f32. Shapes are in brackets. A formula without `=` gives `out`. Operands
//! broadcast by numpy's rules unless a row says otherwise; negative axes count from the end.
//!
//! Each row has exactly one doc comment, because the macros accept one `#[doc]`. A doc of several
//! lines is one `/** */`.

/// Expands `$callback! { context rows }` over every node.
#[macro_export]
macro_rules! for_each_node {
    ($callback:path $(, $context:tt)*) => {
        $callback! {
            $($context)*
            /// Does nothing.
            1 Noop {} [Pure, Free];
            /// Copies `x`. A copy into a mutable buffer's slot is the buffer's write-back.
            2 IdCopy { x: In, out: Out } [Pure, View(x)];
            /** `alpha * (mat1 @ mat2) + beta * bias` in `promo`, which must be floating. mat1 is
                `[.., M, K]`, mat2 `[.., K, N]`. Without bias, `alpha` and `beta` are ignored. */
            3 Addmm { mat1: In, mat2: In, out: Out, bias: Option<In>, alpha: f32 = 1.0, beta: f32 = 1.0 } [Pure, Product(mat1, mat2, out)];
            /// The only element of `x` as a 32-bit integer; bool gives 0 or 1, integers wrap.
            4 ItemInt { x: In, out: OutVid } [Pure, Free];
            /// `x` with an axis of size 1 inserted; `axis` is its place in the result.
            5 ExpandDims { x: In, out: Out, axis: i32 } [Pure, View(x)];
            /** Repeats `x` `reps[i]` times along axis `i`. The shorter of `reps` and the shape of
                `x` is padded on the left with ones. */
            6 Tile { x: In, out: Out, reps: Vec<Int> } [Pure, Stream];
            /** `out[.., i, ..] = x[.., indices[.., i, ..], ..]` along `axis`. `x` and `indices`
                have the same rank; their other axes broadcast. Negative indices wrap once. */
            7 TakeAlongAxis { x: In, indices: In, out: Out, axis: i32 } [Pure, Gather];
            /** Selects elements of `axis`. An integer index selects one and drops the axis. A
                tensor index replaces the axis by the shape of the index. */
            8 Take { x: In, out: Out, index: Index, axis: i32 } [Pure, Gather];
            /** RMS norm over the last axis: `x * rsqrt(mean(x^2) + eps)` in f32, cast to
                `promo(x, weight)`, then times `weight` `[D]`. */
            9 RMSNorm { x: In, weight: Option<In>, out: Out, eps: f32 } [Pure, Stream];
            /** Layer norm over the last axis: `(x - mean) * rsqrt(var + eps)` in f32, cast to
                `promo`, then times `weight` `[D]` plus `bias` `[D]`. */
            10 LayerNorm { x: In, out: Out, weight: Option<In>, bias: Option<In>, eps: f32 } [Pure, Stream];
            /** Rotary position embedding. Rotates pairs of the first `dims` elements of the last
                axis of `x` `[B, .., T, D]`. The angle of pair `i` is
                `(t + offset) * scale * base^(-i / (dims/2))`. `freqs` `[dims/2]` gives periods
                instead of `base`. Pairs are `(2i, 2i + 1)` if `traditional`, else
                `(i, i + dims/2)`. */
            11 Rope {
                x: In,
                out: Out,
                dims: i32,
                offset: VidOrTid,
                freqs: Option<In>,
                traditional: bool = false,
                base: f32 = 500000.0,
                scale: f32 = 1.0,
            } [Pure, Stream];
            /** Attention, `softmax(q * scale @ k^T + mask) @ v`. q is `[B, Hq, Tq, D]`, k
                `[B, Hkv, Tk, D]`, v `[B, Hkv, Tk, Dv]`. A bool mask keeps positions where it is
                true. `causal` aligns the last query with the last key. */
            12 Sdpa { q: In, k: In, v: In, out: Out, scale: f32, mask: Option<In>, causal: bool = false } [Pure, Attention(q, k, out)];
            /// `a + b` in `promo`; integers wrap, bool is "or".
            13 Add { a: In, b: In, out: Out } [Pure, Stream];
            /// `a + b`; an error outside of 32 bits.
            14 AddInt { a: Int, b: Int, out: OutVid } [Pure, Free];
            /// `a - b`; an error outside of 32 bits.
            15 SubtractInt { a: Int, b: Int, out: OutVid } [Pure, Free];
            /// `a * b`; an error outside of 32 bits.
            16 MultiplyInt { a: Int, b: Int, out: OutVid } [Pure, Free];
            /// `floor(a / b)`; division by zero is an error.
            17 FloorDivideInt { a: Int, b: Int, out: OutVid } [Pure, Free];
            /// Size of axis `dim` of `a`.
            18 SymSize { a: In, dim: i32, out: OutVid } [Pure, Free];
            /// `a * b` in `promo`.
            19 Multiply { a: In, b: In, out: Out } [Pure, Stream];
            /// `a / b` in `flt(promo)`.
            20 Divide { a: In, b: In, out: Out } [Pure, Stream];
            /// `a - b` in `promo`; integers wrap.
            21 Subtract { a: In, b: In, out: Out } [Pure, Stream];
            /** Cross-correlation in `promo`, which must be floating. x is `[N, L, Ci]`, w
                `[Co, K, Ci / groups]`, out `[N, Lo, Co]`. */
            22 Conv1D { x: In, w: In, out: Out, stride: i32 = 1, padding: i32 = 0, dilation: i32 = 1, groups: i32 = 1 } [Pure, Convolution(w, out)];
            /** Cross-correlation in `promo`, which must be floating. x is `[N, H, W, Ci]`, w
                `[Co, Kh, Kw, Ci / groups]`, out `[N, Ho, Wo, Co]`. */
            23 Conv2D {
                x: In,
                w: In,
                out: Out,
                stride_h: i32 = 1,
                stride_w: i32 = 1,
                padding_h: i32 = 0,
                padding_w: i32 = 0,
                dilation_h: i32 = 1,
                dilation_w: i32 = 1,
                groups: i32 = 1,
            } [Pure, Convolution(w, out)];
            /** Cross-correlation in `promo`, which must be floating, with one group. x is
                `[N, D, H, W, Ci]`, w `[Co, Kd, Kh, Kw, Ci]`, out `[N, Do, Ho, Wo, Co]`. */
            24 Conv3D {
                x: In,
                w: In,
                out: Out,
                stride_d: i32 = 1,
                stride_h: i32 = 1,
                stride_w: i32 = 1,
                padding_d: i32 = 0,
                padding_h: i32 = 0,
                padding_w: i32 = 0,
                dilation_d: i32 = 1,
                dilation_h: i32 = 1,
                dilation_w: i32 = 1,
                groups: i32 = 1,
            } [Pure, Convolution(w, out)];
            /** `0.5 * x * (1 + erf(x / sqrt(2)))`. If `approximate` is `tanh`:
                `0.5 * x * (1 + tanh(sqrt(2/pi) * (x + 0.044715 * x^3)))`. */
            25 Gelu { x: In, out: Out, approximate: String } [Pure, Stream];
            /// `start, start + step, ..` up to and without `stop`, of `scalar_type` or i32.
            26 ARange { out: Out, start: Int, stop: Int, step: Int, scalar_type: Option<DType> } [Pure, Stream];
            /// `x * sigmoid(x)` in `flt(x)`.
            27 Silu { x: In, out: Out } [Pure, Stream];
            /// `1 / (1 + e^-x)` in `flt(x)`.
            28 Sigmoid { x: In, out: Out } [Pure, Stream, FloatFunction];
            /// Hyperbolic tangent in `flt(x)`.
            29 Tanh { x: In, out: Out } [Pure, Stream, FloatFunction];
            /// Drops the axes in `dims` that have size 1, or all axes of size 1 if `dims` is empty.
            30 Squeeze { x: In, out: Out, dims: Vec<i32> = [] } [Pure, View(x)];
            /** Parts of `x` along `axis`. A single entry of `sizes` is the length of each chunk;
                several are the lengths of the parts. The last part takes the rest. */
            31 Split { x: In, outs: Vec<Out>, sizes: Vec<Int>, axis: i32 } [Pure, View(x)];
            /// `1 / sqrt(x)` in `flt(x)`.
            32 Rsqrt { x: In, out: Out } [Pure, Stream, FloatFunction];
            /// Elementwise maximum in `promo`; NaN wins.
            33 Maximum { a: In, b: In, out: Out } [Pure, Stream];
            /// Elementwise minimum in `promo`; NaN wins.
            34 Minimum { a: In, b: In, out: Out } [Pure, Stream];
            /// Natural logarithm in `flt(x)`.
            35 Log { x: In, out: Out } [Pure, Stream, FloatFunction];
            /** `e^(x - max) / sum` along `axis`, in `flt(x)` on the last axis and in the type of
                `x` on others. `precise` computes in f32. */
            36 Softmax { x: In, out: Out, axis: i32, precise: bool = false } [Pure, Stream];
            /// `x` broadcast to `shape`; -1 keeps the size of `x`, with axes aligned on the right.
            37 BroadcastTo { x: In, out: Out, shape: Vec<Int> } [Pure, View(x)];
            /** Pads axis `i` of `x` by `pad_width[2i]` elements before and `pad_width[2i + 1]`
                after. Mode `constant` fills with `constant_value`; `edge` repeats the border. */
            38 Pad { x: In, out: Out, pad_width: Vec<Int>, mode: String, constant_value: f32 = 0.0 } [Pure, Stream];
            /** `condition ? x : y` in `promo(x, y)`; nonzero conditions are true; all three
                broadcast. */
            39 Where { condition: In, x: In, y: In, out: Out } [Pure, Stream];
            /// `x` in `shape`, elements in row-major order; the size of one -1 is inferred.
            40 Reshape { x: In, out: Out, shape: Vec<Int> } [Pure, View(x)];
            /// `x` with its axes permuted: axis `i` of the result is axis `perm[i]` of `x`.
            41 Transpose { x: In, out: Out, perm: Vec<i32> } [Pure, View(x)];
            /// Elements of the row-major `x` at `offset + sum(i * strides)`, in `shape`.
            42 AsStrided { x: In, out: Out, shape: Vec<Int>, strides: Vec<Int>, offset: u64 = 0 } [Pure, View(x)];
            /// `x` in row-major storage.
            43 Contiguous { x: In, out: Out } [Pure, Relayout(x)];
            /** Slices of size `slice_sizes` that start at `indices[k]` along `axes[k]`. `out` has
                the common shape of the indices, followed by `slice_sizes`. */
            44 Gather { x: In, indices: Vec<In>, out: Out, axes: Vec<i32>, slice_sizes: Vec<i32> } [Pure, Gather];
            /// `x[start:stop:step]` along `axis`; both ends clamp; a negative step walks backwards.
            45 Slice { x: In, out: Out, axis: Int, start: Int, stop: Int, step: i32 = 1 } [Pure, View(x)];
            /// Converts `x` to `scalar_type`; floats truncate toward zero, nonzero gives true.
            46 AsType { x: In, out: Out, scalar_type: DType } [Pure, Stream];
            /// The tensors joined along `axis` in `promo`.
            47 Concatenate { tensors: Vec<In>, out: Out, axis: i32 } [Pure, Stream];
            /// `v` in every element of `shape`, rounded to f32, then converted to `scalar_type`.
            48 Full { out: Out, shape: Vec<Int>, v: Float, scalar_type: DType } [Pure, Stream];
            /// `v` in every element of the shape of `x`, in `scalar_type` or the type of `x`.
            49 FullLike { x: In, out: Out, v: Float, scalar_type: Option<DType> } [Pure, Stream];
            /// u32 index of the largest element along `axis`; first NaN, else first of equals.
            50 Argmax { x: In, out: Out, axis: i32, keepdims: bool = false } [Pure, Stream];
            /** `dst` with `start:stop:step` of `axis` replaced by `update`, cast and broadcast. In
                place if `out` is `dst`. */
            51 SliceUpdate { dst: In, update: In, out: Out, axis: Int, start: Int, stop: Int, step: i32 = 1 } [Pure, Update(update)];
            /** `dst` with `out[.., indices[i], ..] = update[.., i, ..]` along `axis`. Indices are
                i64 `[n]`; of equal indices the last wins. */
            52 IndexCopy { dst: In, update: In, indices: In, out: Out, axis: i32 } [Pure, Update(update)];
            /** Unpacks `w` to floats with `scales` and `biases`. A row of `w` is a little-endian
                bit stream of `bits`-bit codes in u32 words. */
            53 Dequantize {
                w: In,
                scales: In,
                out: Out,
                biases: Option<In>,
                group_size: i32,
                bits: i32,
                mode: QuantMode,
                global_scale: Option<In>,
                dtype: Option<DType>,
            } [Pure, Stream];
            /// `a < b` in `promo`, bool.
            54 Less { a: In, b: In, out: Out } [Pure, Stream];
            /// `a <= b` in `promo`, bool.
            55 LessEqual { a: In, b: In, out: Out } [Pure, Stream];
            /// `a > b` in `promo`, bool.
            56 Greater { a: In, b: In, out: Out } [Pure, Stream];
            /// `a >= b` in `promo`, bool.
            57 GreaterEqual { a: In, b: In, out: Out } [Pure, Stream];
            /// `a == b` in `promo`, bool.
            58 Equal { a: In, b: In, out: Out } [Pure, Stream];
            /// `a != b` in `promo`, bool.
            59 NotEqual { a: In, b: In, out: Out } [Pure, Stream];
            /// `x == 0`, bool.
            60 LogicalNot { x: In, out: Out } [Pure, Stream];
            /// `a != 0 && b != 0`, bool.
            61 LogicalAnd { a: In, b: In, out: Out } [Pure, Stream];
            /// `a != 0 || b != 0`, bool.
            62 LogicalOr { a: In, b: In, out: Out } [Pure, Stream];
            /// Matrix `[n, m]` of `scalar_type`: 1 where `j <= i + k`, else 0.
            63 Tri { out: Out, n: Int, m: Int, k: i32 = 0, scalar_type: DType } [Pure, Stream];
            /// `x` where `j <= i + k` on the last two axes, else 0.
            64 Tril { x: In, out: Out, k: i32 = 0 } [Pure, Stream];
            /// `x` where `j >= i + k` on the last two axes, else 0.
            65 Triu { x: In, out: Out, k: i32 = 0 } [Pure, Stream];
            /// Largest integer not above `x`; the type is kept.
            66 Floor { x: In, out: Out } [Pure, Stream];
            /// Smallest integer not below `x`; the type is kept.
            67 Ceil { x: In, out: Out } [Pure, Stream];
            /// `x * x`; the type is kept.
            68 Square { x: In, out: Out } [Pure, Stream];
            /// `e^x` in `flt(x)`.
            69 Exp { x: In, out: Out } [Pure, Stream, FloatFunction];
            /// Sine in `flt(x)`.
            70 Sin { x: In, out: Out } [Pure, Stream, FloatFunction];
            /// Cosine in `flt(x)`.
            71 Cos { x: In, out: Out } [Pure, Stream, FloatFunction];
            /// Tangent in `flt(x)`.
            72 Tan { x: In, out: Out } [Pure, Stream, FloatFunction];
            /// Inverse sine in `flt(x)`.
            73 Arcsin { x: In, out: Out } [Pure, Stream, FloatFunction];
            /// Inverse cosine in `flt(x)`.
            74 Arccos { x: In, out: Out } [Pure, Stream, FloatFunction];
            /// Inverse tangent in `flt(x)`.
            75 Arctan { x: In, out: Out } [Pure, Stream, FloatFunction];
            /// Hyperbolic sine in `flt(x)`.
            76 Sinh { x: In, out: Out } [Pure, Stream, FloatFunction];
            /// Hyperbolic cosine in `flt(x)`.
            77 Cosh { x: In, out: Out } [Pure, Stream, FloatFunction];
            /// Inverse hyperbolic sine in `flt(x)`.
            78 Arcsinh { x: In, out: Out } [Pure, Stream, FloatFunction];
            /// Inverse hyperbolic cosine in `flt(x)`.
            79 Arccosh { x: In, out: Out } [Pure, Stream, FloatFunction];
            /// Inverse hyperbolic tangent in `flt(x)`.
            80 Arctanh { x: In, out: Out } [Pure, Stream, FloatFunction];
            /// Base-2 logarithm in `flt(x)`.
            81 Log2 { x: In, out: Out } [Pure, Stream, FloatFunction];
            /// Base-10 logarithm in `flt(x)`.
            82 Log10 { x: In, out: Out } [Pure, Stream, FloatFunction];
            /// `ln(1 + x)` in `flt(x)`.
            83 Log1p { x: In, out: Out } [Pure, Stream, FloatFunction];
            /// Error function in `flt(x)`.
            84 Erf { x: In, out: Out } [Pure, Stream, FloatFunction];
            /// `e^x - 1` in `flt(x)`.
            85 Expm1 { x: In, out: Out } [Pure, Stream, FloatFunction];
            /// Rounds to `decimals` decimal places, ties to even; the type is kept.
            86 Round { x: In, out: Out, decimals: i32 = 0 } [Pure, Stream];
            /// `1 / x` in `flt(x)`.
            87 Reciprocal { x: In, out: Out } [Pure, Stream, FloatFunction];
            /// Square root in `flt(x)`.
            88 Sqrt { x: In, out: Out } [Pure, Stream, FloatFunction];
            /// Absolute value; the type is kept.
            89 Abs { x: In, out: Out } [Pure, Stream];
            /// `-x`; the type is kept; bool is an error.
            90 Neg { x: In, out: Out } [Pure, Stream];
            /// `atan2(a, b)`, the angle of the point (b, a), in `flt(promo)`.
            91 Atan2 { a: In, b: In, out: Out } [Pure, Stream];
            /// `ln(e^a + e^b)` in `flt(promo)`.
            92 LogAddExp { a: In, b: In, out: Out } [Pure, Stream];
            /// `floor(a / b)` in `promo`.
            93 FloorDivide { a: In, b: In, out: Out } [Pure, Stream];
            /// `a^b` in `promo`; a negative integer exponent gives 0.
            94 Power { a: In, b: In, out: Out } [Pure, Stream];
            /// `ln(sum(e^x))` over `axes` in `flt(x)`; an empty list reduces nothing.
            95 LogSumExp { x: In, out: Out, axes: Vec<i32> = [], keepdims: bool = false } [Pure, Stream];
            /// Sum over `axes`, all if empty; bool and integers below 32 bits widen to 32 bits.
            96 Sum { x: In, out: Out, axes: Vec<i32> = [], keepdims: bool = false } [Pure, Stream];
            /// Mean over `axes`, all if empty, in `flt(x)`.
            97 Mean { x: In, out: Out, axes: Vec<i32> = [], keepdims: bool = false } [Pure, Stream];
            /// Variance over `axes`, all if empty, with divisor `n - ddof`, in `flt(x)`.
            98 Var { x: In, out: Out, axes: Vec<i32> = [], keepdims: bool = false, ddof: i32 = 0 } [Pure, Stream];
            /// Standard deviation, the square root of `Var`.
            99 Std { x: In, out: Out, axes: Vec<i32> = [], keepdims: bool = false, ddof: i32 = 0 } [Pure, Stream];
            /// Product over `axes`, all if empty; result types as in `Sum`.
            100 Prod { x: In, out: Out, axes: Vec<i32> = [], keepdims: bool = false } [Pure, Stream];
            /// Largest element over `axes`, all if empty; NaN wins; the type is kept.
            101 Max { x: In, out: Out, axes: Vec<i32> = [], keepdims: bool = false } [Pure, Stream];
            /// Smallest element over `axes`, all if empty; NaN wins; the type is kept.
            102 Min { x: In, out: Out, axes: Vec<i32> = [], keepdims: bool = false } [Pure, Stream];
            /// u32 index of the smallest element along `axis`; first NaN, else first of equals.
            103 Argmin { x: In, out: Out, axis: i32, keepdims: bool = false } [Pure, Stream];
            /** Median over `axes`, all if empty, in `flt(x)`. An even count gives the mean of the
                two middle elements. */
            104 Median { x: In, out: Out, axes: Vec<i32> = [], keepdims: bool = false } [Pure, Stream];
            /// `out = a mod b` with the sign of `b`; `b = 0` is an error.
            105 ModInt { a: Int, b: Int, out: OutVid } [Pure, Free];
            /// `a mod b` with the sign of `b`, in `promo`.
            106 Remainder { a: In, b: In, out: Out } [Pure, Stream];
            /** Transposed convolution. x is `[N, L, Ci]`, w `[Co, K, Ci / groups]`, out
                `[N, Lo, Co]`. */
            107 ConvTranspose1D {
                x: In,
                w: In,
                out: Out,
                stride: i32 = 1,
                padding: i32 = 0,
                dilation: i32 = 1,
                output_padding: i32 = 0,
                groups: i32 = 1,
            } [Pure, Stream];
            /** Transposed convolution. x is `[N, H, W, Ci]`, w `[Co, Kh, Kw, Ci / groups]`, out
                `[N, Ho, Wo, Co]`. */
            108 ConvTranspose2D {
                x: In,
                w: In,
                out: Out,
                stride_h: i32 = 1,
                stride_w: i32 = 1,
                padding_h: i32 = 0,
                padding_w: i32 = 0,
                dilation_h: i32 = 1,
                dilation_w: i32 = 1,
                output_padding_h: i32 = 0,
                output_padding_w: i32 = 0,
                groups: i32 = 1,
            } [Pure, Stream];
            /** Transposed convolution with one group. x is `[N, D, H, W, Ci]`, w
                `[Co, Kd, Kh, Kw, Ci]`, out `[N, Do, Ho, Wo, Co]`. */
            109 ConvTranspose3D {
                x: In,
                w: In,
                out: Out,
                stride_d: i32 = 1,
                stride_h: i32 = 1,
                stride_w: i32 = 1,
                padding_d: i32 = 0,
                padding_h: i32 = 0,
                padding_w: i32 = 0,
                dilation_d: i32 = 1,
                dilation_h: i32 = 1,
                dilation_w: i32 = 1,
                output_padding_d: i32 = 0,
                output_padding_h: i32 = 0,
                output_padding_w: i32 = 0,
                groups: i32 = 1,
            } [Pure, Stream];
            /// `min(max(x, a_min), a_max)` in `promo`; at least one bound is present.
            110 Clip { x: In, out: Out, a_min: Option<In>, a_max: Option<In> } [Pure, Stream];
            /** Cumulative sum along `axis`, from the end if `reverse`; bool gives i32. Element `i`
                includes `x[i]` if `inclusive`. */
            111 Cumsum { x: In, out: Out, axis: i32, reverse: bool = false, inclusive: bool = true } [Pure, Stream];
            /// The tensors joined along a new axis `axis`, in `promo`.
            112 Stack { tensors: Vec<In>, out: Out, axis: i32 = 0 } [Pure, Stream];
            /// Sign, -1, 0 or 1; NaN gives 0; the type is kept.
            113 Sign { x: In, out: Out } [Pure, Stream];
            /// True if any element over `axes` is nonzero; all axes if empty; bool.
            114 Any { x: In, out: Out, axes: Vec<i32> = [], keepdims: bool = false } [Pure, Stream];
            /// True if every element over `axes` is nonzero; all axes if empty; bool.
            115 All { x: In, out: Out, axes: Vec<i32> = [], keepdims: bool = false } [Pure, Stream];
            /// Each element repeated `repeats` times along `axis`.
            116 Repeat { x: In, out: Out, repeats: Int, axis: i32 } [Pure, Stream];
            /// Sorts `x` in ascending order along `axis`, NaN last.
            117 Sort { x: In, out: Out, axis: i32 } [Pure, Stream];
            /// u32 indices that sort `x` in ascending order along `axis`; stable, NaN last.
            118 Argsort { x: In, out: Out, axis: i32 } [Pure, Stream];
            /** Partitions `x` along `axis`. Element `kth` takes its sorted place, after all smaller
                elements. */
            119 Partition { x: In, out: Out, kth: Int, axis: i32 } [Pure, Stream];
            /// u32 indices that partition `x` as `Partition` does.
            120 ArgPartition { x: In, out: Out, kth: Int, axis: i32 } [Pure, Stream];
            /** `x @ dequantize(w)^T`. x is `[.., K]`, w `[N, K * bits / 32]`, scales
                `[N, K / group_size]`. Without `transpose`: `x @ dequantize(w)` with w
                `[K, N * bits / 32]`. */
            121 QuantizedMatmul {
                x: In,
                w: In,
                scales: In,
                out: Out,
                biases: Option<In>,
                group_size: i32,
                bits: i32,
                mode: QuantMode,
                transpose: bool = true,
            } [Pure, PackedProduct(x, w, bits, out)];
            /** `x` with `out[.., indices[p], ..] += updates[p]` along `axis` for every position
                `p`. All ranks are equal. */
            122 ScatterAdd { x: In, indices: In, updates: In, out: Out, axis: i32 } [Pure, Stream];
            /** `a[lhs] @ b[rhs]`; indices select matrices of the flattened batch axes. A missing
                index list selects every matrix of its operand in order. */
            123 GatherMm {
                a: In,
                b: In,
                out: Out,
                lhs_indices: Option<In>,
                rhs_indices: Option<In>,
                sorted_indices: bool = false,
                sorted_indices_flag: Option<Int>,
            } [Pure, GatheredProduct(a, out)];
            /// `GatherMm` with quantized `w` `[E, N, K * bits / 32]`, as in `QuantizedMatmul`.
            124 GatherQmm {
                x: In,
                w: In,
                scales: In,
                out: Out,
                mode: QuantMode,
                biases: Option<In>,
                lhs_indices: Option<In>,
                rhs_indices: Option<In>,
                transpose: bool = true,
                group_size: i32,
                bits: i32,
                sorted_indices: bool = false,
                sorted_indices_flag: Option<Int>,
            } [Pure, GatheredProduct(x, out)];
            /** Runs a chain once per index of axis `scan_axis` of `originals`. Each step sets
                `sliced` to the slices at the index. The results in `outputs` are stacked along
                `scan_axis`. The body updates `carry` itself. */
            125 Scan {
                originals: Vec<In>,
                sliced: Vec<Out>,
                outputs: Vec<InOut>,
                carry: Vec<InOut>,
                body_chain_idx: ChainId,
                scan_axis: i32 = 1,
            } [RunsChains, Free];
            /// A Metal kernel as source text; engines run the kernels that they know by name.
            126 MetalKernel {
                name: String,
                source: String,
                inputs: Vec<In>,
                outputs: Vec<Out>,
                grid: Vec<Int>,
                threadgroup: Vec<Int>,
                header: Option<String>,
                input_names: Vec<String> = [],
                output_names: Vec<String> = [],
                ensure_row_contiguous: bool = true,
                atomic_outputs: bool = false,
                output_shapes_flat: Vec<Int> = [],
                output_shape_lengths: Vec<i32> = [],
                output_dtypes: Vec<DType> = [],
                template_arg_names: Vec<String> = [],
                template_arg_kinds: Vec<i8> = [],
                template_arg_values: Vec<i32> = [],
                init_value: Option<f32>,
            } [Pure, Unknown];
            /// `~x` of integers, "not" of bool.
            127 BitwiseInvert { x: In, out: Out } [Pure, Stream];
            /// `x` rotated by `shift[i]` along `axes[i]`, in order.
            128 Roll { x: In, out: Out, shift: Vec<Int>, axes: Vec<i32> } [Pure, Stream];
            /// `a & b` of integers or bool, in `promo`.
            129 BitwiseAnd { a: In, b: In, out: Out } [Pure, Stream];
            /// `a | b` of integers or bool, in `promo`.
            130 BitwiseOr { a: In, b: In, out: Out } [Pure, Stream];
            /// `a ^ b` of integers or bool, in `promo`.
            131 BitwiseXor { a: In, b: In, out: Out } [Pure, Stream];
            /// Runs one of two chains; each writes its result slots directly.
            132 If { cond: Int, then_chain_idx: ChainId, else_chain_idx: ChainId } [RunsChains, Free];
            /** Uniform random bits in `shape`, `width` bytes per element. With a seed,
                Threefry-2x32 counters under the key (0, seed). */
            133 RandomBits { out: Out, shape: Vec<Int>, seed: Option<InVid>, width: i32 = 4 } [Random(seed), Stream];
            /** Appends k and v `[1, Hkv, T, D]` to the session's cache at `position[0]`. Then
                attends with q `[1, Hq, T, D]`. */
            134 UpdateAndAttend {
                q: In,
                k: In,
                v: In,
                position: In,
                out: Out,
                layer_id: Option<i32>,
                scale: Option<f32>,
                out_dtype: Option<DType>,
            } [Stateful, Unknown];
            /// `x` rounded toward zero; the type is kept.
            135 Trunc { x: In, out: Out } [Pure, Stream];
            /// `x` reversed along `axes`.
            136 Flip { x: In, out: Out, axes: Vec<i32> } [Pure, Stream];
        }
    };
}

/// Expands `$callback! { Name }` over every node whose row says `FloatFunction`.
#[macro_export]
macro_rules! for_each_float_function {
    ($callback:ident) => {
        $crate::for_each_node! { $crate::float_functions_of, $callback }
    };
}

/// The filter of [`for_each_float_function`].
#[doc(hidden)]
#[macro_export]
macro_rules! float_functions_of {
    ($callback:ident $(#[doc = $doc:literal] $tag:literal $name:ident { $($fields:tt)* } $facts:tt;)*) => {
        $($crate::float_functions_of! { @row $callback $name $facts })*
    };
    (@row $callback:ident $name:ident [$effect:ident, $cost:ident, FloatFunction]) => {
        $callback! { $name }
    };
    (@row $callback:ident $name:ident $facts:tt) => {};
}
