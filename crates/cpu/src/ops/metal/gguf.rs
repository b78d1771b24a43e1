//! Products with, and rows of, weights in GGUF's blocks of 256.

use flambeau_ir as ir;
use flambeau_tensor::{
    DType,
    gguf::{half, scale_min},
};
use smallvec::SmallVec;

use super::{dot, input, need_shape, output, template};
use crate::{
    array::Array,
    error::{OpError, Result},
    machine::Context,
    obstacle::Prepared,
    ops::index::listed,
    plan::{MemRef, Planner},
};

/// Weights of a block.
const BLOCK: usize = 256;

/// A block format.
pub(super) trait Format: 'static {
    const BYTES: usize;
    /// Whether rows outside of the table are zeros rather than errors.
    const ZERO_OUTSIDE: bool = false;
    fn unpack(block: &[u8], out: &mut [f32; BLOCK]);
}

/// 4 bits, 8 groups with 6-bit scales and minima.
pub(super) struct Q4K;
/// As [`Q4K`] with a fifth bit.
pub(super) struct Q5K;
/// 6 bits, 16 groups with 8-bit scales.
pub(super) struct Q6K;

/// The formats with minima: `high(group, l)` gives the bits above the low four.
fn unpack_with_minima(block: &[u8], codes: &[u8], high: impl Fn(usize, usize) -> u8, out: &mut [f32; BLOCK]) {
    let (d, d_min) = (half(block, 0), half(block, 2));
    for (group, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let (scale, min) = scale_min(&block[4..16], group);
        for (l, w) in out.iter_mut().enumerate() {
            let byte = codes[32 * (group / 2) + l];
            let low = if group % 2 == 0 { byte & 15 } else { byte >> 4 };
            *w = d * scale * f32::from(low | high(group, l) << 4) - d_min * min;
        }
    }
}

impl Format for Q4K {
    const BYTES: usize = 144;
    const ZERO_OUTSIDE: bool = true;
    fn unpack(block: &[u8], out: &mut [f32; BLOCK]) {
        unpack_with_minima(block, &block[16..144], |_, _| 0, out);
    }
}

impl Format for Q5K {
    const BYTES: usize = 176;
    fn unpack(block: &[u8], out: &mut [f32; BLOCK]) {
        unpack_with_minima(block, &block[48..176], |group, l| block[16 + l] >> group & 1, out);
    }
}

impl Format for Q6K {
    const BYTES: usize = 210;
    fn unpack(block: &[u8], out: &mut [f32; BLOCK]) {
        let (low, high, scales, d) = (&block[..128], &block[128..192], &block[192..208], half(block, 208));
        for (i, w) in out.iter_mut().enumerate() {
            let (half, group, l) = (i / 128, i / 32 % 4, i % 32);
            let byte = low[64 * half + 32 * (group % 2) + l];
            let nibble = if group < 2 { byte & 15 } else { byte >> 4 };
            let code = nibble | (high[32 * half + l] >> (2 * group) & 3) << 4;
            let scale = f32::from(scales[8 * half + 2 * group + l / 16] as i8);
            *w = d * scale * (f32::from(code) - 32.0);
        }
    }
}

/// The table's rows of bytes, `[rows, K / 256 · bytes]`, and their number.
fn table<F: Format>(node: &ir::MetalKernel, p: &mut Planner<'_>, index: usize, k: usize) -> Prepared<(MemRef, usize)> {
    let weight = input(node, p, index)?;
    if weight.array.dtype != DType::U8 || !k.is_multiple_of(BLOCK) || weight.array.rank() != 2 {
        let what = format!("weights {:?} of {} for rows of {k}", weight.array.shape, weight.array.dtype);
        return Err(OpError::value(what).into());
    }
    let rows = weight.array.shape[0];
    need_shape("weight", &weight.array, &[rows, k / BLOCK * F::BYTES])?;
    Ok((weight, rows))
}

fn unpack_row<F: Format>(row: &[u8], out: &mut [f32]) {
    let (blocks, _) = out.as_chunks_mut::<BLOCK>();
    row.chunks_exact(F::BYTES).zip(blocks).for_each(|(block, out)| F::unpack(block, out));
}

/// `yᵀ = weight · xᵀ + bias`: one row of weights serves every row of x, so results come out
/// transposed.
fn multiply<F: Format>(cx: &mut Context, ins: &[Array], y: &mut Array) -> Result<()> {
    let [n, m] = y.shape[..] else { return Err(OpError::value("the result is no matrix")) };
    let (x, weight) = (ins[0].slice::<f32>()?, ins[1].slice::<u8>()?);
    let bias = ins.get(2).map(|b| b.slice::<f32>()).transpose()?;
    let (k, stride) = (x.len() / m.max(1), weight.len() / n.max(1));
    cx.pool.run_chunks(y.slice_mut::<f32>()?, 8 * m.max(1), |task, chunk| {
        let mut row = vec![0.0; k];
        for (i, out) in chunk.chunks_mut(m.max(1)).enumerate() {
            let at = 8 * task + i;
            unpack_row::<F>(&weight[at * stride..(at + 1) * stride], &mut row);
            let bias = bias.map_or(0.0, |b| b[at]);
            out.iter_mut().zip(x.chunks(k)).for_each(|(o, x)| *o = dot(x, &row) + bias);
        }
    });
    Ok(())
}

