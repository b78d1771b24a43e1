//! Many generations on one model.

use std::{
    collections::BTreeMap,
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use flambeau_cpu::CpuEngine;
use flambeau_ir::{
    Checked,
    engine::{Constants, EngineError, Session as EngineSession, Value},
};
use flambeau_runners::{
    Error,
    llm::{Event, FinishReason, Generation, Job, JobId, Limits, Load, Model, ModelOptions, Request, Scheduler, Session},
};
use flambeau_runtime::{Engine, LoadOptions, Program};
use flambeau_text::SamplingParams;

use crate::{
    AnyEngine,
    model::{Table, bigrams, cycle, masked, running, tokenizer},
    request,
};

const TABLE: Table = [[0.0, 0.5, 1.0, 0.2], [1.0, 0.0, 0.3, 0.9], [0.4, 0.8, 0.1, 0.6], [0.7, 0.2, 0.9, 0.0]];

const LIMITS: Limits = Limits { running: 4, sequences: 4, waiting: 16, tokens: 1000, kept_bytes: 1 << 20 };

fn scheduler(engine: &AnyEngine, program: &Program, limits: Limits) -> Scheduler {
    Scheduler::new(Model::load(program, engine, &ModelOptions::default()).unwrap(), tokenizer(), limits)
}

fn job(request: Request) -> Job {
    Job { request, reuses: true }
}

/// A job that generates `count` tokens, without an end token.
fn endless(prompt: &[u32], count: usize) -> Job {
    job(Request { ignore_eos: true, ..request(prompt, count) })
}

/// Recorded events of a job.
#[derive(Debug, Default)]
struct Seen {
    cached: Option<usize>,
    /// For each step of the job: index of the scheduler's step, and whether it returned a token.
    steps: Vec<(usize, bool)>,
    text: String,
    done: Option<Result<Generation, Error>>,
}

impl Seen {
    fn ids(&self) -> &[u32] {
        &self.generation().ids
    }

    fn generation(&self) -> &Generation {
        self.done.as_ref().expect("the job is done").as_ref().expect("the job succeeds")
    }
}

/// Takes steps until no work is left.
fn run(scheduler: &mut Scheduler, seen: &mut BTreeMap<JobId, Seen>) {
    run_with(scheduler, seen, &mut |_, _| ());
}

/// [`run`] with a call of `between` after each step.
fn run_with(scheduler: &mut Scheduler, seen: &mut BTreeMap<JobId, Seen>, between: &mut dyn FnMut(usize, &mut Scheduler)) {
    for turn in 0.. {
        let more = scheduler.step(&|| Duration::ZERO, &mut |id, event| {
            let seen = seen.entry(id).or_default();
            match event {
                Event::Started { cached } => assert_eq!(seen.cached.replace(cached), None, "a job starts once"),
                Event::Stepped(step) => {
                    seen.text.push_str(&step.text);
                    seen.steps.push((turn, step.token.is_some()));
                }
                Event::Finished(generation) => assert!(seen.done.replace(Ok(generation)).is_none()),
                Event::Failed(error) => assert!(seen.done.replace(Err(error)).is_none()),
            }
        });
        if !more {
            return;
        }
        between(turn, scheduler);
    }
}

fn alone(engine: &AnyEngine, program: &Program, request: &Request) -> Generation {
    let mut session = Session::new(Model::load(program, engine, &ModelOptions::default()).unwrap().sequence().unwrap());
    session.generate(&tokenizer(), request.clone(), &|| Duration::ZERO, &AtomicBool::new(false), &mut |_| ()).unwrap()
}

/// Requests with various prompts and parameters.
fn requests() -> Vec<Request> {
    let drawn = |seed| SamplingParams { temperature: 1.2, seed, ..SamplingParams::default() };
    let penalized = SamplingParams { presence_penalty: 0.5, ..SamplingParams::default() };
    let with = |sampling, prompt: &[u32], count| Request { sampling, ignore_eos: true, ..request(prompt, count) };
    vec![
        with(SamplingParams::default(), &[0, 1, 2, 1, 0, 2, 2], 9),
        with(drawn(1), &[0], 14),
        with(drawn(2), &[0, 1, 1, 1, 2], 3),
        with(penalized, &[2], 11),
        with(SamplingParams::default(), &[2, 1], 1),
        with(SamplingParams::default(), &[1, 2], 0),
        Request { stop: vec!["ca".into()], ..with(drawn(5), &[1], 12) },
        request(&[2, 2, 2, 2], 12),
    ]
}

pub(crate) fn neighbours_change_no_text(engine: &AnyEngine) {
    let program = bigrams(&TABLE, 100);
    let mut scheduler = scheduler(engine, &program, Limits { running: 3, sequences: 3, ..LIMITS });
    let jobs: Vec<(JobId, Request)> =
        requests().into_iter().map(|request| (scheduler.submit(job(request.clone())).unwrap(), request)).collect();
    let mut seen = BTreeMap::new();
    run_with(&mut scheduler, &mut seen, &mut |_, scheduler| assert!(scheduler.load().running <= 3));
    for (id, request) in jobs {
        let (seen, alone) = (&seen[&id], alone(engine, &program, &request));
        let found = seen.generation();
        assert_eq!((&found.ids, &found.text, found.finish), (&alone.ids, &alone.text, alone.finish), "{request:?}");
        assert_eq!(seen.text, alone.text, "the pieces are the text");
    }
    assert_eq!(scheduler.load(), Load { idle: 3, ..Load::default() });
}

pub(crate) fn texts_of_state_are_kept_apart(engine: &AnyEngine) {
    for program in [masked(&TABLE), running(&TABLE)] {
        let mut scheduler = scheduler(engine, &program, LIMITS);
        let prompts: [&[u32]; 6] = [&[0], &[1, 2], &[2, 2, 0], &[1], &[0, 1], &[0, 2, 2]];
        let ids: Vec<JobId> = prompts.iter().map(|prompt| scheduler.submit(endless(prompt, 4)).unwrap()).collect();
        let mut seen = BTreeMap::new();
        run(&mut scheduler, &mut seen);
        for (id, prompt) in ids.iter().zip(prompts) {
            assert_eq!(seen[id].ids(), alone(engine, &program, &endless(prompt, 4).request).ids, "after {prompt:?}");
        }
    }
}

pub(crate) fn long_prompts_let_others_go_on(engine: &AnyEngine) {
    let mut scheduler = scheduler(engine, &bigrams(&cycle(0), 100), LIMITS);
    let writer = scheduler.submit(endless(&[0], 40)).unwrap();
    let readers = [(); 2].map(|()| scheduler.submit(endless(&[0; 30], 1)).unwrap());
    let mut seen = BTreeMap::new();
    run(&mut scheduler, &mut seen);
    // The first prompt is read in the first step; from then on, each step returns a token.
    let tokens: Vec<usize> = seen[&writer].steps.iter().filter(|step| step.1).map(|step| step.0).collect();
    assert!(tokens.len() == 40 && tokens.windows(2).all(|pair| pair[1] == pair[0] + 1), "{tokens:?}");
    // Prompts of ten chunks each take turns.
    let [one, two] = readers.map(|id| seen[&id].steps.iter().map(|step| step.0).collect::<Vec<_>>());
    assert!(one.iter().zip(&two).all(|(a, b)| a.abs_diff(*b) == 1), "{one:?} {two:?}");
}

pub(crate) fn jobs_start_in_the_order_in_which_they_came(engine: &AnyEngine) {
    let mut scheduler = scheduler(engine, &bigrams(&cycle(0), 100), Limits { running: 2, tokens: 25, ..LIMITS });
    // The second job takes all available tokens; the third would fit with the first, but waits.
    let ids = [5, 24, 5].map(|count| scheduler.submit(endless(&[0], count)).unwrap());
    let mut order = Vec::new();
    let mut most = 0;
    while scheduler.step(&|| Duration::ZERO, &mut |id, event| {
        if let Event::Started { .. } = event {
            order.push(id);
        }
    }) {
        most = most.max(scheduler.load().tokens);
    }
    assert_eq!(order, ids);
    assert!(most <= 25, "{most} tokens at once");
}

pub(crate) fn clients_share_the_model(engine: &AnyEngine) {
    let mut scheduler = scheduler(engine, &running(&TABLE), Limits { running: 1, ..LIMITS });
    let mut submit = |client| scheduler.submit_for(client, endless(&[0], 3)).unwrap();
    let greedy: Vec<JobId> = (0..4).map(|_| submit(1)).collect();
    let modest = [submit(2), submit(2)];
    let mut seen = BTreeMap::new();
    run(&mut scheduler, &mut seen);
    let mut order: Vec<JobId> = seen.keys().copied().collect();
    order.sort_by_key(|id| seen[id].steps[0]);
    assert_eq!(order, [greedy[0], modest[0], greedy[1], modest[1], greedy[2], greedy[3]]);
}

pub(crate) fn jobs_in_the_background_make_room(engine: &AnyEngine) {
    let program = running(&TABLE);
    let requests = [request(&[0, 1], 12), request(&[1], 12), request(&[2, 0, 1], 5)].map(|it| Request { ignore_eos: true, ..it });
    let mut scheduler = scheduler(engine, &program, Limits { running: 1, ..LIMITS });
    let mut background = requests[..2].iter().map(|it| scheduler.submit_in_background(1, job(it.clone())).unwrap());
    let background = [background.next().unwrap(), background.next().unwrap()];
    let mut other = None;
    let mut seen = BTreeMap::new();
    run_with(&mut scheduler, &mut seen, &mut |turn, scheduler| {
        if turn == 3 {
            other = Some(scheduler.submit_for(2, job(requests[2].clone())).unwrap());
        }
    });
    let other = other.unwrap();
    let turns = |id: &JobId| seen[id].steps.iter().map(|step| step.0).collect::<Vec<_>>();
    let [first, second] = background.each_ref().map(turns);
    let its = turns(&other);
    assert_eq!(its.first(), Some(&4), "the first job pauses at once: {first:?} {its:?}");
    assert!(its.windows(2).all(|pair| pair[1] == pair[0] + 1), "nothing delays the other job: {its:?}");
    assert!(first[0] == 0 && first.last() > its.last() && second[0] > *first.last().unwrap(), "{first:?} {second:?}");
    for (id, request) in background.iter().chain([&other]).zip(&requests) {
        assert_eq!(seen[id].ids(), alone(engine, &program, request).ids, "a pause changes no text");
    }
    // They take no place in the queue of others.
    let mut scheduler = self::scheduler(engine, &program, Limits { running: 1, waiting: 1, ..LIMITS });
    for _ in 0..2 {
        scheduler.submit_in_background(1, endless(&[0], 3)).unwrap();
    }
    assert!(matches!(scheduler.submit_in_background(1, endless(&[0], 3)), Err(Error::Busy { .. })));
    let paused = [(); 2].map(|()| scheduler.submit(endless(&[0], 3)).unwrap());
    assert!(matches!(scheduler.submit(endless(&[0], 3)), Err(Error::Busy { .. })));
    scheduler.cancel(paused[0]);
    let mut seen = BTreeMap::new();
    run(&mut scheduler, &mut seen);
    assert_eq!(seen.values().map(|seen| seen.ids().len()).collect::<Vec<_>>(), [3, 3, 3]);
}

pub(crate) fn what_is_too_much_is_refused_at_once(engine: &AnyEngine) {
    let limits = Limits { running: 1, waiting: 2, tokens: 50, ..LIMITS };
    let mut scheduler = scheduler(engine, &bigrams(&cycle(0), 100), limits);
    assert!(matches!(scheduler.submit(endless(&[], 1)), Err(Error::EmptyPrompt)));
    assert!(matches!(scheduler.submit(endless(&[0; 101], 1)), Err(Error::PromptTooLong { prompt: 101, context: 100 })));
    assert!(matches!(scheduler.submit(endless(&[0; 30], 21)), Err(Error::TooManyTokens { tokens: 51, limit: 50 })));
    // An unbounded text is as long as the context.
    assert!(matches!(scheduler.submit(endless(&[0], usize::MAX)), Err(Error::TooManyTokens { tokens: 100, limit: 50 })));
    // One job starts at once, and two wait.
    for _ in 0..3 {
        scheduler.submit(endless(&[0], 1)).unwrap();
    }
    assert!(matches!(scheduler.submit(endless(&[0], 1)), Err(Error::Busy { waiting: 3 })));
    run(&mut scheduler, &mut BTreeMap::new());
    assert!(scheduler.submit(endless(&[0], 1)).is_ok());
}

pub(crate) fn without_a_queue_who_has_a_turn_is_taken(engine: &AnyEngine) {
    let limits = Limits { running: 1, waiting: 0, ..LIMITS };
    let mut scheduler = scheduler(engine, &bigrams(&cycle(0), 100), limits);
    scheduler.submit(endless(&[0], 2)).unwrap();
    let mut busy = 0;
    run_with(&mut scheduler, &mut BTreeMap::new(), &mut |turn, scheduler| {
        if scheduler.load().running > 0 {
            assert!(matches!(scheduler.submit(endless(&[0], 1)), Err(Error::Busy { waiting: 0 })), "in turn {turn}");
            busy += 1;
        }
    });
    assert!(busy > 0 && scheduler.submit(endless(&[0], 1)).is_ok());
}

pub(crate) fn what_cannot_begin_leaves_its_sequence(engine: &AnyEngine) {
    let mut scheduler = scheduler(engine, &bigrams(&cycle(0), 100), Limits { running: 1, sequences: 1, ..LIMITS });
    let bad = SamplingParams { top_p: 0.0, ..SamplingParams::default() };
    let jobs = [endless(&[0, 1], 1), job(Request { sampling: bad, ..request(&[0, 1, 2], 1) }), endless(&[0, 1, 2], 1)];
    let ids = jobs.map(|job| scheduler.submit(job).unwrap());
    let mut seen = BTreeMap::new();
    run(&mut scheduler, &mut seen);
    assert!(seen[&ids[1]].done.as_ref().is_some_and(Result::is_err));
    assert_eq!((seen[&ids[2]].cached, scheduler.load().idle), (Some(2), 1));
}

pub(crate) fn prompts_continue_what_sequences_hold(engine: &AnyEngine) {
    let program = masked(&TABLE);
    let mut scheduler = scheduler(engine, &program, Limits { sequences: 2, running: 2, ..LIMITS });
    let mut answer = |prompt: &[u32], reuses: bool| {
        let job = Job { reuses, ..endless(prompt, 2) };
        let expected = alone(engine, &program, &job.request).ids;
        let id = scheduler.submit(job).unwrap();
        let mut seen = BTreeMap::new();
        run(&mut scheduler, &mut seen);
        assert_eq!(seen[&id].ids(), expected, "after {prompt:?}");
        (seen[&id].cached.expect("it started"), seen[&id].ids()[0])
    };
    let (cached, next) = answer(&[0, 2, 1], true);
    assert_eq!(cached, 0);
    // The prompt and the first token of the answer, which was fed back.
    assert_eq!(answer(&[0, 2, 1, next, 2], true).0, 4);
    // Another text gets its own sequence, so the first one stays.
    assert_eq!(answer(&[1, 1], true).0, 0);
    assert_eq!(answer(&[0, 2, 1, next, 0], true).0, 4);
    assert_eq!(answer(&[0, 2, 1, next, 0], false).0, 0);
}

pub(crate) fn cancelled_jobs_take_no_step(engine: &AnyEngine) {
    let program = bigrams(&cycle(0), 100);
    let mut scheduler = scheduler(engine, &program, Limits { running: 2, ..LIMITS });
    let ids = [10; 4].map(|count| scheduler.submit(endless(&[0; 7], count)).unwrap());
    let mut seen = BTreeMap::new();
    run_with(&mut scheduler, &mut seen, &mut |turn, scheduler| {
        if turn == 3 {
            // One running job and one waiting job.
            scheduler.cancel(ids[0]);
            scheduler.cancel(ids[2]);
        }
    });
    assert!(seen[&ids[0]].steps.iter().all(|step| step.0 <= 3) && seen[&ids[0]].done.is_none());
    assert!(!seen.contains_key(&ids[2]), "it never started");
    for id in [ids[1], ids[3]] {
        assert_eq!((seen[&id].ids().len(), seen[&id].generation().finish), (10, FinishReason::Length));
    }
    assert_eq!((scheduler.load().running, scheduler.load().idle), (0, 2));
}

/// The CPU engine, except that it panics if a step begins with token 2.
struct Fragile(CpuEngine);

struct FragileSession(Box<dyn EngineSession>);

impl Engine for Fragile {
    fn name(&self) -> &'static str {
        "fragile"
    }

    fn load(
        &self,
        graph: Arc<Checked>,
        constants: &dyn Constants,
        options: &LoadOptions,
    ) -> Result<Box<dyn EngineSession>, EngineError> {
        Ok(Box::new(FragileSession(self.0.load(graph, constants, options)?)))
    }
}

