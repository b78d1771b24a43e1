//! The flat layout of torch up to 2.7.

use indexmap::IndexMap;

use crate::{Error, Result, Weight, container::Container, pickle, schema};

/// Name of the program's member.
pub(crate) const PROGRAM: &str = "serialized_exported_program.json";

/// Members with weights and constants. The oldest versions name pickles `.json`.
const TENSORS: [[&str; 2]; 2] =
    [["serialized_state_dict.pt", "serialized_state_dict.json"], ["serialized_constants.pt", "serialized_constants.json"]];

/// Refuses archives of another major version.
pub(crate) fn check_version(container: &Container) -> Result<()> {
    let found = container.read_text("version")?;
    let major = found.split('.').next().and_then(|major| major.parse::<i64>().ok());
    match major {
        Some(schema::MAJOR) => Ok(()),
        _ => Err(Error::Version { member: "version".into(), expected: "8.x", found }),
    }
}

/// Reads weights and constants.
pub(crate) fn tensors(container: &Container) -> Result<[IndexMap<String, Weight>; 2]> {
    let load = |[name, old]: [&str; 2]| {
        let member = if container.contains(name) { name } else { old };
        let bytes = container.read(member)?;
        if bytes.is_empty() { Ok(IndexMap::new()) } else { pickle::load_map(bytes, member) }
    };
    let [weights, constants] = TENSORS;
    Ok([load(weights)?, load(constants)?])
}
