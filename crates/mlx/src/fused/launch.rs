//! Launches made of ordered parts. Either every part is its own launch, or all parts form one
//! launch that fills the device, with grid-wide barriers between them.

use std::{collections::BTreeMap, fmt::Write as _};

use flambeau_ir::{Node, Role, Slot as GraphSlot, Tid};
use flambeau_tensor::{DType, Shape};
use sha2::{Digest, Sha256};

use super::{StepState, attention::MAX_HEADS};
use crate::{
    cuda,
    cx::{Cx, Machine},
    error::{OpError, Result},
    eval,
    ffi::{Array, KernelText, Launch},
    residency::Residency,
    values::Slot,
};

/// Warps per block: in a launch per part, and in a launch that fills the device.
pub(super) const WARPS: usize = 8;
const RESIDENT_WARPS: usize = 16;
/// Maximum number of blocks per launch. Each then computes several tiles and stages the row in
/// shared memory once.
const MAX_BLOCKS: usize = 1056;
/// Shared memory in bytes that every device with 16-bit floats offers a block.
const MAX_SHARED: usize = 96 << 10;
/// Alignment of a part's results in bytes.
const ALIGNMENT: usize = 256;

/// A result of a part.
struct Value {
    tid: Option<Tid>,
    dtype: DType,
    shape: Shape,
}

impl Value {
    /// Size in bytes; a slot's value has room for `rows` rows.
    fn bytes(&self, rows: Option<usize>) -> usize {
        let count = match (rows.filter(|_| self.tid.is_some()), self.shape.split_first()) {
            (Some(rows), Some((_, each))) => rows * each.iter().product::<usize>(),
            _ => self.shape.iter().product::<usize>(),
        };
        (count * self.dtype.size()).next_multiple_of(ALIGNMENT)
    }
}

/// An operand of a part.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Name {
    Input(usize),
    Value(usize),
}

/// A piece of a kernel's text. It uses these names: `kW` is the number of warps per block, `shared`
/// the block's memory, `factor` the pending norm factor of the staged row. It calls `wait` before
/// it reads results of other parts.
struct Part {
    text: String,
    shared: usize,
    blocks: usize,
    reads: Vec<Name>,
    writes: Vec<usize>,
}

/// Collects parts. Until the launch, the slots they write hold placeholders.
pub(super) struct Builder {
    resident: Option<Residency>,
    /// Source text of the parts' functions: for one launch per part, and for one resident launch.
    headers: [&'static str; 2],
    /// Row capacity of the slots. With it, the kernel text does not depend on the number of rows.
    rows: Option<usize>,
    inputs: Vec<Array>,
    values: Vec<Value>,
    /// Placeholder arrays for results, by type.
    stand_ins: Vec<(DType, Array)>,
    /// The values that slots hold.
    bound: BTreeMap<Tid, usize>,
    parts: Vec<Part>,
    reads: Vec<Name>,
    writes: Vec<usize>,
}

impl Builder {
    /// Parts of one launch that fills a device, or of one launch each.
    pub(super) fn new(resident: Option<Residency>) -> Builder {
        let headers = [cuda::steps(), cuda::resident_steps()];
        let (inputs, values, stand_ins, parts) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let (bound, reads, writes) = (BTreeMap::new(), Vec::new(), Vec::new());
        Builder { resident, headers, rows: None, inputs, values, stand_ins, bound, parts, reads, writes }
    }

    /// Like the above, for parts that compute up to `rows` rows, one per sequence.
    pub(super) fn of_rows(resident: Option<Residency>, rows: usize) -> Builder {
        Builder { headers: [cuda::rows(), cuda::resident_rows()], rows: Some(rows), ..Builder::new(resident) }
    }

    /// Whether there is nothing to launch.
    pub(super) fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Warps of a block.
    pub(super) fn warps(&self) -> usize {
        if self.resident.is_some() { RESIDENT_WARPS } else { WARPS }
    }

    /// Warps of the whole launch, if it has a fixed number.
    pub(super) fn all_warps(&self) -> Option<usize> {
        self.resident.map(|device| device.blocks * RESIDENT_WARPS)
    }

    /// Whether all parts are one launch.
    pub(super) fn is_resident(&self) -> bool {
        self.resident.is_some()
    }

    /// Number of copies of a per-block value: one per block in a resident launch, else one.
    pub(super) fn copies(&self) -> usize {
        self.resident.map_or(1, |device| device.blocks)
    }

    /// Bytes of shared memory that a part may have.
    pub(super) fn max_shared(&self) -> usize {
        self.resident.map_or(MAX_SHARED, |device| device.shared_memory)
    }

    /// Whether an earlier part computes a slot's contents.
    pub(super) fn computes(&self, tid: Tid) -> bool {
        self.bound.contains_key(&tid)
    }

    /// The name of a slot's contents.
    pub(super) fn slot(&mut self, m: &Machine, tid: Tid) -> Result<String> {
        if let Some(&value) = self.bound.get(&tid) {
            return Ok(self.named(value));
        }
        Ok(self.array(m.slot(tid)?.array.share()?))
    }

