//! Pickled tensors. The machine builds values with a fixed list of constructors and executes no
//! code.

mod fault;
mod machine;
mod torch;

use flambeau_tensor::Bytes;
use indexmap::IndexMap;

use crate::{Error, Limited, MemberFault, Result, Weight, container::Container, limits::MAX_PICKLE_BYTES};

pub use self::fault::PickleFault;
use machine::Machine;
use torch::{Global, Loader};

/// Reads the tensor that `torch.save` wrote into `bytes`. `id` names it in messages and prefixes
/// its storages' ids.
pub(crate) fn load_tensor(bytes: Bytes, id: &str) -> Result<Weight> {
    let (machine, root) = run(bytes, id)?;
    machine.weight(root).map_err(|fault| Error::Pickle { member: id.into(), offset: 0, fault })
}

/// Reads a map of tensors that `torch.save` wrote into `bytes`, such as a checkpoint's
/// `state_dict`. `id` names it in messages and prefixes its storages' ids.
///
/// # Errors
/// [`Error::Zip`] and [`Error::Pickle`] for a damaged file, or a file with other contents.
pub fn load_map(bytes: Bytes, id: &str) -> Result<IndexMap<String, Weight>> {
    let fail = |fault| Error::Pickle { member: id.into(), offset: 0, fault };
    let (machine, root) = run(bytes, id)?;
    let entries = machine.dict(root).ok_or_else(|| fail(machine.expected("a dict", root)))?;
    let mut out = IndexMap::with_capacity(entries.len());
    for &(key, value) in entries {
        let key = machine.text(key).ok_or_else(|| fail(machine.expected("a text as key", key)))?;
        let weight = machine.weight(value).map_err(|fault| fail(fault.at(format!("entry `{key}`"))))?;
        out.insert(key.to_owned(), weight);
    }
    Ok(out)
}

fn run(bytes: Bytes, id: &str) -> Result<(Machine<Loader>, machine::StackValue<Global>)> {
    let container = Container::open(bytes)?;
    if container.contains("byteorder") && container.read_text("byteorder")? != "little" {
        return Err(Error::member(id, MemberFault::ByteOrder));
    }
    let pickle = container.read("data.pkl")?;
    if pickle.len() > MAX_PICKLE_BYTES {
        return Err(Error::limit(Limited::PickleBytes(id.into()), pickle.len(), MAX_PICKLE_BYTES));
    }
    let mut machine = Machine::new(Loader::new(container, id));
    match machine.run(&pickle) {
        Ok(root) => Ok((machine, root)),
        Err((offset, fault)) => Err(Error::Pickle { member: id.into(), offset, fault }),
    }
}

#[cfg(test)]
mod tests;
