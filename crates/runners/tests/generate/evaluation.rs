//! Evaluation of models on given text.

use std::sync::atomic::AtomicBool;

use flambeau_runners::{
    Error,
    llm::{Evaluation, Sequence, Windows, evaluate},
};

use crate::{
    AnyEngine, load,
    model::{Table, bigrams, history},
};

const TABLE: Table = [[0.5, 2.0, -1.0, 0.0], [1.0, 0.0, 0.25, -3.0], [-2.0, 1.5, 0.0, 0.75], [0.0, 0.0, 3.0, 1.0]];
const OTHER: Table = [[0.0, 1.0, 2.0, 0.0], [1.0, -1.0, 0.5, 0.0], [4.0, 1.0, 0.0, 0.0], [0.5, 0.0, 0.0, 1.0]];
const TEXT: [u32; 17] = [0, 1, 2, 1, 3, 0, 0, 2, 2, 3, 1, 1, 0, 2, 3, 0, 1];

fn run(model: &mut Sequence, reference: Option<&mut Sequence>, windows: &Windows<'_>) -> Result<Evaluation, Error> {
    evaluate(model, reference, windows, &AtomicBool::new(false), &mut |_, _| ())
}

fn log_softmax(logits: [f64; 4]) -> [f64; 4] {
    let total = logits.iter().map(|x| x.exp()).sum::<f64>().ln();
    logits.map(|x| x - total)
}

fn row(table: &Table, token: u32) -> [f64; 4] {
    log_softmax(table[token as usize].map(f64::from))
}

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let values: Vec<f64> = values.collect();
    values.iter().sum::<f64>() / values.len() as f64
}

/// Pairs of a token and the next one, for the scored predictions in windows of eight.
fn scored() -> impl Iterator<Item = (u32, u32)> {
    TEXT.chunks_exact(8).flat_map(|window| window[4..].windows(2).map(|pair| (pair[0], pair[1])))
}

#[track_caller]
fn assert_near(a: f64, b: f64) {
    assert!((a - b).abs() < 1e-6, "{a} and {b}");
}

pub(crate) fn losses_are_those_of_the_second_halves(engine: &AnyEngine) {
    let mut model = load(engine, &bigrams(&TABLE, 8));
    assert!(model.model().gives_all_logits());
    let windows = Windows::new(&TEXT, 8, None).unwrap();
    let evaluation = run(&mut model, None, &windows).unwrap();
    assert_eq!((evaluation.loss.count(), model.position()), (6, 0));
    assert_near(evaluation.loss.value(), mean(scored().map(|(token, next)| -row(&TABLE, token)[next as usize])));
}

pub(crate) fn models_that_give_the_last_logits_read_token_by_token(engine: &AnyEngine) {
    let mut model = load(engine, &history(&TABLE));
    assert!(!model.model().gives_all_logits());
    let evaluation = run(&mut model, None, &Windows::new(&TEXT, 8, Some(3)).unwrap()).unwrap();
    let losses = TEXT.chunks_exact(8).flat_map(|window| {
        (4..7).map(|at| {
            let read = std::iter::once(3).chain(window[1..=at].iter().copied());
            let sum = read.fold([0.0; 4], |sum, token| {
                let row = TABLE[token as usize];
                std::array::from_fn(|i| sum[i] + f64::from(row[i]))
            });
            -log_softmax(sum)[window[at + 1] as usize]
        })
    });
    assert_near(evaluation.loss.value(), mean(losses));
}

pub(crate) fn divergences_are_those_from_the_reference(engine: &AnyEngine) {
    let (mut model, mut reference) = (load(engine, &bigrams(&TABLE, 8)), load(engine, &bigrams(&OTHER, 8)));
    let evaluation = run(&mut model, Some(&mut reference), &Windows::new(&TEXT, 8, None).unwrap()).unwrap();
    let against = &evaluation.against;
    assert_near(against.loss.value(), mean(scored().map(|(token, next)| -row(&OTHER, token)[next as usize])));
    let divergence = |token| row(&OTHER, token).iter().zip(row(&TABLE, token)).map(|(p, q)| p.exp() * (p - q)).sum::<f64>();
    assert_near(against.mean_divergence(), mean(scored().map(|(token, _)| divergence(token))));
    let best = |table: &Table, token: u32| (0..4).max_by(|&a, &b| table[token as usize][a].total_cmp(&table[token as usize][b]));
    let agreements = scored().filter(|&(token, _)| best(&TABLE, token) == best(&OTHER, token)).count();
    assert_eq!(against.agreements, agreements);
    assert_eq!((model.position(), reference.position()), (0, 0));
}

pub(crate) fn windows_must_fit_the_context(engine: &AnyEngine) {
    let mut model = load(engine, &bigrams(&TABLE, 7));
    assert!(run(&mut model, None, &Windows::new(&TEXT, 8, None).unwrap()).is_ok());
    let error = run(&mut model, None, &Windows::new(&TEXT, 9, None).unwrap()).unwrap_err();
    assert!(matches!(error, Error::PromptTooLong { prompt: 8, context: 7 }), "{error}");
}

pub(crate) fn callers_cancel_between_windows(engine: &AnyEngine) {
    let mut model = load(engine, &bigrams(&TABLE, 8));
    let (cancel, windows) = (AtomicBool::new(false), Windows::new(&TEXT, 8, None).unwrap());
    let stop = &mut |_: usize, _: &Evaluation| cancel.store(true, std::sync::atomic::Ordering::Relaxed);
    assert_eq!(evaluate(&mut model, None, &windows, &cancel, stop).unwrap().loss.count(), 3);
}
