//! Search over several candidate texts of a window.

use flambeau_text::{Sampler, SamplingParams, likeliest, log_probabilities};

use super::{
    Decoding, Request, Rules, Whisper,
    branches::{Branches, Path},
    decode::Prompt,
    unfit,
};
use crate::Result;

/// Options of the search over candidate texts of a window.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Search {
    /// Candidates kept at temperature 0; 1 takes the likeliest token each time.
    pub beam_size: usize,
    /// The search ends when `beam_size` times this many candidates have ended. Values above 1 take
    /// more time.
    pub patience: f32,
    /// Exponent of the length in a candidate's score (Wu et al. 2016). If `None`, the mean
    /// log-probability ranks candidates.
    pub length_penalty: Option<f32>,
    /// Texts sampled at temperatures above 0. The best one is returned.
    pub best_of: usize,
}

impl Default for Search {
    fn default() -> Search {
        Search { beam_size: 1, patience: 1.0, length_penalty: None, best_of: 1 }
    }
}

impl Search {
    /// Number of candidate texts at a temperature.
    pub(super) fn width(&self, temperature: f32) -> usize {
        if temperature > 0.0 { self.best_of } else { self.beam_size }
    }

    /// Score that ranks texts.
    fn score(&self, candidate: &Candidate) -> f32 {
        let length = candidate.tokens.len().max(1) as f32;
        candidate.sum / self.length_penalty.map_or(length, |penalty| ((5.0 + length) / 6.0).powf(penalty))
    }
}

/// A candidate text, and the cache rows of its tokens.
#[derive(Clone, Debug, Default)]
struct Candidate {
    path: Path,
    tokens: Vec<u32>,
    /// Probability of each token, including the end token.
    probabilities: Vec<f32>,
    /// Sum of their logarithms.
    sum: f32,
    is_ended: bool,
    /// Index of the sampler, if tokens are sampled.
    sampler: usize,
}

impl Candidate {
    /// The text with one more token.
    fn with(&self, token: u32, log_probability: f32, end: u32) -> Candidate {
        let mut grown = self.clone();
        grown.probabilities.push(log_probability.exp());
        grown.sum += log_probability;
        grown.is_ended = token == end;
        if !grown.is_ended {
            grown.tokens.push(token);
        }
        grown
    }
}

/// Decodes the current window with several candidate texts.
pub(super) fn decode(model: &mut Whisper, request: &Request) -> Result<Decoding> {
    let vocabulary = model.vocabulary().clone();
    let (prompt, context) = (Prompt::new(&vocabulary, request, model.context()), model.context());
    let branches = model.branches()?;
    branches.restart();
    let (mut path, mut rows) = (Path::default(), Vec::new());
    branches.extend(&mut path, &prompt.head, &mut rows)?;
    let no_speech_probability = vocabulary.no_speech_probability(&rows);
    if !prompt.task.is_empty() {
        branches.extend(&mut path, &prompt.task, &mut rows)?;
    }
    let rules = Rules { vocabulary: &vocabulary, timestamps: request.timestamps };
    let mut texts = Texts::new(path, rules, request)?;
    if request.temperature > 0.0 {
        rows = rows.repeat(request.search.best_of);
    }
    for length in 1..=prompt.most {
        texts.grow(&mut rows)?;
        let is_full = |text: &Candidate| text.path.len() == context;
        let is_cut = length == prompt.most || texts.going_on.first().is_none_or(is_full) || branches.room() < texts.going_on.len();
        if is_cut || texts.ended.len() >= texts.wanted {
            break;
        }
        rows = texts.read(branches)?;
    }
    let best = texts.best().ok_or_else(|| unfit("no token is possible"))?;
    Ok(Decoding {
        mean_log_probability: best.sum / (best.probabilities.len() + 1) as f32,
        tokens: best.tokens,
        probabilities: best.probabilities,
        is_ended: best.is_ended,
        no_speech_probability,
    })
}

/// The candidate texts of a window.
struct Texts<'a> {
    rules: Rules<'a>,
    search: Search,
    /// A sampler per text, at temperatures above 0.
    samplers: Vec<Sampler>,
    /// Texts that continue, the likeliest first unless they are sampled.
    going_on: Vec<Candidate>,
    ended: Vec<Candidate>,
    /// Number of texts that must end.
    wanted: usize,
}

