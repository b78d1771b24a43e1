//! No BF16 dot product on this architecture.

use super::Task;
use crate::{quant::code::Code, simd::Cpu};

/// Never made.
#[derive(Clone, Copy)]
pub(super) enum Dot {}

impl Dot {
    pub(super) fn of(_: Cpu) -> Option<Dot> {
        None
    }

    pub(super) fn run<C: Code>(self, _: Task<C>) {
        match self {}
    }
}
