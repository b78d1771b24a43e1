//! Counter-based random bits (Threefry-2x32, 20 rounds).

use std::ops::Range;

use crate::{Pool, pool::Parts};

const ROTATIONS: [[u32; 4]; 2] = [[13, 15, 26, 6], [17, 29, 16, 24]];

/// Pairs of words a task makes.
const GRAIN: usize = 4096;

/// A key of the generator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key(pub u32, pub u32);

impl Key {
    /// The key of a seed: its high and low words after sign extension.
    pub fn from_seed(seed: i32) -> Key {
        let seed = i64::from(seed) as u64;
        Key((seed >> 32) as u32, seed as u32)
    }

    /// Two new keys: the one to keep and the one to draw with.
    pub fn split(self) -> (Key, Key) {
        let ((a, c), (b, d)) = (self.hash(0, 2), self.hash(1, 3));
        (Key(a, b), Key(c, d))
    }

    /// Two words from two counters.
    pub fn hash(self, c0: u32, c1: u32) -> (u32, u32) {
        let keys = [self.0, self.1, self.0 ^ self.1 ^ 0x1bd1_1bda];
        let (mut x, mut y) = (c0.wrapping_add(keys[0]), c1.wrapping_add(keys[1]));
        for i in 0..5 {
            for rotation in ROTATIONS[i % 2] {
                x = x.wrapping_add(y);
                y = y.rotate_left(rotation) ^ x;
            }
            x = x.wrapping_add(keys[(i + 1) % 3]);
            y = y.wrapping_add(keys[(i + 2) % 3]).wrapping_add(i as u32 + 1);
        }
        (x, y)
    }
}

/// Writes as much of a word as fits.
fn put(to: &mut [u8], word: u32) {
    to.iter_mut().zip(word.to_le_bytes()).for_each(|(t, b)| *t = b);
}

/// Words `r` of both halves of a range; word `c` of the second half has counter `c + offset`.
fn fill_pairs(key: Key, r: Range<usize>, offset: usize, low: &mut [u8], high: &mut [u8]) {
    for ((c, low), high) in r.zip(low.chunks_mut(4)).zip(high.chunks_mut(4)) {
        let (a, b) = key.hash(c as u32, (c + offset) as u32);
        put(low, a);
        put(high, b);
    }
}

/// Fills `out` with random bytes; read as little-endian words they are MLX's, for every length.
pub fn random_bits(pool: &Pool, key: Key, out: &mut [u8]) {
    let words = out.len().div_ceil(4);
    let (half, odd) = (words / 2, words % 2);
    let (low, high) = out.split_at_mut(out.len().min(4 * (half + odd)));
    if odd == 1 {
        put(&mut low[4 * half..], key.hash(half as u32, 0).0);
    }
    let high_len = high.len();
    let (low, high) = (Parts::new(low), Parts::new(high));
    pool.run_ranges(half, GRAIN, |r| {
        // SAFETY: the ranges are disjoint.
        let (low, high) = unsafe { (low.slice(4 * r.start..4 * r.end), high.slice(4 * r.start..high_len.min(4 * r.end))) };
        fill_pairs(key, r, half + odd, low, high);
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The definition, word by word.
    fn reference(key: Key, n: usize) -> Vec<u8> {
        let w = n.div_ceil(4);
        let (h, odd) = (w / 2, w % 2);
        let mut words = vec![0u32; w];
        for c in 0..h {
            (words[c], words[c + h + odd]) = key.hash(c as u32, (c + h + odd) as u32);
        }
        if odd == 1 {
            words[h] = key.hash(h as u32, 0).0;
        }
        let mut bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
        bytes.truncate(n);
        bytes
    }

    #[test]
    fn the_hash_matches_published_vectors() {
        assert_eq!(Key(0, 0).hash(0, 0), (0x6b20_0159, 0x99ba_4efe));
        assert_eq!(Key(u32::MAX, u32::MAX).hash(u32::MAX, u32::MAX), (0x1cb9_96fc, 0xbb00_2be7));
        assert_eq!(Key(0x1319_8a2e, 0x0370_7344).hash(0x243f_6a88, 0x85a3_08d3), (0xc492_3a9c, 0x483d_f7a0));
    }

    #[test]
    fn every_length_and_thread_count_gives_the_same_bytes() {
        let key = Key::from_seed(-3);
        assert_eq!(key, Key(u32::MAX, -3i32 as u32));
        for threads in 1..4 {
            let pool = Pool::new(threads);
            for n in [0, 1, 2, 3, 4, 5, 7, 8, 9, 11, 12, 13, 40_000, 100_001] {
                let mut out = vec![0; n];
                random_bits(&pool, key, &mut out);
                assert!(out == reference(key, n), "{n} bytes on {threads} threads");
            }
        }
    }
}
