//! Packed weights that a node unpacks. Unpacking is deferred until a reader is known: a linear
//! layer takes the packed form.

use flambeau_ir::{In, Out, infer::run::OutSpec};
use flambeau_kernels::quant::Format;
use flambeau_tensor::{DType, Shape};
use smallvec::SmallVec;

use super::{
    memref::MemRef,
    planner::{Deferred, Planner},
};
use crate::{
    obstacle::Prepared,
    ops::quantized::{dequantize, matrix},
};

/// A matrix of packed constants that no step unpacks yet.
#[derive(Clone, Debug)]
pub(super) struct PackedMatrix {
    /// Words, scales and, where the format has them, biases.
    weight: SmallVec<[MemRef; 3]>,
    format: Format,
    pub(super) dtype: DType,
    /// As it is stored.
    shape: Shape,
    transposed: bool,
}

impl Planner<'_> {
    /// The equivalent symmetric format, if the weight's parts (words, scales, biases) in `slots`
    /// are constants and the biases follow from the scales. Kernels then skip the biases, a
    /// twentieth to an eighth of a weight's bytes.
    pub(crate) fn symmetric(&mut self, format: Format, slots: &[In], weight: &[MemRef]) -> Prepared<Option<Format>> {
        let (&[_, scale_slot, bias_slot], [words, scales, biases]) = (slots, weight) else { return Ok(None) };
        let constants = self.m.graph.slots.constants;
        if !slots.iter().all(|slot| slot.0.0 < constants) || !weight.iter().all(MemRef::is_constant) {
            return Ok(None);
        }
        let key = ([scale_slot.0, bias_slot.0], format.bits());
        if let Some(&known) = self.m.symmetric.get(&key) {
            return Ok(known);
        }
        let found = matrix(format, [&words.array, &scales.array], Some(&biases.array))?.symmetric(&self.m.cx.pool);
        self.m.symmetric.insert(key, found);
        Ok(found)
    }

    /// Defers unpacking `weight`; `false` if it is no matrix of constants.
    pub(crate) fn packed_matrix(&mut self, weight: &[MemRef], format: Format, out: Out) -> Prepared<bool> {
        let OutSpec { dtype, shape } = self.spec(out)?;
        if self.recorder().is_none() || shape.len() != 2 || !weight.iter().all(MemRef::is_constant) {
            return Ok(false);
        }
        let packed = PackedMatrix { weight: weight.into(), format, dtype, shape, transposed: false };
        self.defer(out, Deferred::Packed(Box::new(packed)))?;
        Ok(true)
    }

    /// Exchanges the axes of a deferred matrix. `false` if `x` is not a deferred matrix that only
    /// this node reads.
    pub(crate) fn transposed_matrix(&mut self, x: In, out: Out) -> Prepared<bool> {
        let Some(packed) = self.taken_matrix(x) else { return Ok(false) };
        let packed = PackedMatrix { transposed: !packed.transposed, ..packed };
        self.defer(out, Deferred::Packed(Box::new(packed)))?;
        Ok(true)
    }

    /// Defers the product of `x` with a deferred matrix. `false` if `w` is not a transposed
    /// deferred matrix that only this node reads.
    pub(crate) fn unpacked_layer(&mut self, x: &MemRef, w: In, out: Out) -> Prepared<bool> {
        match self.taken_matrix(w).filter(|packed| packed.transposed) {
            Some(packed) => self.packed_layer(x, &packed.weight, packed.format, out),
            None => Ok(false),
        }
    }

    fn taken_matrix(&mut self, slot: In) -> Option<PackedMatrix> {
        let recorder = self.recorder()?;
        match recorder.deferred(slot) {
            Some(Deferred::Packed(packed)) if recorder.is_dying(slot.0) => Some(PackedMatrix::clone(packed)),
            _ => None,
        }
    }
}

/// Unpacks a matrix in one step.
pub(super) fn emit(p: &mut Planner<'_>, packed: PackedMatrix) -> Prepared<MemRef> {
    let PackedMatrix { weight, format, dtype, shape, transposed } = packed;
    let ins: SmallVec<[&MemRef; 3]> = weight.iter().collect();
    let y = p.call(&ins, (dtype, &shape), move |cx, ins, y| {
        let (words, scales) = (&ins[0], &ins[1]);
        dequantize(&cx.pool, &matrix(format, [words, scales], ins.get(2))?, y)
    })?;
    Ok(if transposed { y.seen(y.array.permute(&[1, 0])) } else { y })
}
