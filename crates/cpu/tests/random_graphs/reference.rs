//! Nodes by their definitions in the table: element by element, in f64, with nothing shared with an
//! engine.

use flambeau_ir::{In, Int, Node};
use flambeau_tensor::{DType, Tensor, cast};

/// Elements in row-major order.
#[derive(Clone, Debug)]
pub(crate) struct Array {
    pub(crate) dtype: DType,
    pub(crate) shape: Vec<usize>,
    pub(crate) values: Vec<f64>,
}

impl Array {
    pub(crate) fn read(tensor: &Tensor) -> Array {
        let wide = cast(tensor, DType::F64).expect("every type has a value in f64").aligned();
        Array { dtype: tensor.dtype(), shape: tensor.shape().to_vec(), values: wide.as_slice().expect("f64 elements").to_vec() }
    }

    /// The element at an index of the shape to which this tensor is broadcast.
    fn at(&self, index: &[usize]) -> f64 {
        let index = &index[index.len() - self.shape.len()..];
        let position = index.iter().zip(&self.shape).fold(0, |at, (&i, &size)| at * size + if size == 1 { 0 } else { i });
        self.values[position]
    }

    /// The elements along `axes` for every position on the other axes.
    fn groups(&self, axes: &[i32]) -> Vec<Vec<f64>> {
        let axes: Vec<usize> = axes.iter().map(|&axis| self.axis(axis)).collect();
        let kept: Vec<usize> = (0..self.shape.len()).filter(|axis| !axes.contains(axis)).collect();
        let mut groups = vec![Vec::new(); kept.iter().map(|&axis| self.shape[axis]).product()];
        for (index, &value) in indices(&self.shape).zip(&self.values) {
            groups[kept.iter().fold(0, |at, &axis| at * self.shape[axis] + index[axis])].push(value);
        }
        groups
    }

    fn axis(&self, axis: i32) -> usize {
        if axis < 0 { self.shape.len() - axis.unsigned_abs() as usize } else { axis as usize }
    }

    fn all_axes(&self) -> Vec<i32> {
        (0..self.shape.len() as i32).collect()
    }
}

/// Every index of a shape, in row-major order.
fn indices(shape: &[usize]) -> impl Iterator<Item = Vec<usize>> + '_ {
    (0..shape.iter().product()).map(move |mut position| {
        let mut index = vec![0; shape.len()];
        for (i, &size) in index.iter_mut().zip(shape).rev() {
            *i = position % size;
            position /= size;
        }
        index
    })
}

/// The node's result `[shape]`; `None` for nodes that are not defined here.
pub(crate) fn evaluate(node: &Node, get: &dyn Fn(In) -> Array, shape: &[usize]) -> Option<Vec<f64>> {
    if let Some((x, f)) = unary(node) {
        return Some(get(x).values.into_iter().map(f).collect());
    }
    if let Some((a, b, f)) = binary(node) {
        let (a, b) = (get(a), get(b));
        return Some(indices(shape).map(|index| f(a.at(&index), b.at(&index))).collect());
    }
    if let Some((x, axes, f)) = reduction(node) {
        let x = get(x);
        let axes = if axes.is_empty() { &x.all_axes() } else { axes };
        return Some(x.groups(axes).iter().map(|group| f(group)).collect());
    }
    moved(node, get, shape).or_else(|| contracted(node, get, shape))
}

type Unary = fn(f64) -> f64;
type Binary = fn(f64, f64) -> f64;

fn unary(node: &Node) -> Option<(In, Unary)> {
    Some(match node {
        Node::Abs(n) => (n.x, f64::abs),
        Node::Arccos(n) => (n.x, f64::acos),
        Node::Arccosh(n) => (n.x, f64::acosh),
        Node::Arcsin(n) => (n.x, f64::asin),
        Node::Arcsinh(n) => (n.x, f64::asinh),
        Node::Arctan(n) => (n.x, f64::atan),
        Node::Arctanh(n) => (n.x, f64::atanh),
        Node::Ceil(n) => (n.x, f64::ceil),
        Node::Cos(n) => (n.x, f64::cos),
        Node::Cosh(n) => (n.x, f64::cosh),
        Node::Erf(n) => (n.x, libm::erf),
        Node::Exp(n) => (n.x, f64::exp),
        Node::Expm1(n) => (n.x, f64::exp_m1),
        Node::Floor(n) => (n.x, f64::floor),
        Node::Log(n) => (n.x, f64::ln),
        Node::Log10(n) => (n.x, f64::log10),
        Node::Log1p(n) => (n.x, f64::ln_1p),
        Node::Log2(n) => (n.x, f64::log2),
        Node::LogicalNot(n) => (n.x, |x| f64::from(x == 0.0)),
        Node::Neg(n) => (n.x, |x| -x),
        Node::Reciprocal(n) => (n.x, f64::recip),
        Node::Rsqrt(n) => (n.x, |x| x.sqrt().recip()),
        Node::Sigmoid(n) => (n.x, |x| 1.0 / (1.0 + (-x).exp())),
        Node::Sign(n) => (n.x, |x| if x == 0.0 { 0.0 } else { x.signum() }),
        Node::Silu(n) => (n.x, |x| x / (1.0 + (-x).exp())),
        Node::Sin(n) => (n.x, f64::sin),
        Node::Sinh(n) => (n.x, f64::sinh),
        Node::Sqrt(n) => (n.x, f64::sqrt),
        Node::Square(n) => (n.x, |x| x * x),
        Node::Tan(n) => (n.x, f64::tan),
        Node::Tanh(n) => (n.x, f64::tanh),
        Node::Trunc(n) => (n.x, f64::trunc),
        _ => return None,
    })
}

