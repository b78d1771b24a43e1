//! What an engine reaches on this machine: measured with two products, one that waits for memory and one that computes.

use std::{sync::Arc, time::Instant};

use anyhow::{Result, anyhow};
use flambeau::{
    ir::{
        Graph, check,
        engine::{Constants, Engine, LoadOptions, Value},
    },
    tensor::{Bytes, DType, Tensor},
};

/// Rates, each a second.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ceilings {
    pub(crate) bytes: f64,
    pub(crate) flops: f64,
}

/// Repetitions of each product; the fastest counts.
const ROUNDS: usize = 5;

/// Columns of the weight that is read from memory, and its rows: larger than caches are.
const READ: [u32; 2] = [4096, 8192];

/// Rows of the square matrices that are multiplied.
const COMPUTE: u32 = 1024;

/// The one constant: the same small number everywhere, in pages of its own.
struct Filled(usize);

impl Constants for Filled {
    fn get(&self, _: &str) -> Option<Bytes> {
        Some(vec![0x3c; self.0].into())
    }
}

impl Ceilings {
    /// Measures on an engine, its threads included.
    pub(crate) fn measure(engine: &dyn Engine) -> Result<Ceilings> {
        let [k, n] = READ;
        let read = seconds(engine, DType::F32, [1, k, n])?;
        let size = COMPUTE;
        let compute = [DType::F32, DType::BF16].map(|dtype| seconds(engine, dtype, [size; 3]));
        let [single, half] = compute;
        let compute = single?.min(half?);
        Ok(Ceilings { bytes: f64::from(k) * f64::from(n) * 4.0 / read, flops: 2.0 * f64::from(size).powi(3) / compute })
    }
}

/// Seconds of the fastest product `[m, k] · [n, k]ᵀ`.
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
        fastest = fastest.min(start.elapsed().as_secs_f64());
    }
    Ok(fastest.max(f64::MIN_POSITIVE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_of_every_shape_run() {
        let engine = flambeau::cpu::CpuEngine::new(Some(1));
        for dtype in [DType::F32, DType::BF16] {
            assert!(seconds(&engine, dtype, [2, 64, 32]).unwrap().is_finite());
        }
    }
}
