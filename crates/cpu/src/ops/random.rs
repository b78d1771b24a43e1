//! Random bits.

use flambeau_ir as ir;
use flambeau_kernels::random::{Key, random_bits};

use crate::{
    cx::Cx,
    error::{OpError, Result},
    eval::Eval,
};

/// Keys for draws without a seed: each draw splits the state. A session starts from seed 0, so that its runs can be repeated.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeySequence(Key);

impl Default for KeySequence {
    fn default() -> KeySequence {
        KeySequence(Key::from_seed(0))
    }
}

impl KeySequence {
    fn draw(&mut self) -> Key {
        let (kept, drawn) = self.0.split();
        self.0 = kept;
        drawn
    }
}

impl Eval for ir::RandomBits {
    fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
        let key = match self.seed {
            Some(seed) => Key::from_seed(cx.value(seed.0)?),
            None => cx.m.keys.draw(),
        };
        let mut y = cx.alloc_out(self.out)?;
        flambeau_tensor::with_dtype!(y.dtype, T in [U8, U16, U32] => {
            random_bits(&cx.pool(), key, bytemuck::cast_slice_mut(y.slice_mut::<T>()?));
            Ok(())
        }, else => Err(OpError::DType(y.dtype)))?;
        cx.put(self.out, y);
        Ok(())
    }
}
