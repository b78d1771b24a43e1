//! Tokens of submitted decoding steps; they stay on the device until they are read.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
};

use flambeau_ir::{Tid, engine::EngineError};

use crate::{error::Result, ffi::Array, ops::shape::Window, values::Slot};

/// A submitted step whose token is not read yet.
#[derive(Debug)]
pub(crate) struct Submitted {
    pub(crate) token: Result<Token, EngineError>,
    /// The carried state before the step.
    pub(crate) before: Vec<(Tid, Slot)>,
}

/// A token on the device, i32.
#[derive(Debug)]
pub(crate) enum Token {
    /// `[1]`.
    Own(Array),
    /// An element of tokens that were sampled for several sessions at once.
    Row(Arc<Mutex<Tokens>>, usize),
}

/// Tokens that were sampled for several sessions at once.
#[derive(Debug)]
pub(crate) struct Tokens {
    /// `[sessions]`.
    pub(crate) all: Array,
    /// Present once one of them was read.
    pub(crate) host: Option<Vec<i64>>,
}

impl Token {
    /// `[1]`.
    pub(crate) fn array(&self) -> Result<Array> {
        match self {
            Token::Own(array) => Ok(array.share()?),
            Token::Row(tokens, row) => {
                let tokens = tokens.lock().unwrap_or_else(|e| e.into_inner());
                Window::whole(&tokens.all.spec()?.1).narrow(0, *row, 1, 1).of(&tokens.all)
            }
        }
    }

    /// Waits for the token.
    pub(crate) fn read(&self) -> Result<i64> {
        let first = |all: Vec<i64>| all.first().copied().unwrap_or(NONE as i64);
        match self {
            Token::Own(array) => crate::values::integers(&array.to_tensor()?).map(first),
            Token::Row(tokens, row) => {
                let mut tokens = tokens.lock().unwrap_or_else(|e| e.into_inner());
                if tokens.host.is_none() {
                    tokens.host = Some(crate::values::integers(&tokens.all.to_tensor()?)?);
                }
                Ok(tokens.host.as_ref().and_then(|all| all.get(*row)).copied().unwrap_or(NONE as i64))
            }
        }
    }
}

/// Submitted steps.
#[derive(Debug, Default)]
pub(crate) struct InFlight {
    /// Oldest first.
    pub(crate) steps: VecDeque<Submitted>,
    /// The token of the latest step, which the next one may take as an input.
    pub(crate) last: Option<Token>,
}

/// Placeholder token if no logit exceeds −∞.
pub(crate) const NONE: f64 = -1.0;
