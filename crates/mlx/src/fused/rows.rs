//! Steps on several sequences, one row each: linear layers, and the state shared by the steps of a
//! run.

use std::{collections::BTreeMap, fmt::Write as _, sync::Arc};

use flambeau_ir::Tid;
use flambeau_tensor::{DType, Shape, Tensor};

use super::{
    StepState,
    launch::{Builder, Text},
    linear::{Activation, Format, Linear, norm_type, rows_of},
    low_rank::{self, Low},
};
use crate::{
    cuda,
    cx::Machine,
    error::{OpError, Result},
    ffi::Array,
    values::Slot,
};

/// Maximum number of sequences per launch.
pub(crate) const MAX_ROWS: usize = 32;
/// Matrix rows per tensor-core tile, and columns per step of a warp.
const TILE: usize = 16;
const STEP: usize = 128;
/// Tiles that a warp computes together, of codes and of floats, which take more registers.
const TILES: usize = 2;
const FLOAT_TILES: usize = 1;

/// State shared by the launches of one run.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    positions: Option<(Vec<i32>, Array)>,
    /// A result of the last launch that fills the device. The next launch depends on it: if two ran
    /// concurrently, neither grid would be fully resident.
    last: Option<Array>,
}

impl Scratch {
    /// Numbers on the device, i32 `[sequences]`.
    fn positions(&mut self, m: &Machine, positions: &[i32]) -> Result<Array> {
        if let Some((known, array)) = &self.positions
            && known == positions
        {
            return Ok(array.share()?);
        }
        let host = Tensor::from_slice(positions, &[positions.len()]).map_err(|e| OpError::value(e.to_string()))?;
        let array = Array::from_tensor(m.api, &host)?;
        self.positions = Some((positions.to_vec(), array.share()?));
        Ok(array)
    }
}

/// Device addresses of the caches of several sequences. Passing each cache to each launch would
/// take the host longer than the launch takes the device. MLX does not track these addresses, so
/// code that releases a buffer first waits for the
/// launches.
#[derive(Debug, Default)]
pub(super) struct Caches {
    /// The sequences' stamps when the tables were made.
    stamps: Vec<Arc<()>>,
    /// Addresses of keys and values by sequence, i64, by the cache of the first keys.
    tables: BTreeMap<Tid, Array>,
}

impl Caches {
    /// The table of two caches of each sequence.
    pub(super) fn table(&mut self, machines: &mut [&mut Machine], caches: [Tid; 2]) -> Result<Array> {
        let stamps: Vec<Arc<()>> = machines.iter_mut().map(|m| m.stamp()).collect();
        let is_known = |(a, b): (&Arc<()>, &Arc<()>)| Arc::ptr_eq(a, b);
        if self.stamps.len() != stamps.len() || !self.stamps.iter().zip(&stamps).all(is_known) {
            *self = Caches { stamps, tables: BTreeMap::new() };
        }
        if let Some(table) = self.tables.get(&caches[0]) {
            return Ok(table.share()?);
        }
        let mut kernel = Text::new("if(threadIdx.x==0){".to_owned());
        // All numbers of sequences with the same number of eights share one kernel text.
        let count = eights(machines.len()) * 8;
        for case in 0..count {
            let m = &machines[case.min(machines.len() - 1)];
            for (i, cache) in (2 * case..).zip(caches) {
                kernel.new_input(format!("p{i}"), m.slot(cache)?.array.share()?);
                // Writing to a string cannot fail.
                let _ = write!(kernel.body, "table[{i}]=reinterpret_cast<long long>(p{i});");
            }
        }
        kernel.body.push('}');
        kernel.output("table".to_owned(), DType::I64, Shape::from_slice(&[2 * count]));
        let made = kernel.launch(machines[0], "", 0, [1, 1], 1)?.pop();
        let table = made.ok_or_else(|| OpError::value("a kernel gave no result"))?;
        self.tables.insert(caches[0], table.share()?);
        Ok(table)
    }
}

