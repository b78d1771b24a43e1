//! Draws a program from a seed: its calls in exported form, and their effect on memory.

use std::fmt;

use flambeau_pt2::{
    Argument, Dialect, Exported, Graph, InputSpec, NamedArgument, Node, OutputSpec, Signature, Storage, TensorMeta, View, Weight,
};
use flambeau_tensor::{AlignedBytes, DType, Expr};

use super::memory::Strided;

/// Number of calls of a program, without the calls that make its results.
const CALLS: usize = 12;

/// A write: an element `x` becomes `x · keeps + operand`.
#[derive(Clone, Debug)]
pub(crate) struct Update {
    pub(crate) keeps: f32,
    pub(crate) operand: Operand,
}

#[derive(Clone, Debug)]
pub(crate) enum Operand {
    Number(f32),
    Tensor(Strided),
}

/// The effect of a call on memory; a view has none.
#[derive(Clone, Debug)]
pub(crate) enum Action {
    /// A new storage with `from · factor + plus`.
    Make {
        from: Strided,
        factor: f32,
        plus: f32,
        to: usize,
    },
    Write {
        to: Strided,
        update: Update,
    },
}

/// A value of the graph.
#[derive(Clone, Debug)]
struct Named {
    name: String,
    at: Strided,
    /// Whether it shows an expanded tensor. PyTorch refuses writes to such tensors.
    spread: bool,
}

/// A program and its actions. Storages `0..` are the inputs, followed by the buffer.
pub(crate) struct Program {
    pub(crate) input_shapes: Vec<Vec<usize>>,
    pub(crate) buffer: Strided,
    pub(crate) buffer_contents: Vec<f32>,
    pub(crate) storages: usize,
    pub(crate) actions: Vec<Action>,
    pub(crate) results: Vec<Strided>,
    graph: Graph,
    seed: u64,
}