/// `x @ weightᵀ + bias`: x `[.., K]`, weight `[N, ..]`, bias `[N]`, in f32.
pub(super) fn linear<F: Format>(node: &ir::MetalKernel, p: &mut Planner<'_>) -> Prepared {
    let (n, k) = (template(node, "N")?, template(node, "K")?);
    let (x, (weight, rows)) = (input(node, p, 0)?, table::<F>(node, p, 1, k)?);
    let bias = if node.inputs.len() > 2 { Some(input(node, p, 2)?) } else { None };
    if rows != n || k == 0 || x.array.shape.last() != Some(&k) {
        let what = format!("`x` {:?} and {rows} rows of weights, expected {n} of {k}", x.array.shape);
        return Err(OpError::value(what).into());
    }
    bias.as_ref().map_or(Ok(()), |b| need_shape("bias", &b.array, &[n]))?;
    let (x, weight) = (p.rows_in_type(x, DType::F32)?, p.contiguous(weight)?);
    let bias = bias.map(|bias| p.rows_in_type(bias, DType::F32)).transpose()?;
    let ins: SmallVec<[&MemRef; 3]> = [&x, &weight].into_iter().chain(&bias).collect();
    let y = p.call(&ins, (DType::F32, &[n, x.array.numel() / k]), multiply::<F>)?;
    output(node, p, 0, y.seen(y.array.permute(&[1, 0])))
}

/// Rows of the table: weight `[V, ..]`, indices of any shape, result `[.., K]`.
pub(super) fn embedding<F: Format>(node: &ir::MetalKernel, p: &mut Planner<'_>) -> Prepared {
    let k = template(node, "K")?;
    let ((weight, rows), indices) = (table::<F>(node, p, 0, k)?, input(node, p, 1)?);
    let (weight, indices) = (p.contiguous(weight)?, p.contiguous(indices)?);
    let count = indices.array.numel();
    let y = p.call(&[&weight, &indices], (DType::F32, &[count, k]), move |_, ins, y| {
        let (weight, indices) = (ins[0].slice::<u8>()?, listed(&ins[1])?);
        let stride = k / BLOCK * F::BYTES;
        for (out, &index) in y.slice_mut::<f32>()?.chunks_mut(k.max(1)).zip(&indices) {
            match usize::try_from(index).ok().filter(|&i| i < rows) {
                Some(row) => unpack_row::<F>(&weight[row * stride..(row + 1) * stride], out),
                None if F::ZERO_OUTSIDE => out.fill(0.0),
                None => return Err(OpError::Index { index, size: rows }),
            }
        }
        Ok(())
    })?;
    output(node, p, 0, y)
}

#[cfg(test)]
mod tests {
    use half::f16;

    use super::*;

    /// Unpacks a block whose only non-zero bytes are given, and checks the elements given.
    fn check<F: Format>(bytes: &[(usize, u8)], expected: &[(usize, f32)]) {
        let mut block = vec![0; F::BYTES];
        bytes.iter().for_each(|&(at, b)| block[at] = b);
        let mut out = [0.0; BLOCK];
        F::unpack(&block, &mut out);
        expected.iter().for_each(|&(at, v)| assert_eq!(out[at], v, "element {at}"));
    }

    #[test]
    fn codes_scales_and_minima_stand_where_the_formats_put_them() {
        let [d, d_min] = [f16::from_f32(0.5).to_le_bytes(), f16::from_f32(0.25).to_le_bytes()];
        let head = [(0, d[0]), (1, d[1]), (2, d_min[0]), (3, d_min[1])];
        // Group 1: scale 3, minimum 2. Group 5: scale 0x21, minimum 0x13.
        let scales = [(4 + 1, 3 | 0x80), (4 + 5, 2 | 0x40), (4 + 9, 0x31)];
        let q4 = [&head[..], &scales, &[(16 + 7, 0xa0), (16 + 64 + 9, 0x50)]].concat();
        check::<Q4K>(&q4, &[(32 + 7, 0.5 * 3.0 * 10.0 - 0.5), (160 + 9, 0.5 * 33.0 * 5.0 - 0.25 * 19.0), (0, 0.0)]);
        let q5 = [&head[..], &scales, &[(48 + 7, 0xa0), (16 + 7, 0b10)]].concat();
        check::<Q5K>(&q5, &[(32 + 7, 0.5 * 3.0 * 26.0 - 0.5)]);
        // Half 1, group 3, element 20. Low nibble byte 64 + 32 + 20, high bits byte 128 + 32 + 20,
        // scale 8 + 6 + 1.
        let q6 = [(208, d[0]), (209, d[1]), (116, 0x70), (180, 0xc0), (192 + 15, (-2i8) as u8)];
        check::<Q6K>(&q6, &[(128 + 96 + 20, 0.5 * -2.0 * (7.0 + 48.0 - 32.0)), (0, 0.0)]);
    }
}