/// Consecutive steps on the rows of all sequences. The first sequence's slots hold the rows.
pub(crate) struct RowSteps<'a> {
    pub(super) builder: Builder,
    pub(super) shared: &'a mut StepState,
    scratch: &'a mut Scratch,
    /// `[sequences]`. Kernels read the number of sequences from its shape, so their texts do not
    /// depend on it. The positions, once they are known.
    positions: Array,
    /// Its name, if all parts are one launch.
    name: Option<String>,
}

impl<'a> RowSteps<'a> {
    /// An empty list of steps for `count` sequences.
    ///
    /// # Errors
    /// If MLX fails.
    pub(crate) fn new(m: &Machine, shared: &'a mut StepState, scratch: &'a mut Scratch, count: usize) -> Result<RowSteps<'a>> {
        let resident = if m.support.fills_device { m.residency()?.filter(|device| device.shared_memory > 0) } else { None };
        let builder = Builder::of_rows(resident, eights(count) * 8);
        let positions = match &scratch.positions {
            Some((known, array)) if known.len() == count => array.share()?,
            _ => scratch.positions(m, &vec![0; count])?,
        };
        Ok(RowSteps { builder, shared, scratch, positions, name: None })
    }

    /// Whether no step was added.
    pub(crate) fn is_empty(&self) -> bool {
        self.builder.is_empty()
    }

    /// Adds a linear layer; `false` if the kernel does not support it.
    ///
    /// # Errors
    /// If MLX fails.
    pub(crate) fn linear(&mut self, m: &mut Machine, linear: &Linear) -> Result<bool> {
        linear.build_rows(m, self)
    }

    /// The name of an array that has an element for each sequence.
    fn of_each(&mut self) -> Result<String> {
        if let Some(name) = self.name.as_ref().filter(|_| self.builder.is_resident()) {
            return Ok(name.clone());
        }
        let name = self.builder.array(self.positions.share()?);
        Ok(self.name.insert(name).clone())
    }

    /// The expression for the number of sequences in a part's text.
    pub(super) fn count(&mut self) -> Result<String> {
        Ok(format!("static_cast<int>({}_shape[0])", self.of_each()?))
    }

    /// The name of the sequences' positions.
    pub(super) fn name_positions(&mut self, m: &Machine, positions: &[i32]) -> Result<String> {
        self.positions = self.scratch.positions(m, positions)?;
        self.name = None;
        self.of_each()
    }

    /// Adds the launches to MLX's graph; the first sequence's slots `outs` hold the results' rows.
    ///
    /// # Errors
    /// If MLX refuses a kernel.
    pub(crate) fn launch(mut self, m: &mut Machine, outs: &[Tid]) -> Result<()> {
        let (true, Some(&out)) = (self.builder.is_resident(), outs.last()) else {
            return self.builder.launch_each(m).map(drop);
        };
        // The first launch takes its own result's placeholder, so it has the same text as later
        // launches.
        let last = self.scratch.last.take().map_or_else(|| m.slot(out)?.array.share().map_err(OpError::from), Ok)?;
        self.builder.array(last);
        self.builder.launch_joined(m, self.shared, outs)?;
        self.scratch.last = Some(m.slot(out)?.array.share()?);
        Ok(())
    }
}

/// Compile-time parameters of the kernels.
struct Shapes {
    dtype: DType,
    norm: DType,
    k: usize,
    rows: Vec<usize>,
    /// Ranks of the updates, if there are any.
    ranks: Vec<usize>,
    /// Columns of sums, in eights.
    eights: usize,
}

/// The partition of a product over a block's warps.
struct Shares {
    /// Warps beside each other.
    sides: usize,
    /// Groups of these, which share the depth.
    deep: usize,
    /// Buffers of sums, and bytes of all of them.
    buffers: usize,
    memory: usize,
    /// Blocks that have work, where their number is free.
    blocks: usize,
}

/// Columns of sums, in units of eight: either one unit or the maximum. A changed number of
/// sequences then rarely needs another kernel.
pub(super) fn eights(count: usize) -> usize {
    if count <= 8 { 1 } else { MAX_ROWS / 8 }
}

