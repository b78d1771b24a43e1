//! How much each weight's quantization changes the results of its layer.

use flambeau_lower::Scheme;
use flambeau_pt2::Exported;

use crate::{
    Error, Options,
    evaluate::evaluate,
    quantize::{quantized_products, relative_error},
    trace::Trace,
    usage,
};

/// The errors of a linear layer's results for several schemes of its weight.
#[derive(Clone, Debug, PartialEq)]
pub struct Sensitivity {
    /// Name of the weight.
    pub weight: String,
    /// Number of the weight's elements.
    pub elements: usize,
    /// For each scheme, the squared error of the results relative to their squares. `None` if the
    /// scheme cannot pack the weight.
    pub errors: Vec<Option<f32>>,
}

/// Estimates the errors of every linear layer with [`Options::linear`] codes, from a sample of its
/// rows. Layers with a scheme of their own, embedding tables, and layers without statistics of
/// their inputs are left out.
///
/// # Errors
/// As [`compile`](crate::compile()).
pub fn sensitivities(exported: &Exported, options: &Options, schemes: &[Scheme]) -> Result<Vec<Sensitivity>, Error> {
    let state = usage::state_names(&[exported]);
    let (ssa, trace) = Trace::run(exported, options, &state)?.into_graph()?;
    let mut products = quantized_products(&ssa, options);
    products.retain(|product| product.is_plain && options.statistics.get(&product.weight.name).is_some());
    products.sort_by(|a, b| a.weight.name.cmp(&b.weight.name));
    products.dedup_by(|a, b| a.weight.name == b.weight.name);
    let weights = &trace.weights;
    let of = |product: &crate::quantize::Product| {
        let weight = evaluate(&product.weight, weights)?;
        let inputs = options.statistics.get(&product.weight.name);
        let errors = schemes.iter().map(|scheme| relative_error(&weight, *scheme, inputs)).collect();
        Ok(Sensitivity { weight: product.weight.name.clone(), elements: weight.numel(), errors })
    };
    let threads = options.threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
    let run = products.len().div_ceil(threads.max(1)).max(1);
    let all = std::thread::scope(|scope| {
        let runs: Vec<_> =
            products.chunks(run).map(|run| scope.spawn(move || run.iter().map(of).collect::<Result<Vec<_>, Error>>())).collect();
        runs.into_iter().map(|run| run.join()).collect::<Vec<_>>()
    });
    let mut list = Vec::with_capacity(products.len());
    for run in all {
        match run {
            Ok(run) => list.extend(run?),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
    Ok(list)
}
