//! Runs a program on examples and observes the inputs of its linear layers.
//!
//! The observed program is the exported one in floats. Its results are replaced by the products of
//! the inputs' columns, so the engine computes them. Weights are slices of the archive.

use std::{
    collections::{HashMap, HashSet},
    fmt,
    sync::Arc,
};

use flambeau_ir::{
    Addmm, AsType, In, Int, Node, Out, Slice, Slot, Spec, Tid, Transpose,
    engine::{Engine, Value},
};
use flambeau_lower::{Origin, SsaGraph, SsaNode, TensorInfo, drop_unread};
use flambeau_pt2::Exported;
use flambeau_tensor::{DType, Expr, Tensor, cast};

use crate::{
    Error, InputStatistics, Options, Statistics,
    error::ObserveError,
    loaded::{Loaded, traced},
    quantize::{Product, factor, quantized_products},
};

/// Observes the inputs of the linear layers that options quantize.
pub struct Observer {
    method: Loaded,
    probes: Vec<Probe>,
    /// Weights with the number of the probe of their inputs.
    weights: Vec<(String, usize)>,
}

/// Observed inputs, which several weights may read.
struct Probe {
    kind: Kind,
    columns: usize,
    /// Sums of squares, [K] or [E, K].
    squares: Vec<f64>,
    /// Number of rows behind the sums: one, or one for each expert.
    counts: Vec<u64>,
    /// Sums of products, `[K / block, block, block]`, or their factors.
    products: Vec<f32>,
    /// The order of columns in the factors, [K].
    order: Vec<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// The results are products `[.., block, block]` of each block of columns.
    Products { block: usize },
    /// The results are inputs `[.., K]` and the numbers of experts.
    Experts { count: usize },
}

/// Blocks are not smaller than this number of columns.
const SMALLEST_BLOCK: usize = 32;

/// The size of equal blocks of at most `limit` columns.
fn block_of(columns: usize, limit: usize) -> Option<usize> {
    let parts = columns.div_ceil(limit)..=columns / SMALLEST_BLOCK;
    parts.into_iter().find(|&parts| columns.is_multiple_of(parts)).map(|parts| columns / parts)
}

/// Number of columns of all inputs, each counted once.
fn columns_of(ssa: &SsaGraph, products: &[Product]) -> usize {
    let dense = products.iter().filter(|product| product.experts.is_none()).map(|product| product.input);
    let inputs: HashSet<Tid> = dense.collect();
    inputs.into_iter().filter_map(|t| ssa.spec(t).dims.last()?.as_int()).map(|columns| columns as usize).sum()
}

/// Half of `block`, again and again, until blocks of `columns` columns have at most `most` floats.
fn smaller(mut block: usize, most: usize, columns: usize) -> usize {
    while block > SMALLEST_BLOCK && columns.saturating_mul(block) > most {
        block /= 2;
    }
    block
}

impl fmt::Debug for Observer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Observer").field("weights", &self.weights).finish_non_exhaustive()
    }
}

impl Observer {
    /// Prepares a program for an engine. The products of columns are kept for blocks of at most
    /// `block` columns, or fewer if all products have more than `most` floats.
    ///
    /// # Errors
    /// As [`compile`](crate::compile()). [`Error::Observe`] if the program is not one delegate, or
    /// if the engine cannot load it.
    pub fn new(
        exported: &Exported,
        options: &Options,
        engine: &dyn Engine,
        (block, most): (usize, usize),
    ) -> Result<Observer, Error> {
        let (mut ssa, trace) = traced(exported, options)?;
        let products = quantized_products(&ssa, options);
        let block = smaller(block, most, columns_of(&ssa, &products));
        ssa.results.clear();
        let mut builder = Builder { ssa: &mut ssa, probes: Vec::new(), known: HashMap::new() };
        let weights = products.iter().filter_map(|p| Some((p.weight.name.clone(), builder.probe(p, block)?))).collect();
        let probes = builder.probes;
        drop_unread(&mut ssa);
        Ok(Observer { method: Loaded::of(ssa, &trace, "observed", engine)?, probes, weights })
    }

