//! Node structs and the [`Node`] enum, generated from the table.

use flambeau_tensor::DType;
use serde_json::Value;

use crate::{
    cost::{Cost, Effect},
    field::{ChainId, Field, Float, In, InOut, InVid, Index, Int, Out, OutVid, QuantMode, Role, Slot, SlotRef, Tid, VidOrTid},
    for_each_node,
};

/// One field of a node, for tables and messages.
#[derive(Clone, Copy, Debug)]
pub struct FieldInfo {
    /// Field name.
    pub name: &'static str,
    /// Type, as written in the table.
    pub ty: &'static str,
    /// Default, as written in the table. `None` if the field has none.
    pub default: Option<&'static str>,
}

/// Facts of a kind of node, without an instance.
#[derive(Clone, Copy, Debug)]
pub struct NodeInfo {
    pub kind: NodeKind,
    /// Union tag on the wire.
    pub tag: u8,
    /// Name, without the schema's `Node` suffix.
    pub name: &'static str,
    /// Documentation of the node.
    pub doc: &'static str,
    /// Fields in wire order.
    pub fields: &'static [FieldInfo],
    /// [`Effect`], as written in the table.
    pub effect: &'static str,
}

macro_rules! default_text {
    () => {
        None
    };
    ($default:expr) => {
        Some(stringify!($default))
    };
}

/// Whether JSON omits a field: absent options, and values equal to the table's default.
fn is_implied(value: &Value, default: Option<&Value>) -> bool {
    // Zeros of both signs compare equal, but only one of them is the default.
    let negative = |v: &Value| v.as_f64().is_some_and(f64::is_sign_negative);
    value.is_null() || default.is_some_and(|d| d == value && negative(d) == negative(value))
}

macro_rules! implied_json {
    ($ty:ty) => {
        None
    };
    ($ty:ty, []) => {
        Some(Value::Array(Vec::new()))
    };
    ($ty:ty, $default:expr) => {
        Some(<$ty as Field>::to_json(&$default))
    };
}

macro_rules! define_nodes {
    ($(
        #[doc = $doc:literal] $tag:literal $name:ident { $($field:ident: $ty:ty $(= $default:tt)?),* $(,)? }
        [$effect:ident $(($seed:ident))?, $cost:ident $(($($operand:ident),*))? $(, $class:ident)?];
    )*) => {
        $(
            #[doc = $doc]
            #[derive(Clone, Debug, PartialEq)]
            #[allow(missing_docs, reason = "the row's doc names every field")]
            pub struct $name { $(pub $field: $ty),* }

            impl From<$name> for Node {
                fn from(node: $name) -> Node {
                    Node::$name(node)
                }
            }
        )*

        /// Kind of a node, one per row of the table. The discriminant is the union tag on the wire.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum NodeKind { $(#[doc = $doc] $name = $tag),* }

        /// A node of any kind.
        #[derive(Clone, Debug, PartialEq)]
        #[allow(clippy::large_enum_variant, reason = "one box for foreign kernels would be a special case in every expansion")]
        pub enum Node { $(#[doc = $doc] $name($name)),* }

        impl Node {
            /// Every kind of node, in the order of the table.
            pub const ALL: &'static [NodeInfo] = &[$(NodeInfo {
                kind: NodeKind::$name,
                tag: $tag,
                name: stringify!($name),
                doc: $doc,
                fields: &[$(FieldInfo { name: stringify!($field), ty: stringify!($ty), default: default_text!($($default)?) }),*],
                effect: stringify!($effect),
            }),*];

            pub fn kind(&self) -> NodeKind {
                match self { $(Node::$name(_) => NodeKind::$name),* }
            }

            /// Union tag on the wire.
            pub fn tag(&self) -> u8 {
                self.kind() as u8
            }

            /// Name, without the schema's `Node` suffix.
            pub fn name(&self) -> &'static str {
                match self { $(Node::$name(_) => stringify!($name)),* }
            }

            /// Side effects and hidden inputs of the node, besides its slots.
            pub fn effect(&self) -> Effect {
                match self { $(Node::$name(_node) => Effect::$effect $((_node.$seed))?),* }
            }

            /// Bytes moved and operations computed by the node.
            pub fn cost(&self) -> Cost {
                match self { $(Node::$name(_node) => Cost::$cost $(($(_node.$operand),*))?),* }
            }

            /// Calls `f` on every slot of the node, in field order.
            pub fn walk(&self, f: &mut dyn FnMut(Role, Slot)) {
                match self { $(Node::$name(_node) => { $(_node.$field.walk(f);)* }),* }
            }

            /// Calls `f` on every slot, in field order. Slots may be renumbered through the
            /// references.
            pub fn walk_mut(&mut self, f: &mut dyn FnMut(Role, SlotRef<'_>)) {
                match self { $(Node::$name(_node) => { $(_node.$field.walk_mut(f);)* }),* }
            }

            /// Chains that the node runs.
            pub fn chains(&self) -> Vec<ChainId> {
                let mut _chains = Vec::new();
                match self { $(Node::$name(_node) => { $(_chains.extend(_node.$field.chain());)* }),* }
                _chains
            }

            /// Number of values in all fields, counting list entries. This is the cost of visiting
            /// the node.
            pub fn entries(&self) -> usize {
                match self { $(Node::$name(_node) => { 1 $(+ _node.$field.entries())* }),* }
            }

            /// Fields with their JSON values, in wire order, without default values.
            pub fn fields(&self) -> Vec<(&'static str, Value)> {
                let mut out = Vec::new();
                match self { $(Node::$name(_node) => {
                    $({
                        let value = _node.$field.to_json();
                        let default: Option<Value> = implied_json!($ty $(, $default)?);
                        if !is_implied(&value, default.as_ref()) {
                            out.push((stringify!($field), value));
                        }
                    })*
                }),* }
                out
            }

            /// The node with this name and with fields from `field`. `None` if the name is unknown,
            /// a field is missing or a value has the wrong form.
            pub fn from_fields(name: &str, field: &dyn Fn(&str) -> Option<Value>) -> Option<Node> {
                match name {
                    $(stringify!($name) => Some(Node::$name($name { $($field: {
                        let default: Option<Value> = implied_json!($ty $(, $default)?);
                        let value = field(stringify!($field)).or(default).unwrap_or(Value::Null);
                        <$ty as Field>::from_json(&value)?
                    }),* })),)*
                    _ => None,
                }
            }
        }
    };
}