/// Numbers from a seed (xorshift).
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Random {
        Random((seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn below(&mut self, n: usize) -> usize {
        for (left, shift) in [(true, 13), (false, 7), (true, 17)] {
            self.0 ^= if left { self.0 << shift } else { self.0 >> shift };
        }
        (self.0 >> 33) as usize % n.max(1)
    }

    fn between(&mut self, low: usize, high: usize) -> usize {
        low + self.below(high - low + 1)
    }

    fn small(&mut self) -> f32 {
        self.below(9) as f32 - 4.0
    }
}

fn int(value: usize) -> Argument {
    Argument::Int(value as i64)
}

fn ints(values: &[usize]) -> Argument {
    Argument::Ints(values.iter().map(|&v| v as i64).collect())
}

struct Drawing {
    random: Random,
    graph: Graph,
    values: Vec<Named>,
    actions: Vec<Action>,
    storages: usize,
}

impl Drawing {
    fn define(&mut self, name: String, at: Strided, spread: bool) {
        let dims = |list: &[usize]| list.iter().map(|&v| Expr::Int(v as i64)).collect::<Vec<_>>();
        let mut meta = TensorMeta::new(DType::F32, dims(&at.sizes));
        meta.strides = dims(&at.strides);
        meta.storage_offset = Expr::Int(at.offset as i64);
        self.graph.tensors.insert(name.clone(), meta);
        self.values.push(Named { name, at, spread });
    }

    /// Appends a call; several results are one list.
    fn call(&mut self, target: &str, x: &Named, args: Vec<(&str, Argument)>, results: Vec<(Strided, bool)>, list: bool) {
        let n = self.graph.nodes.len();
        let names: Vec<String> = (0..results.len()).map(|i| format!("v{n}_{i}")).collect();
        let own = [NamedArgument::positional("self", Argument::Tensor(x.name.clone()))];
        let inputs = own.into_iter().chain(args.into_iter().map(|(name, arg)| NamedArgument::positional(name, arg))).collect();
        let outputs = if list { vec![Argument::Tensors(names.clone())] } else { vec![Argument::Tensor(names[0].clone())] };
        self.graph.nodes.push(Node::call(format!("torch.ops.aten.{target}"), inputs, outputs));
        for (name, (at, spread)) in names.into_iter().zip(results) {
            self.define(name, at, spread);
        }
    }

    fn pick(&mut self) -> Named {
        let i = self.random.below(self.values.len());
        self.values[i].clone()
    }

    fn view(&mut self, target: &str, x: &Named, args: Vec<(&str, Argument)>, at: Strided) {
        self.call(target, x, args, vec![(at, x.spread)], false);
    }

    /// Parts of an axis with these lengths.
    fn parts(&mut self, target: &str, x: &Named, args: Vec<(&str, Argument)>, axis: usize, lengths: &[usize]) {
        let mut at = x.at.clone();
        let parts = lengths.iter().map(|&length| {
            at.sizes[axis] = length;
            let part = at.clone();
            at.offset += length * at.strides[axis];
            (part, x.spread)
        });
        let parts = parts.collect();
        self.call(target, x, args, parts, true);
    }

    fn draw_view(&mut self) {
        let x = self.pick();
        let rank = x.at.sizes.len();
        let n: usize = x.at.sizes.iter().product();
        if n > 200 || self.values.len() > 40 {
            return;
        }
        if rank == 0 {
            let mut at = x.at.clone();
            (at.sizes, at.strides) = (vec![1], vec![1]);
            return self.view("unsqueeze.default", &x, vec![("dim", int(0))], at);
        }
        let (axis, other) = (self.random.below(rank), self.random.below(rank));
        match self.random.below(17) {
            0..=2 => self.draw_slice(&x, axis),
            3 => self.draw_order(&x, axis, other),
            4 => self.draw_units(&x, axis),
            5 if axis != other => self.draw_diagonal(&x, axis, other),
            6..=9 => self.draw_parts(&x, axis),
            10..=12 => self.draw_windows(&x, axis),
            13 => self.draw_strides(&x),
            14 => self.draw_shape(&x),
            15 if rank < 4 => {
                let mut at = x.at.clone();
                at.sizes.insert(0, 2);
                at.strides.insert(0, 0);
                let size = ints(&at.sizes);
                self.call("expand.default", &x, vec![("size", size)], vec![(at, true)], false);
            }
            16 => self.view("detach.default", &x, Vec::new(), x.at.clone()),
            _ => {}
        }
    }

    fn draw_slice(&mut self, x: &Named, axis: usize) {
        let mut at = x.at.clone();
        let size = at.sizes[axis];
        let start = self.random.below(size);
        let from_end = self.random.below(3) == 0;
        let counted = Argument::Int(if from_end { start as i64 - size as i64 } else { start as i64 });
        at.offset += start * at.strides[axis];
        match self.random.below(3) {
            0 => {
                at.sizes.remove(axis);
                at.strides.remove(axis);
                self.view("select.int", x, vec![("dim", int(axis)), ("index", counted)], at);
            }
            1 => {
                at.sizes[axis] = self.random.between(1, size - start);
                let length = int(at.sizes[axis]);
                self.view("narrow.default", x, vec![("dim", int(axis)), ("start", counted), ("length", length)], at);
            }
            _ => {
                let (end, step) = (self.random.between(start + 1, size + 1), self.random.between(1, 2));
                at.sizes[axis] = (end.min(size) - start).div_ceil(step);
                at.strides[axis] *= step;
                let args = vec![("dim", int(axis)), ("start", counted), ("end", int(end)), ("step", int(step))];
                self.view("slice.Tensor", x, args, at);
            }
        }
    }

    fn draw_order(&mut self, x: &Named, axis: usize, other: usize) {
        let mut at = x.at.clone();
        match self.random.below(3) {
            0 => {
                at.sizes.swap(axis, other);
                at.strides.swap(axis, other);
                self.view("transpose.int", x, vec![("dim0", int(axis)), ("dim1", int(other))], at);
            }
            1 => {
                let (size, stride) = (at.sizes.remove(axis), at.strides.remove(axis));
                at.sizes.insert(other, size);
                at.strides.insert(other, stride);
                self.view("movedim.int", x, vec![("source", int(axis)), ("destination", int(other))], at);
            }
            _ => {
                let rank = at.sizes.len();
                let dims: Vec<usize> = (0..rank).map(|i| (i + axis + 1) % rank).collect();
                at.sizes = dims.iter().map(|&d| x.at.sizes[d]).collect();
                at.strides = dims.iter().map(|&d| x.at.strides[d]).collect();
                self.view("permute.default", x, vec![("dims", ints(&dims))], at);
            }
        }
    }

    fn draw_units(&mut self, x: &Named, axis: usize) {
        let mut at = x.at.clone();
        if at.sizes[axis] == 1 {
            at.sizes.remove(axis);
            at.strides.remove(axis);
            return self.view("squeeze.dim", x, vec![("dim", int(axis))], at);
        }
        at.strides.insert(axis, at.sizes[axis] * at.strides[axis]);
        at.sizes.insert(axis, 1);
        self.view("unsqueeze.default", x, vec![("dim", int(axis))], at);
    }

    fn draw_diagonal(&mut self, x: &Named, axis: usize, other: usize) {
        let offset = self.random.below(x.at.sizes[other]);
        let mut at = x.at.clone();
        at.offset += offset * at.strides[other];
        let length = at.sizes[axis].min(at.sizes[other] - offset);
        let stride = at.strides[axis] + at.strides[other];
        for i in [axis.max(other), axis.min(other)] {
            at.sizes.remove(i);
            at.strides.remove(i);
        }
        at.sizes.push(length);
        at.strides.push(stride);
        self.view("diagonal.default", x, vec![("offset", int(offset)), ("dim1", int(axis)), ("dim2", int(other))], at);
    }

    fn draw_parts(&mut self, x: &Named, axis: usize) {
        let size = x.at.sizes[axis];
        let each = self.random.between(1, size);
        let even: Vec<usize> = (0..size.div_ceil(each)).map(|i| each.min(size - i * each)).collect();
        let rest: Vec<usize> = [each, size - each].into_iter().filter(|&n| n > 0).collect();
        let dim = ("dim", int(axis));
        match (self.random.below(6), axis) {
            (0, _) => self.parts("split.Tensor", x, vec![("split_size", int(each)), dim], axis, &even),
            (1, _) => self.parts("split_with_sizes.default", x, vec![("split_sizes", ints(&rest)), dim], axis, &rest),
            (2, _) => {
                let each = size.div_ceil(each);
                let even: Vec<usize> = (0..size.div_ceil(each)).map(|i| each.min(size - i * each)).collect();
                self.parts("chunk.default", x, vec![("chunks", int(size.div_ceil(each))), dim], axis, &even);
            }
            (3, _) if each < size => self.parts("tensor_split.indices", x, vec![("indices", ints(&[each])), dim], axis, &rest),
            (4, 0) if each < size && x.at.sizes.len() > 1 => {
                self.parts("vsplit.array", x, vec![("indices", ints(&[each]))], axis, &rest);
            }
            (4, 1) if each < size => self.parts("hsplit.array", x, vec![("indices", ints(&[each]))], axis, &rest),
            (4, 2) if each < size => self.parts("dsplit.array", x, vec![("indices", ints(&[each]))], axis, &rest),
            _ => {
                let mut at = x.at.clone();
                let stride = at.strides.remove(axis);
                at.sizes.remove(axis);
                let parts = (0..size).map(|i| (Strided { offset: at.offset + i * stride, ..at.clone() }, x.spread)).collect();
                self.call("unbind.int", x, vec![dim], parts, true);
            }
        }
    }

    /// Draws windows of an axis, which overlap if the step is shorter than the window.
    fn draw_windows(&mut self, x: &Named, axis: usize) {
        let mut at = x.at.clone();
        let size = self.random.between(1, at.sizes[axis].min(3));
        let step = self.random.between(1, 3);
        at.sizes[axis] = (at.sizes[axis] - size) / step + 1;
        at.sizes.push(size);
        at.strides.push(at.strides[axis]);
        at.strides[axis] *= step;
        self.view("unfold.default", x, vec![("dimension", int(axis)), ("size", int(size)), ("step", int(step))], at);
    }

    /// Draws user-given strides over the elements of the tensor.
    fn draw_strides(&mut self, x: &Named) {
        if x.at.strides != Strided::whole(0, &x.at.sizes).strides {
            return;
        }
        let n: usize = x.at.sizes.iter().product();
        let strides = [self.random.between(1, 4), self.random.between(1, 3)];
        let columns = self.random.between(1, ((n - 1) / strides[1] + 1).min(3));
        let left = n - 1 - (columns - 1) * strides[1];
        let rows = self.random.between(1, (left / strides[0] + 1).min(4));
        let skipped = self.random.below(left - (rows - 1) * strides[0] + 1);
        let offset = x.at.offset + skipped;
        let at = Strided { storage: x.at.storage, offset, sizes: vec![rows, columns], strides: strides.to_vec() };
        let args = vec![("size", ints(&at.sizes)), ("stride", ints(&strides)), ("storage_offset", int(offset))];
        self.view("as_strided.default", x, args, at);
    }

    fn draw_shape(&mut self, x: &Named) {
        if x.at.strides != Strided::whole(0, &x.at.sizes).strides {
            return;
        }
        let n: usize = x.at.sizes.iter().product();
        let factors: Vec<usize> = (1..=n).filter(|f| n.is_multiple_of(*f)).collect();
        let first = factors[self.random.below(factors.len())];
        let sizes = if self.random.below(3) == 0 { vec![n] } else { vec![first, n / first] };
        let at = Strided { storage: x.at.storage, offset: x.at.offset, ..Strided::whole(0, &sizes) };
        self.view("view.default", x, vec![("size", ints(&sizes))], at);
    }

    fn draw_write(&mut self) {
        let x = self.pick();
        if x.spread || x.at.sizes.iter().product::<usize>() > 200 {
            return;
        }
        let overlaps = x.at.overlaps();
        let fits = |other: &Named| other.at.sizes == x.at.sizes && !(overlaps && other.at.storage == x.at.storage);
        let others: Vec<Named> = self.values.iter().filter(|other| fits(other)).cloned().collect();
        let number = self.random.small();
        let named = |name: &'static str, x: f32| (name, Argument::Float(x.into()));
        let (target, args, keeps, operand) = match self.random.below(6) {
            0 => ("fill_.Scalar", vec![named("value", number)], 0.0, Operand::Number(number)),
            1 => ("add_.Tensor", vec![named("other", number)], 1.0, Operand::Number(number)),
            2 => ("mul_.Tensor", vec![named("other", -1.0)], -1.0, Operand::Number(0.0)),
            3 => ("neg_.default", Vec::new(), -1.0, Operand::Number(0.0)),
            kind if !others.is_empty() => {
                let other = others[self.random.below(others.len())].clone();
                let tensor = Argument::Tensor(other.name.clone());
                match kind {
                    4 => ("add_.Tensor", vec![("other", tensor)], 1.0, Operand::Tensor(other.at)),
                    _ => ("copy_.default", vec![("src", tensor)], 0.0, Operand::Tensor(other.at)),
                }
            }
            _ => ("zero_.default", Vec::new(), 0.0, Operand::Number(0.0)),
        };
        self.actions.push(Action::Write { to: x.at.clone(), update: Update { keeps, operand } });
        self.call(target, &x, args, vec![(x.at.clone(), false)], false);
    }

    /// Makes a tensor with its own memory, with the same or changed contents.
    fn make(&mut self, x: &Named) {
        let (factor, plus) = [(1.0, 0.0), (1.0, 0.0), (1.0, 2.0)][self.random.below(3)];
        let (target, args) = match (plus == 0.0, self.random.below(2)) {
            (true, 0) => ("clone.default", Vec::new()),
            (true, _) => ("mul.Tensor", vec![("other", Argument::Int(1))]),
            _ => ("add.Tensor", vec![("other", Argument::Float(plus.into()))]),
        };
        let to = self.storages;
        self.storages += 1;
        self.actions.push(Action::Make { from: x.at.clone(), factor, plus, to });
        self.call(target, x, args, vec![(Strided::whole(to, &x.at.sizes), false)], false);
    }
}

impl Program {
    pub(crate) fn draw(seed: u64) -> Program {
        let mut random = Random::new(seed);
        for _ in 0..8 {
            random.below(2);
        }
        let mut shape = || (0..random.between(1, 3)).map(|_| random.between(1, 4)).collect::<Vec<_>>();
        let shapes = [shape(), shape(), shape()];
        let mut drawing = Drawing { random, graph: Graph::default(), values: Vec::new(), actions: Vec::new(), storages: 3 };
        for (i, shape) in shapes.iter().enumerate() {
            drawing.define(["x", "y", "buffer"][i].to_owned(), Strided::whole(i, shape), false);
        }
        for _ in 0..CALLS {
            match drawing.random.below(8) {
                0..=3 => drawing.draw_view(),
                4..=6 => drawing.draw_write(),
                _ => {
                    let x = drawing.pick();
                    drawing.make(&x);
                }
            }
        }
        let mut results = Vec::new();
        for _ in 0..4 {
            let x = drawing.pick();
            if drawing.random.below(3) == 0 && !x.spread {
                results.push(x);
            } else {
                drawing.make(&x);
                results.extend(drawing.values.last().cloned());
            }
        }
        drawing.graph.inputs = ["buffer", "x", "y"].map(|name| Argument::Tensor(name.to_owned())).to_vec();
        drawing.graph.outputs = results.iter().map(|x| Argument::Tensor(x.name.clone())).collect();
        let buffer = Strided::whole(2, &shapes[2]);
        let buffer_contents = (0..buffer.places().len()).map(|_| drawing.random.small()).collect();
        Program {
            input_shapes: shapes[..2].to_vec(),
            buffer,
            buffer_contents,
            storages: drawing.storages,
            actions: drawing.actions,
            results: results.into_iter().map(|x| x.at).collect(),
            graph: drawing.graph,
            seed,
        }
    }

    /// Contents of the inputs in one run.
    pub(crate) fn inputs(&self, run: u64) -> Vec<Vec<f32>> {
        let mut random = Random::new(self.seed + 1_000_000 * (run + 1));
        self.input_shapes.iter().map(|shape| (0..shape.iter().product()).map(|_| random.small()).collect()).collect()
    }

    /// The program in the form that capture produces.
    pub(crate) fn exported(&self) -> Exported {
        let user = |name: &str| InputSpec::UserInput(Argument::Tensor(name.to_owned()));
        let state = InputSpec::Buffer { arg: "buffer".to_owned(), name: "buffer".to_owned(), persistent: false };
        let bytes = AlignedBytes::copy_of(bytemuck::cast_slice(&self.buffer_contents)).into_bytes();
        let len = bytes.len();
        let storage = Storage::computed("buffer", len, move || Ok(bytes.clone()));
        let weight = Weight::Strided(View::row_major(DType::F32, self.buffer.sizes.clone(), storage));
        let outputs = self.graph.outputs.iter().cloned().map(OutputSpec::UserOutput).collect();
        Exported {
            graph: self.graph.clone(),
            signature: Signature { inputs: vec![state, user("x"), user("y")], outputs },
            ranges: Default::default(),
            expression_ranges: Vec::new(),
            guards: Vec::new(),
            in_spec: String::new(),
            out_spec: String::new(),
            forward_arg_names: Vec::new(),
            torch_version: String::new(),
            dialect: Dialect::Training,
            weights: Default::default(),
            constants: [("buffer".to_owned(), weight)].into_iter().collect(),
        }
    }
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "inputs {:?}, buffer {:?}", self.input_shapes, self.buffer.sizes)?;
        for node in &self.graph.nodes {
            let args: Vec<String> = node.inputs.iter().map(|i| format!("{}={:?}", i.name, i.arg)).collect();
            writeln!(f, "{} = {}({})", node.output_names().join(", "), node.target, args.join(", "))?;
        }
        let results: Vec<&str> = self.graph.outputs.iter().flat_map(Argument::names).collect();
        writeln!(f, "return {}", results.join(", "))
    }
}
