//! Field types of the node table. A type determines a field's role and its encoding.

use std::fmt;

use flambeau_tensor::DType;
use serde_json::Value;

/// Index of a tensor slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tid(pub u32);

/// Index of a value slot: a 32-bit integer known at run time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Vid(pub u32);

macro_rules! role_types {
    ($($(#[$doc:meta])* $name:ident($of:ident);)*) => { $(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub struct $name(pub $of);
    )* };
}

role_types! {
    /// A tensor slot that the node reads.
    In(Tid);
    /// A tensor slot that the node writes.
    Out(Tid);
    /// A tensor slot that the node's chain writes and the node reads or replaces.
    InOut(Tid);
    /// A value slot that the node reads.
    InVid(Vid);
    /// A value slot that the node writes.
    OutVid(Vid);
    /// A chain that the node runs.
    ChainId(u32);
}

/// An integer: a literal or a value slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Int {
    Lit(i64),
    Vid(Vid),
}

/// A float: a literal or a value slot. Literals are narrowed to f32 when used.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Float {
    Lit(f64),
    Vid(Vid),
}

/// A value slot or a tensor slot that the node reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum VidOrTid {
    Vid(Vid),
    Tid(Tid),
}

/// An index: a literal, a value slot, or a tensor of indices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Index {
    Lit(i64),
    Vid(Vid),
    Tid(Tid),
}

/// How packed weights encode their elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum QuantMode {
    /// Unsigned codes of 2, 3, 4, 5, 6 or 8 bits times a scale plus a bias per group.
    Affine,
    /// E2M1 codes, E4M3 scales, groups of 16.
    Nvfp4,
    /// E2M1 codes, E8M0 scales, groups of 32.
    Mxfp4,
    /// E4M3 codes, E8M0 scales, groups of 32.
    Mxfp8,
}

impl QuantMode {
    /// All modes with their names on the wire.
    pub const ALL: [(QuantMode, &'static str); 4] =
        [(QuantMode::Affine, "affine"), (QuantMode::Nvfp4, "nvfp4"), (QuantMode::Mxfp4, "mxfp4"), (QuantMode::Mxfp8, "mxfp8")];

    /// Name on the wire.
    pub fn name(self) -> &'static str {
        QuantMode::ALL[self as usize].1
    }

    /// The mode with this name.
    pub fn from_name(name: &str) -> Option<QuantMode> {
        QuantMode::ALL.iter().find(|m| m.1 == name).map(|m| m.0)
    }
}

/// Use of a slot in a field: read or written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    Read,
    Write,
    ReadWrite,
}

/// A slot of either space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Slot {
    Tensor(Tid),
    Value(Vid),
}

impl fmt::Display for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Slot::Tensor(tid) => tid.fmt(f),
            Slot::Value(vid) => vid.fmt(f),
        }
    }
}

/// A mutable reference to a slot in a node's fields.
#[derive(Debug, PartialEq, Eq)]
pub enum SlotRef<'a> {
    Tensor(&'a mut Tid),
    Value(&'a mut Vid),
}

impl SlotRef<'_> {
    /// The referenced slot.
    pub fn get(&self) -> Slot {
        match self {
            SlotRef::Tensor(tid) => Slot::Tensor(**tid),
            SlotRef::Value(vid) => Slot::Value(**vid),
        }
    }
}

/// Common operations of field types.
pub trait Field: Clone {
    /// Type name in the generated documentation.
    const TYPE: &'static str;

    /// Calls `f` on every slot in the field, in order.
    fn walk(&self, f: &mut dyn FnMut(Role, Slot)) {
        self.clone().walk_mut(&mut |role, slot| f(role, slot.get()));
    }

    /// Calls `f` on every slot in the field, in order. Slots may be renumbered through the
    /// reference.
    fn walk_mut(&mut self, f: &mut dyn FnMut(Role, SlotRef<'_>)) {
        let _ = f;
    }

    /// The chain that the field names.
    fn chain(&self) -> Option<ChainId> {
        None
    }

    /// Number of values in the field: the length of a list, else 1.
    fn entries(&self) -> usize {
        1
    }

    /// JSON form. Slots are strings such as `t3` and `v1`. Floats that JSON lacks are `inf`,
    /// `-inf`, `nan`.
    fn to_json(&self) -> Value;

    /// The inverse of [`Field::to_json`].
    fn from_json(value: &Value) -> Option<Self>;
}

impl fmt::Display for Tid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "t{}", self.0)
    }
}

