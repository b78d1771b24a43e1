//! Shared state of methods outside of delegates.

use flambeau_ir::engine::{SharedState, StateMismatch};
use flambeau_wire::pte::{EValue, ExecutionPlan, TensorValue};

use crate::Value;

/// First arena for values shared between methods. Arena 1 is private to each method.
const FIRST_SHARED_ARENA: u32 = 2;

/// Storage of a method's shared values between runs.
#[derive(Clone, Debug, Default)]
pub(crate) struct SharedValues {
    state: Option<SharedState>,
    /// Pairs of a value and its index in the shared state.
    values: Vec<(usize, usize)>,
}

/// Identity of a value across methods: its name, or its place in a shared arena.
fn shared_name(value: &TensorValue) -> Option<String> {
    let place = value.allocation?;
    let name = value.extra.as_ref().and_then(|extra| extra.fully_qualified_name.clone());
    let at = || (place.memory_id >= FIRST_SHARED_ARENA).then(|| format!("arena {}, byte {}", place.memory_id, place.offset));
    name.or_else(at)
}

impl SharedValues {
    /// Moves the initial contents of shareable values into `shared`, unless another method has
    /// already stored them. A value that this method does not write is added to `state`, because
    /// other methods may write it.
    ///
    /// # Errors
    /// The shared value has another type or shape.
    pub(crate) fn join(
        plan: &ExecutionPlan,
        shared: Option<SharedState>,
        state: &mut Vec<(usize, Option<Value>)>,
        initial: &mut [Option<Value>],
    ) -> Result<SharedValues, StateMismatch> {
        let Some(shared) = shared else { return Ok(SharedValues::default()) };
        let mut values = Vec::new();
        for (at, value) in plan.values.iter().enumerate() {
            let EValue::Tensor(tensor) = value else { continue };
            let Some(name) = shared_name(tensor).filter(|_| initial[at].is_some()) else { continue };
            if !state.iter().any(|(known, _)| *known == at) {
                state.push((at, initial[at].clone()));
            }
            let kind = format!("{}{:?} outside of delegates", tensor.dtype, tensor.sizes);
            values.push((at, shared.program.index_or_insert_with(&name, &kind, || initial[at].take())?));
        }
        Ok(SharedValues { state: Some(shared), values })
    }

    /// Runs `f` on `owner` while its `values` hold the shared state exclusively.
    pub(crate) fn with<O, T>(
        &self,
        owner: &mut O,
        values: fn(&mut O) -> &mut Vec<Option<Value>>,
        f: impl FnOnce(&mut O) -> T,
    ) -> T {
        let Some(state) = self.state.as_ref().filter(|_| !self.values.is_empty()) else { return f(owner) };
        let mut held = state.program.lock();
        let mut exchange = |owner: &mut O| {
            let values = values(owner);
            self.values.iter().for_each(|&(at, number)| held.swap(number, &mut values[at]));
        };
        exchange(owner);
        let result = f(owner);
        exchange(owner);
        result
    }
}
