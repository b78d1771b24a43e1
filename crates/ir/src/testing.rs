//! Random graphs for the tests of this crate. Fields are drawn by type, so most graphs are invalid.

use flambeau_tensor::DType;
use proptest::{
    prelude::*,
    strategy::ValueTree,
    test_runner::{Config, TestRng, TestRunner},
};

use crate::{
    Graph, MetaDim, Node, QuantMode, Slot, SlotCounts, TensorMeta, Tid, Vid,
    field::{ChainId, Float, In, InOut, InVid, Index, Int, Out, OutVid, VidOrTid},
};

/// A field type with random values.
trait Gen: Sized + std::fmt::Debug + 'static {
    fn any() -> BoxedStrategy<Self>;
}

fn tid() -> BoxedStrategy<Tid> {
    (0u32..9).prop_map(Tid).boxed()
}

fn vid() -> BoxedStrategy<Vid> {
    (0u32..3).prop_map(Vid).boxed()
}

fn integer() -> BoxedStrategy<i64> {
    prop_oneof![4 => -5i64..9, 1 => Just(i64::MIN), 1 => Just(i64::MAX), 1 => any::<i64>(), 1 => any::<i32>().prop_map(i64::from)]
        .boxed()
}

macro_rules! gen_by {
    ($($ty:ty: $strategy:expr;)*) => { $(impl Gen for $ty {
        fn any() -> BoxedStrategy<$ty> {
            $strategy.boxed()
        }
    })* };
}

gen_by! {
    In: tid().prop_map(In);
    Out: tid().prop_map(Out);
    InOut: tid().prop_map(InOut);
    InVid: vid().prop_map(InVid);
    OutVid: vid().prop_map(OutVid);
    ChainId: (0u32..4).prop_map(ChainId);
    Int: prop_oneof![integer().prop_map(Int::Lit), vid().prop_map(Int::Vid)];
    Float: prop_oneof![any::<f64>().prop_map(Float::Lit), vid().prop_map(Float::Vid)];
    VidOrTid: prop_oneof![tid().prop_map(VidOrTid::Tid), vid().prop_map(VidOrTid::Vid)];
    Index: prop_oneof![integer().prop_map(Index::Lit), tid().prop_map(Index::Tid), vid().prop_map(Index::Vid)];
    QuantMode: prop::sample::select(QuantMode::ALL.map(|m| m.0).to_vec());
    DType: prop::sample::select(vec![DType::F32, DType::BF16, DType::F16, DType::I32, DType::I64, DType::U32, DType::U8, DType::Bool]);
    bool: any::<bool>();
    i8: any::<i8>();
    i32: prop_oneof![6 => -3i32..5, 1 => any::<i32>(), 1 => Just(i32::MIN), 1 => Just(32)];
    u64: prop_oneof![4 => 0u64..9, 1 => any::<u64>()];
    f32: any::<f32>();
    String: prop_oneof![3 => Just("constant".to_owned()), 1 => Just("true".to_owned()), 1 => "(\\PC|[\n\"\\\\ ]){0,8}"];
}

impl<T: Gen> Gen for Option<T> {
    fn any() -> BoxedStrategy<Option<T>> {
        prop::option::of(T::any()).boxed()
    }
}

impl<T: Gen + Clone> Gen for Vec<T> {
    fn any() -> BoxedStrategy<Vec<T>> {
        prop::collection::vec(T::any(), 0..4).boxed()
    }
}

/// One value of a strategy, without shrinking. Tuples of strategies have at most twelve entries,
/// but nodes have up to eighteen fields.
fn draw<T: Gen>(runner: &mut TestRunner) -> T {
    match T::any().new_tree(runner) {
        Ok(tree) => tree.current(),
        Err(reason) => panic!("no value: {reason}"),
    }
}

macro_rules! gen_nodes {
    ($(#[doc = $doc:literal] $tag:literal $name:ident { $($field:ident: $ty:ty $(= $default:tt)?),* $(,)? } $facts:tt;)*) => {
        fn draw_node(tag: u8, rng: TestRng) -> Node {
            let _runner = &mut TestRunner::new_with_rng(Config::default(), rng);
            match tag {
                $($tag => Node::from(crate::$name { $($field: draw(_runner)),* }),)*
                other => panic!("no node has tag {other}"),
            }
        }
    };
}

crate::for_each_node!(gen_nodes);

/// Any node.
pub(crate) fn any_node() -> BoxedStrategy<Node> {
    (1..=Node::ALL.len() as u8).prop_perturb(draw_node).boxed()
}

fn any_meta() -> impl Strategy<Value = TensorMeta> {
    let dim = prop_oneof![
        (0u32..9).prop_map(MetaDim::Static),
        (0u32..9, prop::option::of(9u32..20)).prop_map(|(min, max)| MetaDim::Dynamic { min, max }),
    ];
    let order = prop_oneof![4 => Just(None), 1 => prop::option::of(prop::collection::vec(0u8..4, 0..3)).prop_map(Some)];
    (prop::collection::vec(dim, 0..4), DType::any(), order).prop_map(|(shape, dtype, order)| {
        let meta = TensorMeta::row_major(dtype, shape);
        TensorMeta { dim_order: order.unwrap_or(meta.dim_order.clone()), ..meta }
    })
}

fn any_slot() -> impl Strategy<Value = Slot> {
    prop_oneof![tid().prop_map(Slot::Tensor), vid().prop_map(Slot::Value)]
}

/// Any graph. The checker almost never accepts it.
pub(crate) fn any_graph() -> impl Strategy<Value = Graph> {
    let chains = prop::collection::vec(prop::collection::vec(any_node(), 0..6), 0..4);
    let slots = || prop::collection::vec(any_slot(), 0..3);
    let names = prop::collection::vec((<String as Gen>::any(), any_slot()), 0..3);
    let meta = prop::collection::vec(any_meta(), 0..5);
    let counts = (0u32..4, 0u32..4, 0u32..4, 0u32..4, 0u32..9, 0u32..3);
    (chains, 0u32..3, prop::option::of(0u32..3), slots(), slots(), prop::collection::vec(tid(), 0..2), names, meta, counts)
        .prop_map(|(chains, main, init, inputs, outputs, buffers, names, meta, (constants, ins, outs, bufs, temps, values))| {
            Graph {
                slots: SlotCounts { constants, inputs: ins, outputs: outs, buffers: bufs, temps },
                values,
                chains,
                main,
                init,
                inputs,
                outputs,
                buffers,
                names,
                meta,
            }
        })
}
