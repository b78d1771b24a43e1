//! Attention of one position of each of several sequences, every one over its own cache.

use flambeau_tensor::{DType, Shape};

use super::{Attention, Heads, MAX_HEADS, Operands};
use crate::{
    cuda,
    cx::Machine,
    error::{OpError, Result},
    fused::{
        layers_text::COUNTERS,
        linear::content,
        rows::{MAX_ROWS, RowSteps, eights},
    },
    values::Slot,
};

/// Maximum number of position ranges, and minimum number of positions for two ranges. Several
/// sequences fill a device with longer ranges than one sequence does.
const SPLITS: (usize, usize) = (16, 512);
/// Limits for wide heads.
const WIDE_SPLITS: (usize, usize) = (32, 128);

impl Attention {
    /// Query, key and value of a step that can take rows: it writes its own position, and no later
    /// node reads its cache slices.
    pub(crate) fn heads(&self) -> Option<[&Heads; 3]> {
        let fresh = self.fresh.as_ref().filter(|_| self.readers.is_empty())?;
        Some([&self.q, &fresh.k, &fresh.v])
    }

    /// Whether the kernel takes rows `[sequences, ..]` of queries, keys and values, and the caches
    /// of these machines.
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
}

impl RowSteps<'_> {
    /// The names of the rows `[sequences, ..]` of queries, keys and values that attention's kernel
    /// [takes](Attention::takes_rows).
    ///
    /// # Errors
    /// If MLX fails.
    pub(crate) fn name_heads(&mut self, attention: &Attention, rows: [&Slot; 3]) -> Result<Vec<String>> {
        let heads = attention.heads().into_iter().flatten();
        heads.zip(rows).map(|(heads, row)| self.builder.rows(heads.source, row)).collect()
    }

    /// Adds attention of [named](RowSteps::name_heads) rows of type `dtype`, after the step's other
    /// nodes.
    ///
    /// # Errors
    /// If a sequence's position is outside its cache, or MLX fails.
    pub(crate) fn attention(
        &mut self,
        machines: &mut [&mut Machine],
        attention: &Attention,
        names: &[String],
        dtype: DType,
    ) -> Result<()> {
        let positions: Option<Vec<i32>> = machines.iter().map(|m| attention.position(m).map(|position| position.value)).collect();
        let positions = positions.ok_or_else(|| OpError::value("a position lies outside of the cache"))?;
        let positions = self.name_positions(machines[0], &positions)?;
        attention.build_rows(machines, self, names, &positions, dtype)
    }
}

impl Attention {
    /// Adds the part. Blocks iterate over the items of all sequences.
    fn build_rows(
        &self,
        machines: &mut [&mut Machine],
        run: &mut RowSteps<'_>,
        names: &[String],
        positions: &str,
        dtype: DType,
    ) -> Result<()> {
        let Some(heads) = self.heads() else { return Ok(()) };
        let (count, sequences) = (machines.len(), run.count()?);
        let table = run.shared.caches.table(machines, self.caches)?;
        let m = &mut *machines[0];
        let tickets = run.shared.counters(m.api)?;
        let b = &mut run.builder;
        let (table, tickets) = (b.array(table), b.array(tickets));
        let ty = cuda::type_name(dtype).unwrap_or_default();
        let rows = heads.iter().zip(names).map(|(heads, name)| format!("{name}+row*{}", heads.count * heads.step));
        let rows: Vec<String> = rows.collect();
        let [q, k, v] = &rows[..] else { return Ok(()) };
        let constants = self.constants(m, dtype, &mut |tid| b.slot(m, tid))?;
        let (splits, split_rows) = if self.q.dim > 128 { WIDE_SPLITS } else { SPLITS };
        let parts_of_row = self.q.count * splits * (self.q.dim + 2);
        let parts = b.inner(DType::F32, eights(count) * 8 * parts_of_row);
        let width = self.q.count * self.q.dim;
        let out = b.result(m, self.out, dtype, Shape::from_slice(&[count, 1, width]))?;
        let operands = Operands {
            rows: [q, k, v],
            caches: ["keys", "values"],
            scratch: [
                &format!("{parts}+row*{parts_of_row}"),
                &format!("const_cast<unsigned*>({tickets})+{}+row*{MAX_HEADS}", MAX_HEADS + COUNTERS),
            ],
            out: &format!("{out}+row*{width}"),
            position: "at",
            wait: "once,first",
        };
        let items = self.key_heads * self.blocks_per_key_head();
        let text = format!(
            "unsigned before=0;bool waited=false;auto once=[&]{{if(!waited){{waited=true;wait();}}}};\
             for(int row=0;row<{sequences};++row){{\
             int at={positions}[row],items={items}*min({splits},1+at/{split_rows});\
             int first=(blockIdx.x+gridDim.x-before%gridDim.x)%gridDim.x;before+=items;if(first>=items)continue;\
             {ty}*keys=reinterpret_cast<{ty}*>({table}[2*row]);{ty}*values=reinterpret_cast<{ty}*>({table}[2*row+1]);\
             {}}}if(!waited)wait();",
            self.text(m, ty, &constants, &operands, (splits, split_rows)),
        );
        let warps = b.warps();
        b.part(text, self.shared_memory(warps), items * splits * count);
        Ok(())
    }
}
