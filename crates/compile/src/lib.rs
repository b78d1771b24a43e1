//! Compiles exported programs into `.pte` files.
//!
//! The tracer walks a program call by call and builds a graph in SSA form
//! ([`flambeau_lower::SsaGraph`]). Writes to buffers and views become values. Each call is lowered
//! by the rule of its operator. A call without a rule is recorded with the reason for the report.
//! The compiler then quantizes the graph on request, fuses nodes, folds constants, assigns slots,
//! checks the graph and wraps it into a method. Weights stay constant expressions until the file is
//! written. The writer reads, repacks, writes and drops one weight after another.
//!
//! The crate depends on no engine: constant folding runs on the caller's
//! [`flambeau_ir::engine::Engine`].

#![forbid(unsafe_code)]

mod classify;
mod error;
mod evaluate;
mod fallback;
mod fold;
mod functionalize;
mod linear_weights;
mod loaded;
mod method;
mod observe;
mod outer;
mod pack;
mod plan_memory;
mod portable;
mod quantize;
mod report;
mod rule;
mod scatter;
mod slots;
mod split;
mod statistics;
mod subclass;
mod trace;
mod usage;
mod vmap_mark;
mod weights;

use std::{collections::HashSet, io::Write, sync::Arc};

use flambeau_ir::engine::Engine;
pub use flambeau_lower::{Fit, Scheme};
use flambeau_pt2::Exported;
use flambeau_wire::{ProgramWriter, pte::EValue};

pub use crate::{
    error::{ConstantError, Error, FoldError, ObserveError, ProgramError},
    linear_weights::{LinearWeight, linear_weights},
    loaded::Loaded,
    observe::Observer,
    quantize::{SchemeError, SchemeName},
    report::{CallReport, MethodReport, Outcome, Precision, Report},
    rule::{Layers, WeightRule},
    statistics::{InputStatistics, Statistics},
};
use crate::{method::Compiled, weights::Weights};

/// Options of a compilation.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Quantizes weights of linear layers that the program does not quantize itself.
    pub linear: Option<Scheme>,
    /// Quantizes embedding tables that the program does not quantize itself.
    pub embedding: Option<Scheme>,
    /// Quantizes products with embedding tables and with weights named `lm_head.weight`.
    /// `Some(None)` keeps their floats. `None` treats them like other linear layers.
    pub head: Option<Option<Scheme>>,
    /// Rules by weight name, which take precedence over the other options. The first matching rule
    /// applies.
    pub rules: Vec<WeightRule>,
    /// Refuses calls that nodes cannot express instead of leaving them to ExecuTorch's portable
    /// kernels.
    pub require_full: bool,
    /// The positions that sorting and selection give among equal elements.
    pub ties: Ties,
    /// Operators that run on portable kernels even if nodes can express them, such as
    /// `aten.sin.default`.
    pub undelegated: Vec<String>,
    /// Keeps inputs that no node reads in the delegate of a fully delegated method.
    pub keep_inputs: bool,
    /// Start of the keys of all constants, without `/`. Tells apart programs that become parts of
    /// one file.
    pub key_prefix: String,
    /// Threads that pack a weight; `None` means one per core.
    pub threads: Option<usize>,
    /// Statistics of inputs. Affine codes of weights with statistics have the least error of the
    /// products with such inputs.
    pub statistics: Arc<Statistics>,
}

/// The positions that `sort`, `argsort`, `topk`, `kthvalue` and `mode` give among equal elements.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ties {
    /// The positions of PyTorch on CPUs. Some of these calls run on kernels, outside of delegates.
    #[default]
    PyTorch,
    /// Any valid positions, so that all of these calls become nodes.
    Any,
}

/// A compiled program that is ready to be written.
#[derive(Debug)]
pub struct Output<'a> {
    methods: Vec<(Compiled, Weights<'a>)>,
    /// Methods without inputs: name and values.
    constants: Vec<(String, Vec<EValue>)>,
    /// Further named data, such as a tokenizer.
    attachments: Vec<(String, flambeau_tensor::Bytes)>,
    /// The outcome of every call.
    pub report: Report,
}

/// A delegate for a file that another program writes.
#[derive(Debug)]
pub struct Delegate<'a> {
    pub payload: Vec<u8>,
    /// Number of nodes, including the init chain.
    pub nodes: usize,
    /// Named data that the delegate reads when it is loaded.
    pub constants: Vec<(&'a str, flambeau_wire::Blob<'a>)>,
}

