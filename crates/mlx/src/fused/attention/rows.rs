//! Attention of one position of each of several sequences, every one over its own cache, as one launch.

use std::fmt::Write as _;

use flambeau_tensor::{DType, Shape, Tensor};

use super::{Attention, Heads, MAX_HEADS, Operands};
use crate::{
    cuda,
    cx::{Machine, Slot},
    error::{OpError, Result},
    ffi::Array,
    fused::{
        launch::{Text, WARPS},
        linear::content,
        rows::{MAX_ROWS, Scratch},
    },
};

impl Attention {
    /// Query, key and value of a step for which there are rows: one that writes a position of its own, and whose cuts nobody reads.
    pub(crate) fn heads(&self) -> Option<[&Heads; 3]> {
        let fresh = self.fresh.as_ref().filter(|_| self.readers.is_empty())?;
        Some([&self.q, &fresh.k, &fresh.v])
    }

    /// Whether the kernel takes rows `[sequences, ..]` of queries, keys and values, and the caches of these machines.
    pub(crate) fn takes_rows(&self, machines: &[&mut Machine], rows: [&Slot; 3]) -> bool {
        let (count, dtype) = (machines.len(), rows[0].dtype);
        let is_row = |(row, heads): (&&Slot, &&Heads)| {
            row.dtype == dtype && row.shape.iter().product::<usize>() == count * heads.count * heads.step
        };
        let Some(heads) = self.heads() else { return false };
        let sizes = self.key_heads * self.capacity * self.q.dim;
        let holds = |m: &&mut Machine| self.caches.iter().all(|&cache| content(m, cache, dtype, sizes).is_some());
        count <= MAX_ROWS
            && cuda::type_name(dtype).is_some()
            && rows.iter().zip(&heads).all(is_row)
            && self.holds_constants(machines[0], dtype).is_some()
            && machines.iter().all(holds)
    }

    /// The results `[sequences, 1, heads * dim]` of rows that the kernel [takes](Self::takes_rows), once the step's other nodes have run.
    ///
    /// # Errors
    /// If a sequence's position lies outside of its cache, or MLX fails.
    pub(crate) fn over_rows(&self, machines: &mut [&mut Machine], rows: [&Slot; 3], scratch: &mut Scratch) -> Result<Slot> {
        let positions: Option<Vec<i32>> = machines.iter().map(|m| self.position(m).map(|position| position.value)).collect();
        let positions = positions.ok_or_else(|| OpError::value("a position lies outside of the cache"))?;
        self.launch(machines, rows, &positions, scratch)
    }

    fn launch(&self, machines: &mut [&mut Machine], rows: [&Slot; 3], positions: &[i32], scratch: &mut Scratch) -> Result<Slot> {
        let (count, dtype) = (machines.len(), rows[0].dtype);
        let ty = cuda::type_name(dtype).unwrap_or_default();
        let mut kernel = Text::new(format!("constexpr int kW={WARPS};auto wait=[]{{}};const int lane_row=blockIdx.y;"));
        for (name, slot) in ["q", "k", "v"].into_iter().zip(rows) {
            kernel.new_input(name, &slot.array)?;
        }
        kernel.new_input("positions", &scratch.positions(machines[0], positions)?)?;
        kernel.new_input("tickets", &scratch.tickets(machines[0])?)?;
        let mut places = 0;
        let constants = self.constants(machines[0], dtype, &mut |tid| {
            // By their places, so that layers share a kernel.
            let name = format!("c{places}");
            places += 1;
            kernel.new_input(name.clone(), &machines[0].slot(tid)?.array)?;
            Ok(name)
        })?;
        // The text is the same for any number of sequences; there are no blocks for those past the last.
        let caches = scratch.caches.get_or_insert_with(CacheNames::new);
        for (case, names) in caches.names.iter().enumerate() {
            let m = &machines[case.min(count - 1)];
            for (name, cache) in names.iter().zip(self.caches) {
                kernel.new_input(name, &m.slot(cache)?.array)?;
            }
        }
        kernel.body.push_str(&caches.choice);
        let (splits, split_rows) = self.splits();
        let parts = self.q.count * splits * (self.q.dim + 2);
        let row = |name: &str, width: usize| format!("{name}+lane_row*{width}");
        let width = |i: usize| self.heads().map_or(0, |heads| heads[i].count * heads[i].step);
        let operands = Operands {
            rows: [&row("q", width(0)), &row("k", width(1)), &row("v", width(2))],
            caches: ["keys", "values"],
            scratch: [&row("parts", parts), &row("const_cast<unsigned*>(tickets)", MAX_HEADS)],
            out: &row("out", self.q.count * self.q.dim),
            position: "positions[lane_row]",
        };
        kernel.body.push_str(&self.text(machines[0], ty, &constants, &operands, (splits, split_rows)));
        kernel.output("parts".to_owned(), DType::F32, Shape::from_slice(&[count * parts]));
        let shape = Shape::from_slice(&[count, 1, self.q.count * self.q.dim]);
        kernel.output("out".to_owned(), dtype, shape.clone());
        let longest = positions.iter().copied().max().and_then(|most| usize::try_from(most).ok()).unwrap_or(0);
        let blocks = self.key_heads * self.share() * splits.min(1 + longest / split_rows);
        let made = kernel.launch(machines[0], cuda::attention(), self.shared_memory(WARPS), [blocks, count], WARPS)?;
        let out = made.into_iter().nth(1).ok_or_else(|| OpError::value("a kernel gave no result"))?;
        Ok(Slot::new(out, dtype, shape))
    }
}

/// The names of keys and values by sequence, and the text that chooses those of a block's sequence.
#[derive(Debug)]
pub(in crate::fused) struct CacheNames {
    names: Vec<[String; 2]>,
    choice: String,
}

impl CacheNames {
    fn new() -> CacheNames {
        let names: Vec<[String; 2]> = (0..MAX_ROWS).map(|case| [format!("keys{case}"), format!("values{case}")]).collect();
        let mut choice = "decltype(keys0)keys;decltype(values0)values;switch(lane_row){".to_owned();
        for (case, [keys, values]) in names.iter().enumerate() {
            let place = if case == 0 { "default".to_owned() } else { format!("case {case}") };
            // Writing to a string cannot fail.
            let _ = write!(choice, "{place}:keys={keys};values={values};break;");
        }
        choice.push('}');
        CacheNames { names, choice }
    }
}

impl Scratch {
    /// The positions on the device, i32 `[sequences]`.
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

    /// Counters that every launch leaves at zero, for each key head of each sequence.
    fn tickets(&mut self, m: &Machine) -> Result<Array> {
        if self.tickets.is_none() {
            self.tickets =
                Some(Array::full(m.api, &[MAX_ROWS * MAX_HEADS], 0.0, DType::U32)?.unary(crate::ffi::Unary::Contiguous)?);
        }
        Ok(self.tickets.as_ref().ok_or_else(|| OpError::value("there are no counters"))?.share()?)
    }
}
