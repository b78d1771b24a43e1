//! Roles of a method's inputs.

use flambeau_runtime::{DimSpec, TensorSpec, ValueSpec};
use flambeau_tensor::DType;

use super::sampling_inputs;

/// The form of a method's position input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Positions {
    /// The method counts positions itself.
    None,
    /// One per token, in a tensor of this rank.
    Each { rank: usize },
    /// Position of the step's first token, in a tensor of this rank.
    First { rank: usize },
}

/// Roles of the inputs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Signature {
    pub(super) tokens: usize,
    pub(super) tokens_dtype: DType,
    pub(super) positions: Positions,
    pub(super) position_dtype: DType,
    /// Maximum number of tokens per step.
    pub(super) longest: Option<usize>,
    /// Whether every step takes exactly `longest` tokens.
    pub(super) fixed: bool,
    /// Number of adapters whose scales follow.
    pub(super) adapters: Option<usize>,
    /// Whether sampling inputs follow, and the result is a token.
    pub(super) draws: bool,
}

fn is_integer(spec: &TensorSpec) -> bool {
    matches!(spec.dtype, DType::I32 | DType::I64)
}

/// Determines the roles of the inputs: tokens `[1, S]` and positions, one per token or a single
/// one, in either order.
pub(super) fn read_signature(inputs: &[ValueSpec]) -> Result<Signature, String> {
    let listed = || inputs.iter().map(ValueSpec::to_string).collect::<Vec<_>>().join(", ");
    let (inputs, draws) = sampling_inputs::split_inputs(inputs);
    let (inputs, adapters) = split_scales(inputs);
    let unfit = || format!("expected tokens i64[1, S] and positions i64[S] or i64[1], found ({})", listed());
    let specs: Vec<&TensorSpec> = inputs.iter().filter_map(ValueSpec::tensor).filter(|s| is_integer(s)).collect();
    if specs.len() != inputs.len() || specs.is_empty() || specs.len() > 2 {
        return Err(unfit());
    }
    let is_tokens = |spec: &TensorSpec| spec.dims.len() == 2 && spec.dims.first().is_some_and(|d| d.admits(1));
    let named = |i: usize| inputs.get(i).and_then(|s| s.name.as_deref()).is_some_and(|n| n.contains("pos"));
    let tokens = match specs.as_slice() {
        [_, second] if is_tokens(second) && (named(0) || !specs.first().is_some_and(|s| is_tokens(s))) => 1,
        _ => 0,
    };
    let spec = specs.get(tokens).filter(|s| is_tokens(s)).ok_or_else(unfit)?;
    let steps = spec.dims.last().copied().ok_or_else(unfit)?;
    let (positions, position_dtype) = match specs.get(1 - tokens) {
        None => (Positions::None, DType::I64),
        Some(p) => {
            let rank = p.dims.len();
            let each = p.dims.last().is_some_and(|d| *d == steps || matches!(d, DimSpec::UpTo(_)));
            (if each { Positions::Each { rank } } else { Positions::First { rank } }, p.dtype)
        }
    };
    let fixed = matches!(steps, DimSpec::Fixed(_));
    Ok(Signature { tokens, tokens_dtype: spec.dtype, positions, position_dtype, longest: steps.max(), fixed, adapters, draws })
}

/// Splits off the scales of adapters, f32 [adapters]; also returns their number.
fn split_scales(inputs: &[ValueSpec]) -> (&[ValueSpec], Option<usize>) {
    let count = |spec: &ValueSpec| match spec.tensor().map(|tensor| (tensor.dtype, &tensor.dims[..])) {
        Some((DType::F32, &[DimSpec::Fixed(count)])) => Some(count),
        _ => None,
    };
    match inputs.split_last() {
        Some((last, before)) if count(last).is_some() => (before, count(last)),
        _ => (inputs, None),
    }
}

#[cfg(test)]
mod tests {
    use flambeau_runtime::ValueKind;

    use super::*;

    fn input(name: &str, dtype: DType, dims: &[DimSpec]) -> ValueSpec {
        ValueSpec { name: Some(name.into()), kind: ValueKind::Tensor(TensorSpec { dtype, dims: dims.to_vec() }) }
    }

    #[test]
    fn known_signatures_are_told_apart() {
        let (one, many) = (DimSpec::Fixed(1), DimSpec::UpTo(Some(512)));
        let check = |inputs: &[ValueSpec], tokens, positions, longest, fixed| {
            let s = read_signature(inputs).unwrap();
            assert_eq!((s.tokens, s.positions, s.longest, s.fixed), (tokens, positions, Some(longest), fixed));
        };
        let tokens = |d| input("input_ids", DType::I64, &[one, d]);
        let cache_position = |d| input("cache_position", DType::I64, &[d]);
        check(&[tokens(many), cache_position(many)], 0, Positions::Each { rank: 1 }, 512, false);
        check(&[cache_position(many), tokens(many)], 1, Positions::Each { rank: 1 }, 512, false);
        check(&[tokens(many), cache_position(one)], 0, Positions::First { rank: 1 }, 512, false);
        check(&[tokens(one), cache_position(one)], 0, Positions::Each { rank: 1 }, 1, true);
        check(&[input("position_ids", DType::I64, &[one, many]), tokens(many)], 1, Positions::Each { rank: 2 }, 512, false);
        check(&[tokens(many)], 0, Positions::None, 512, false);
    }

    #[test]
    fn programs_that_draw_say_so_by_their_inputs() {
        let many = DimSpec::UpTo(Some(8));
        let mut inputs = vec![input("tokens", DType::I64, &[DimSpec::Fixed(1), many]), input("pos", DType::I64, &[many])];
        assert!(!read_signature(&inputs).unwrap().draws);
        inputs.extend([DType::F32, DType::I64, DType::F32, DType::I64].map(|dtype| input("how", dtype, &[])));
        let s = read_signature(&inputs).unwrap();
        assert_eq!((s.draws, s.positions, s.longest), (true, Positions::Each { rank: 1 }, Some(8)));
        inputs.swap(2, 3);
        assert!(read_signature(&inputs).unwrap_err().contains("expected tokens"));
    }

    #[test]
    fn the_scales_of_adapters_come_last() {
        let many = DimSpec::UpTo(Some(8));
        let mut inputs = vec![input("tokens", DType::I64, &[DimSpec::Fixed(1), many]), input("pos", DType::I64, &[many])];
        assert_eq!(read_signature(&inputs).unwrap().adapters, None);
        inputs.push(input("adapter_scales", DType::F32, &[DimSpec::Fixed(3)]));
        let s = read_signature(&inputs).unwrap();
        assert_eq!((s.adapters, s.positions), (Some(3), Positions::Each { rank: 1 }));
        inputs.push(input("more", DType::F32, &[DimSpec::Fixed(3)]));
        assert!(read_signature(&inputs).unwrap_err().contains("expected tokens"));
    }

    #[test]
    fn other_signatures_are_refused_with_what_was_found() {
        let many = DimSpec::UpTo(Some(8));
        for inputs in [
            vec![],
            vec![input("x", DType::F32, &[DimSpec::Fixed(1), many])],
            vec![input("x", DType::I64, &[many])],
            vec![input("a", DType::I64, &[DimSpec::Fixed(2), many]), input("b", DType::I64, &[many])],
        ] {
            let message = read_signature(&inputs).unwrap_err();
            assert!(message.contains("expected tokens"), "{message}");
        }
    }
}