/// Compiles methods, each given by name. A buffer that one method writes is state in all methods
/// with a buffer of that name, so loaded methods can share it.
///
/// # Errors
/// [`Error::Refused`] lists every call that cannot be expressed in nodes. Other errors concern the
/// whole program.
pub fn compile<'a>(methods: &[(&str, &'a Exported)], options: &Options, engine: &dyn Engine) -> Result<Output<'a>, Error> {
    let mut output = Output { methods: Vec::new(), constants: Vec::new(), attachments: Vec::new(), report: Report::default() };
    let mut ordered = methods.to_vec();
    ordered.sort_by_key(|(name, _)| *name);
    let state = state_of(&ordered);
    check_rules(&ordered, &options.rules)?;
    let mut refused = Vec::new();
    for (i, (name, exported)) in ordered.iter().enumerate() {
        let (report, compiled) = method::compile((name, i), exported, options, &state, engine)?;
        refused.extend(report.refused().cloned());
        output.report.methods.push(report);
        output.methods.extend(compiled);
    }
    weights::unify(&mut output.methods.iter_mut().map(|(_, weights)| weights).collect::<Vec<_>>())?;
    if refused.is_empty() { Ok(output) } else { Err(Error::Refused { calls: refused, report: Box::new(output.report) }) }
}

/// Reports the outcome of every call without compiling. No weight is read, and the report includes
/// refusals.
///
/// # Errors
/// Errors concern the whole program.
pub fn dry_run(methods: &[(&str, &Exported)], options: &Options) -> Result<Report, Error> {
    let mut ordered = methods.to_vec();
    ordered.sort_by_key(|(name, _)| *name);
    let state = state_of(&ordered);
    let report = |(name, exported): &(&str, &Exported)| method::report(name, exported, options, &state);
    let methods = ordered.iter().map(report).collect::<Result<_, _>>()?;
    Ok(Report { methods })
}

/// Refuses rules that match no weight, unless they are optional.
fn check_rules(methods: &[(&str, &Exported)], rules: &[WeightRule]) -> Result<(), Error> {
    let names = || methods.iter().flat_map(|(_, exported)| exported.weights.keys().map(String::as_str));
    let layers = rule::layer_count(names());
    match rules.iter().find(|rule| !rule.is_optional && !names().any(|name| rule.is_about(name, layers))) {
        Some(rule) => Err(Error::Rule(rule.pattern.clone())),
        None => Ok(()),
    }
}

/// Names of the buffers that at least one method writes.
fn state_of(methods: &[(&str, &Exported)]) -> HashSet<String> {
    let programs: Vec<&Exported> = methods.iter().map(|(_, exported)| *exported).collect();
    usage::state_names(&programs)
}

impl Output<'_> {
    /// Adds a method without inputs that returns these values.
    pub fn constant_method(&mut self, name: impl Into<String>, values: Vec<EValue>) {
        self.constants.push((name.into(), values));
    }

    /// Adds data under a new key.
    pub fn attach(&mut self, key: impl Into<String>, data: flambeau_tensor::Bytes) {
        self.attachments.push((key.into(), data));
    }

    /// Writes the file: header, methods, then one weight after another. Returns the number of
    /// bytes.
    ///
    /// # Errors
    /// [`Error::Write`], and [`Error::Weight`] for a weight that cannot be read.
    pub fn write(&self, out: &mut dyn Write) -> Result<u64, Error> {
        Ok(self.writer()?.write(out)?)
    }

    /// The writer behind [`write`](Self::write), which also states the
    /// [size](ProgramWriter::data_size) in advance. No weight is read.
    ///
    /// # Errors
    /// [`Error::Write`].
    pub fn writer(&self) -> Result<ProgramWriter<'_>, Error> {
        let mut writer = ProgramWriter::new();
        for (compiled, weights) in &self.methods {
            compiled.add_to(&mut writer, weights)?;
        }
        for (name, values) in &self.constants {
            writer.constant_method(name, values.clone());
        }
        for (key, data) in &self.attachments {
            writer.named(key, flambeau_wire::Blob::from_bytes(data.clone()))?;
        }
        Ok(writer)
    }

    /// A method as one delegate. Its arguments are the method's inputs, then the method's outputs.
    /// `None` if there is no such method, or if it needs anything besides a delegate. Examples are
    /// kernel calls and constant outputs. [`Options::keep_inputs`] makes unread inputs arguments.
    pub fn delegate(&self, method: &str) -> Option<Delegate<'_>> {
        let (compiled, weights) = self.methods.iter().find(|(compiled, _)| compiled.name() == method)?;
        compiled.delegate(weights)
    }

    /// For each delegate of a method, the number of the call behind each node of its main chain.
    /// The numbers are positions in [`MethodReport::calls`]. Empty if there is no such method.
    pub fn node_calls(&self, method: &str) -> &[Vec<u32>] {
        let compiled = self.methods.iter().find(|(compiled, _)| compiled.name() == method);
        compiled.map_or(&[], |(compiled, _)| &compiled.calls)
    }

    /// The checked graph of each delegate, in the order in which they are written.
    pub fn graphs(&self) -> impl Iterator<Item = &flambeau_ir::Checked> {
        self.methods.iter().flat_map(|(compiled, _)| &compiled.graphs).map(|graph| &**graph)
    }
}
