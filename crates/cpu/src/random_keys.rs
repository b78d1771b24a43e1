//! Keys of random numbers.

use flambeau_kernels::random::Key;

/// Keys for draws without a seed: each draw splits the state. A session starts from seed 0, so that
/// its runs can be repeated.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeySequence(Key);

impl Default for KeySequence {
    fn default() -> KeySequence {
        KeySequence(Key::from_seed(0))
    }
}

impl KeySequence {
    /// Splits a key off.
    pub(crate) fn draw(&mut self) -> Key {
        let (kept, drawn) = self.0.split();
        self.0 = kept;
        drawn
    }
}
