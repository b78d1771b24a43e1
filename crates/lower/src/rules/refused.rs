//! Operators that no graph can express, each with the reason to report.

use super::{RuleRow, row};
use crate::{Call, Item, Lower, Refuse, call::unsupported};

type Items = Result<Vec<Item>, Refuse>;

fn data_dependent(_: &mut Lower, call: &Call) -> Items {
    unsupported(format!(
        "the size of {}'s result depends on the data, which a graph cannot express; mask or pad instead",
        call.target
    ))
}

fn complex(_: &mut Lower, _: &Call) -> Items {
    unsupported("complex numbers have no place in an MLX graph; work on real and imaginary parts")
}

pub(super) const ROWS: &[RuleRow] = &[
    row("aten._fft_c2c.default", "self dim normalization forward", complex),
    row("aten._fft_r2c.default", "self dim normalization onesided", complex),
    row("aten._unique2.default", "self sorted return_inverse return_counts", data_dependent),
    row("aten.bincount.default", "self weights minlength", data_dependent),
    row("aten.complex.default", "real imag", complex),
    row("aten.fft_fft.default", "self n dim norm", complex),
    row("aten.fft_rfft.default", "self n dim norm", complex),
    row("aten.masked_select.default", "self mask", data_dependent),
    row("aten.nonzero.default", "self", data_dependent),
    row("aten.nonzero_numpy.default", "self", data_dependent),
    row("aten.polar.default", "abs angle", complex),
    row("aten.repeat_interleave.Tensor", "repeats output_size", data_dependent),
    row("aten.repeat_interleave.self_Tensor", "self repeats dim output_size", data_dependent),
    row("aten.stft.default", "self n_fft hop_length win_length window normalized onesided return_complex align_to_window", complex),
    row("aten.unique_consecutive.default", "self return_inverse return_counts dim", data_dependent),
    row("aten.view_as_complex.default", "self", complex),
    row("aten.view_as_real.default", "self", complex),
];