    /// The name of rows that a slot holds, or held before other nodes wrote it.
    pub(super) fn rows(&mut self, tid: Tid, rows: &Slot) -> Result<String> {
        if let Some(&value) = self.bound.get(&tid) {
            return Ok(self.named(value));
        }
        Ok(self.array(rows.array.share()?))
    }

    fn named(&mut self, value: usize) -> String {
        self.reads.push(Name::Value(value));
        format!("v{value}")
    }

    /// The name of an array.
    pub(super) fn array(&mut self, array: Array) -> String {
        self.inputs.push(array);
        let name = self.inputs.len() - 1;
        self.reads.push(Name::Input(name));
        format!("p{name}")
    }

    /// The name of a value that an earlier part of the same step left.
    pub(super) fn earlier(&mut self, name: &str) -> String {
        self.reads.extend(name[1..].parse().ok().map(Name::Value));
        name.to_owned()
    }

    /// The name of the part's result in a slot. Call it after the part has read the slot.
    pub(super) fn result(&mut self, m: &mut Machine, tid: Tid, dtype: DType, shape: Shape) -> Result<String> {
        let stand_in = match self.stand_ins.iter().find(|(of, _)| *of == dtype) {
            Some((_, array)) => array.share()?,
            None => {
                let array = Array::full(m.api, &[], 0.0, dtype)?;
                self.stand_ins.push((dtype, array.share()?));
                array
            }
        };
        m.set(tid, Slot::new(stand_in, dtype, shape.clone()));
        let name = self.value(Value { tid: Some(tid), dtype, shape });
        self.bound.insert(tid, self.values.len() - 1);
        Ok(name)
    }

    /// The name of an intermediate value for later parts.
    pub(super) fn inner(&mut self, dtype: DType, count: usize) -> String {
        self.value(Value { tid: None, dtype, shape: Shape::from_slice(&[count]) })
    }

    fn value(&mut self, value: Value) -> String {
        self.values.push(value);
        let name = self.values.len() - 1;
        self.writes.push(name);
        format!("v{name}")
    }

    /// Ends a part. It has work for `blocks` blocks.
    pub(super) fn part(&mut self, text: String, shared: usize, blocks: usize) {
        let (reads, writes) = (std::mem::take(&mut self.reads), std::mem::take(&mut self.writes));
        self.parts.push(Part { text, shared, blocks, reads, writes });
    }

    /// Runs a node between parts; `false` if it reads their results.
    pub(super) fn keep(&mut self, m: &mut Machine, node: &Node) -> Result<bool> {
        let may_read = matches!(node, Node::SymSize(_));
        let (mut free, mut written) = (true, Vec::new());
        node.walk(&mut |role, slot| {
            let GraphSlot::Tensor(tid) = slot else { return };
            free &= role == Role::Write || may_read || !self.bound.contains_key(&tid);
            if role != Role::Read {
                written.push(tid);
            }
        });
        if free {
            match eval::eval(node, &mut Cx { m: &mut *m }) {
                // A trace cannot compute this value; a later reader ends the trace.
                Err(_) if m.open.is_some() => written.iter().for_each(|&tid| m.empty(tid)),
                result => result?,
            }
            self.bound.retain(|tid, _| !written.contains(tid));
        }
        Ok(free)
    }

    /// Adds a launch for each part to MLX's graph and binds the slots. Returns the number of
    /// launches.
    pub(super) fn launch_each(self, m: &mut Machine) -> Result<usize> {
        let mut made: BTreeMap<usize, Array> = BTreeMap::new();
        for part in &self.parts {
            let mut kernel = Text::new(format!("constexpr int kW={WARPS};auto wait=[]{{}};"));
            for &name in &part.reads {
                match name {
                    Name::Input(i) => kernel.input(format!("p{i}"), &self.inputs[i])?,
                    Name::Value(i) => {
                        kernel.input(format!("v{i}"), made.get(&i).ok_or_else(|| OpError::value("a part is missing"))?)?
                    }
                }
            }
            for &i in &part.writes {
                kernel.output(format!("v{i}"), self.values[i].dtype, self.values[i].shape.clone());
            }
            kernel.body.push_str(&part.text);
            let arrays = kernel.launch(m, self.headers[0], part.shared, [part.blocks.clamp(1, MAX_BLOCKS), 1], WARPS)?;
            made.extend(part.writes.iter().copied().zip(arrays));
        }
        for (&tid, i) in &self.bound {
            if let Some(array) = made.remove(i) {
                m.set(tid, Slot::new(array, self.values[*i].dtype, self.values[*i].shape.clone()));
            }
        }
        Ok(self.parts.len())
    }