    /// Whether there is no weight whose inputs it observes.
    pub fn is_empty(&self) -> bool {
        self.weights.is_empty()
    }

    /// Runs the method on its inputs, from the state after loading, and adds what it observes.
    ///
    /// # Errors
    /// [`Error::Observe`] if the engine fails.
    pub fn run(&mut self, inputs: &[Value]) -> Result<(), Error> {
        let results = self.method.run(inputs)?;
        let mut results = results.into_iter().filter_map(|value| if let Value::Tensor(t) = value { Some(t) } else { None });
        for probe in &mut self.probes {
            probe.take(&mut results)?;
        }
        Ok(())
    }

    /// Statistics of all runs, computed on several threads.
    pub fn statistics(mut self, threads: usize) -> Statistics {
        let run = self.probes.len().div_ceil(threads.max(1)).max(1);
        std::thread::scope(|scope| {
            self.probes.chunks_mut(run).for_each(|probes| drop(scope.spawn(move || probes.iter_mut().for_each(Probe::factor))));
        });
        let inputs: Vec<Arc<InputStatistics>> = self.probes.into_iter().map(|probe| Arc::new(probe.means())).collect();
        let mut statistics = Statistics::default();
        for (name, probe) in self.weights {
            statistics.insert(name, inputs[probe].clone());
        }
        statistics
    }
}

/// Adds nodes that compute what is observed.
struct Builder<'s> {
    ssa: &'s mut SsaGraph,
    probes: Vec<Probe>,
    known: HashMap<(Tid, Option<Tid>), usize>,
}

impl Builder<'_> {
    /// The number of the probe of a product's inputs. `None` if they cannot be observed.
    fn probe(&mut self, product: &Product, limit: usize) -> Option<usize> {
        let key = (product.input, product.experts.map(|(indices, _)| indices));
        if let Some(&known) = self.known.get(&key) {
            return Some(known);
        }
        let spec = self.ssa.spec(product.input).clone();
        let columns = spec.dims.last().and_then(Expr::as_int).and_then(|n| usize::try_from(n).ok())?;
        let wide = self.add(Spec { dtype: DType::F32, dims: spec.dims.clone() }, |out| {
            AsType { x: In(product.input), out, scalar_type: DType::F32 }.into()
        });
        let probe = match product.experts {
            Some((indices, count)) => {
                self.ssa.results.extend([Slot::Tensor(wide), Slot::Tensor(indices)]);
                Probe::new(Kind::Experts { count }, columns)
            }
            None => {
                let block = block_of(columns, limit).filter(|_| spec.rank() >= 2)?;
                (0..columns).step_by(block).for_each(|from| self.products(wide, from, block));
                Probe::new(Kind::Products { block }, columns)
            }
        };
        self.probes.push(probe);
        self.known.insert(key, self.probes.len() - 1);
        Some(self.probes.len() - 1)
    }

    /// Adds the result `xᵀ x [.., block, block]` of a block of columns of `x [.., M, K]`.
    fn products(&mut self, x: Tid, from: usize, block: usize) {
        let Spec { dtype, mut dims } = self.ssa.spec(x).clone();
        let rank = dims.len();
        dims[rank - 1] = Expr::Int(block as i64);
        let (start, stop) = (Int::Lit(from as i64), Int::Lit((from + block) as i64));
        let axis = Int::Lit(rank as i64 - 1);
        let part = self.add(Spec { dtype, dims: dims.clone() }, |out| Slice { x: In(x), out, axis, start, stop, step: 1 }.into());
        let mut turned = dims.clone();
        turned.swap(rank - 2, rank - 1);
        let mut perm: Vec<i32> = (0..rank as i32).collect();
        perm.swap(rank - 2, rank - 1);
        let turned = self.add(Spec { dtype, dims: turned }, |out| Transpose { x: In(part), out, perm }.into());
        dims[rank - 2] = Expr::Int(block as i64);
        let squared = self.add(Spec { dtype, dims }, |out| {
            Addmm { mat1: In(turned), mat2: In(part), out, bias: None, alpha: 1.0, beta: 1.0 }.into()
        });
        self.ssa.results.push(Slot::Tensor(squared));
    }

    fn add(&mut self, spec: Spec, node: impl FnOnce(Out) -> Node) -> Tid {
        let out = Tid(self.ssa.tensors.len() as u32);
        self.ssa.tensors.push(TensorInfo { spec, origin: Origin::Node });
        let call = self.ssa.chains[0].last().map_or(0, |entry| entry.call);
        self.ssa.chains[0].push(SsaNode { node: node(Out(out)), call });
        out
    }
}