impl fmt::Display for Vid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "v{}", self.0)
    }
}

impl Tid {
    fn to_json(self) -> Value {
        Value::String(self.to_string())
    }

    fn from_json(value: &Value) -> Option<Tid> {
        value.as_str()?.strip_prefix('t')?.parse().ok().map(Tid)
    }
}

impl Vid {
    fn to_json(self) -> Value {
        Value::String(self.to_string())
    }

    fn from_json(value: &Value) -> Option<Vid> {
        value.as_str()?.strip_prefix('v')?.parse().ok().map(Vid)
    }
}

macro_rules! slot_fields {
    ($($name:ident: $of:ident, $slot:ident, $role:ident;)*) => { $(
        impl Field for $name {
            const TYPE: &'static str = stringify!($name);
            fn walk_mut(&mut self, f: &mut dyn FnMut(Role, SlotRef<'_>)) {
                f(Role::$role, SlotRef::$slot(&mut self.0));
            }
            fn to_json(&self) -> Value {
                self.0.to_json()
            }
            fn from_json(value: &Value) -> Option<Self> {
                $of::from_json(value).map($name)
            }
        }
    )* };
}

slot_fields! {
    In: Tid, Tensor, Read;
    Out: Tid, Tensor, Write;
    InOut: Tid, Tensor, ReadWrite;
    InVid: Vid, Value, Read;
    OutVid: Vid, Value, Write;
}

impl Field for ChainId {
    const TYPE: &'static str = "chain";
    fn chain(&self) -> Option<ChainId> {
        Some(*self)
    }
    fn to_json(&self) -> Value {
        self.0.into()
    }
    fn from_json(value: &Value) -> Option<Self> {
        u32::try_from(value.as_u64()?).ok().map(ChainId)
    }
}

impl Field for Int {
    const TYPE: &'static str = "Int";
    fn walk_mut(&mut self, f: &mut dyn FnMut(Role, SlotRef<'_>)) {
        if let Int::Vid(v) = self {
            f(Role::Read, SlotRef::Value(v));
        }
    }
    fn to_json(&self) -> Value {
        match self {
            Int::Lit(v) => (*v).into(),
            Int::Vid(v) => v.to_json(),
        }
    }
    fn from_json(value: &Value) -> Option<Self> {
        value.as_i64().map(Int::Lit).or_else(|| Vid::from_json(value).map(Int::Vid))
    }
}

impl Field for Float {
    const TYPE: &'static str = "Float";
    fn walk_mut(&mut self, f: &mut dyn FnMut(Role, SlotRef<'_>)) {
        if let Float::Vid(v) = self {
            f(Role::Read, SlotRef::Value(v));
        }
    }
    fn to_json(&self) -> Value {
        match self {
            Float::Lit(v) => float_to_json(*v),
            Float::Vid(v) => v.to_json(),
        }
    }
    fn from_json(value: &Value) -> Option<Self> {
        float_from_json(value).map(Float::Lit).or_else(|| Vid::from_json(value).map(Float::Vid))
    }
}

impl Field for VidOrTid {
    const TYPE: &'static str = "VidOrTid";
    fn walk_mut(&mut self, f: &mut dyn FnMut(Role, SlotRef<'_>)) {
        match self {
            VidOrTid::Vid(v) => f(Role::Read, SlotRef::Value(v)),
            VidOrTid::Tid(t) => f(Role::Read, SlotRef::Tensor(t)),
        }
    }
    fn to_json(&self) -> Value {
        match self {
            VidOrTid::Vid(v) => v.to_json(),
            VidOrTid::Tid(t) => t.to_json(),
        }
    }
    fn from_json(value: &Value) -> Option<Self> {
        Vid::from_json(value).map(VidOrTid::Vid).or_else(|| Tid::from_json(value).map(VidOrTid::Tid))
    }
}

impl Field for Index {
    const TYPE: &'static str = "Index";
    fn walk_mut(&mut self, f: &mut dyn FnMut(Role, SlotRef<'_>)) {
        match self {
            Index::Lit(_) => {}
            Index::Vid(v) => f(Role::Read, SlotRef::Value(v)),
            Index::Tid(t) => f(Role::Read, SlotRef::Tensor(t)),
        }
    }
    fn to_json(&self) -> Value {
        match self {
            Index::Lit(v) => (*v).into(),
            Index::Vid(v) => v.to_json(),
            Index::Tid(t) => t.to_json(),
        }
    }
    fn from_json(value: &Value) -> Option<Self> {
        let vid = || Vid::from_json(value).map(Index::Vid);
        value.as_i64().map(Index::Lit).or_else(vid).or_else(|| Tid::from_json(value).map(Index::Tid))
    }
}

impl<T: Field> Field for Option<T> {
    const TYPE: &'static str = T::TYPE;
    fn walk_mut(&mut self, f: &mut dyn FnMut(Role, SlotRef<'_>)) {
        if let Some(field) = self {
            field.walk_mut(f);
        }
    }
    fn walk(&self, f: &mut dyn FnMut(Role, Slot)) {
        if let Some(field) = self {
            field.walk(f);
        }
    }
    fn to_json(&self) -> Value {
        self.as_ref().map_or(Value::Null, T::to_json)
    }
    fn from_json(value: &Value) -> Option<Self> {
        if value.is_null() { Some(None) } else { T::from_json(value).map(Some) }
    }
}

impl<T: Field> Field for Vec<T> {
    const TYPE: &'static str = T::TYPE;
    fn entries(&self) -> usize {
        self.len()
    }
    fn walk_mut(&mut self, f: &mut dyn FnMut(Role, SlotRef<'_>)) {
        for field in self {
            field.walk_mut(f);
        }
    }
    fn walk(&self, f: &mut dyn FnMut(Role, Slot)) {
        for field in self {
            field.walk(f);
        }
    }
    fn to_json(&self) -> Value {
        self.iter().map(T::to_json).collect()
    }
    fn from_json(value: &Value) -> Option<Self> {
        value.as_array()?.iter().map(T::from_json).collect()
    }
}

macro_rules! integer_fields {
    ($($ty:ty),*) => { $(impl Field for $ty {
        const TYPE: &'static str = stringify!($ty);
        fn to_json(&self) -> Value {
            (*self).into()
        }
        fn from_json(value: &Value) -> Option<Self> {
            value.as_i64().and_then(|v| v.try_into().ok()).or_else(|| value.as_u64()?.try_into().ok())
        }
    })* };
}
integer_fields!(i8, i32, u32, u64);

impl Field for f32 {
    const TYPE: &'static str = "f32";
    /// The shortest decimal that parses to the same number.
    fn to_json(&self) -> Value {
        let short = self.to_string().parse().ok().filter(|&v: &f64| v as f32 == *self);
        float_to_json(short.unwrap_or(f64::from(*self)))
    }
    fn from_json(value: &Value) -> Option<Self> {
        float_from_json(value).map(|v| v as f32)
    }
}

impl Field for bool {
    const TYPE: &'static str = "bool";
    fn to_json(&self) -> Value {
        (*self).into()
    }
    fn from_json(value: &Value) -> Option<Self> {
        value.as_bool()
    }
}

impl Field for String {
    const TYPE: &'static str = "str";
    fn walk(&self, _: &mut dyn FnMut(Role, Slot)) {}
    fn to_json(&self) -> Value {
        self.as_str().into()
    }
    fn from_json(value: &Value) -> Option<Self> {
        value.as_str().map(str::to_owned)
    }
}

impl Field for DType {
    const TYPE: &'static str = "dtype";
    fn to_json(&self) -> Value {
        self.name().into()
    }
    fn from_json(value: &Value) -> Option<Self> {
        DType::from_name(value.as_str()?)
    }
}

impl Field for QuantMode {
    const TYPE: &'static str = "mode";
    fn to_json(&self) -> Value {
        self.name().into()
    }
    fn from_json(value: &Value) -> Option<Self> {
        QuantMode::from_name(value.as_str()?)
    }
}

fn float_to_json(value: f64) -> Value {
    match value {
        v if v.is_nan() => "nan".into(),
        f64::INFINITY => "inf".into(),
        f64::NEG_INFINITY => "-inf".into(),
        v => v.into(),
    }
}

fn float_from_json(value: &Value) -> Option<f64> {
    match value.as_str() {
        Some("nan") => Some(f64::NAN),
        Some("inf") => Some(f64::INFINITY),
        Some("-inf") => Some(f64::NEG_INFINITY),
        Some(_) => None,
        None => value.as_f64(),
    }
}
