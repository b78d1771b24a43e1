//! The stack machine of pickle protocol 2. All containers are in one arena, so nesting needs no
//! recursion.

use std::collections::HashMap;

use super::fault::PickleFault;

/// A small stack value. Containers and strings are indices into the arena.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum StackValue<G> {
    None,
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(usize),
    Tuple(usize),
    List(usize),
    Dict(usize),
    Global(G),
    /// An object made by a constructor of the host.
    Object(usize),
}

/// The host of a machine, which provides the constructors.
pub(super) trait Host: Sized {
    type Global: Copy + PartialEq + std::fmt::Debug;
    type Object;

    /// The constructor or constant with this name, if it is allowed.
    fn global(&mut self, module: &str, name: &str) -> Option<Self::Global>;
    /// Evaluates `global(*args)`.
    fn reduce(
        machine: &mut Machine<Self>,
        global: Self::Global,
        args: &[StackValue<Self::Global>],
    ) -> Result<StackValue<Self::Global>, PickleFault>;
    /// Whether a pickle sets an object's state after its construction.
    fn has_state(object: &Self::Object) -> bool;
    /// Resolves a persistent id to its object.
    fn persistent(machine: &mut Machine<Self>, id: StackValue<Self::Global>) -> Result<StackValue<Self::Global>, PickleFault>;
}

type Pair<G> = (StackValue<G>, StackValue<G>);

pub(super) struct Machine<H: Host> {
    pub(super) host: H,
    stack: Vec<StackValue<H::Global>>,
    marks: Vec<usize>,
    memo: HashMap<u32, StackValue<H::Global>>,
    texts: Vec<String>,
    lists: Vec<Vec<StackValue<H::Global>>>,
    dicts: Vec<Vec<Pair<H::Global>>>,
    pub(super) objects: Vec<H::Object>,
}

/// Reads the operands of instructions.
struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], PickleFault> {
        let end = self.at.checked_add(len).filter(|&end| end <= self.bytes.len()).ok_or(PickleFault::Truncated)?;
        let out = &self.bytes[self.at..end];
        self.at = end;
        Ok(out)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], PickleFault> {
        self.take(N)?.try_into().map_err(|_| PickleFault::Truncated)
    }

    fn byte(&mut self) -> Result<u8, PickleFault> {
        Ok(self.array::<1>()?[0])
    }

    fn line(&mut self) -> Result<&'a str, PickleFault> {
        let len = self.bytes[self.at..].iter().position(|&b| b == b'\n').ok_or(PickleFault::UnterminatedName)?;
        let line = self.take(len)?;
        self.at += 1;
        std::str::from_utf8(line).map_err(|_| PickleFault::NotUtf8("a name"))
    }
}

impl<H: Host> Machine<H> {
    pub(super) fn new(host: H) -> Machine<H> {
        Machine {
            host,
            stack: Vec::new(),
            marks: Vec::new(),
            memo: HashMap::new(),
            texts: Vec::new(),
            lists: Vec::new(),
            dicts: Vec::new(),
            objects: Vec::new(),
        }
    }

    /// Runs to the end. Returns the result, or the byte and the reason of a fault.
    pub(super) fn run(&mut self, pickle: &[u8]) -> Result<StackValue<H::Global>, (usize, PickleFault)> {
        let mut cursor = Cursor { bytes: pickle, at: 0 };
        loop {
            let at = cursor.at;
            if let Some(result) = self.step(&mut cursor).map_err(|what| (at, what))? {
                return Ok(result);
            }
        }
    }

