//! Writes a program as a stream.

use std::{collections::BTreeMap, io::Write};

use flambeau_tensor::Bytes;
use indexmap::IndexMap;

use super::{
    check,
    encode::{Root, write_root},
    header::{Header, IDENTIFIER},
    program::{Delegate, DelegateData, EValue, ExecutionPlan, Program, Subsegment, TensorValue},
};
use crate::{
    blob::{Blob, Store},
    error::Error,
    flat::FlatWriter,
    segment::{Draft, Layout, pad, splice},
};

/// Alignment of constants in their segment, in bytes.
const CONSTANT_ALIGNMENT: u64 = 16;

/// A program under construction: methods, their payloads, constants and named data.
///
/// [`ProgramWriter::write`] produces, writes and drops one blob after another. Blobs with equal
/// identity are stored once, even under different keys, methods and delegates.
#[derive(Debug, Default)]
pub struct ProgramWriter<'a> {
    plans: Vec<ExecutionPlan>,
    constants: Store<'a>,
    initial: Store<'a>,
    payloads: Store<'a>,
    /// Payload in the store by plan and delegate. `None` is the empty payload.
    payload_of: Vec<Vec<Option<usize>>>,
    named: Store<'a>,
    keys: IndexMap<String, usize>,
}

impl<'a> ProgramWriter<'a> {
    /// Creates a writer without methods.
    pub fn new() -> ProgramWriter<'a> {
        ProgramWriter::default()
    }

    /// Adds the elements of a constant tensor and returns its [`TensorValue::data_buffer_idx`].
    pub fn constant(&mut self, elements: Blob<'a>) -> u32 {
        self.constants.add(elements) as u32 + 1
    }

    /// Adds the initial elements of a planned tensor and returns its
    /// [`TensorValue::data_buffer_idx`].
    pub fn initial(&mut self, elements: Blob<'a>) -> u32 {
        self.initial.add(elements) as u32 + 1
    }

    /// Adds named data.
    ///
    /// # Errors
    /// If the key already has different contents. Adding equal contents again changes nothing.
    pub fn named(&mut self, key: impl Into<String>, data: Blob<'a>) -> Result<(), Error> {
        let key = key.into();
        match self.keys.get(&key) {
            Some(&taken) if self.named.holds(taken, &data) => Ok(()),
            Some(_) => Err(Error::KeyConflict { key }),
            None => {
                self.keys.insert(key, self.named.add(data));
                Ok(())
            }
        }
    }

    /// Adds a method with the payloads of its delegates, in order. The writer sets the delegates'
    /// `data`.
    ///
    /// Methods keep their order. ExecuTorch sorts methods by name and places constant methods after
    /// them.
    ///
    /// # Errors
    /// If the numbers of delegates and payloads differ.
    pub fn method(&mut self, plan: ExecutionPlan, payloads: Vec<Blob<'a>>) -> Result<(), Error> {
        if plan.delegates.len() != payloads.len() {
            let problem = format!("{} delegates, but {} payloads", plan.delegates.len(), payloads.len());
            return Err(Error::invalid(format!("execution_plan[{}].delegates", self.plans.len()), problem));
        }
        let places = payloads.into_iter().map(|p| (!p.is_empty()).then(|| self.payloads.add(p))).collect();
        self.payload_of.push(places);
        self.plans.push(plan);
        Ok(())
    }

    /// Adds a method without inputs that returns `values`: see [`ExecutionPlan::constant`].
    pub fn constant_method(&mut self, name: impl Into<String>, values: Vec<EValue>) {
        self.plans.push(ExecutionPlan::constant(name, values));
        self.payload_of.push(Vec::new());
    }

    /// Creates a writer with the contents of `program`. `payload` converts each payload.
    ///
    /// # Errors
    /// Errors of `payload`, and [`Error::Invalid`] for an unsupported method.
    pub fn from_program(
        program: &Program,
        mut payload: impl FnMut(&Delegate, Bytes) -> Result<Blob<'a>, Error>,
    ) -> Result<ProgramWriter<'a>, Error> {
        if let Some(method) = program.unsupported.first() {
            let problem = format!("method `{}` cannot be written: {}", method.name.escape_debug(), method.reason);
            return Err(Error::invalid("execution_plan", problem));
        }
        let mut writer = ProgramWriter::new();
        let renamed = writer.copy_tensors(program);
        for plan in &program.plans {
            let mut plan = plan.clone();
            for tensor in tensors(&mut plan) {
                let key = (tensor.allocation.is_some(), tensor.data_buffer_idx);
                tensor.data_buffer_idx = renamed.get(&key).copied().unwrap_or(0);
            }
            let payloads: Result<_, _> = plan.delegates.iter().map(|d| payload(d, program.delegate_payload(d))).collect();
            writer.method(plan, payloads?)?;
        }
        for (key, &segment) in &program.named_data {
            writer.named(key, Blob::from_bytes(program.segment(segment)))?;
        }
        Ok(writer)
    }

    /// Adds the data of all tensors, in the order of their old indices. Returns the new index by
    /// (planned, old index).
    fn copy_tensors(&mut self, program: &Program) -> BTreeMap<(bool, u32), u32> {
        let mut data = BTreeMap::<(bool, u32), Bytes>::new();
        for value in program.plans.iter().flat_map(|p| &p.values) {
            if let EValue::Tensor(t) = value
                && let Some(bytes) = program.tensor_data(t)
            {
                let longest = data.entry((t.allocation.is_some(), t.data_buffer_idx)).or_default();
                if bytes.len() >= longest.len() {
                    *longest = bytes;
                }
            }
        }
        let add = |(key, bytes): ((bool, u32), Bytes)| {
            let blob = Blob::from_bytes(bytes);
            (key, if key.0 { self.initial(blob) } else { self.constant(blob) })
        };
        data.into_iter().map(add).collect()
    }

    /// Total bytes of all data added so far. Each blob counts once.
    pub fn data_size(&self) -> u64 {
        let stores = [&self.constants, &self.initial, &self.payloads, &self.named];
        stores.into_iter().flat_map(|store| store.blobs()).map(Blob::len).sum()
    }

    /// Writes the file and returns its length in bytes. `out` need not support seeking. Wrap a file
    /// in a buffered writer.
    ///
    /// # Errors
    /// If a method is invalid (indices, shapes, places in arenas, names), a producer fails or
    /// writes a wrong number of bytes, or `out` fails. The partial output is then not a valid
    /// program.
    pub fn write(mut self, out: &mut dyn Write) -> Result<u64, Error> {
        let constant_starts = self.constants.starts(CONSTANT_ALIGNMENT);
        let initial_starts = self.initial.starts(1);
        let first_payload = 1 + u32::from(!initial_starts.is_empty());
        let first_named = first_payload + self.payloads.count();
        self.place_payloads(first_payload);

        let resources = check::Resources {
            constants: room(self.constants.blobs()),
            initial: room(self.initial.blobs()),
            segments: (first_named + self.named.count()) as usize,
            inline_payloads: 1,
        };
        check::plans(&self.plans, &resources)?;

        let mut drafts = vec![Draft { name: "constants".into(), blobs: self.constants.into_blobs(), align: CONSTANT_ALIGNMENT }];
        if !initial_starts.is_empty() {
            drafts.push(Draft { name: "initial contents".into(), blobs: self.initial.into_blobs(), align: 1 });
        }
        drafts.extend(self.payloads.into_blobs().into_iter().map(|blob| Draft::of("delegate payload", blob)));
        let mut names = vec![""; self.named.count() as usize];
        self.keys.iter().rev().for_each(|(key, &at)| names[at] = key);
        drafts.extend(self.named.into_blobs().into_iter().zip(&names).map(|(blob, name)| Draft::of(*name, blob)));
        let root = Root {
            plans: &self.plans,
            constants: Subsegment { segment: 0, offsets: with_placeholder(constant_starts) },
            mutable_data: (!initial_starts.is_empty())
                .then(|| Subsegment { segment: 1, offsets: with_placeholder(initial_starts) }),
            empty_payload: self.payload_of.iter().flatten().any(Option::is_none),
            named_data: self.keys.iter().map(|(key, &at)| (key.as_str(), first_named + at as u32)).collect(),
        };
        write_file(out, &root, Layout::new(drafts))
    }

    fn place_payloads(&mut self, first: u32) {
        for (plan, payloads) in self.plans.iter_mut().zip(&self.payload_of) {
            for (delegate, at) in plan.delegates.iter_mut().zip(payloads) {
                delegate.data = at.map_or(DelegateData::Inline(0), |at| DelegateData::Segment(first + at as u32));
            }
        }
    }
}