impl Probe {
    fn new(kind: Kind, columns: usize) -> Probe {
        let (experts, products) = match kind {
            Kind::Products { block } => (1, columns * block),
            Kind::Experts { count } => (count, 0),
        };
        let (squares, counts) = (vec![0.0; experts * columns], vec![0; experts]);
        Probe { kind, columns, squares, counts, products: vec![0.0; products], order: Vec::new() }
    }

    /// Adds the next results, which are this probe's.
    fn take(&mut self, results: &mut impl Iterator<Item = Tensor>) -> Result<(), ObserveError> {
        let mut next = || results.next().ok_or(ObserveError::Results);
        match self.kind {
            Kind::Products { block } => {
                for sums in self.products.chunks_exact_mut(block * block) {
                    let result = next()?;
                    let values = result.as_slice::<f32>().map_err(|_| ObserveError::Results)?;
                    for matrix in values.chunks_exact(block * block) {
                        sums.iter_mut().zip(matrix).for_each(|(sum, value)| *sum += value);
                    }
                }
            }
            Kind::Experts { .. } => {
                let (inputs, indices) = (next()?, next()?);
                let indices = cast(&indices, DType::I64).map_err(|_| ObserveError::Results)?;
                let inputs = inputs.as_slice::<f32>().map_err(|_| ObserveError::Results)?;
                self.take_experts(inputs, indices.as_slice::<i64>().map_err(|_| ObserveError::Results)?);
            }
        }
        Ok(())
    }

    /// Adds rows of inputs. One expert or several read each row.
    fn take_experts(&mut self, inputs: &[f32], indices: &[i64]) {
        let rows = inputs.len() / self.columns.max(1);
        let readers = indices.len() / rows.max(1);
        let rows = inputs.chunks_exact(self.columns.max(1)).zip(indices.chunks_exact(readers.max(1)));
        for (row, experts) in rows {
            for &expert in experts {
                let Some(count) = usize::try_from(expert).ok().and_then(|expert| self.counts.get_mut(expert)) else { continue };
                *count += 1;
                let sums = &mut self.squares[expert as usize * self.columns..][..self.columns];
                sums.iter_mut().zip(row).for_each(|(sum, &x)| *sum += f64::from(x) * f64::from(x));
            }
        }
    }

    /// Replaces products by their factors, and sets the sums of squares.
    fn factor(&mut self) {
        let Kind::Products { block } = self.kind else { return };
        let matrices = self.products.chunks_exact(block * block);
        self.squares = matrices.flat_map(|sums| sums.iter().step_by(block + 1).map(|&sum| f64::from(sum))).collect();
        self.order = self.products.chunks_exact_mut(block * block).flat_map(|products| factor(products, block)).collect();
    }

    fn means(self) -> InputStatistics {
        let rows = self.squares.chunks_exact(self.columns.max(1)).zip(&self.counts);
        let means = rows.flat_map(|(row, &count)| row.iter().map(move |sum| (sum / count.max(1) as f64) as f32));
        let block = if let Kind::Products { block } = self.kind { block } else { 0 };
        InputStatistics { squares: means.collect(), factors: self.products, order: self.order, block }
    }
}
