//! Archives: reads programs and weights from their members.

use flambeau_tensor::{Bytes, Expr};
use indexmap::IndexMap;

use crate::{
    Error, Exported, Limited, Result, Storage, TensorFault, TensorMeta, View, Weight,
    container::Container,
    convert::{self, Converter, Meta},
    legacy,
    limits::MAX_JSON_BYTES,
    pickle, schema,
};

/// An opened archive.
#[derive(Debug)]
pub struct Archive {
    container: Container,
    layout: ArchiveLayout,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum ArchiveLayout {
    /// All members under one root folder.
    Folder,
    /// Layout up to torch 2.7: no root, one program, pickled weights.
    Flat,
}

/// Name of the only program in the flat layout.
const FLAT_PROGRAM: &str = "model";

impl Archive {
    /// Opens an archive over shared bytes, such as a mapped file. Reads its directory, not its
    /// programs.
    ///
    /// # Errors
    /// [`Error::Zip`], [`Error::NotAnArchive`], [`Error::Version`] for a big-endian archive or
    /// another archive version.
    pub fn open(bytes: Bytes) -> Result<Archive> {
        let container = Container::open(bytes)?;
        if !container.contains("archive_format") {
            let container = container.without_root();
            if !container.contains("version") {
                return Err(Error::NotAnArchive { first: container.names().next().map(str::to_owned) });
            }
            legacy::check_version(&container)?;
            return Ok(Archive { container, layout: ArchiveLayout::Flat });
        }
        for (member, expected) in [("archive_format", "pt2"), ("archive_version", "0"), ("byteorder", "little")] {
            if member == "byteorder" && !container.contains(member) {
                continue;
            }
            let found = container.read_text(member)?;
            if found != expected {
                return Err(Error::Version { member: member.into(), expected, found });
            }
        }
        Ok(Archive { container, layout: ArchiveLayout::Folder })
    }

    /// Names of the programs, in the archive's order. `torch.export.save` names its only program
    /// `model`.
    pub fn program_names(&self) -> Vec<String> {
        match self.layout {
            ArchiveLayout::Flat => vec![FLAT_PROGRAM.into()],
            ArchiveLayout::Folder => {
                let name = |member: &str| member.strip_prefix("models/")?.strip_suffix(".json").map(str::to_owned);
                self.container.names().filter_map(name).collect()
            }
        }
    }

    /// Reads the program with this name. Its weights are slices of the archive until they are read.
    ///
    /// # Errors
    /// Any [`Error`]: a missing or malformed member, another schema version, or an inconsistent
    /// program.
    pub fn program(&self, name: &str) -> Result<Exported> {
        let names = self.program_names();
        if !names.iter().any(|n| n == name) {
            return Err(Error::NoProgram { name: name.into(), available: names });
        }
        let (member, [weights, constants]) = match self.layout {
            ArchiveLayout::Folder => {
                (format!("models/{name}.json"), [self.payloads(name, "weights")?, self.payloads(name, "constants")?])
            }
            ArchiveLayout::Flat => (legacy::PROGRAM.into(), legacy::tensors(&self.container)?),
        };
        let json = self.container.read(&member)?;
        read_program(&member, &json, weights, constants)
    }

    /// Reads the only program.
    ///
    /// # Errors
    /// As [`Archive::program`], and [`Error::NotOneProgram`] if there is no program or more than
    /// one.
    pub fn only_program(&self) -> Result<Exported> {
        let available = self.program_names();
        match &available[..] {
            [only] => self.program(only),
            _ => Err(Error::NotOneProgram { available }),
        }
    }

    /// Reads the tensors of one program in the folder `data/<kind>`.
    fn payloads(&self, program: &str, kind: &str) -> Result<IndexMap<String, Weight>> {
        let pickled = format!("data/{kind}/{program}.pt");
        if self.container.contains(&pickled) {
            return pickle::load_map(self.container.read(&pickled)?, &format!("{kind}/{program}.pt"));
        }
        let member = format!("data/{kind}/{program}_{kind}_config.json");
        let json = self.container.read(&member)?;
        let config: schema::PayloadConfig = parse_json(&member, &json)?;
        let mut converter = Converter::new(&json);
        let mut out = IndexMap::with_capacity(config.config.len());
        for (name, payload) in config.config {
            let weight = self.payload(&mut converter, kind, &name, payload)?;
            out.insert(name, weight);
        }
        Ok(out)
    }