fn tensors(plan: &mut ExecutionPlan) -> impl Iterator<Item = &mut TensorValue> {
    plan.values.iter_mut().filter_map(|v| match v {
        EValue::Tensor(t) => Some(&mut **t),
        _ => None,
    })
}

fn with_placeholder(starts: Vec<u64>) -> Vec<u64> {
    std::iter::once(0).chain(starts).collect()
}

/// Bytes available to each tensor, by index: the length of its blob.
fn room(blobs: &[Blob<'_>]) -> Vec<u64> {
    with_placeholder(blobs.iter().map(Blob::len).collect())
}

/// Writes the file. Without segment data, it is only the FlatBuffer.
fn write_file(out: &mut dyn Write, root: &Root<'_>, layout: Layout<'_>) -> Result<u64, Error> {
    let mut flat = FlatWriter::default();
    let table = write_root(&mut flat, root, |flat| layout.table(flat));
    let flat = flat.finish(table, Some(IDENTIFIER));
    let data_size = layout.size();
    if data_size == 0 {
        out.write_all(&flat)?;
        return Ok(flat.len() as u64);
    }
    let (header, base) = Header::bytes(flat.len() as u64, data_size);
    let head = splice(flat, &header);
    out.write_all(&head)?;
    pad(out, base - head.len() as u64)?;
    layout.write(out)?;
    out.flush()?;
    Ok(base + data_size)
}
