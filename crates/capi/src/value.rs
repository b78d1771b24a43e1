//! Values: arguments from C, results to C, and what a method says of both.

use std::{
    ffi::{CString, c_char},
    ptr,
};

use flambeau::{
    runtime::{DimSpec, Value, ValueKind, ValueSpec},
    tensor::{AlignedBytes, Tensor},
};

use crate::{
    border::{self, Out, Prefixed},
    failure::Failure,
    tensor::TensorHandle,
    text,
};

/// The kinds of `flb_value_kind`.
const NONE: u32 = 0;
const TENSOR: u32 = 1;
const INTEGER: u32 = 2;
const BOOLEAN: u32 = 3;
const NUMBER: u32 = 4;
const TEXT: u32 = 5;

/// `flb_value`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct RawValue {
    kind: u32,
    content: Content,
}

#[derive(Clone, Copy)]
#[repr(C)]
union Content {
    tensor: *const TensorHandle,
    integer: i64,
    boolean: i32,
    number: f64,
    text: *const c_char,
}

impl RawValue {
    /// The argument that C describes. Tensors share their elements.
    ///
    /// # Errors
    /// The kind is unknown, or a pointer is null.
    ///
    /// # Safety
    /// `kind` names the set member of `content`, and a pointer in it refers to a live object.
    pub(crate) unsafe fn read(&self) -> Result<Value, Failure> {
        // SAFETY: the caller has set the member that `kind` names; every pattern of bits is a value
        // of it.
        unsafe {
            Ok(match self.kind {
                NONE => Value::None,
                TENSOR => Value::Tensor(border::object(self.content.tensor, "as.tensor")?.tensor().clone()),
                INTEGER => Value::Int(self.content.integer),
                BOOLEAN => Value::Bool(self.content.boolean != 0),
                NUMBER => Value::Double(self.content.number),
                TEXT => Value::String(border::text(self.content.text, "as.text")?.to_owned()),
                kind => return Err(Failure::input(format!("no kind of value has the number {kind}"))),
            })
        }
    }
}

/// The arguments of a run. Tensors are read where they are if the callee is stateless. Otherwise
/// state may keep an argument, and C may write to its memory after the run, so tensors are copied.
///
/// # Errors
/// As [`RawValue::read`].
///
/// # Safety
/// As [`RawValue::read`] for each input.
pub(crate) unsafe fn arguments(inputs: &[RawValue], is_stateless: bool) -> Result<Vec<Value>, Failure> {
    let own = |value| match value {
        Value::Tensor(tensor) if !is_stateless => copied(&tensor).map(Value::Tensor),
        other => Ok(other),
    };
    // SAFETY: passed on to the caller.
    inputs.iter().map(|input| unsafe { input.read() }.and_then(own)).collect()
}

/// A tensor with memory of its own.
pub(crate) fn copied(tensor: &Tensor) -> Result<Tensor, Failure> {
    let bytes = AlignedBytes::copy_of(tensor.bytes()).into_bytes();
    Tensor::new(tensor.dtype(), tensor.shape(), bytes).map_err(Failure::input)
}

/// Addresses of the first byte of a tensor, and of the one behind its last.
fn range(tensor: &Tensor) -> (usize, usize) {
    let start = tensor.bytes().as_ptr().addr();
    (start, start + tensor.bytes().len())
}

/// A result, kept for as long as C looks at it.
enum Owned {
    Tensor(TensorHandle),
    Text(CString),
    Plain(RawValue),
}

/// The object behind `flb_values`: the results of a run.
pub(crate) struct Values(Vec<Owned>);

// SAFETY: plain values hold no pointer, since tensors and texts have variants of their own.
unsafe impl Send for Values {}
// SAFETY: plain values hold no pointer; tensors and texts are only read.
unsafe impl Sync for Values {}

impl Values {
    /// The results of a run. Tensors in an argument's memory are copied, so that the caller may
    /// overwrite the argument.
    pub(crate) fn new(results: Vec<Value>, arguments: &[Value]) -> Result<Values, Failure> {
        let taken: Vec<_> = arguments.iter().filter_map(Value::as_tensor).map(range).collect();
        let held = results.into_iter().map(|value| {
            let plain = |kind, content| Owned::Plain(RawValue { kind, content });
            Ok(match value {
                Value::Tensor(tensor) => {
                    let (start, end) = range(&tensor);
                    let overlaps = taken.iter().any(|&(from, to)| start < to && from < end);
                    Owned::Tensor(TensorHandle::new(&if overlaps { copied(&tensor)? } else { tensor }))
                }
                Value::String(text) => Owned::Text(text::c_string(text)),
                Value::Int(integer) => plain(INTEGER, Content { integer }),
                Value::Bool(value) => plain(BOOLEAN, Content { boolean: i32::from(value) }),
                Value::Double(number) => plain(NUMBER, Content { number }),
                Value::None => plain(NONE, Content { integer: 0 }),
            })
        });
        held.collect::<Result<_, _>>().map(Values)
    }
}

