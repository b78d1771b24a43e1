//! Word times, from the cheapest path through the attention of the tokens to the audio.

use std::ops::Range;

use flambeau_tensor::Tensor;
use flambeau_text::Tokenizer;

use super::{Whisper, coverage::Speech, unfit};
use crate::Result;

/// Width of the median filter, in positions.
const MEDIAN: usize = 7;
/// Minimum loudness of a word's loudest block as a share of the window's: 25 dB below it.
const LEAST_LOUDNESS: f32 = 0.056;
/// Punctuation that belongs to the following word, and to the preceding word.
const BEFORE: &str = "\"'“¿([{-";
const AFTER: &str = "\"'.。,，!！?？:：”)]}、";
/// Languages that are written without spaces.
const WITHOUT_SPACES: [&str; 6] = ["zh", "ja", "th", "lo", "my", "yue"];

/// A word of a window.
#[derive(Clone, Debug, PartialEq)]
pub struct AlignedWord {
    pub text: String,
    /// Range of its tokens' indices.
    pub tokens: Range<usize>,
    /// Steps of 20 ms from the beginning of the window.
    pub start: usize,
    pub end: usize,
}

/// The words of the text `tokens`, aligned with the first `steps` steps of the current window.
/// `head` is the start of the decoder's prompt. Empty if the program has no alignment.
///
/// # Errors
/// The model or the tokenizer fails.
pub fn align(
    model: &mut Whisper,
    tokenizer: &Tokenizer,
    (head, tokens): (&[u32], &[u32]),
    language: &str,
    steps: usize,
) -> Result<Vec<AlignedWord>> {
    let room = model.context().saturating_sub(head.len() + 2);
    let tokens = &tokens[..tokens.len().min(room)];
    let Some(starts) = token_starts(model, (head, tokens), steps)? else { return Ok(Vec::new()) };
    let words = words(tokenizer, tokens, language)?;
    let timed = words.into_iter().map(|(text, tokens)| {
        let (start, end) = (starts[tokens.start], starts[tokens.end]);
        AlignedWord { text, tokens, start, end }
    });
    Ok(timed.collect())
}

/// The first step of each token of a text, then the last step of the text. It is `None` if there is
/// nothing to align or the program has no alignment.
pub(super) fn token_starts(model: &mut Whisper, (head, tokens): (&[u32], &[u32]), steps: usize) -> Result<Option<Vec<usize>>> {
    let vocabulary = model.vocabulary();
    let (no_timestamps, end) = (vocabulary.no_timestamps, vocabulary.end);
    if tokens.is_empty() || steps == 0 {
        return Ok(None);
    }
    let all: Vec<u32> = head.iter().chain([&no_timestamps]).chain(tokens).chain([&end]).copied().collect();
    let Some(shares) = model.align(&all)? else { return Ok(None) };
    // The row of a token attends to the sound of the next token.
    let rows = head.len()..head.len() + 1 + tokens.len();
    Ok(Some(starts(&costs(&shares, rows, steps)?, steps)))
}

/// Alignment costs [rows, steps]: the negated attention of these rows to the first `steps`
/// positions. Each head is normalized over the tokens and smoothed, and then the heads are
/// averaged.
fn costs(shares: &Tensor, rows: Range<usize>, steps: usize) -> Result<Vec<f32>> {
    let no_shares = || unfit("its alignment gives no shares of attention");
    let shares = shares.aligned();
    let &[heads, tokens, positions] = shares.shape() else { return Err(no_shares()) };
    let values = shares.as_slice::<f32>().map_err(|_| no_shares())?;
    let steps_heard = steps.min(positions);
    let mut costs = vec![0.0; rows.len() * steps];
    let mut scaled = vec![0.0f32; tokens * steps_heard];
    for head in values.chunks_exact(tokens * positions) {
        for at in 0..steps_heard {
            let column = || (0..tokens).map(|token| head[token * positions + at]);
            let mean = column().sum::<f32>() / tokens as f32;
            let deviation = (column().map(|v| (v - mean) * (v - mean)).sum::<f32>() / tokens as f32).sqrt().max(f32::MIN_POSITIVE);
            for (token, value) in column().enumerate() {
                scaled[token * steps_heard + at] = (value - mean) / deviation;
            }
        }
        for (out, row) in costs.chunks_exact_mut(steps).zip(scaled.chunks_exact(steps_heard).skip(rows.start)) {
            for (cost, value) in out.iter_mut().zip(smoothed(row)) {
                *cost -= value / heads as f32;
            }
        }
    }
    Ok(costs)
}