    /// Executes one instruction. The last instruction returns the result.
    fn step(&mut self, c: &mut Cursor<'_>) -> Result<Option<StackValue<H::Global>>, PickleFault> {
        let value = match c.byte()? {
            0x80 => return if c.byte()? <= 2 { Ok(None) } else { Err(PickleFault::Protocol) },
            b'.' => return self.pop().map(Some),
            b'(' => {
                self.marks.push(self.stack.len());
                return Ok(None);
            }
            b'q' => return self.remember(u32::from(c.byte()?)),
            b'r' => return self.remember(u32::from_le_bytes(c.array()?)),
            b'h' => self.recall(u32::from(c.byte()?))?,
            b'j' => self.recall(u32::from_le_bytes(c.array()?))?,
            b'N' => StackValue::None,
            0x88 => StackValue::Bool(true),
            0x89 => StackValue::Bool(false),
            b'J' => StackValue::Int(i64::from(i32::from_le_bytes(c.array()?))),
            b'K' => StackValue::Int(i64::from(c.byte()?)),
            b'M' => StackValue::Int(i64::from(u16::from_le_bytes(c.array()?))),
            0x8a => long(c)?,
            b'G' => StackValue::Float(f64::from_be_bytes(c.array()?)),
            b'X' => {
                let len = u32::from_le_bytes(c.array()?) as usize;
                let text = std::str::from_utf8(c.take(len)?).map_err(|_| PickleFault::NotUtf8("a text"))?;
                self.new_text(text)
            }
            b'c' => {
                let (module, name) = (c.line()?, c.line()?);
                let refuse = || PickleFault::Global { module: module.to_owned(), name: name.to_owned() };
                StackValue::Global(self.host.global(module, name).ok_or_else(refuse)?)
            }
            other => return self.step_container(other).map(|()| None),
        };
        self.stack.push(value);
        Ok(None)
    }

    /// Executes instructions without operands, which build containers and objects.
    fn step_container(&mut self, opcode: u8) -> Result<(), PickleFault> {
        let value = match opcode {
            b')' => self.new_tuple(Vec::new()),
            0x85..=0x87 => {
                let len = usize::from(opcode - 0x84);
                let from = self.stack.len().checked_sub(len).ok_or(PickleFault::EmptyStack)?;
                let items = self.stack.split_off(from);
                self.new_tuple(items)
            }
            b't' => {
                let items = self.pop_to_mark()?;
                self.new_tuple(items)
            }
            b'}' => self.new_dict(),
            b']' => {
                self.lists.push(Vec::new());
                StackValue::List(self.lists.len() - 1)
            }
            b'a' => {
                let item = self.pop()?;
                return self.append(vec![item]);
            }
            b'e' => {
                let items = self.pop_to_mark()?;
                return self.append(items);
            }
            b's' => {
                let (value, key) = (self.pop()?, self.pop()?);
                return self.set_items(&[key, value]);
            }
            b'u' => {
                let items = self.pop_to_mark()?;
                return self.set_items(&items);
            }
            // A call, or the construction of an object.
            b'R' | 0x81 => {
                let (args, callee) = (self.pop()?, self.pop()?);
                let StackValue::Global(global) = callee else { return Err(PickleFault::NotCallable(self.kind(callee))) };
                let args = self.tuple(args).ok_or_else(|| self.expected("a tuple of arguments", args))?.to_vec();
                H::reduce(self, global, &args)?
            }
            // Object state is ignored. For an ordered dict, it is only `_metadata`, which does not
            // concern tensors.
            b'b' => {
                self.pop()?;
                return match self.top()? {
                    StackValue::Object(at) if self.objects.get(at).is_some_and(H::has_state) => Ok(()),
                    _ => self.top_dict().map(drop),
                };
            }
            b'Q' => {
                let id = self.pop()?;
                H::persistent(self, id)?
            }
            other => return Err(PickleFault::Instruction(other)),
        };
        self.stack.push(value);
        Ok(())
    }

    fn pop(&mut self) -> Result<StackValue<H::Global>, PickleFault> {
        self.stack.pop().ok_or(PickleFault::EmptyStack)
    }

    fn top(&self) -> Result<StackValue<H::Global>, PickleFault> {
        self.stack.last().copied().ok_or(PickleFault::EmptyStack)
    }

    /// The entries of the dict on top of the stack.
    fn top_dict(&mut self) -> Result<&mut Vec<Pair<H::Global>>, PickleFault> {
        match self.top()? {
            StackValue::Dict(at) if at < self.dicts.len() => Ok(&mut self.dicts[at]),
            other => Err(self.expected("a dict", other)),
        }
    }

    fn pop_to_mark(&mut self) -> Result<Vec<StackValue<H::Global>>, PickleFault> {
        let mark = self.marks.pop().filter(|&m| m <= self.stack.len()).ok_or(PickleFault::NoMark)?;
        Ok(self.stack.split_off(mark))
    }

    fn remember(&mut self, slot: u32) -> Result<Option<StackValue<H::Global>>, PickleFault> {
        let top = self.top()?;
        self.memo.insert(slot, top);
        Ok(None)
    }

