//! Grouping of texts into batches.

/// Run size in tokens above which the time per token stays constant. In smaller runs, reading the
/// weights dominates.
const ENOUGH: usize = 256;

/// Maximum number of tokens of a run, padding included; it bounds the memory of a run.
const MOST: usize = 4096;

/// Groups texts of these lengths into batches of at most `most_texts`; returns the indices of each
/// batch. A run pads every text to the longest one, so texts of similar length share a batch.
/// Shorter texts join a longer one only where the run would be too small otherwise.
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
            // Once a run is large enough, padding is at most a fifth of its tokens.
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
        // A single text may exceed the limit of a run.
        assert_eq!(batches(&[8000, 8000], 128), [[0], [1]]);
    }
}
