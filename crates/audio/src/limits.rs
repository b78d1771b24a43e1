//! Limits of recordings.

use std::ops::RangeInclusive;

use crate::{Error, Result};

/// Accepted sample rates in Hz.
pub const RATES: RangeInclusive<u32> = 1_000..=384_000;
/// Maximum number of channels.
pub const MAX_CHANNELS: usize = 64;

pub(crate) fn check_rate(rate: u32) -> Result<()> {
    if RATES.contains(&rate) { Ok(()) } else { Err(Error::Rate(rate)) }
}

pub(crate) fn check_channels(count: usize) -> Result<()> {
    if (1..=MAX_CHANNELS).contains(&count) { Ok(()) } else { Err(Error::Channels(count)) }
}