fn binary(node: &Node) -> Option<(In, In, Binary)> {
    Some(match node {
        Node::Add(n) => (n.a, n.b, |a, b| a + b),
        Node::Atan2(n) => (n.a, n.b, f64::atan2),
        Node::Divide(n) => (n.a, n.b, |a, b| a / b),
        Node::Equal(n) => (n.a, n.b, |a, b| f64::from(a == b)),
        Node::Greater(n) => (n.a, n.b, |a, b| f64::from(a > b)),
        Node::GreaterEqual(n) => (n.a, n.b, |a, b| f64::from(a >= b)),
        Node::Less(n) => (n.a, n.b, |a, b| f64::from(a < b)),
        Node::LessEqual(n) => (n.a, n.b, |a, b| f64::from(a <= b)),
        Node::LogAddExp(n) => (n.a, n.b, |a, b| (a.exp() + b.exp()).ln()),
        Node::LogicalAnd(n) => (n.a, n.b, |a, b| f64::from(a != 0.0 && b != 0.0)),
        Node::LogicalOr(n) => (n.a, n.b, |a, b| f64::from(a != 0.0 || b != 0.0)),
        Node::Maximum(n) => (n.a, n.b, f64::max),
        Node::Minimum(n) => (n.a, n.b, f64::min),
        Node::Multiply(n) => (n.a, n.b, |a, b| a * b),
        Node::NotEqual(n) => (n.a, n.b, |a, b| f64::from(a != b)),
        Node::Subtract(n) => (n.a, n.b, |a, b| a - b),
        _ => return None,
    })
}

type Reduce = fn(&[f64]) -> f64;

fn reduction(node: &Node) -> Option<(In, &[i32], Reduce)> {
    fn mean(x: &[f64]) -> f64 {
        x.iter().sum::<f64>() / x.len() as f64
    }
    fn place(x: &[f64], best: f64) -> f64 {
        x.iter().position(|&v| v == best).map_or(f64::NAN, |at| at as f64)
    }
    let (largest, smallest): (Reduce, Reduce) =
        (|x| x.iter().copied().fold(f64::NEG_INFINITY, f64::max), |x| x.iter().copied().fold(f64::INFINITY, f64::min));
    Some(match node {
        Node::All(n) => (n.x, &n.axes, |x| f64::from(x.iter().all(|&v| v != 0.0))),
        Node::Any(n) => (n.x, &n.axes, |x| f64::from(x.iter().any(|&v| v != 0.0))),
        Node::Argmax(n) => (n.x, std::slice::from_ref(&n.axis), |x| place(x, x.iter().copied().fold(f64::NEG_INFINITY, f64::max))),
        Node::Argmin(n) => (n.x, std::slice::from_ref(&n.axis), |x| place(x, x.iter().copied().fold(f64::INFINITY, f64::min))),
        Node::Max(n) => (n.x, &n.axes, largest),
        Node::Mean(n) => (n.x, &n.axes, mean),
        Node::Min(n) => (n.x, &n.axes, smallest),
        Node::Prod(n) => (n.x, &n.axes, |x| x.iter().product()),
        Node::Sum(n) => (n.x, &n.axes, |x| x.iter().sum()),
        Node::Var(n) if n.ddof == 0 => (n.x, &n.axes, |x| mean(&x.iter().map(|v| (v - mean(x)).powi(2)).collect::<Vec<_>>())),
        _ => return None,
    })
}

