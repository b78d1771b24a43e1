//! Random values of node fields, by type and name.

use flambeau_ir::{
    ChainId, Float, In, InOut, InVid, Index, Int, Node, NodeKind, Out, OutVid, QuantMode, Vid, VidOrTid, field::Tid, for_each_node,
};
use flambeau_tensor::DType;

use crate::Generator;

/// Context in which a node's fields are drawn one by one.
struct FieldCx<'g> {
    g: &'g mut Generator,
    /// The first operand; axes and shapes refer to it.
    first: Option<Tid>,
}

/// A field type with random values.
trait Field: Sized {
    fn draw(cx: &mut FieldCx<'_>, name: &str) -> Self;
}

macro_rules! draw_nodes {
    ($(#[doc = $doc:literal] $tag:literal $name:ident { $($field:ident: $ty:ty $(= $default:tt)?),* $(,)? } $facts:tt;)*) => {
        /// Draws a node of this kind; it may be invalid here.
        pub(crate) fn draw(g: &mut Generator, kind: NodeKind) -> Node {
            let _cx = &mut FieldCx { g, first: None };
            match kind {
                $(NodeKind::$name => Node::from(flambeau_ir::$name { $($field: Field::draw(_cx, stringify!($field))),* }),)*
            }
        }
    };
}
for_each_node!(draw_nodes);

impl FieldCx<'_> {
    fn roll(&mut self, sides: usize) -> usize {
        self.g.rng.usize(..sides.max(1))
    }

    fn rank(&self) -> i32 {
        self.first.map_or(1, |t| self.g.shape_of(t).len() as i32)
    }

    /// An axis of the first operand, from either end, sometimes one too far, which only insertions
    /// accept.
    fn axis(&mut self) -> i32 {
        let rank = self.rank();
        self.g.rng.i32(-rank - 1..=rank)
    }

    /// Another operand: with the first one's shape, with a shape that broadcasts with it, or any.
    fn operand(&mut self) -> Tid {
        let Some(first) = self.first else {
            let slot = self.g.any();
            self.first = Some(slot);
            return slot;
        };
        match self.roll(3) {
            0 => self.g.any(),
            1 => first,
            _ => {
                let mut shape = self.g.shape_of(first);
                for size in &mut shape {
                    if self.g.rng.usize(..3) == 0 {
                        *size = 1;
                    }
                }
                let dtype = self.g.dtype();
                self.g.input(dtype, &shape)
            }
        }
    }

    /// A shape for the first operand's elements, a shape that it broadcasts to, or any shape.
    fn target_shape(&mut self) -> Vec<i64> {
        let mut shape = self.first.map(|t| self.g.shape_of(t)).unwrap_or_default();
        match self.roll(3) {
            0 => {
                self.g.rng.shuffle(&mut shape);
                if shape.len() > 1 {
                    let last = shape.pop().unwrap_or(1);
                    shape[0] *= last;
                }
                shape.insert(self.g.rng.usize(..=shape.len()), 1);
            }
            1 => {
                for size in &mut shape {
                    if *size == 1 {
                        *size = self.g.rng.usize(1..4);
                    }
                }
                shape.insert(0, self.g.rng.usize(1..3));
            }
            _ => shape = self.g.shape(),
        }
        shape.into_iter().map(|n| n as i64).collect()
    }
}

impl Field for In {
    fn draw(cx: &mut FieldCx<'_>, _: &str) -> In {
        In(cx.operand())
    }
}

impl Field for Out {
    fn draw(cx: &mut FieldCx<'_>, _: &str) -> Out {
        Out(cx.g.out())
    }
}

impl Field for InOut {
    fn draw(cx: &mut FieldCx<'_>, _: &str) -> InOut {
        InOut(cx.g.out())
    }
}

impl Field for Vid {
    fn draw(cx: &mut FieldCx<'_>, _: &str) -> Vid {
        let count = cx.g.values.len();
        let written: Vec<Vid> = (0..count).map(|i| Vid(i as u32)).filter(|&v| cx.g.env.get_value(v).is_some()).collect();
        match written.get(cx.roll(count + 1)) {
            Some(&v) => v,
            None => {
                let value = cx.g.rng.i32(-2..5);
                cx.g.fresh_value(Some(value))
            }
        }
    }
}

impl Field for InVid {
    fn draw(cx: &mut FieldCx<'_>, name: &str) -> InVid {
        InVid(Vid::draw(cx, name))
    }
}

impl Field for OutVid {
    fn draw(cx: &mut FieldCx<'_>, _: &str) -> OutVid {
        OutVid(cx.g.fresh_value(None))
    }
}

impl Field for ChainId {
    fn draw(_: &mut FieldCx<'_>, _: &str) -> ChainId {
        ChainId(0)
    }
}

impl Field for Int {
    fn draw(cx: &mut FieldCx<'_>, name: &str) -> Int {
        match name {
            _ if cx.roll(4) == 0 => Int::Vid(Vid::draw(cx, name)),
            "axis" => Int::Lit(cx.axis().into()),
            "repeats" | "n" | "m" => Int::Lit(cx.g.rng.i64(0..5)),
            "kth" => Int::Lit(cx.g.rng.i64(-2..4)),
            _ => Int::Lit(cx.g.rng.i64(-3..8)),
        }
    }
}

impl Field for Float {
    fn draw(cx: &mut FieldCx<'_>, name: &str) -> Float {
        if cx.roll(4) == 0 { Float::Vid(Vid::draw(cx, name)) } else { Float::Lit(f64::from(cx.g.rng.i32(-8..9)) / 4.0) }
    }
}

impl Field for VidOrTid {
    fn draw(cx: &mut FieldCx<'_>, name: &str) -> VidOrTid {
        VidOrTid::Vid(Vid::draw(cx, name))
    }
}

impl Field for Index {
    fn draw(cx: &mut FieldCx<'_>, name: &str) -> Index {
        match cx.roll(3) {
            0 => Index::Vid(Vid::draw(cx, name)),
            1 => Index::Tid(cx.g.any()),
            _ => Index::Lit(cx.g.rng.i64(-2..3)),
        }
    }
}

impl Field for i32 {
    fn draw(cx: &mut FieldCx<'_>, name: &str) -> i32 {
        match name {
            "axis" | "dim" => cx.axis(),
            "step" => [1, 1, 2, -1][cx.roll(4)],
            "decimals" | "ddof" => cx.g.rng.i32(0..2),
            _ => cx.g.rng.i32(-2..4),
        }
    }
}

impl Field for i8 {
    fn draw(cx: &mut FieldCx<'_>, _: &str) -> i8 {
        cx.g.rng.i8(..)
    }
}

impl Field for u64 {
    fn draw(cx: &mut FieldCx<'_>, _: &str) -> u64 {
        cx.g.rng.u64(0..4)
    }
}

impl Field for f32 {
    fn draw(cx: &mut FieldCx<'_>, _: &str) -> f32 {
        cx.g.rng.i32(-8..9) as f32 / 4.0
    }
}

impl Field for bool {
    fn draw(cx: &mut FieldCx<'_>, _: &str) -> bool {
        cx.g.rng.bool()
    }
}

impl Field for String {
    fn draw(cx: &mut FieldCx<'_>, name: &str) -> String {
        let words: &[&str] = if name == "mode" { &["constant", "edge"] } else { &["none", "tanh"] };
        words[cx.roll(words.len())].to_owned()
    }
}

impl Field for DType {
    fn draw(cx: &mut FieldCx<'_>, _: &str) -> DType {
        cx.g.dtype()
    }
}

impl Field for QuantMode {
    fn draw(cx: &mut FieldCx<'_>, _: &str) -> QuantMode {
        QuantMode::ALL[cx.roll(QuantMode::ALL.len())].0
    }
}

impl<T: Field> Field for Option<T> {
    fn draw(cx: &mut FieldCx<'_>, name: &str) -> Option<T> {
        cx.g.rng.bool().then(|| T::draw(cx, name))
    }
}

impl Field for Vec<i32> {
    fn draw(cx: &mut FieldCx<'_>, name: &str) -> Vec<i32> {
        let rank = cx.rank();
        let mut axes: Vec<i32> = (0..rank).collect();
        cx.g.rng.shuffle(&mut axes);
        if name != "perm" {
            axes.truncate(cx.g.rng.usize(..=axes.len()));
        }
        axes.into_iter().map(|axis| if cx.g.rng.bool() { axis - rank } else { axis }).collect()
    }
}

impl Field for Vec<Int> {
    fn draw(cx: &mut FieldCx<'_>, name: &str) -> Vec<Int> {
        let rank = cx.rank() as usize;
        let small = |cx: &mut FieldCx<'_>, count: usize| (0..count).map(|_| cx.g.rng.i64(0..3)).collect();
        let values: Vec<i64> = match name {
            "shape" => cx.target_shape(),
            "pad_width" => small(cx, 2 * rank),
            _ => small(cx, rank),
        };
        values.into_iter().map(|v| cx.g.int(v)).collect()
    }
}

impl Field for Vec<In> {
    fn draw(cx: &mut FieldCx<'_>, _: &str) -> Vec<In> {
        (0..cx.g.rng.usize(1..4)).map(|_| In(cx.operand())).collect()
    }
}

/// Fields whose length depends on other fields stay empty; templates draw such nodes.
macro_rules! draw_empty {
    ($($ty:ty)*) => { $(impl Field for $ty {
        fn draw(_: &mut FieldCx<'_>, _: &str) -> $ty {
            Vec::new()
        }
    })* };
}
draw_empty!(Vec<Out> Vec<InOut> Vec<String> Vec<DType> Vec<i8>);
