//! Effects and costs of nodes, as the table states them. [`work`](crate::work) computes numbers
//! from costs.

use crate::field::{In, InVid, Out, Tid};

/// Side effects and hidden inputs of a node, besides its named slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// None. Equal operands give equal results, so a node may run at compile time, be merged with
    /// equal nodes, or be removed.
    Pure,
    /// A random number generator: the session's, unless the value slot holds a seed.
    Random(Option<InVid>),
    /// State of the session outside of slots.
    Stateful,
    /// Effects of the chains that the node runs.
    RunsChains,
}

/// Costs of a node, by family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cost {
    /// Integers and sizes on the host.
    Free,
    /// No data is moved. The results are elements in the operand's storage, with another shape or
    /// other strides.
    View(In),
    /// The elements of the operand in row-major storage: a view if they are already row-major, else
    /// a copy.
    Relayout(In),
    /// Every operand is read once, and every result is written once.
    Stream,
    /// Indices select the elements of an operand. As many elements are read as written.
    Gather,
    /// This operand replaces part of a tensor.
    Update(In),
    /// `x @ w`.
    Product(In, In, Out),
    /// `x @ w`, with elements of `w` packed in this number of bits in 32-bit words.
    PackedProduct(In, In, i32, Out),
    /// `x @ w`, with matrices of `w` selected by indices.
    GatheredProduct(In, Out),
    /// `softmax(q @ k^T) @ v`, with the operands `q` and `k`.
    Attention(In, In, Out),
    /// A convolution with weights `[Co, .., Ci]`.
    Convolution(In, Out),
    /// Depends on more than the operands' sizes.
    Unknown,
}

impl Cost {
    /// The viewed tensor, if the results are views.
    pub fn viewed(self) -> Option<Tid> {
        if let Cost::View(x) = self { Some(x.0) } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FieldInfo, Node, Vid, node};

    #[test]
    fn nodes_with_chain_fields_run_chains_and_no_others() {
        let names_chain = |field: &FieldInfo| field.ty == "ChainId";
        let named: Vec<&str> = Node::ALL.iter().filter(|info| info.fields.iter().any(names_chain)).map(|info| info.name).collect();
        let stated: Vec<&str> =
            Node::ALL.iter().filter(|info| info.effect.starts_with("RunsChains")).map(|info| info.name).collect();
        assert_eq!(named, stated);
        assert_eq!(named, ["Scan", "If"]);
    }

    #[test]
    fn a_seed_is_part_of_the_effect() {
        let draw = |seed| Node::from(node::RandomBits { out: Out(Tid(0)), shape: vec![], seed, width: 4 }).effect();
        let seed = InVid(Vid(3));
        assert_eq!((draw(None), draw(Some(seed))), (Effect::Random(None), Effect::Random(Some(seed))));
    }
}
