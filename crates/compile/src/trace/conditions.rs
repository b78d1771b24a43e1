//! Conditions on sizes: decided at compile time if possible, else computed by nodes.

use flambeau_ir::Tid;
use flambeau_lower::{Arg, Call, Item, OutMeta, Refuse};
use flambeau_pt2::{Comparison, Graph, Node, SymBool};
use flambeau_tensor::{DType, Expr};

use super::{Binding, Trace};
use crate::report::Outcome;

/// The value of a condition.
pub(super) enum ConditionValue {
    Known(bool),
    Tensor(Tid),
}

pub(super) fn refuse<T>(reason: impl Into<String>) -> Result<T, Refuse> {
    Err(Refuse::Unsupported(reason.into()))
}

impl Trace<'_> {
    /// A condition as an argument, which the bounds of its sizes must decide.
    pub(super) fn known_condition(&mut self, name: &str) -> Result<Arg, Refuse> {
        match self.names.values.get(&self.names.key(name)).cloned() {
            Some(Binding::Bool(c)) => match self.condition_value(&c)? {
                ConditionValue::Known(b) => Ok(Arg::Bool(b)),
                ConditionValue::Tensor(t) => Ok(Arg::Tensor(t)),
            },
            _ => refuse(format!("`{name}` is no condition that nodes can compute")),
        }
    }

    /// Records a condition on sizes. Nodes compute it only if it is read.
    pub(super) fn predicate(&mut self, graph: &Graph, node: &Node) {
        for name in node.output_names() {
            let value = match graph.sym_bools.get(name).and_then(|c| self.condition(c)) {
                Some(condition) => Binding::Bool(condition),
                None => Binding::absent(format!("`{name}` is a condition that nodes cannot compute")),
            };
            self.names.bind(name, value);
        }
        self.report(node, Outcome::Absorbed);
    }

    /// An archived condition with the symbols that this trace has identified; `None` if the algebra
    /// cannot express it.
    fn condition(&self, c: &SymBool) -> Option<SymBool> {
        let all = |list: &[SymBool]| list.iter().map(|c| self.condition(c)).collect::<Option<Vec<_>>>();
        Some(match c {
            SymBool::Known(b) => SymBool::Known(*b),
            SymBool::Compare(op, a, b) => SymBool::Compare(*op, self.names.expr(a), self.names.expr(b)),
            SymBool::And(list) => SymBool::And(all(list)?),
            SymBool::Or(list) => SymBool::Or(all(list)?),
            SymBool::Not(c) => SymBool::Not(Box::new(self.condition(c)?)),
            SymBool::Opaque(_) => return None,
        })
    }

    /// The value of a condition: decided by the bounds of its sizes, or a boolean tensor of rank 0.
    pub(super) fn condition_value(&mut self, condition: &SymBool) -> Result<ConditionValue, Refuse> {
        let (list, is_and) = match condition {
            SymBool::Known(b) => return Ok(ConditionValue::Known(*b)),
            SymBool::Compare(op, a, b) => return self.compare(*op, a, b),
            SymBool::Not(c) => {
                return match self.condition_value(c)? {
                    ConditionValue::Known(b) => Ok(ConditionValue::Known(!b)),
                    ConditionValue::Tensor(t) => self.boolean("aten.logical_not.default", vec![("self", Arg::Tensor(t))]),
                };
            }
            SymBool::And(list) => (list, true),
            SymBool::Or(list) => (list, false),
            SymBool::Opaque(text) => return refuse(format!("the condition {text} cannot be computed by nodes")),
        };
        let mut total = ConditionValue::Known(is_and);
        for c in list {
            total = match (total, self.condition_value(c)?) {
                (ConditionValue::Known(b), other) | (other, ConditionValue::Known(b)) => {
                    if b == is_and {
                        other
                    } else {
                        ConditionValue::Known(!is_and)
                    }
                }
                (ConditionValue::Tensor(a), ConditionValue::Tensor(b)) => {
                    let target = if is_and { "aten.logical_and.default" } else { "aten.logical_or.default" };
                    self.boolean(target, vec![("self", Arg::Tensor(a)), ("other", Arg::Tensor(b))])?
                }
            };
        }
        Ok(total)
    }

    fn compare(&mut self, op: Comparison, a: &Expr, b: &Expr) -> Result<ConditionValue, Refuse> {
        let (low, high) = self.lower.graph().bounds(&(a.clone() - b.clone()));
        let holds = [op.holds(low, 0), op.holds(high, 0)];
        let decided = match op {
            Comparison::Eq | Comparison::Ne => low == high || low > 0 || high < 0,
            _ => holds[0] == holds[1],
        };
        if decided {
            return Ok(ConditionValue::Known(holds[0]));
        }
        let target = match op {
            Comparison::Eq => "aten.eq.Tensor",
            Comparison::Ne => "aten.ne.Tensor",
            Comparison::Lt => "aten.lt.Tensor",
            Comparison::Le => "aten.le.Tensor",
            Comparison::Gt => "aten.gt.Tensor",
            Comparison::Ge => "aten.ge.Tensor",
        };
        let (a, b) = (self.lower.size_tensor(a)?, self.lower.size_tensor(b)?);
        self.boolean(target, vec![("self", Arg::Tensor(a)), ("other", Arg::Tensor(b))])
    }

    fn boolean(&mut self, target: &str, args: Vec<(&str, Arg)>) -> Result<ConditionValue, Refuse> {
        let args = args.into_iter().map(|(n, a)| (n.to_owned(), a)).collect();
        let outputs = vec![OutMeta { dtype: DType::Bool, dims: Vec::new(), used: true }];
        match self.lower.call(&Call { target: target.to_owned(), args, outputs }, self.calls.len() as u32)?.first() {
            Some(Item::Tensor(t)) => Ok(ConditionValue::Tensor(*t)),
            _ => refuse("a comparison has no result"),
        }
    }
}
