//! Random bits.

use flambeau_ir as ir;
use flambeau_tensor::DType;

use crate::{cx::Cx, error::Result, eval::Eval, ffi::Array, keys::key};

impl Eval for ir::RandomBits {
    fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
        let spec = cx.out(self.out)?;
        let api = cx.api();
        let key = match self.seed {
            Some(seed) => key(api, cx.value(seed.0)?)?,
            None => cx.m.keys.draw(api)?,
        };
        let y = if spec.shape.contains(&0) {
            Array::full(api, &spec.shape, 0.0, DType::U32)?
        } else {
            key.random_bits(&spec.shape, self.width)?
        };
        cx.put(self.out, y)
    }
}