    fn payload(&self, converter: &mut Converter<'_>, kind: &str, name: &str, payload: schema::PayloadMeta) -> Result<Weight> {
        let (member, id) = (format!("data/{kind}/{}", payload.path_name), format!("{kind}/{}", payload.path_name));
        let Some(meta) = payload.tensor_meta else {
            return Err(Error::Object(name.into()));
        };
        if payload.use_pickle {
            return pickle::load_tensor(self.container.read(&member)?, &id);
        }
        let meta = match converter.tensor_meta(meta)? {
            Meta::Known(meta) => meta,
            Meta::Foreign(dtype, sizes) => return Ok(Weight::Foreign { dtype, shape: known(name, "size", &sizes)? }),
        };
        let storage = Storage::member(&self.container, &member, id)?;
        view(name, &meta, storage).map(Weight::Strided)
    }
}

/// Creates the view that `meta` describes, checked against the storage. An empty storage with
/// elements is absent: `torch.export.save` writes fake tensors so.
fn view(name: &str, meta: &TensorMeta, storage: Storage) -> Result<View> {
    if meta.layout != crate::Layout::Strided {
        return Err(Error::Layout { name: name.into(), layout: meta.layout });
    }
    let mut view = View {
        dtype: meta.dtype,
        shape: known(name, "size", &meta.sizes)?,
        strides: known(name, "stride", &meta.strides)?,
        offset: known(name, "offset", std::slice::from_ref(&meta.storage_offset))?.first().copied().unwrap_or(0),
        storage,
    };
    if view.storage.is_empty()
        && !view.shape.contains(&0)
        && let Some(end) = view.end()
    {
        view.storage = Storage::absent(view.storage.id().into(), end);
    }
    view.check_extent()?;
    Ok(view)
}

fn known(name: &str, what: &'static str, values: &[Expr]) -> Result<Vec<usize>> {
    let number = |e: &Expr| e.as_int().and_then(|v| usize::try_from(v).ok());
    let wrong = |e: &Expr| Error::tensor(name, TensorFault::NotNumber { what, found: e.clone() });
    values.iter().map(|e| number(e).ok_or_else(|| wrong(e))).collect()
}

fn parse_json<'a, T: serde::Deserialize<'a>>(member: &str, json: &'a Bytes) -> Result<T> {
    if json.len() > MAX_JSON_BYTES {
        return Err(Error::limit(Limited::JsonBytes(member.into()), json.len(), MAX_JSON_BYTES));
    }
    serde_json::from_slice(json).map_err(|source| Error::Json { member: member.into(), source })
}

fn read_program(
    member: &str,
    json: &Bytes,
    weights: IndexMap<String, Weight>,
    constants: IndexMap<String, Weight>,
) -> Result<Exported> {
    let program: schema::Program<'_> = parse_json(member, json)?;
    let version = program.schema_version;
    if version.major != schema::MAJOR {
        let found = format!("schema {}.{}", version.major, version.minor);
        return Err(Error::Version { member: member.into(), expected: "schema 8", found });
    }
    let module = program.graph_module;
    let mut converter = Converter::new(json);
    let graph = converter.graph(module.graph)?;
    graph.check()?;
    let signature = converter.signature(module.signature, &graph)?;
    let call = module.module_call_graph.into_iter().find(|entry| entry.fqn.is_empty()).and_then(|entry| entry.signature);
    let call = call.unwrap_or_default();
    let (ranges, expression_ranges) = converter.ranges(program.range_constraints);
    Ok(Exported {
        graph,
        signature,
        ranges,
        expression_ranges,
        guards: program.guards_code,
        in_spec: call.in_spec,
        out_spec: call.out_spec,
        forward_arg_names: call.forward_arg_names.unwrap_or_default(),
        torch_version: program.torch_version,
        dialect: convert::dialect(&program.verifiers),
        weights,
        constants,
    })
}