impl Linear {
    /// Adds `[residual +] act(norm(x) W)` of rows `[sequences, .., k]`; `false` if the kernel does
    /// not support the step.
    fn build_rows(&self, m: &mut Machine, run: &mut RowSteps<'_>) -> Result<bool> {
        let Some(shapes) = self.shapes(m) else { return Ok(false) };
        let (arranged, lows) = self.arrange(m, run, &shapes)?;
        let &Shapes { dtype, k, eights, ref rows, .. } = &shapes;
        let (ty, count) = (cuda::type_name(dtype).unwrap_or_default(), run.count()?);
        let b = &mut run.builder;
        let arranged = b.earlier(&arranged);
        let residual = self.residual.map_or(Ok("nullptr".to_owned()), |tid| b.slot(m, tid))?;
        let none = || "nullptr".to_owned();
        let (mut names, mut biases) = (Vec::with_capacity(self.weights.len()), Vec::new());
        for weights in &self.weights {
            let mut slots = weights.slots.iter().map(|&tid| b.slot(m, tid)).collect::<Result<Vec<_>>>()?;
            slots.resize(3, none());
            names.push(slots.join(","));
            biases.push(weights.bias.map_or(Ok(none()), |bias| b.slot(m, bias))?);
        }
        let updates = self.updates.iter().zip(&lows).map(|(update, low)| update.operand(m, b, low)).collect::<Result<Vec<_>>>()?;
        let lead: Shape = m.slot(self.x)?.shape.split_last().map(|(_, lead)| lead.into()).unwrap_or_default();
        let shape_of = |rows: usize| -> Shape { lead.iter().copied().chain([rows]).collect() };
        let results = if self.gated { &rows[..1] } else { &rows[..] };
        let outs = self.outs.iter().zip(results).map(|(&tid, &rows)| b.result(m, tid, dtype, shape_of(rows)));
        let outs = outs.collect::<Result<Vec<_>>>()?;
        let gate = match (self.gated, self.activation) {
            (false, _) => "kNone",
            (true, Activation::Silu) => "kSilu",
            (true, Activation::Gelu) => "kGelu",
        };
        let (mut text, mut memory, mut blocks, is_updated) = (String::new(), 0, 0, !lows.is_empty());
        for format in self.formats() {
            let own = |i: &usize| self.weights[*i].format == format;
            let matrix = |i: usize| {
                let out = outs.get(i).map_or("nullptr", String::as_str);
                let update = updates.get(i).map_or("{}", String::as_str);
                format!("{{{},{out},{},{},{update}}}", names[i], rows[i], biases[i])
            };
            let all: Vec<String> = (0..rows.len()).filter(own).map(matrix).collect();
            let tiles = (0..results.len()).filter(own).map(|i| rows[i]).sum::<usize>() / TILE;
            let (group, most) = match format {
                Format::Float => (0, FLOAT_TILES),
                Format::Coded { group, .. } => (group, TILES),
            };
            let shares = self.share_out(b, tiles, most, eights);
            let Shares { sides, deep, buffers, .. } = shares;
            // All warps have read the sums of one format before another format writes there.
            // Writing to a string cannot fail.
            let _ = write!(
                text,
                "{}{{Matrix<{ty}> all[]={{{}}};RowProducts<{ty},{group},{most},{eights},Gate::{gate},kW,{sides},{deep},{buffers},{is_updated},{}>\
                 {{all,{k}}}\
                 .run(reinterpret_cast<char*>(dynamic),reinterpret_cast<const uint4*>({arranged}),{residual},{count},wait);}}",
                if text.is_empty() { "" } else { "__syncthreads();" },
                all.join(","),
                all.len(),
            );
            (memory, blocks) = (shares.memory.max(memory), shares.blocks.max(blocks));
        }
        b.part(text, memory, blocks);
        Ok(true)
    }

    /// How a block's warps divide result tiles, each warp up to `most` at once. The block places as
    /// many warps side by side as it has tiles for, because these warps read the same columns of
    /// the rows.
    fn share_out(&self, b: &Builder, tiles: usize, most: usize, eights: usize) -> Shares {
        let of_warp = if self.gated { most / 2 } else { most };
        let of_block = b.all_warps().map_or(1, |all| tiles.div_ceil(all / b.warps()));
        let sides = of_block.div_ceil(of_warp).min(b.warps() / 2).max(1);
        let deep = b.warps() / sides;
        let buffer = deep * eights * 8 * (sides * most * TILE + 4) * 4;
        let buffers = if of_block > sides * of_warp && 2 * buffer <= b.max_shared() { 2 } else { 1 };
        Shares { sides, deep, buffers, memory: buffers * buffer, blocks: tiles.div_ceil(of_warp) }
    }