impl<'a> Texts<'a> {
    /// The candidates after a prompt.
    fn new(path: Path, rules: Rules<'a>, request: &Request) -> Result<Texts<'a>> {
        let search = request.search;
        let begun = Candidate { path, tokens: request.begun.clone(), ..Candidate::default() };
        let mut texts =
            Texts { rules, search, samplers: Vec::new(), going_on: Vec::new(), ended: Vec::new(), wanted: search.best_of };
        if request.temperature > 0.0 {
            for sampler in 0..search.best_of {
                let seed = request.seed.wrapping_add((sampler as u64) << 32);
                let params = SamplingParams { temperature: request.temperature, seed, ..SamplingParams::default() };
                texts.samplers.push(Sampler::new(params)?);
                texts.going_on.push(Candidate { sampler, ..begun.clone() });
            }
        } else {
            texts.going_on.push(begun);
            texts.wanted = ((search.beam_size as f32 * search.patience).round() as usize).max(1);
        }
        Ok(texts)
    }

    /// Extends each text by a token, from the logits [texts, V].
    fn grow(&mut self, rows: &mut [f32]) -> Result<()> {
        let texts = std::mem::take(&mut self.going_on);
        let size = rows.len() / texts.len().max(1);
        for (text, row) in texts.iter().zip(rows.chunks_exact_mut(size.max(1))) {
            self.rules.apply(&text.tokens, row);
        }
        let rows = texts.iter().zip(rows.chunks_exact(size.max(1)));
        if self.samplers.is_empty() {
            self.search(rows);
            return Ok(());
        }
        for (text, row) in rows {
            let token = self.samplers[text.sampler].sample(row, &[])?;
            self.take(text.with(token, log_probabilities(row, &[token])[0], self.rules.vocabulary.end));
        }
        Ok(())
    }

    /// Keeps the most likely continuations of all texts.
    fn search<'t>(&mut self, rows: impl Iterator<Item = (&'t Candidate, &'t [f32])>) {
        let mut all = Vec::new();
        for (text, row) in rows {
            // One more than the beam size, because one of them may end the text.
            let tokens = likeliest(row, self.search.beam_size + 1);
            let more = log_probabilities(row, &tokens);
            all.extend(tokens.into_iter().zip(more).map(|(token, more)| (text.sum + more, text, token, more)));
        }
        all.retain(|(sum, ..)| sum.is_finite());
        all.sort_by(|(a, ..), (b, ..)| b.total_cmp(a));
        for (_, text, token, more) in all {
            self.take(text.with(token, more, self.rules.vocabulary.end));
            if self.going_on.len() == self.search.beam_size {
                break;
            }
        }
    }

    fn take(&mut self, text: Candidate) {
        if !text.is_ended {
            self.going_on.push(text);
        } else if self.ended.len() < self.wanted {
            self.ended.push(text);
        }
    }

    /// Reads the last token of each text. Returns the logits [texts, V] of the next ones.
    fn read(&mut self, branches: &mut Branches) -> Result<Vec<f32>> {
        let tokens: Vec<u32> = self.going_on.iter().filter_map(|text| text.tokens.last().copied()).collect();
        let mut paths: Vec<&mut Path> = self.going_on.iter_mut().map(|text| &mut text.path).collect();
        branches.step(&mut paths, &tokens)
    }

    /// The text of the highest score. Unfinished texts count too if not enough texts ended.
    fn best(self) -> Option<Candidate> {
        let missing = self.wanted.saturating_sub(self.ended.len());
        let all = self.ended.into_iter().chain(self.going_on.into_iter().take(missing));
        all.max_by(|a, b| self.search.score(a).total_cmp(&self.search.score(b)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::speech::whisper::Vocabulary;

    fn request(search: Search, temperature: f32) -> Request {
        Request { search, temperature, ..Request::default() }
    }

    /// Logits of the small vocabulary's 20 tokens, all impossible but these.
    fn row(likely: &[(usize, f32)]) -> Vec<f32> {
        let mut row = vec![f32::NEG_INFINITY; 20];
        likely.iter().for_each(|&(token, probability)| row[token] = probability.ln());
        row
    }

    #[test]
    fn the_likeliest_whole_text_wins_over_the_likeliest_first_token() {
        let vocabulary = Vocabulary::small();
        let rules = Rules { vocabulary: &vocabulary, timestamps: false };
        let search = Search { beam_size: 2, ..Search::default() };
        let mut texts = Texts::new(Path::default(), rules, &request(search, 0.0)).unwrap();
        texts.grow(&mut row(&[(0, 0.6), (1, 0.4)])).unwrap();
        let tokens = |texts: &Texts<'_>| texts.going_on.iter().map(|text| text.tokens.clone()).collect::<Vec<_>>();
        assert_eq!(tokens(&texts), [[0], [1]]);
        // 0.6 · 0.3 is less than 0.4 · 0.9.
        let rows = [row(&[(0, 0.3), (1, 0.3), (3, 0.25), (4, 0.15)]), row(&[(3, 0.9), (4, 0.1)])].concat();
        texts.grow(&mut rows.clone()).unwrap();
        assert_eq!(tokens(&texts), [[1, 3], [0, 0]]);
        texts.grow(&mut [row(&[(4, 1.0)]), row(&[(4, 0.5), (1, 0.5)])].concat()).unwrap();
        assert_eq!(texts.ended.len(), 2);
        let best = texts.best().unwrap();
        assert!(best.is_ended && best.tokens == [1, 3] && (best.sum - 0.36f32.ln()).abs() < 1e-6, "{best:?}");
    }

    #[test]
    fn patience_and_the_length_penalty_decide_what_is_best() {
        let short = Candidate { tokens: vec![0; 2], sum: -1.0, ..Candidate::default() };
        let long = Candidate { tokens: vec![0; 8], sum: -3.0, ..Candidate::default() };
        let by_mean = Search::default();
        assert!(by_mean.score(&long) > by_mean.score(&short));
        let by_sum = Search { length_penalty: Some(0.0), ..by_mean };
        assert!(by_sum.score(&short) > by_sum.score(&long));
        let vocabulary = Vocabulary::small();
        let rules = Rules { vocabulary: &vocabulary, timestamps: false };
        let patient = Search { beam_size: 5, patience: 2.0, ..Search::default() };
        assert_eq!(Texts::new(Path::default(), rules, &request(patient, 0.0)).unwrap().wanted, 10);
        let drawn = Texts::new(Path::default(), rules, &request(Search { best_of: 3, ..patient }, 0.5)).unwrap();
        assert_eq!((drawn.wanted, drawn.going_on.len()), (3, 3));
    }
}
