//! Finds the rule of a call and checks its results.

use flambeau_ir::Tid;

use crate::{
    Arg, Call, Item, Lower, Refuse,
    call::unsupported,
    refusal,
    rules::{complex, rule_for},
};

impl Lower {
    /// Lowers one call; `id` is its number for reports. The results have the types that the program
    /// records.
    ///
    /// # Errors
    /// Returns the reason if nodes cannot express the call; the graph is unchanged then.
    pub fn call(&mut self, call: &Call, id: u32) -> Result<Vec<Item>, Refuse> {
        if complex::is_complex(self, call) {
            return self.attempt(id, |cx| complex::lower(cx, call).and_then(|items| cx.conform(items, call)));
        }
        let row = rule_for(&call.target).ok_or_else(|| refusal(&call.target).map_or(Refuse::NoRule, Refuse::Kind))?;
        // Element types without nodes exist only as constants: views and casts of them are
        // constants too.
        let carried = |t: &Tid| Some(self.spec(*t).dtype).filter(|_| self.graph().constant(*t).is_none());
        let mut reads = call.args.iter().filter_map(|(_, a)| if let Arg::Tensor(t) = a { carried(t) } else { None });
        if let Some(dtype) = reads.find(|d| !d.is_node_dtype()) {
            return Err(Refuse::DType(dtype));
        }
        let lowered = self.attempt(id, |cx| (row.rule)(cx, call).and_then(|items| cx.conform(items, call)));
        lowered.or_else(|reason| self.attempt(id, |cx| cx.empty_results(call, row.operator.schema())).map_err(|_| reason))
    }

    /// Lowers a call that is a part of the current call.
    pub(crate) fn inner_call(&mut self, call: &Call) -> Result<Vec<Item>, Refuse> {
        self.call(call, self.call_id())
    }

    /// Casts results to the recorded types, and refuses results of another shape.
    fn conform(&mut self, mut items: Vec<Item>, call: &Call) -> Result<Vec<Item>, Refuse> {
        let mut i = 0;
        for item in &mut items {
            match item {
                Item::Tensor(t) => *t = self.conform_one(*t, call, &mut i)?,
                Item::Tensors(list) => {
                    for t in list {
                        *t = self.conform_one(*t, call, &mut i)?;
                    }
                }
                Item::None => i += 1,
                Item::Int(_) => {}
            }
        }
        Ok(items)
    }

    fn conform_one(&mut self, t: Tid, call: &Call, i: &mut usize) -> Result<Tid, Refuse> {
        let Some(out) = call.outputs.get(*i) else { return Ok(t) };
        *i += 1;
        let dims = &self.spec(t).dims;
        let differs = dims.len() != out.dims.len() || dims.iter().zip(&out.dims).any(|(a, b)| a.known_eq(b) == Some(false));
        if differs && out.used {
            return unsupported(format!("the rule for it gives shape {dims:?} where the program has {:?}", out.dims));
        }
        if !out.used {
            return Ok(t);
        }
        let t = if self.spec(t).dtype == out.dtype { t } else { self.cast(t, out.dtype)? };
        self.state_sizes(t, &out.dims);
        Ok(t)
    }
}
