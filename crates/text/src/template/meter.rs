//! Payment for the reads and the nesting of operations, and for literal text.
//!
//! One step can sort a list of any length. A list that repeatedly nests another list twice
//! represents more items than fit in memory. So operands are paid for before an operation, and
//! nested values when they are made. Each such instruction is replaced by a jump to a copy at the
//! end of the code. The copy has payments around it and jumps back.

use std::sync::Arc;

use minijinja::machinery::{Instruction, Instructions};
use minijinja::value::{Rest, ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error, State, Value, tests};

use super::{guard::Budget, list};

/// Cost of a list item, about its size in bytes, and cost of visiting a nested value.
const ITEM_BYTES: usize = 16;
const LOOK_BYTES: usize = 8;
/// Deepest nesting of values.
const MAX_DEPTH: usize = 128;

/// Filters that compare items, or apply another filter to each.
const COMPARING: [&str; 7] = ["groupby", "map", "max", "min", "sort", "sum", "unique"];

/// Tests that compare, by all their names: filters such as `select` apply them to each item.
type Comparison = fn(&State<'_, '_>, &Value, &Value) -> Result<bool, Error>;
const COMPARISONS: [(&[&str], Comparison); 7] = [
    (&["eq", "equalto", "=="], |_, a, b| Ok(a == b)),
    (&["ne", "!="], |_, a, b| Ok(a != b)),
    (&["lt", "lessthan", "<"], |_, a, b| Ok(a < b)),
    (&["le", "<="], |_, a, b| Ok(a <= b)),
    (&["gt", "greaterthan", ">"], |_, a, b| Ok(a > b)),
    (&["ge", ">="], |_, a, b| Ok(a >= b)),
    (&["in"], |state, a, b| tests::is_in(state, a, b)),
];

/// Pay for the top of the stack and leave it there.
const FLAT: &str = "paid_flat";
const NESTED: &str = "paid_nested";
/// Pay for any number of operands and put them into a list.
const ALL_FLAT: &str = "pay_flat";
const ALL_NESTED: &str = "pay_nested";
/// Makes `[namespace, value, namespace]` of a value and the namespace that takes it.
const KEEP: &str = "keep_namespace";

/// The payments around an operation: for its operands, with their number where it is fixed, and for
/// its result.
#[derive(Default)]
struct Payments {
    operands: Option<(&'static str, Option<u16>)>,
    result: Option<&'static str>,
}

fn payments(operation: &Instruction<'_>) -> Payments {
    use Instruction::*;
    let of = |name, count| Payments { operands: Some((name, count)), result: Some(FLAT) };
    match operation {
        ApplyFilter(name, count, _) if COMPARING.contains(name) => {
            Payments { result: Some(if *name == "groupby" { NESTED } else { FLAT }), ..of(ALL_NESTED, *count) }
        }
        PerformTest(_, count, _) => Payments { result: None, ..of(ALL_FLAT, *count) },
        ApplyFilter(_, count, _) | CallFunction(_, count) | CallMethod(_, count) | CallObject(count) => of(ALL_FLAT, *count),
        Slice => of(ALL_FLAT, Some(4)),
        Eq | Ne | Gt | Gte | Lt | Lte | In | CompareAndPreserve(_) => Payments { result: None, ..of(ALL_NESTED, Some(2)) },
        BuildList(_) | BuildTuple(_) | BuildMap(_) | BuildKwargs(_) => Payments { result: Some(NESTED), ..Payments::default() },
        _ => Payments::default(),
    }
}

fn call<'s>(name: &'static str, count: Option<u16>) -> Instruction<'s> {
    Instruction::ApplyFilter(name, count, u8::MAX)
}

/// The operation between its payments; nothing if it needs none.
fn metered<'s>(operation: &Instruction<'s>) -> Vec<Instruction<'s>> {
    use Instruction::{DiscardTop, EmitRaw, LoadConst, SetAttr, UnpackLists};
    // A list puts its items back onto the stack, and their number.
    match operation {
        SetAttr(_) => {
            return vec![call(KEEP, Some(2)), UnpackLists(1), DiscardTop, operation.clone(), call(NESTED, Some(1)), DiscardTop];
        }
        EmitRaw(text) if text.len() > ITEM_BYTES => {
            return vec![LoadConst(Value::from(*text)), call(FLAT, Some(1)), DiscardTop, operation.clone()];
        }
        _ => {}
    }
    let (payments, mut code) = (payments(operation), Vec::new());
    if let Some((name, count)) = payments.operands {
        code.extend([call(name, count), UnpackLists(1)]);
        code.extend(count.map(|_| DiscardTop));
    }
    if payments.operands.is_some() || payments.result.is_some() {
        code.push(operation.clone());
    }
    code.extend(payments.result.map(|name| call(name, Some(1))));
    code
}