impl EngineSession for FragileSession {
    fn run(&mut self, inputs: &[Value]) -> Result<Vec<Value>, EngineError> {
        let Value::Tensor(tokens) = &inputs[0] else { panic!("tokens are a tensor") };
        assert_ne!(tokens.as_slice::<i64>().unwrap()[0], 2, "the token that it does not bear");
        self.0.run(inputs)
    }

    fn reset(&mut self) {
        self.0.reset();
    }
}

pub(crate) fn a_panic_ends_one_job() {
    let engine: AnyEngine = Arc::new(Fragile(CpuEngine::new(Some(1))));
    let mut scheduler = scheduler(&engine, &bigrams(&cycle(3), 100), Limits { running: 2, sequences: 2, ..LIMITS });
    // `a` leads to `b`, and `b` to `c`, which is token 2.
    let [bad, good] = [&[0][..], &[3, 3]].map(|prompt| scheduler.submit(endless(prompt, 3)).unwrap());
    let mut seen = BTreeMap::new();
    run(&mut scheduler, &mut seen);
    let error = seen[&bad].done.as_ref().unwrap().as_ref().unwrap_err();
    assert!(error.to_string().contains("does not bear"), "{error}");
    assert_eq!(seen[&good].ids().len(), 3);
    // Its sequence is dropped, and another one can be loaded.
    assert_eq!(scheduler.load().idle, 1);
    let again = [&[3][..], &[3]].map(|prompt| scheduler.submit(endless(prompt, 3)).unwrap());
    run(&mut scheduler, &mut seen);
    assert!(again.iter().all(|id| seen[id].ids().len() == 3));
}
