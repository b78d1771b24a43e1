//! Reference interpreter: tensors are places in memory, and calls read and write them one element
//! after another.

use super::draw::{Action, Operand, Program, Update};

/// A tensor as places in a storage, in row-major order.
#[derive(Clone, Debug)]
pub(crate) struct Strided {
    pub(crate) storage: usize,
    pub(crate) offset: usize,
    pub(crate) sizes: Vec<usize>,
    pub(crate) strides: Vec<usize>,
}

impl Strided {
    /// All elements of a new storage, in row-major order.
    pub(crate) fn whole(storage: usize, sizes: &[usize]) -> Strided {
        let mut strides = vec![1; sizes.len()];
        for i in (1..sizes.len()).rev() {
            strides[i - 1] = strides[i] * sizes[i];
        }
        Strided { storage, offset: 0, sizes: sizes.to_vec(), strides }
    }

    /// Places of the elements, in order.
    pub(crate) fn places(&self) -> Vec<usize> {
        let mut places = vec![self.offset];
        for (&size, &stride) in self.sizes.iter().zip(&self.strides) {
            places = places.iter().flat_map(|place| (0..size).map(move |i| place + i * stride)).collect();
        }
        places
    }

    /// Whether two elements share a place.
    pub(crate) fn overlaps(&self) -> bool {
        let mut places = self.places();
        let n = places.len();
        places.sort_unstable();
        places.dedup();
        places.len() < n
    }
}

/// Contents of all storages, the buffer's kept from run to run.
pub(crate) struct Memory {
    storages: Vec<Vec<f32>>,
}

impl Memory {
    pub(crate) fn new(program: &Program) -> Memory {
        let mut storages = vec![Vec::new(); program.storages];
        storages[program.buffer.storage] = program.buffer_contents.clone();
        Memory { storages }
    }

    fn read(&self, x: &Strided) -> Vec<f32> {
        x.places().iter().map(|&place| self.storages[x.storage][place]).collect()
    }

    /// Runs the program and returns shapes and elements of its results.
    pub(crate) fn run(&mut self, program: &Program, inputs: &[Vec<f32>]) -> Vec<(Vec<usize>, Vec<f32>)> {
        for (storage, input) in inputs.iter().enumerate() {
            self.storages[storage] = input.clone();
        }
        for action in &program.actions {
            match action {
                Action::Make { from, factor, plus, to } => {
                    self.storages[*to] = self.read(from).iter().map(|x| x * factor + plus).collect();
                }
                Action::Write { to, update } => self.write(to, update),
            }
        }
        program.results.iter().map(|x| (x.sizes.clone(), self.read(x))).collect()
    }

    /// Reads the operand before any write. Each element sees earlier writes to its place.
    fn write(&mut self, to: &Strided, update: &Update) {
        let operand = match &update.operand {
            Operand::Number(x) => vec![*x; to.places().len()],
            Operand::Tensor(x) => self.read(x),
        };
        for (place, x) in to.places().into_iter().zip(operand) {
            let element = &mut self.storages[to.storage][place];
            *element = *element * update.keeps + x;
        }
    }
}