/// Applies the median filter to a row, which is mirrored at its ends.
fn smoothed(row: &[f32]) -> Vec<f32> {
    let half = (MEDIAN / 2) as isize;
    if row.len() as isize <= half {
        return row.to_vec();
    }
    let last = row.len() as isize - 1;
    let value = |at: isize| row[if at > last { 2 * last - at } else { at.abs() } as usize];
    let median = |at: isize| {
        let mut near: [f32; MEDIAN] = std::array::from_fn(|i| value(at - half + i as isize));
        near.sort_by(f32::total_cmp);
        near[MEDIAN / 2]
    };
    (0..=last).map(median).collect()
}

/// The step at which the cheapest path through costs [rows, steps] enters each row. The path goes
/// from the first row and step to
/// the last ones, by a row, a step or both at a time.
fn starts(costs: &[f32], steps: usize) -> Vec<usize> {
    let rows = costs.len() / steps;
    let mut total = vec![f32::INFINITY; (rows + 1) * (steps + 1)];
    let mut from = vec![0u8; (rows + 1) * (steps + 1)];
    total[0] = 0.0;
    let at = |row: usize, step: usize| row * (steps + 1) + step;
    for row in 1..=rows {
        for step in 1..=steps {
            let ways = [total[at(row - 1, step - 1)], total[at(row - 1, step)], total[at(row, step - 1)]];
            let best = if ways[0] < ways[1] && ways[0] < ways[2] {
                0
            } else if ways[1] < ways[0] && ways[1] < ways[2] {
                1
            } else {
                2
            };
            total[at(row, step)] = costs[(row - 1) * steps + step - 1] + ways[best];
            from[at(row, step)] = best as u8;
        }
    }
    let (mut row, mut step, mut starts) = (rows, steps, vec![0; rows]);
    while row > 0 && step > 0 {
        starts[row - 1] = step - 1;
        match from[at(row, step)] {
            0 => (row, step) = (row - 1, step - 1),
            1 => row -= 1,
            _ => step -= 1,
        }
    }
    starts
}

/// Gives the words of a segment plausible times. Overlong words, such as words before a pause, are
/// reduced to their loudest part. Words without time, or in a pause, share the time of a neighbour.
pub(super) fn settle(words: &mut [AlignedWord], speech: &mut Speech<'_>) {
    let loudness: Vec<f32> = speech.powers().into_iter().map(f32::sqrt).collect();
    let loudest_block = loudness.iter().copied().fold(0.0, f32::max);
    let mut is_said = |word: &AlignedWord| {
        let part = word.start.min(loudness.len())..word.end.min(loudness.len());
        word.start < word.end
            && (speech.has_speech(part.clone()) || loudness[part].iter().any(|&block| block > LEAST_LOUDNESS * loudest_block))
    };
    let said: Vec<bool> = words.iter().map(&mut is_said).collect();
    for group in groups(words, &said) {
        let words = &mut words[group];
        let (start, end) = (words[0].start, words[words.len() - 1].end);
        let most = words.iter().map(|word| most_steps(&word.text)).sum();
        let part = loudest(start..end, most, &loudness);
        let mut before = 0;
        for word in words {
            word.start = part.start + before * part.len() / most;
            before += most_steps(&word.text);
            word.end = part.start + before * part.len() / most;
        }
    }
}

/// Groups of words that share their time. Each group has one word with sound in its time. Words
/// without sound join the slower of their neighbours, by time per letter. If no word has sound,
/// each word is a group.
fn groups(words: &[AlignedWord], said: &[bool]) -> Vec<Range<usize>> {
    if !said.contains(&true) {
        return (0..words.len()).map(|at| at..at + 1).collect();
    }
    let pace = |at: usize| words[at].end.saturating_sub(words[at].start) as f64 / most_steps(&words[at].text) as f64;
    let (mut groups, mut at): (Vec<Range<usize>>, usize) = (Vec::new(), 0);
    while at < words.len() {
        let timed = (at..words.len()).find(|&at| said[at]);
        let joins_last = timed != Some(at) && timed.is_none_or(|next| at > 0 && pace(at - 1) >= pace(next));
        let end = timed.map_or(words.len(), |next| if joins_last { next } else { next + 1 });
        match groups.last_mut().filter(|_| joins_last) {
            Some(last) => last.end = end,
            None => groups.push(at..end),
        }
        at = end;
    }
    groups
}

/// The loudest `most` steps of a range, or all of a shorter one.
fn loudest(range: Range<usize>, most: usize, loudness: &[f32]) -> Range<usize> {
    let (start, end) = (range.start, range.end.min(loudness.len()));
    if end <= start + most {
        return start..range.end.min(start + most);
    }
    let sum = |first: &usize| loudness[*first..first + most].iter().sum::<f32>();
    // The first of equally loud parts.
    let first = (start..=end - most).rev().max_by(|a, b| sum(a).total_cmp(&sum(b))).unwrap_or(start);
    first..first + most
}

/// Maximum steps that it takes to say a word. A digit counts as a word.
fn most_steps(word: &str) -> usize {
    let digits = word.chars().filter(char::is_ascii_digit).count();
    let letters = word.chars().filter(|c| c.is_alphanumeric()).count() - digits;
    30 + 5 * letters + 20 * digits
}