for_each_node!(define_nodes);

impl Node {
    /// The distinct tensors of a node in the wanted roles.
    pub fn tensors(&self, wanted: impl Fn(Role) -> bool) -> Vec<Tid> {
        let mut found = Vec::new();
        self.walk(&mut |role, slot| match slot {
            Slot::Tensor(tid) if wanted(role) && !found.contains(&tid) => found.push(tid),
            _ => {}
        });
        found
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{Tid, Vid, testing::any_node};

    #[test]
    fn tags_count_from_one() {
        for (i, info) in Node::ALL.iter().enumerate() {
            assert_eq!(usize::from(info.tag), i + 1);
        }
    }

    #[test]
    fn walks_meet_slots_in_field_order() {
        let node = Node::from(crate::Slice {
            x: In(Tid(4)),
            out: Out(Tid(5)),
            axis: Int::Lit(0),
            start: Int::Vid(Vid(1)),
            stop: Int::Lit(9),
            step: 1,
        });
        let mut met = Vec::new();
        node.walk(&mut |role, slot| met.push((role, slot)));
        assert_eq!(
            met,
            [(Role::Read, Slot::Tensor(Tid(4))), (Role::Write, Slot::Tensor(Tid(5))), (Role::Read, Slot::Value(Vid(1)))]
        );
    }

    #[test]
    fn chains_are_met_in_field_order() {
        let branch = crate::If { cond: Int::Lit(1), then_chain_idx: ChainId(4), else_chain_idx: ChainId(2) };
        assert_eq!(Node::from(branch).chains(), [ChainId(4), ChainId(2)]);
        assert_eq!(Node::from(crate::Noop {}).chains(), []);
    }

    proptest! {
        #[test]
        fn both_walks_meet_the_same_slots(node in any_node()) {
            let (mut read, mut written) = (Vec::new(), Vec::new());
            node.walk(&mut |role, slot| read.push((role, slot)));
            node.clone().walk_mut(&mut |role, slot| written.push((role, slot.get())));
            prop_assert_eq!(read, written);
        }
    }

    #[test]
    fn implied_fields_are_omitted_and_come_back() {
        let node = Node::from(crate::Sum { x: In(Tid(0)), out: Out(Tid(1)), axes: vec![], keepdims: false });
        let fields = node.fields();
        assert_eq!(fields.len(), 2);
        let back = Node::from_fields("Sum", &|f| fields.iter().find(|x| x.0 == f).map(|x| x.1.clone()));
        assert_eq!(back, Some(node));
    }
}