/// Whether an operation makes a list that a template may change.
fn makes_list(operation: &Instruction<'_>) -> bool {
    match operation {
        Instruction::BuildList(_) | Instruction::Slice | Instruction::Add => true,
        Instruction::ApplyFilter(name, ..) => *name == "list",
        Instruction::LoadConst(value) => value.kind() == ValueKind::Seq,
        _ => false,
    }
}

/// Puts payments around the operations of a template, and with `owns_lists` makes its lists its
/// own.
pub(super) fn install(code: &mut Instructions<'_>, owns_lists: bool) {
    let end = (0..).find(|&at| code.get(at).is_none()).unwrap_or(0);
    // The return separates the appended code; only jumps reach it.
    code.add(Instruction::Return);
    for at in 0..end {
        let Some(operation) = code.get(at) else { continue };
        let mut metered = metered(operation);
        if owns_lists && makes_list(operation) {
            // A constant costs nothing, but its copy does.
            if metered.is_empty() {
                metered.extend([operation.clone(), call(FLAT, Some(1))]);
            }
            metered.push(call(list::OWN, Some(1)));
        }
        if metered.is_empty() {
            continue;
        }
        let line = code.get_line(at).and_then(|line| u16::try_from(line).ok()).unwrap_or_default();
        let copy = metered.into_iter().chain([Instruction::Jump(at + 1)]).map(|i| code.add_with_line(i, line)).min();
        if let (Some(original), Some(copy)) = (code.get_mut(at), copy) {
            *original = Instruction::Jump(copy);
        }
    }
}

/// Adds metering to the environment.
pub(super) fn environment(env: &mut Environment<'_>, budget: &Arc<Budget>) {
    type Pay = fn(&Budget, &Value) -> Result<(), Error>;
    let nested: Pay = |budget, value| pay_nested(budget, value, 0, &mut budget.max_items());
    for (one, all, pay) in [(FLAT, ALL_FLAT, pay_flat as Pay), (NESTED, ALL_NESTED, nested)] {
        let budget_of_one = Arc::clone(budget);
        env.add_filter(one, move |value: ValueOrKwargs| pay(&budget_of_one, &value).map(|()| value.into_value()));
        let budget_of_all = Arc::clone(budget);
        env.add_filter(all, move |values: Rest<ValueOrKwargs>| {
            let values = values.into_values();
            values.iter().try_for_each(|value| pay(&budget_of_all, value)).map(|()| Value::from(values))
        });
    }
    for (name, holds) in COMPARISONS.iter().flat_map(|(names, holds)| names.iter().map(move |&name| (name, holds))) {
        let budget = Arc::clone(budget);
        env.add_test(name, move |state: &State<'_, '_>, a: &Value, b: &Value| {
            nested(&budget, a)?;
            nested(&budget, b)?;
            holds(state, a, b)
        });
    }
    env.add_filter(KEEP, |value: Value, namespace: Value| Value::from(vec![namespace.clone(), value, namespace]));
}

/// Pays for a text or the items of a value, without nested values.
fn pay_flat(budget: &Budget, value: &Value) -> Result<(), Error> {
    budget.charge(match value.as_str() {
        Some(text) => text.len(),
        None => value.len().unwrap_or(0).saturating_mul(ITEM_BYTES),
    })
}

/// Pays for a value with everything in it, `left` items at most.
pub(super) fn pay_nested(budget: &Budget, value: &Value, depth: usize, left: &mut usize) -> Result<(), Error> {
    if depth > MAX_DEPTH {
        return Err(budget.refuse("values are nested too deeply"));
    }
    *left = left.checked_sub(1).ok_or_else(|| budget.refuse("a value has too many items"))?;
    budget.charge(LOOK_BYTES)?;
    match value.kind() {
        ValueKind::Seq => value.try_iter()?.try_for_each(|item| pay_nested(budget, &item, depth + 1, left)),
        ValueKind::Map => value.try_iter()?.try_for_each(|key| pay_nested(budget, &value.get_item(&key)?, depth + 1, left)),
        _ => Ok(()),
    }
}