/// Splits a text into words with their punctuation and tokens.
pub(super) fn words(tokenizer: &Tokenizer, tokens: &[u32], language: &str) -> Result<Vec<(String, Range<usize>)>> {
    let without_spaces = WITHOUT_SPACES.contains(&language);
    let mut words: Vec<(String, Range<usize>)> = Vec::new();
    let mut first = 0;
    for end in 1..=tokens.len() {
        let text = tokenizer.decode(&tokens[first..end], true)?;
        // A character may take several tokens.
        if text.ends_with('\u{fffd}') && end < tokens.len() {
            continue;
        }
        let is_mark = |marks: &str| !text.trim().is_empty() && text.trim().chars().all(|c| marks.contains(c));
        let joins = !text.starts_with(' ') && !without_spaces || is_mark(AFTER) && !text.starts_with(' ');
        match words.last_mut() {
            Some((word, range)) if joins || word.trim().chars().all(|c| BEFORE.contains(c)) => {
                word.push_str(&text);
                range.end = end;
            }
            _ => words.push((text, first..end)),
        }
        first = end;
    }
    Ok(words)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::speech::stream::BLOCK;

    #[test]
    fn the_path_follows_what_costs_least() {
        // Row 0 for two steps, row 1 for one, row 2 for three.
        let cheap = [[1, 1, 0, 0, 0, 0], [0, 0, 1, 0, 0, 0], [0, 0, 0, 1, 1, 1]];
        let costs: Vec<f32> = cheap.iter().flatten().map(|&v| if v == 1 { -1.0 } else { 1.0 }).collect();
        assert_eq!(starts(&costs, 6), [0, 2, 3]);
    }

    #[test]
    fn a_word_is_no_longer_than_it_takes_to_say_it() {
        let word = |text: &str, start, end| AlignedWord { text: text.into(), tokens: 0..1, start, end };
        // Sound from step 10 to 30 and from 600 to 650, silence elsewhere.
        let mut samples = vec![0.0; 700 * BLOCK];
        samples[10 * BLOCK..30 * BLOCK].fill(0.5);
        samples[600 * BLOCK..650 * BLOCK].fill(0.5);
        let mut words = [word(" end.", 8, 560), word(" Now", 560, 640), word(" on", 640, 650), word(" 8500", 0, 110)];
        settle(&mut words, &mut Speech::of(&samples));
        let times = words.map(|word| (word.start, word.end));
        assert_eq!(times[0], (8, 53));
        assert!((590..=600).contains(&times[1].0) && times[1].1 >= 640, "{times:?}");
        assert_eq!(times[2..], [(640, 650), (0, 110)]);
    }

    #[test]
    fn words_without_time_share_that_of_a_neighbour() {
        let word = |text: &str, start, end| AlignedWord { text: text.into(), tokens: 0..1, start, end };
        let times = |mut words: Vec<AlignedWord>| {
            // Sound from step 100 to 200, silence elsewhere.
            let mut samples = vec![0.0; 400 * BLOCK];
            samples[100 * BLOCK..200 * BLOCK].fill(0.5);
            settle(&mut words, &mut Speech::of(&samples));
            assert!(words.windows(2).all(|pair| pair[0].end <= pair[1].start), "{words:?}");
            words.into_iter().map(|word| (word.start, word.end)).collect::<Vec<_>>()
        };
        // The slower neighbour of the two.
        let found = times(vec![word(" the", 100, 110), word(" cat", 110, 110), word(" sat", 110, 180)]);
        assert_eq!(found, [(100, 110), (110, 145), (145, 180)]);
        // At the end of a recording, and behind a long pause: the loudest 120 steps.
        let found = times(vec![word(" He", 0, 390), word(" had", 390, 390), word(" a", 390, 390)]);
        assert!(found[0].0 >= 80 && found[2].1 <= 220 && found.iter().all(|(start, end)| start < end), "{found:?}");
        // Behind the sound: both words share it.
        let found = times(vec![word(" Front,", 90, 300), word(" center.", 300, 400)]);
        assert!(found[0].0 >= 85 && found[1].1 <= 215 && found[1].0 < 200, "{found:?}");
        assert_eq!(times(vec![word(" all", 100, 100), word(" gone", 100, 100)]), [(100, 100), (100, 100)]);
    }

    #[test]
    fn medians_drop_spikes_and_keep_edges() {
        let mut row = vec![0.0; 20];
        row[5] = 9.0;
        row[12..].fill(1.0);
        let found = smoothed(&row);
        assert_eq!((found[5], found[11], found[12], found[19]), (0.0, 0.0, 1.0, 1.0));
        assert_eq!(smoothed(&[3.0, 1.0]), [3.0, 1.0]);
    }
}
