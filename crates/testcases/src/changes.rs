//! Small changes to programs, as faults in files would make them.

use flambeau_ir::{Graph, Node};
use serde_json::Value;

/// Numbers that look random; the same on every run.
#[derive(Clone, Debug)]
pub struct Dice(pub u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((self.0 >> 33) as usize) % sides.max(1)
    }
}

/// Another value of the same kind: small integers, other slots, shorter or longer lists.
fn changed(value: &Value, dice: &mut Dice, slots: usize) -> Value {
    match value {
        Value::Number(n) if n.is_i64() || n.is_u64() => [-3, -1, 0, 1, 2, 3, 5, 64][dice.roll(8)].into(),
        Value::Bool(b) => (!b).into(),
        Value::String(s) if s.starts_with('t') => format!("t{}", dice.roll(slots)).into(),
        Value::String(s) if s.starts_with('v') => format!("v{}", dice.roll(4)).into(),
        Value::Array(list) if list.is_empty() => vec![Value::from(0)].into(),
        Value::Array(list) => {
            let (mut list, at) = (list.clone(), dice.roll(list.len()));
            match dice.roll(4) {
                0 => drop(list.pop()),
                1 => list.push(list[at].clone()),
                _ => list[at] = changed(&list[at].clone(), dice, slots),
            }
            list.into()
        }
        other => other.clone(),
    }
}

/// Changes one field of one node; `None` if the field drawn cannot be another.
pub fn mutate(graph: &mut Graph, dice: &mut Dice) -> Option<()> {
    let slots = graph.slots.total() as usize;
    let at = dice.roll(graph.chains.len());
    let chain = graph.chains.get_mut(at)?;
    let at = dice.roll(chain.len());
    let node = chain.get_mut(at)?;
    let fields = node.fields();
    let (name, value) = fields.get(dice.roll(fields.len()))?;
    let value = changed(value, dice, slots);
    let field = |f: &str| if f == *name { Some(value.clone()) } else { fields.iter().find(|x| x.0 == f).map(|x| x.1.clone()) };
    *node = Node::from_fields(node.name(), &field)?;
    Some(())
}
