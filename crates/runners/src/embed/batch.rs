//! Which texts are computed together.

/// Tokens of a run from which on more do not make it faster by the token: weights are read for this many at a time at least, if there
/// are as many.
const ENOUGH: usize = 256;

/// Most tokens of a run, what fills rows up included: it bounds the memory of a run.
const MOST: usize = 4096;

/// Groups texts of these lengths, as their places, of at most `most_texts` each. A run computes as many tokens for each text as the longest
/// of them has, so that texts of about one length go together; short ones also go beside longer ones where a run would
/// be too small otherwise.
///
/// ```
/// assert_eq!(flambeau_runners::embed::batches(&[7, 300, 8], 32), [vec![1], vec![2, 0]]);
/// ```
pub fn batches(lengths: &[usize], most_texts: usize) -> Vec<Vec<usize>> {
    let mut order: Vec<usize> = (0..lengths.len()).collect();
    order.sort_by_key(|&at| (std::cmp::Reverse(lengths[at]), at));
    let mut out: Vec<Vec<usize>> = Vec::new();
    let mut text_tokens = 0;
    for at in order {
        let length = lengths[at];
        let joins = out.last().is_some_and(|batch| {
            let (longest, rows) = (lengths[batch[0]], batch.len());
            // At most a fifth of what is computed once a run is large enough.
            let is_close =
                length * 5 >= longest * 4 || rows * longest < ENOUGH && (text_tokens + length) * 2 >= (rows + 1) * longest;
            rows < most_texts && (rows + 1) * longest <= MOST && is_close
        });
        match out.last_mut() {
            Some(batch) if joins => batch.push(at),
            _ => {
                out.push(vec![at]);
                text_tokens = 0;
            }
        }
        text_tokens += length;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_text_is_in_one_batch_and_none_is_too_large() {
        let lengths: Vec<usize> = (0..500).map(|i| 1 + (i * 7919) % 256).collect();
        let batches = batches(&lengths, 128);
        let mut seen: Vec<usize> = batches.iter().flatten().copied().collect();
        seen.sort_unstable();
        assert_eq!(seen, (0..500).collect::<Vec<_>>());
        for batch in &batches {
            assert!(batch.len() <= 128 && batch.len() * lengths[batch[0]] <= MOST, "{batch:?}");
        }
        let computed: usize = batches.iter().map(|batch| batch.len() * lengths[batch[0]]).sum();
        assert!(computed * 4 <= lengths.iter().sum::<usize>() * 5, "{computed}");
    }

    #[test]
    fn short_texts_go_together_whatever_their_lengths() {
        assert_eq!(batches(&[5, 9, 12, 7], 128), [vec![2, 1, 3, 0]]);
        assert_eq!(batches(&[], 128), [[0usize; 0]; 0]);
        assert_eq!(batches(&[9; 5], 2), [vec![0, 1], vec![2, 3], vec![4]]);
        // A text alone may be longer than any run of several.
        assert_eq!(batches(&[8000, 8000], 128), [[0], [1]]);
    }
}
