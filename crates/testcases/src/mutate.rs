//! Small mutations of programs, which simulate faults in files.

use fastrand::Rng;
use flambeau_ir::{Graph, Node};
use serde_json::Value;

/// Whether mutated programs of a case may run for minutes: a mutation can break the condition that
/// ends its loop.
pub fn may_not_end(case: &str) -> bool {
    case.ends_with("/while.linear")
}

/// Another value of the same kind: a small integer, another slot, a shorter or longer list.
fn changed(value: &Value, rng: &mut Rng, slots: usize) -> Value {
    match value {
        Value::Number(n) if n.is_i64() || n.is_u64() => [-3, -1, 0, 1, 2, 3, 5, 64][rng.usize(..8)].into(),
        Value::Bool(b) => (!b).into(),
        Value::String(s) if s.starts_with('t') => format!("t{}", rng.usize(..slots.max(1))).into(),
        Value::String(s) if s.starts_with('v') => format!("v{}", rng.usize(..4)).into(),
        Value::Array(list) if list.is_empty() => vec![Value::from(0)].into(),
        Value::Array(list) => {
            let (mut list, at) = (list.clone(), rng.usize(..list.len()));
            match rng.usize(..4) {
                0 => drop(list.pop()),
                1 => list.push(list[at].clone()),
                _ => list[at] = changed(&list[at].clone(), rng, slots),
            }
            list.into()
        }
        other => other.clone(),
    }
}

/// Changes one field of one node; `None` if the chosen field cannot change.
pub fn mutate(graph: &mut Graph, rng: &mut Rng) -> Option<()> {
    let slots = graph.slots.total() as usize;
    let chain = rng.choice(&mut graph.chains)?;
    let node = rng.choice(chain)?;
    let fields = node.fields();
    let (name, value) = rng.choice(&fields)?;
    let value = changed(value, rng, slots);
    let field = |f: &str| if f == *name { Some(value.clone()) } else { fields.iter().find(|x| x.0 == f).map(|x| x.1.clone()) };
    *node = Node::from_fields(node.name(), &field)?;
    Some(())
}
