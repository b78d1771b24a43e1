//! The machine's limits on an engine, measured with a memory-bound and a compute-bound product.

use std::{ops::RangeInclusive, sync::Arc, time::Instant};

use anyhow::{Result, anyhow};
use flambeau::{
    engine::{Constants, Engine, LoadOptions, Value},
    ir::{Graph, check},
    tensor::{Bytes, DType, Tensor},
};

/// Rates per second.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Roofline {
    pub(crate) bytes: f64,
    pub(crate) flops: f64,
}

/// Repetitions of each product; the fastest counts.
const ROUNDS: usize = 5;

/// Columns of the memory-bound weight.
const COLUMNS: u32 = 4096;

/// Rows of the memory-bound weight: larger than CPU caches, and up to 1 GiB on fast machines.
const ROWS: RangeInclusive<u32> = 8192..=65536;

/// Size of the compute-bound square matrices.
const SQUARE: RangeInclusive<u32> = 1024..=8192;

/// Target duration of a measured product in seconds, long enough to hide its start-up cost.
const LONG: f64 = 2e-3;

/// The weight's only value: a small number, written to distinct memory pages.
struct Filled(usize);

impl Constants for Filled {
    fn get(&self, _: &str) -> Option<Bytes> {
        Some(vec![0x3c; self.0].into())
    }
}

impl Roofline {
    /// Measures the limits on an engine with its threads.
    pub(crate) fn measure(engine: &dyn Engine) -> Result<Roofline> {
        let read =
            rate(ROWS, |rows| Ok((4.0 * f64::from(COLUMNS) * f64::from(rows), seconds(engine, DType::F32, [1, COLUMNS, rows])?)))?;
        let square = |dtype| rate(SQUARE, |size| Ok((2.0 * f64::from(size).powi(3), seconds(engine, dtype, [size; 3])?)));
        Ok(Roofline { bytes: read, flops: square(DType::F32)?.max(square(DType::BF16)?) })
    }
}

/// Rate of `measure`, which returns the amount of work and the seconds for a size. The size doubles
/// until a run is long enough.
fn rate(sizes: RangeInclusive<u32>, measure: impl Fn(u32) -> Result<(f64, f64)>) -> Result<f64> {
    let mut size = *sizes.start();
    loop {
        let (amount, seconds) = measure(size)?;
        if seconds >= LONG || size >= *sizes.end() {
            return Ok(amount / seconds);
        }
        size *= 2;
    }
}

/// Seconds of the fastest product `[m, k] · [n, k]ᵀ`: of the run's longest step where the engine
/// measures steps, as what is around it
/// may take as long.
fn seconds(engine: &dyn Engine, dtype: DType, [m, k, n]: [u32; 3]) -> Result<f64> {
    let t = dtype.name();
    let graph: Graph = format!(
        "slots constants=1 inputs=1 outputs=1 buffers=0 temps=1 values=0\nmain 0\ninput t1\noutput t2\nname t0 \"w\"\n\
         meta t0 {t}[{n},{k}]\nmeta t1 {t}[{m},{k}]\nmeta t2 {t}[{m},{n}]\nchain 0\n  Transpose x=t0 out=t3 perm=[1,0]\n  \
         Addmm mat1=t1 mat2=t3 out=t2\n"
    )
    .parse()?;
    let graph = Arc::new(check(graph).map_err(|e| anyhow!("{e}"))?);
    let mut session = engine.load(graph, &Filled(dtype.size() * (k * n) as usize), &LoadOptions::default())?;
    let x = Tensor::new(dtype, &[m as usize, k as usize], vec![0x3c; dtype.size() * (m * k) as usize].into())?;
    let mut fastest = f64::INFINITY;
    for _ in 0..=ROUNDS {
        let start = Instant::now();
        session.run(&[Value::Tensor(x.clone())])?;
        let whole = start.elapsed().as_secs_f64();
        let longest = session.take_spans().iter().map(|span| span.time).max();
        fastest = fastest.min(longest.map_or(whole, |nanoseconds| nanoseconds as f64 / 1e9));
    }
    Ok(fastest.max(f64::MIN_POSITIVE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_grow_until_they_take_long() {
        let check = |per_unit: f64, expected: f64| {
            let found = rate(1..=8, |size| Ok((f64::from(size), f64::from(size) * per_unit + 1e-3))).unwrap();
            assert!((found / expected - 1.0).abs() < 1e-9, "{per_unit}: {found} instead of {expected}");
        };
        check(1.0, 1.0 / 1.001);
        check(3e-4, 4.0 / 2.2e-3);
        check(0.0, 8.0 / 1e-3);
    }

    #[test]
    fn products_of_every_shape_run() {
        let engine = flambeau::cpu::CpuEngine::new(Some(1));
        for dtype in [DType::F32, DType::BF16] {
            assert!(seconds(&engine, dtype, [2, 64, 32]).unwrap().is_finite());
        }
    }
}