    /// Adds one launch to MLX's graph, binds the slots in `live` and empties the others.
    pub(super) fn launch_joined(self, m: &mut Machine, shared: &mut StepState, live: &[Tid]) -> Result<()> {
        let Some(device) = self.resident else { return Ok(()) };
        let counters = shared.counters(m.api)?;
        let mut kernel = Text::new(format!(
            "constexpr int kW={RESIDENT_WARPS};Barrier barrier{{const_cast<unsigned*>(counters)+{MAX_HEADS},0}};\n"
        ));
        kernel.new_input("counters", counters);
        for (i, array) in self.inputs.into_iter().enumerate() {
            kernel.new_input(format!("p{i}"), array);
        }
        let mut scratch = 0;
        for (i, value) in self.values.iter().enumerate() {
            if value.tid.is_some_and(|tid| live.contains(&tid) && self.bound.get(&tid) == Some(&i)) {
                kernel.output(format!("v{i}"), value.dtype, value.shape.clone());
                continue;
            }
            let ty = cuda::value_type(value.dtype).unwrap_or_default();
            // Writing to a string cannot fail.
            let _ = writeln!(kernel.body, "{ty}* v{i}=reinterpret_cast<{ty}*>(scratch+{scratch});");
            scratch += value.bytes(self.rows);
        }
        kernel.output("scratch".to_owned(), DType::U8, Shape::from_slice(&[scratch.max(1)]));
        for (i, part) in self.parts.iter().enumerate() {
            let wait = if i == 0 { "[]{}" } else { "[&]{barrier.wait();}" };
            let arrive = if i == 0 { "" } else { "barrier.arrive();" };
            let _ = writeln!(kernel.body, "{arrive}{{auto wait={wait};{}}}", part.text);
        }
        kernel.body.push_str("barrier.leave();");
        let memory = self.parts.iter().map(|part| part.shared).max().unwrap_or(0);
        let names = kernel.outputs.iter().map(|(name, ..)| name.clone()).collect::<Vec<_>>();
        let arrays = kernel.launch(m, self.headers[1], memory, [device.blocks, 1], RESIDENT_WARPS)?;
        for (tid, i) in self.bound {
            m.empty(tid);
            let (name, value) = (format!("v{i}"), &self.values[i]);
            if let Some(at) = names.iter().position(|n| *n == name) {
                m.set(tid, Slot::new(arrays[at].share()?, value.dtype, value.shape.clone()));
            }
        }
        Ok(())
    }
}

/// A kernel's text and operands.
pub(super) struct Text {
    pub(super) body: String,
    inputs: Vec<String>,
    arrays: Vec<Array>,
    outputs: Vec<(String, DType, Shape)>,
}

impl Text {
    /// A kernel text: the declarations that parts use, then `begin`.
    pub(super) fn new(begin: String) -> Text {
        let memory = "extern __shared__ float4 dynamic[];float* shared=reinterpret_cast<float*>(dynamic);float factor=1.0f;";
        let body = format!("{memory}{begin}");
        Text { body, inputs: Vec::new(), arrays: Vec::new(), outputs: Vec::new() }
    }

    /// Adds an operand unless its name is taken.
    fn input(&mut self, name: String, array: &Array) -> Result<()> {
        if !self.inputs.contains(&name) {
            self.new_input(name, array.share()?);
        }
        Ok(())
    }

    /// Adds an operand with a unique name.
    pub(super) fn new_input(&mut self, name: impl Into<String>, array: Array) {
        self.arrays.push(array);
        self.inputs.push(name.into());
    }

    /// Adds a result.
    pub(super) fn output(&mut self, name: String, dtype: DType, shape: Shape) {
        self.outputs.push((name, dtype, shape));
    }

    /// Adds a launch of `blocks` blocks, by axis, to MLX's graph and returns its results.
    ///
    /// # Errors
    /// If MLX refuses the kernel.
    pub(super) fn launch(
        self,
        m: &mut Machine,
        header: &str,
        shared: usize,
        blocks: [usize; 2],
        warps: usize,
    ) -> Result<Vec<Array>> {
        let hash = Sha256::digest(&self.body);
        let name: String = hash[..8].iter().map(|b| format!("{b:02x}")).collect();
        let names: Vec<String> = self.outputs.iter().map(|(name, ..)| name.clone()).collect();
        let text = KernelText {
            is_cuda: true,
            // MLX sets a kernel's shared memory when it first sees its name and text, so both
            // include all sizes.
            name: &format!("flambeau_{name}_{shared}_{warps}"),
            source: &self.body,
            header,
            inputs: &self.inputs,
            outputs: &names,
            row_contiguous: true,
            atomic_outputs: false,
            shared_memory: shared as i32,
        };
        let outputs: Vec<(DType, Shape)> = self.outputs.into_iter().map(|(_, dtype, shape)| (dtype, shape)).collect();
        let threads = (warps * 32) as i32;
        let launch = Launch {
            outputs: &outputs,
            grid: [blocks[0] as i32 * threads, blocks[1] as i32, 1],
            threads: [threads, 1, 1],
            templates: &[],
            init: None,
        };
        cuda::launch(m, &text, &self.arrays.iter().collect::<Vec<_>>(), &launch)
    }
}