/// # Safety
/// `values` is null or was not freed.
#[unsafe(no_mangle)]
unsafe extern "C" fn flb_values_count(values: *const Values) -> usize {
    // SAFETY: the caller keeps what the header asks of handles.
    unsafe { values.as_ref() }.map_or(0, |values| values.0.len())
}

/// # Safety
/// The pointers are as the header says.
#[unsafe(no_mangle)]
unsafe extern "C" fn flb_values_get(values: *const Values, index: usize, out: *mut RawValue) -> *mut Failure {
    border::entry(|| {
        // SAFETY: the caller keeps what the header asks of arguments.
        let (out, values) = unsafe { (Out::new(out, "out")?, border::object(values, "values")?) };
        let held = values.0.get(index).ok_or_else(|| no_place("value", index, values.0.len()))?;
        out.set(match held {
            Owned::Tensor(tensor) => RawValue { kind: TENSOR, content: Content { tensor } },
            Owned::Text(text) => RawValue { kind: TEXT, content: Content { text: text.as_ptr() } },
            Owned::Plain(raw) => *raw,
        });
        Ok(())
    })
}

/// # Safety
/// As [`flb_values_count`]; the pointer is not used afterwards.
#[unsafe(no_mangle)]
unsafe extern "C" fn flb_values_free(values: *mut Values) {
    // SAFETY: the caller gives up the only pointer to an object that this library boxed.
    unsafe { border::free(values) }
}

pub(crate) fn no_place(what: &str, index: usize, count: usize) -> Failure {
    Failure::input(format!("there is no {what} {index}, only {count} of them"))
}

/// `flb_value_info`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct RawInfo {
    struct_size: usize,
    kind: u32,
    dtype: i32,
    rank: usize,
    sizes: *const usize,
    is_open: *const u8,
    name: *const c_char,
    text: *const c_char,
}

// SAFETY: `repr(C)`, the size comes first, integers and pointers take all bytes, and 8 fields of
// whole words leave no padding.
unsafe impl Prefixed for RawInfo {}

/// An input or output of a method, in C's terms.
pub(crate) struct Described {
    kind: u32,
    dtype: i32,
    sizes: Vec<usize>,
    is_open: Vec<u8>,
    name: Option<CString>,
    text: CString,
}

impl Described {
    pub(crate) fn new(spec: &ValueSpec) -> Described {
        let dims = spec.tensor().map_or(&[][..], |tensor| &tensor.dims);
        let kind = match &spec.kind {
            ValueKind::Tensor(_) => TENSOR,
            ValueKind::Int | ValueKind::Fixed(Value::Int(_)) => INTEGER,
            ValueKind::Fixed(Value::Tensor(_)) => TENSOR,
            ValueKind::Fixed(Value::Bool(_)) => BOOLEAN,
            ValueKind::Fixed(Value::Double(_)) => NUMBER,
            ValueKind::Fixed(Value::String(_)) => TEXT,
            ValueKind::Fixed(Value::None) => NONE,
        };
        Described {
            kind,
            dtype: spec.tensor().map_or(-1, |tensor| i32::from(tensor.dtype.code())),
            sizes: dims.iter().map(|dim| dim.max().unwrap_or(usize::MAX)).collect(),
            is_open: dims.iter().map(|dim| u8::from(matches!(dim, DimSpec::UpTo(_)))).collect(),
            name: spec.name.clone().map(text::c_string),
            text: text::c_string(spec.to_string()),
        }
    }

    pub(crate) fn raw(&self) -> RawInfo {
        RawInfo {
            struct_size: size_of::<RawInfo>(),
            kind: self.kind,
            dtype: self.dtype,
            rank: self.sizes.len(),
            sizes: self.sizes.as_ptr(),
            is_open: self.is_open.as_ptr(),
            name: self.name.as_ref().map_or(ptr::null(), |name| name.as_ptr()),
            text: self.text.as_ptr(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_never_lie_in_an_arguments_memory() {
        let argument = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[4]).unwrap();
        let part = Tensor::new(argument.dtype(), &[2], argument.bytes().slice(4..12)).unwrap();
        let fresh = Tensor::from_slice(&[5.0f32], &[1]).unwrap();
        let results = [&argument, &part, &fresh].map(|tensor| Value::Tensor(tensor.clone()));
        let values = Values::new(results.to_vec(), &[argument.clone().into()]).unwrap();
        let tensors: Vec<&Tensor> = values
            .0
            .iter()
            .filter_map(|held| if let Owned::Tensor(handle) = held { Some(handle.tensor()) } else { None })
            .collect();
        let (start, end) = range(&argument);
        assert!(tensors.iter().all(|tensor| range(tensor).1 <= start || end <= range(tensor).0));
        assert_eq!(tensors[1].as_slice::<f32>().unwrap(), [2.0, 3.0]);
        // A result with memory of its own is handed over as it is.
        assert_eq!(tensors[2].bytes().as_ptr(), fresh.bytes().as_ptr());
    }
}
