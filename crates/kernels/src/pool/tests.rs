use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Condvar, Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    thread,
    time::Duration,
};

use super::*;
use crate::{
    View, ViewMut,
    gemm::{Addmm, matmul},
};

#[test]
fn every_task_runs_once() {
    for threads in 1..5 {
        let pool = Pool::new(threads);
        for tasks in [0, 1, 2, 7, 1000] {
            let counts: Vec<AtomicUsize> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
            pool.run(tasks, |i| {
                counts[i].fetch_add(1, SeqCst);
            });
            assert!(counts.iter().all(|c| c.load(SeqCst) == 1), "{threads} threads, {tasks} tasks");
        }
    }
}

#[test]
fn many_short_jobs_follow_each_other() {
    let pool = Pool::new(3);
    let mut data = vec![0u32; 64];
    for _ in 0..5000 {
        pool.run_chunks(&mut data, 8, |_, chunk| chunk.iter_mut().for_each(|x| *x += 1));
    }
    assert!(data.iter().all(|&x| x == 5000));
}

#[test]
fn sleeping_workers_wake_up() {
    let pool = Pool::new(2);
    for _ in 0..20 {
        thread::sleep(std::time::Duration::from_millis(2));
        let hits = AtomicUsize::new(0);
        pool.run(100, |_| {
            hits.fetch_add(1, SeqCst);
        });
        assert_eq!(hits.load(SeqCst), 100);
    }
}

#[test]
fn nested_and_concurrent_runs_finish() {
    let pool = Pool::new(3);
    let hits = AtomicUsize::new(0);
    let callers = JOBS + 2;
    thread::scope(|s| {
        for _ in 0..callers {
            s.spawn(|| {
                for _ in 0..50 {
                    pool.run(4, |_| pool.run(3, |_| _ = hits.fetch_add(1, SeqCst)));
                }
            });
        }
    });
    assert_eq!(hits.load(SeqCst), callers * 50 * 12);
    assert!(pool.lease().is_some(), "every job was given back");
}

/// Waits until `n` threads have come here; `false` if they do not within half a minute.
fn meet((lock, came): &(Mutex<usize>, Condvar), n: usize) -> bool {
    let mut count = lock.lock().unwrap();
    *count += 1;
    came.notify_all();
    !came.wait_timeout_while(count, Duration::from_secs(30), |count| *count < n).unwrap().1.timed_out()
}

#[test]
fn each_of_two_callers_gets_a_worker() {
    let pool = Pool::new(3);
    // Both jobs are open until the last of four tasks begins, and a thread waits in each: two
    // callers and two workers.
    let place = (Mutex::new(0), Condvar::new());
    let call = || pool.run(2, |_| assert!(meet(&place, 4), "a worker came to each caller"));
    thread::scope(|s| {
        s.spawn(call);
        s.spawn(call);
    });
}

#[test]
fn a_task_that_calls_the_pool_has_no_workers() {
    let pool = Pool::new(2);
    pool.run(2, |_| {
        let this = thread::current().id();
        pool.run(8, |_| assert_eq!(thread::current().id(), this));
    });
}

#[test]
fn a_caller_beyond_the_last_job_works_alone() {
    let pool = Pool::new(2);
    let (taken, done) = ((Mutex::new(0), Condvar::new()), (Mutex::new(0), Condvar::new()));
    thread::scope(|s| {
        for _ in 0..JOBS {
            s.spawn(|| {
                let lease = pool.lease();
                assert!(lease.is_some() && meet(&taken, JOBS + 1) && meet(&done, JOBS + 1));
            });
        }
        assert!(meet(&taken, JOBS + 1));
        let this = thread::current().id();
        pool.run(8, |_| assert_eq!(thread::current().id(), this));
        assert!(meet(&done, JOBS + 1));
    });
}

#[test]
fn results_are_the_same_beside_another_caller() {
    let pool = Pool::new(3);
    let weights: Vec<f32> = (0..300 * 200).map(|i| (i * 37 % 101) as f32 / 50.0 - 1.0).collect();
    let x: Vec<f32> = (0..40 * 200).map(|i| (i * 53 % 97) as f32 / 48.0 - 1.0).collect();
    let product = |rows: usize| {
        let mut out = vec![0.0; rows * 300];
        let a = View::contiguous(&x, &[rows, 200]).unwrap();
        let b = View::new(&weights, &[200, 300], &[1, 200], 0).unwrap();
        matmul(&pool, &a, &b, &mut ViewMut::contiguous(&mut out, &[rows, 300]).unwrap(), &Addmm::default()).unwrap();
        out
    };
    let expected = [product(1), product(40)];
    thread::scope(|s| {
        for _ in 0..3 {
            s.spawn(|| {
                for _ in 0..100 {
                    assert!(product(1) == expected[0] && product(40) == expected[1]);
                }
            });
        }
    });
}

#[test]
fn a_panicking_task_reaches_the_caller_and_leaves_the_pool_usable() {
    let pool = Pool::new(2);
    let result = catch_unwind(AssertUnwindSafe(|| pool.run(10, |i| assert_ne!(i, 7))));
    assert!(result.is_err());
    let hits = AtomicUsize::new(0);
    pool.run(10, |_| _ = hits.fetch_add(1, SeqCst));
    assert_eq!(hits.load(SeqCst), 10);
}