    /// Adds a part that normalises the rows if required and stores them in the products' operand
    /// order. The part also computes the rows of low rank of all updates. Returns their names.
    fn arrange(&self, m: &Machine, run: &mut RowSteps<'_>, shapes: &Shapes) -> Result<(String, Vec<Low>)> {
        let &Shapes { dtype, norm, k, eights, ref ranks, .. } = shapes;
        let (ty, norm_type) = (cuda::type_name(dtype).unwrap_or_default(), cuda::value_type(norm).unwrap_or_default());
        let (count, columns) = (run.count()?, eights * 8);
        let b = &mut run.builder;
        let x = b.slot(m, self.x)?;
        let (weight, eps) = match self.norm {
            Some((tid, eps)) => (b.slot(m, tid)?, eps),
            None => (format!("static_cast<const {norm_type}*>(nullptr)"), 0.0),
        };
        let arranged = b.inner(dtype, columns * k);
        let to = format!("reinterpret_cast<uint4*>({arranged})");
        let mut text = format!("arrange_rows<kW,{ty},{norm_type}>({x},{weight},{eps:e}f,{k},{count},{columns},{to},wait);");
        let (matrices, lows) = low_rank::matrices(&self.updates, ranks, m, b, dtype, columns)?;
        if !lows.is_empty() {
            // Writing to a string cannot fail.
            let _ = write!(text, "{matrices}low_rows_of_each<kW,{ty},{norm_type}>({x},{weight},{eps:e}f,{k},{count},lows);");
        }
        let results = columns * ranks.iter().sum::<usize>();
        b.part(text, 0, columns.max(results.div_ceil(b.warps())));
        Ok((arranged, lows))
    }

    fn shapes(&self, m: &Machine) -> Option<Shapes> {
        // Every field is named, so that none of a step's parts is passed over.
        let &Linear {
            x,
            norm,
            narrows,
            residual,
            gated,
            activation: _,
            gated_input: None,
            joined: None,
            ref weights,
            ref updates,
            outs: _,
        } = self
        else {
            return None;
        };
        let slot = |tid: Tid| -> Option<&Slot> { m.env.tensors.get(tid.0 as usize)?.as_ref() };
        let x = slot(x)?;
        let (dtype, count, k) = (x.dtype, *x.shape.first()?, *x.shape.last()?);
        cuda::type_name(dtype)?;
        let is_one_each = x.shape.len() > 1 && x.shape.iter().product::<usize>() == count * k;
        (is_one_each && (2..=MAX_ROWS).contains(&count)).then_some(())?;
        let formats = self.formats();
        let is_known = |format: &Format| matches!(format, Format::Float | Format::Coded { bits: 4, group: 32 | 64 | 128 });
        // Floats alone are left to MLX, whose products of many rows they are made for.
        let has_codes = formats.iter().any(|format| *format != Format::Float);
        (has_codes && formats.iter().all(is_known)).then_some(())?;
        let norm = norm.map_or(Some(dtype), |(weight, _)| norm_type(m, weight, dtype, narrows, k))?;
        let rows = weights.iter().map(|w| rows_of(m, w, dtype, k)).collect::<Option<Vec<_>>>()?;
        let ranks = updates.iter().zip(&rows).map(|(update, &rows)| update.rank(m, dtype, [k, rows], count));
        let ranks = ranks.collect::<Option<Vec<_>>>()?;
        let same = !gated || rows.windows(2).all(|w| w[0] == w[1]);
        let fits = k.is_multiple_of(STEP) && rows.iter().all(|rows| rows.is_multiple_of(TILE)) && same;
        if let Some(residual) = residual {
            let residual = slot(residual)?;
            let is_like = residual.dtype == dtype && rows.len() == 1 && residual.shape.iter().product::<usize>() == count * rows[0];
            is_like.then_some(())?;
        }
        fits.then_some(Shapes { dtype, norm, k, rows, ranks, eights: eights(count) })
    }
}
