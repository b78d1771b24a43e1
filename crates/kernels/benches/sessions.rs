//! Cost and gain of sharing a pool: the time of an empty fork-join, and the products per second of
//! one and of two concurrent sessions on one pool. Each session runs on its own thread. Argument:
//! number of threads.

use std::{
    hint::black_box,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

use flambeau_kernels::{
    Pool, bf16,
    gemm::quantized::linear,
    quant::{Format, QMatrix, Scales},
};

/// How long sessions run.
const SPAN: Duration = Duration::from_millis(800);

/// Rows and columns of the weights of a session.
const SIZE: usize = 1536;

/// Nanoseconds of a fork-join of empty tasks, the best of many.
fn fork_join(pool: &Pool) -> f64 {
    let run = || {
        let start = Instant::now();
        (0..1000).for_each(|_| pool.run(2 * pool.threads(), |task| _ = black_box(task)));
        start.elapsed().as_secs_f64() * 1e6
    };
    (0..50).map(|_| run()).fold(f64::INFINITY, f64::min)
}

/// Products until `stop`: of one token, as in decoding, or of a prompt of `rows`.
fn session(pool: &Pool, rows: usize, stop: &AtomicBool, done: &AtomicUsize) {
    let words: Vec<u32> = (0..SIZE * SIZE / 8).map(|i| (i as u32).wrapping_mul(0x9e37_79b9)).collect();
    let scales = vec![bf16::from_f32(0.01); SIZE * SIZE / 64];
    let format = Format::Affine { bits: 4, group: 64 };
    let numbers = Scales::BF16(&scales);
    let w = QMatrix::new(format, &words, numbers, Some(numbers), [SIZE, SIZE]).expect("sizes fit");
    let (x, mut out) = (vec![bf16::ONE; rows * SIZE], vec![bf16::ZERO; rows * SIZE]);
    while !stop.load(Relaxed) {
        linear(pool, black_box(&x), &w, &mut out).expect("sizes fit");
        done.fetch_add(1, Relaxed);
    }
}

/// Products a second of each of `count` sessions that run at once.
fn rates(pool: &Pool, rows: usize, count: usize) -> Vec<f64> {
    let stop = AtomicBool::new(false);
    let done: Vec<AtomicUsize> = (0..count).map(|_| AtomicUsize::new(0)).collect();
    let start = Instant::now();
    thread::scope(|s| {
        for done in &done {
            let stop = &stop;
            s.spawn(move || session(pool, rows, stop, done));
        }
        thread::sleep(SPAN);
        stop.store(true, Relaxed);
    });
    done.iter().map(|n| n.load(Relaxed) as f64 / start.elapsed().as_secs_f64()).collect()
}

fn main() {
    let threads = std::env::args().skip(1).find_map(|a| a.parse().ok()).unwrap_or(0);
    let pool = Pool::new(threads);
    println!("{pool:?}");
    println!("fork-join of empty tasks: {:.0} ns", fork_join(&pool));
    for rows in [1, 128] {
        for count in [1, 2] {
            let rates = rates(&pool, rows, count);
            let total: f64 = rates.iter().sum();
            println!("{rows} rows, {count} sessions: {total:.0} products/s, of each {rates:.0?}");
        }
    }
}
