//! Lists that a template changes in place, as Python's lists.
//!
//! The engine's lists never change. A template with a method such as `append` makes lists of this
//! kind instead. Their items are frozen, so no list can hold itself.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use minijinja::value::{Enumerator, Object, ObjectRepr, Tuple, ValueKind, ValueOrKwargs};
use minijinja::{Error, ErrorKind, Value};

use super::guard::Budget;
use super::meter::pay_nested;

/// The methods that change their list.
const METHODS: [&str; 7] = ["append", "clear", "extend", "insert", "pop", "remove", "reverse"];
/// Filter that makes a list the template's own.
pub(super) const OWN: &str = "own_list";

#[derive(Debug)]
struct OwnList(Mutex<Vec<Value>>);

impl OwnList {
    fn items(&self) -> MutexGuard<'_, Vec<Value>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Object for OwnList {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Seq
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.items().get(key.as_usize()?).cloned()
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Seq(self.items().len())
    }
}

/// Whether a template's source calls a method that changes a list.
pub(super) fn changes(source: &str) -> bool {
    METHODS.iter().any(|method| source.split(method).skip(1).any(|rest| rest.trim_start().starts_with('(')))
}

pub(super) fn changes_by(method: &str) -> bool {
    METHODS.contains(&method)
}

/// A list as the template's own; other values as they are.
pub(super) fn to_template_list(value: ValueOrKwargs) -> Value {
    let value = value.into_value();
    let is_list = matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable) && value.downcast_object_ref::<Tuple>().is_none();
    match value.try_iter() {
        Ok(items) if is_list => Value::from_object(OwnList(Mutex::new(items.collect()))),
        _ => value,
    }
}

/// A value without lists that may change; `None` if it has none.
fn frozen(value: &Value) -> Option<Value> {
    match value.kind() {
        ValueKind::Seq => {
            let items: Vec<Value> = value.try_iter().ok()?.collect();
            let is_own = value.downcast_object_ref::<OwnList>().is_some();
            let new: Vec<Option<Value>> = items.iter().map(frozen).collect();
            let changed = is_own || new.iter().any(Option::is_some);
            changed.then(|| items.into_iter().zip(new).map(|(old, new)| new.unwrap_or(old)).collect())
        }
        ValueKind::Map => {
            let pairs: Vec<(Value, Value)> =
                value.try_iter().ok()?.map(|key| value.get_item(&key).map(|item| (key, item))).collect::<Result<_, _>>().ok()?;
            let new: Vec<Option<Value>> = pairs.iter().map(|(_, item)| frozen(item)).collect();
            let changed = new.iter().any(Option::is_some);
            changed.then(|| Value::from_pairs(pairs.into_iter().zip(new).map(|((key, old), new)| (key, new.unwrap_or(old)))))
        }
        _ => None,
    }
}

/// Changes a list by one of [`METHODS`].
///
/// # Errors
/// The value is no list of the template's own, the arguments do not fit, or a limit is exceeded.
pub(super) fn change(budget: &Budget, list: &Value, method: &str, args: &[Value]) -> Result<Value, Error> {
    let refuse = |what: String| Error::new(ErrorKind::InvalidOperation, what);
    let Some(own) = list.downcast_object_ref::<OwnList>() else {
        return Err(match list.kind() {
            ValueKind::Seq => {
                refuse(format!("`{method}` changes a list that the template did not make, or that another list holds"))
            }
            kind => Error::new(ErrorKind::UnknownMethod, format!("{kind} has no method named {method}")),
        });
    };
    let mut taken = Vec::with_capacity(args.len());
    for arg in args {
        pay_nested(budget, arg, 0, &mut budget.max_items())?;
        taken.push(frozen(arg).unwrap_or_else(|| arg.clone()));
    }
    let index = |at: &Value, len: usize| at.as_i64().map(|at| if at < 0 { at + len as i64 } else { at });
    let mut items = own.items();
    let nothing = Ok(Value::from(()));
    match (method, taken.as_slice()) {
        ("append", [item]) => items.push(item.clone()),
        ("extend", [more]) => {
            let more: Vec<Value> = more.try_iter()?.collect();
            items.extend(more);
        }
        ("insert", [at, item]) => {
            let at = index(at, items.len()).ok_or_else(|| refuse("`insert` takes an index and an item".to_owned()))?;
            let at = usize::try_from(at).unwrap_or(0).min(items.len());
            items.insert(at, item.clone());
        }
        ("pop", at @ ([] | [_])) => {
            let at = at.first().map_or(Some(items.len() as i64 - 1), |at| index(at, items.len()));
            let at = at.and_then(|at| usize::try_from(at).ok()).filter(|at| *at < items.len());
            return at.map(|at| items.remove(at)).ok_or_else(|| refuse("`pop` needs an index within the list".to_owned()));
        }
        ("remove", [item]) => {
            let at = items.iter().position(|found| found == item);
            items.remove(at.ok_or_else(|| refuse("`remove` needs an item of the list".to_owned()))?);
        }
        ("clear", []) => items.clear(),
        ("reverse", []) => items.reverse(),
        _ => return Err(refuse(format!("`{method}` does not take these arguments"))),
    }
    if items.len() > budget.max_items() {
        return Err(budget.refuse("a list has too many items"));
    }
    nothing
}
