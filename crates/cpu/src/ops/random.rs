//! Random bits.

use flambeau_ir as ir;
use flambeau_kernels::random::{Key, random_bits};

use crate::{error::OpError, obstacle::Prepared, plan::Planner, prepare::Prepare};

impl Prepare for ir::RandomBits {
    fn prepare(&self, p: &mut Planner<'_>) -> Prepared {
        let (spec, seed) = (p.spec(self.out)?, self.seed);
        let y = p.call(&[], (spec.dtype, &spec.shape), move |cx, _, y| {
            let key = match seed {
                Some(seed) => Key::from_seed(cx.value(seed.0)?),
                None => cx.keys.draw(),
            };
            flambeau_tensor::with_dtype!(y.dtype, T in [U8, U16, U32] => {
                random_bits(&cx.pool, key, bytemuck::cast_slice_mut(y.slice_mut::<T>()?));
                Ok(())
            }, else => Err(OpError::DType(y.dtype)))
        })?;
        p.put(self.out, y);
        Ok(())
    }
}
