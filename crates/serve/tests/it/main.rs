//! Servers over real sockets, on real models that are small.

mod agents;
mod audio;
mod batches;
mod chat;
mod client;
mod clients;
mod demand;
mod embeddings;
mod hardening;
mod lora;
mod page;
mod realtime;
mod requests;
mod rerank;
mod restart;
mod server;
mod traces;

use std::process::ExitCode;

use flambeau_testcases::test;

macro_rules! tests {
    ($($module:ident::$name:ident),+ $(,)?) => {
        vec![$(test(concat!(stringify!($module), "::", stringify!($name)), || Ok(()), $module::$name)),+]
    };
}

fn main() -> ExitCode {
    let mut tests = tests![
        chat::answers_are_those_of_the_model,
        chat::streams_carry_the_same_text,
        chat::neighbours_change_no_text,
        chat::prompts_that_begin_alike_are_computed_once,
        chat::texts_that_lost_their_sequence_are_kept,
        chat::requests_at_the_same_time_read_a_shared_beginning_once,
        chat::several_answers_differ_by_their_seeds,
        chat::likelihoods_are_listed,
        chat::thoughts_and_calls_are_told_from_the_answer,
        chat::tools_that_are_not_to_be_called_are_not_told_of,
        chat::calls_that_are_asked_for_are_enforced,
        chat::control_tokens_mark_thoughts_and_calls,
        chat::answers_have_the_form_that_is_asked_for,
        chat::anthropics_form_is_spoken,
        chat::stop_texts_end_answers_across_tokens,
        chat::models_are_listed_and_found_by_name,
        agents::probes_are_answered_and_requests_keep_their_names,
        agents::agents_are_answered_or_told_why,
        agents::kept_responses_belong_to_their_key,
        agents::ollamas_errors_are_texts,
        agents::keys_have_allowances_and_turns_of_their_own,
        agents::gaps_are_filled,
        requests::texts_are_continued,
        requests::bias_and_penalties_change_what_is_chosen,
        requests::wrong_fields_are_named,
        requests::fields_that_change_nothing_are_taken,
        requests::bodies_that_are_no_requests_are_refused,
        requests::the_page_talks_to_this_server_alone,
        requests::prompts_beyond_the_context_have_their_code,
        requests::tokens_and_prompts_can_be_looked_at,
        hardening::clients_that_go_away_end_their_jobs,
        hardening::readers_that_stop_lose_their_own_answer_alone,
        hardening::more_than_can_wait_is_told_to_come_back,
        hardening::what_may_be_too_long_is_refused_ahead,
        hardening::heads_and_bodies_have_bounds,
        hardening::times_and_tokens_have_the_names_of_vllm,
        hardening::schemas_beyond_the_limits_are_refused,
        hardening::connections_beyond_the_bound_wait,
        hardening::keys_hosts_and_origins_are_asked_for,
        hardening::a_server_that_stops_lets_answers_end,
        hardening::answers_that_take_too_long_are_told_why,
        hardening::a_panic_costs_one_request,
        hardening::characters_are_not_cut_in_streams,
        demand::models_are_loaded_when_they_are_asked_for,
        demand::the_model_that_was_not_used_for_longest_makes_room,
        demand::models_in_use_are_not_let_go,
        demand::a_model_that_cannot_be_loaded_costs_its_own_requests,
        demand::a_template_that_cannot_be_used_costs_its_own_conversations,
        restart::texts_survive_a_restart,
        restart::models_that_come_back_find_their_texts,
        restart::texts_of_others_are_not_used,
        lora::names_choose_adapters,
        lora::requests_scale_adapters,
        lora::texts_of_adapters_share_no_caches,
        lora::adapters_need_names_of_their_own,
        lora::adapters_stay_with_their_model,
        embeddings::vectors_are_those_of_the_model,
        embeddings::prompts_apply_the_adapters_of_their_name,
        embeddings::vectors_are_shortened_and_prompts_stand_before_texts,
        embeddings::vectors_come_as_bytes_too,
        embeddings::what_an_encoder_cannot_do_is_refused,
        embeddings::requests_at_the_same_time_share_runs,
        embeddings::a_panic_costs_the_requests_of_its_run,
        rerank::documents_come_by_their_relevance,
        rerank::pairs_are_scored_and_texts_get_labels,
        rerank::entities_are_found_with_their_places,
        rerank::what_a_classifier_cannot_do_is_refused,
        audio::recordings_are_transcribed_in_every_form,
        audio::transcripts_are_streamed,
        audio::what_a_model_of_speech_cannot_do_is_refused,
        audio::a_server_without_models_of_speech_says_so,
        audio::uploads_that_are_no_recordings_cost_their_own_request,
        audio::more_recordings_than_have_a_place_are_told_to_come_back,
        audio::a_panic_costs_one_recording,
        audio::clients_that_go_away_are_not_listened_to,
        audio::neighbours_change_no_transcript,
        batches::answers_are_those_of_the_server,
        batches::wrong_inputs_and_fields_are_named,
        batches::files_belong_to_their_key_and_have_bounds,
        batches::batches_go_on_after_a_restart,
        batches::other_requests_go_first,
        batches::batches_end_early_when_they_are_told_to,
        batches::batches_of_messages_bring_their_requests,
        realtime::sessions_are_closed_when_the_server_stops,
        realtime::committed_turns_are_told_before_the_server_stops,
        realtime::the_beta_has_names_of_its_own,
        clients::the_table_of_clients_names_what_the_tests_run,
        traces::a_collector_that_is_away_costs_no_request,
    ];
    tests.push(test("openai_runs_unmodified", clients::has_openai, clients::openai_runs_unmodified));
    tests.push(test("anthropic_runs_unmodified", clients::has_anthropic, clients::anthropic_runs_unmodified));
    tests.push(test("ollama_runs_unmodified", clients::has_ollama, clients::ollama_runs_unmodified));
    tests.push(test("cohere_runs_unmodified", clients::has_cohere, clients::cohere_runs_unmodified));
    let validates = clients::the_description_of_the_paths_is_valid;
    tests.push(test("the_description_of_the_paths_is_valid", clients::has_openapi_validator, validates));
    tests.push(test("langchain_runs_unmodified", clients::has_langchain, clients::langchain_runs_unmodified));
    tests.push(test("openai_for_node_runs_unmodified", clients::has_openai_for_node, clients::openai_for_node_runs_unmodified));
    tests.push(test("the_ai_sdk_runs_unmodified", clients::has_ai_sdk, clients::the_ai_sdk_runs_unmodified));
    tests.push(test("realtime::openai_transcribes_live", realtime::has_clients, realtime::openai_transcribes_live));
    tests.push(test("traces::spans_follow_the_conventions", traces::has_decoder, traces::spans_follow_the_conventions));
    tests.push(test("the_page_works_in_a_browser", clients::has_browser, page::works_in_a_browser));
    flambeau_testcases::run(tests)
}