/// Nodes that move elements.
fn moved(node: &Node, get: &dyn Fn(In) -> Array, shape: &[usize]) -> Option<Vec<f64>> {
    let filled = |f: &dyn Fn(Vec<usize>) -> f64| Some(indices(shape).map(f).collect());
    let joined = |tensors: &[In], along: &dyn Fn(&Array) -> (usize, usize)| {
        let tensors: Vec<Array> = tensors.iter().map(|&t| get(t)).collect();
        let axis = along(tensors.first()?).0;
        filled(&|mut index| {
            for tensor in &tensors {
                let size = along(tensor).1;
                if index[axis] < size {
                    if tensor.shape.len() < index.len() {
                        index.remove(axis);
                    }
                    return tensor.at(&index);
                }
                index[axis] -= size;
            }
            f64::NAN
        })
    };
    let triangle = |x: In, keeps: &dyn Fn(i64) -> bool| {
        let x = get(x);
        filled(&|index| if keeps(index[index.len() - 1] as i64 - index[index.len() - 2] as i64) { x.at(&index) } else { 0.0 })
    };
    match node {
        Node::Contiguous(n) => Some(get(n.x).values),
        Node::ExpandDims(n) => Some(get(n.x).values),
        Node::IdCopy(n) => Some(get(n.x).values),
        Node::Reshape(n) => Some(get(n.x).values),
        Node::Squeeze(n) => Some(get(n.x).values),
        Node::BroadcastTo(n) => {
            let x = get(n.x);
            filled(&|index| x.at(&index))
        }
        Node::Concatenate(n) => joined(&n.tensors, &|t| (t.axis(n.axis), t.shape[t.axis(n.axis)])),
        Node::Stack(n) => {
            joined(&n.tensors, &|_| (if n.axis < 0 { shape.len() - n.axis.unsigned_abs() as usize } else { n.axis as usize }, 1))
        }
        Node::Flip(n) => {
            let x = get(n.x);
            let axes: Vec<usize> = n.axes.iter().map(|&axis| x.axis(axis)).collect();
            filled(&|mut index| {
                axes.iter().for_each(|&axis| index[axis] = shape[axis] - 1 - index[axis]);
                x.at(&index)
            })
        }
        Node::Repeat(n) => {
            let (x, &Int::Lit(repeats)) = (get(n.x), &n.repeats) else { return None };
            let axis = x.axis(n.axis);
            filled(&|mut index| {
                index[axis] /= repeats as usize;
                x.at(&index)
            })
        }
        Node::Transpose(n) => {
            let x = get(n.x);
            filled(&|index| {
                let mut from = vec![0; index.len()];
                n.perm.iter().zip(&index).for_each(|(&axis, &i)| from[x.axis(axis)] = i);
                x.at(&from)
            })
        }
        Node::Tril(n) => triangle(n.x, &|over| over <= n.k.into()),
        Node::Triu(n) => triangle(n.x, &|over| over >= n.k.into()),
        Node::Where(n) => {
            let (condition, x, y) = (get(n.condition), get(n.x), get(n.y));
            filled(&|index| if condition.at(&index) != 0.0 { x.at(&index) } else { y.at(&index) })
        }
        _ => None,
    }
}

/// Nodes that add up.
fn contracted(node: &Node, get: &dyn Fn(In) -> Array, shape: &[usize]) -> Option<Vec<f64>> {
    match node {
        Node::Addmm(n) => {
            let (a, b, bias) = (get(n.mat1), get(n.mat2), n.bias.map(get));
            let (&inner, rank) = (a.shape.last()?, shape.len());
            if a.shape.len() < 2 || b.shape.len() < 2 {
                return None;
            }
            let product = |mut index: Vec<usize>| {
                let (row, column) = (index[rank - 2], index[rank - 1]);
                let bias = bias.as_ref().map(|bias| bias.at(&index));
                let mut sum = 0.0;
                for k in 0..inner {
                    (index[rank - 2], index[rank - 1]) = (row, k);
                    let left = a.at(&index);
                    (index[rank - 2], index[rank - 1]) = (k, column);
                    sum += left * b.at(&index);
                }
                bias.map_or(sum, |bias| f64::from(n.alpha) * sum + f64::from(n.beta) * bias)
            };
            Some(indices(shape).map(product).collect())
        }
        Node::Softmax(n) => {
            let x = get(n.x);
            let (axis, size) = (x.axis(n.axis), x.shape[x.axis(n.axis)]);
            let total = |index: &[usize]| {
                let mut index = index.to_vec();
                let exp = |i| {
                    index[axis] = i;
                    x.at(&index).exp()
                };
                (0..size).map(exp).sum::<f64>()
            };
            Some(indices(shape).map(|index| x.at(&index).exp() / total(&index)).collect())
        }
        _ => None,
    }
}
