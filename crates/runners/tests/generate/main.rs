//! Tests of generation on both engines. The CPU engine returns logits, and MLX samples tokens.
//! Programs that sample tokens themselves are tested too.

mod adapting;
mod draft_model;
mod drawing;
mod evaluation;
mod executorch;
#[path = "../../../mlx/tests/support/mod.rs"]
mod installed;
mod lookup;
mod model;
mod pipelined;
mod sampling;
mod scheduling;
mod sequence;
mod speculation;
mod stopping;

use std::{
    cell::Cell,
    process::ExitCode,
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use flambeau_cpu::CpuEngine;
use flambeau_runners::{
    Error,
    llm::{Generation, Model, ModelOptions, Request, Sequence, generate},
};
use flambeau_runtime::{Engine, Program};
use flambeau_testcases::{functions, test};

type AnyEngine = Arc<dyn Engine>;

fn load(engine: &AnyEngine, program: &Program) -> Sequence {
    Model::load(program, engine, &ModelOptions::default()).and_then(|model| model.sequence()).expect("the model loads")
}

fn request(prompt: &[u32], max_new_tokens: usize) -> Request {
    Request { prompt: prompt.to_vec(), max_new_tokens, ..Request::default() }
}

/// Generates with a clock that advances by one second per reading. `on_text` receives the pieces
/// and the cancellation flag.
fn generate_with(model: &mut Sequence, request: &Request, on_text: &mut dyn FnMut(&str, &AtomicBool)) -> Result<Generation, Error> {
    let clock = Cell::new(0);
    let now = || {
        clock.set(clock.get() + 1);
        Duration::from_secs(clock.get())
    };
    let (cancel, mut streamed) = (AtomicBool::new(false), String::new());
    on_text("", &cancel);
    let done = generate(model, &model::tokenizer(), request, &now, &cancel, &mut |text| {
        streamed.push_str(text);
        on_text(text, &cancel);
    })?;
    assert_eq!(done.text, streamed, "the pieces are the text");
    assert_eq!(model.in_flight(), 0, "nothing stays submitted");
    Ok(done)
}

/// Generates with a fresh model.
fn run(engine: &AnyEngine, program: &Program, request: &Request) -> Result<Generation, Error> {
    generate_with(&mut load(engine, program), request, &mut |_, _| ())
}

/// Runs each test on both engines.
macro_rules! on_both {
    ($($module:ident::$name:ident),+ $(,)?) => {
        vec![$(
            test(concat!("cpu::", stringify!($name)), || Ok(()), || $module::$name(&(Arc::new(CpuEngine::new(Some(1))) as AnyEngine))),
            test(concat!("mlx::", stringify!($name)), installed::requirement, || $module::$name(&(Arc::new(installed::engine()) as AnyEngine))),
        )+]
    };
}

fn main() -> ExitCode {
    use pipelined::{a_model_continues_after_what_it_received, both_engines_draw_the_same_tokens};
    let mut tests = on_both![
        stopping::the_end_token_ends_the_text,
        lookup::texts_that_repeat_themselves_take_fewer_steps,
        lookup::guesses_change_no_text,
        lookup::guesses_change_no_draw,
        lookup::who_cannot_judge_guesses_says_so,
        stopping::stop_ids_end_the_text_and_are_counted,
        stopping::stop_texts_are_found_across_tokens,
        stopping::text_held_back_for_a_stop_text_is_shown_at_the_end,
        stopping::end_tokens_can_be_ignored,
        stopping::as_many_tokens_as_asked_for,
        stopping::a_full_context_ends_generation,
        stopping::a_full_context_may_drop_older_tokens,
        stopping::callers_cancel_between_tokens,
        draft_model::another_models_guesses_change_no_text,
        draft_model::another_models_guesses_change_no_draw,
        draft_model::another_model_follows_a_conversation,
        draft_model::models_that_cannot_guess_or_judge_say_so,
        sequence::long_prompts_are_taken_in_chunks,
        sequence::sequences_continue_until_they_are_reset,
        sequence::prompts_must_fit_what_is_left_of_the_context,
        sequence::sessions_compute_what_is_new,
        sequence::sequences_are_shortened_where_caches_keep_rows,
        sequence::sequences_begin_anew_where_state_is_that_of_the_last_token,
        sequence::copies_hold_what_a_sequence_holds,
        sequence::programs_that_are_no_language_models_are_refused,
        sequence::the_clock_is_read_where_the_figures_say,
        speculation::guesses_change_the_number_of_steps_and_nothing_else,
        speculation::guesses_are_for_greedy_texts,
        drawing::the_program_is_told_how_to_draw,
        drawing::what_the_program_cannot_be_told_is_refused,
        sampling::drawn_tokens_are_those_of_the_seed,
        sampling::penalties_count_the_prompt_and_what_was_generated,
        sampling::steps_tell_how_likely_tokens_were,
        sampling::parameters_out_of_range_are_refused,
        adapting::every_text_has_its_adapters,
        adapting::caches_are_not_shared_across_adapters,
        adapting::adapters_have_names,
        adapting::a_text_keeps_its_adapters,
        scheduling::neighbours_change_no_text,
        scheduling::texts_of_state_are_kept_apart,
        scheduling::long_prompts_let_others_go_on,
        scheduling::jobs_start_in_the_order_in_which_they_came,
        scheduling::clients_share_the_model,
        scheduling::jobs_in_the_background_make_room,
        scheduling::what_is_too_much_is_refused_at_once,
        scheduling::without_a_queue_who_has_a_turn_is_taken,
        scheduling::what_cannot_begin_leaves_its_sequence,
        scheduling::prompts_continue_what_sequences_hold,
        scheduling::cancelled_jobs_take_no_step,
        evaluation::losses_are_those_of_the_second_halves,
        evaluation::models_that_give_the_last_logits_read_token_by_token,
        evaluation::divergences_are_those_from_the_reference,
        evaluation::windows_must_fit_the_context,
        evaluation::callers_cancel_between_windows,
    ];
    tests.extend(functions![installed::requirement; a_model_continues_after_what_it_received, both_engines_draw_the_same_tokens]);
    tests.push(test("a_panic_ends_one_job", || Ok(()), scheduling::a_panic_ends_one_job));
    tests.push(test(
        "executorch_writes_pairs_of_one_greedy_text",
        || speculation::pair().map(drop),
        speculation::executorch_writes_pairs_of_one_greedy_text,
    ));
    tests.extend(executorch::tests());
    flambeau_testcases::run(tests)
}