    fn recall(&self, slot: u32) -> Result<StackValue<H::Global>, PickleFault> {
        self.memo.get(&slot).copied().ok_or(PickleFault::EmptyMemo(slot))
    }

    fn append(&mut self, items: Vec<StackValue<H::Global>>) -> Result<(), PickleFault> {
        let top = self.top()?;
        match top {
            StackValue::List(at) if at < self.lists.len() => {
                self.lists[at].extend(items);
                Ok(())
            }
            _ => Err(self.expected("a list to append to", top)),
        }
    }

    fn set_items(&mut self, items: &[StackValue<H::Global>]) -> Result<(), PickleFault> {
        let dict = self.top_dict()?;
        for pair in items.chunks(2) {
            let [key, value] = *pair else { return Err(PickleFault::KeyWithoutValue) };
            dict.push((key, value));
        }
        Ok(())
    }

    pub(super) fn new_text(&mut self, text: &str) -> StackValue<H::Global> {
        self.texts.push(text.to_owned());
        StackValue::Text(self.texts.len() - 1)
    }

    fn new_tuple(&mut self, items: Vec<StackValue<H::Global>>) -> StackValue<H::Global> {
        self.lists.push(items);
        StackValue::Tuple(self.lists.len() - 1)
    }

    pub(super) fn new_dict(&mut self) -> StackValue<H::Global> {
        self.dicts.push(Vec::new());
        StackValue::Dict(self.dicts.len() - 1)
    }

    pub(super) fn new_object(&mut self, object: H::Object) -> StackValue<H::Global> {
        self.objects.push(object);
        StackValue::Object(self.objects.len() - 1)
    }

    pub(super) fn text(&self, value: StackValue<H::Global>) -> Option<&str> {
        match value {
            StackValue::Text(at) => self.texts.get(at).map(String::as_str),
            _ => None,
        }
    }

    pub(super) fn tuple(&self, value: StackValue<H::Global>) -> Option<&[StackValue<H::Global>]> {
        match value {
            StackValue::Tuple(at) => self.lists.get(at).map(Vec::as_slice),
            _ => None,
        }
    }

    pub(super) fn list(&self, value: StackValue<H::Global>) -> Option<&[StackValue<H::Global>]> {
        match value {
            StackValue::List(at) => self.lists.get(at).map(Vec::as_slice),
            other => self.tuple(other),
        }
    }

    /// Entries in the order of insertion. A repeated key appears twice.
    pub(super) fn dict(&self, value: StackValue<H::Global>) -> Option<&[Pair<H::Global>]> {
        match value {
            StackValue::Dict(at) => self.dicts.get(at).map(Vec::as_slice),
            _ => None,
        }
    }

    /// The fault for a value of an unexpected kind.
    pub(super) fn expected(&self, expected: &'static str, found: StackValue<H::Global>) -> PickleFault {
        PickleFault::Expected { expected, found: self.kind(found) }
    }

    /// Kind of a value, for messages.
    pub(super) fn kind(&self, value: StackValue<H::Global>) -> String {
        match value {
            StackValue::None => "None".into(),
            StackValue::Bool(_) => "a bool".into(),
            StackValue::Int(_) => "an integer".into(),
            StackValue::Float(_) => "a float".into(),
            StackValue::Text(_) => "a text".into(),
            StackValue::Tuple(_) => "a tuple".into(),
            StackValue::List(_) => "a list".into(),
            StackValue::Dict(_) => "a dict".into(),
            StackValue::Global(global) => format!("{global:?}"),
            StackValue::Object(_) => "an object".into(),
        }
    }
}

/// Reads a two's complement integer of at most eight bytes.
fn long<G>(c: &mut Cursor<'_>) -> Result<StackValue<G>, PickleFault> {
    let len = usize::from(c.byte()?);
    let digits = c.take(len)?;
    if len > 8 {
        return Err(PickleFault::LongInteger(len));
    }
    let fill = if digits.last().is_some_and(|&b| b >= 0x80) { 0xff } else { 0 };
    let mut bytes = [fill; 8];
    bytes[..len].copy_from_slice(digits);
    Ok(StackValue::Int(i64::from_le_bytes(bytes)))
}
