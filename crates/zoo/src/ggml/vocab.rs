//! Vocabulary of a file. The file lists only text tokens, and the vocabulary size determines the
//! ids of the others.

use flambeau_text::{GgufVocab, Tokenizer};

use super::GgmlReader;
use crate::{Result, speech::whisper::Tokens};

/// Number of text tokens: GPT-2's for English-only models, and equally many for the others.
const RANKS: usize = 50_256;
/// Smallest vocabulary of a multilingual model.
const MULTILINGUAL: usize = 51_865;
/// Number of timestamps: steps of 0.02 seconds, from 0 to 30.
const TIMESTAMPS: usize = 1_501;
const BEGIN: [&str; 2] = ["<|endoftext|>", "<|startoftranscript|>"];
/// Tokens after the languages.
const TASKS: [&str; 6] =
    ["<|translate|>", "<|transcribe|>", "<|startoflm|>", "<|startofprev|>", "<|nospeech|>", "<|notimestamps|>"];
/// Last timestamp that may start a text, in steps: one second.
const LAST_INITIAL: usize = 50;

/// Languages in the order of their ids. The last one came with large-v3.
const LANGUAGES: &str = "en zh de es ru ko fr ja pt tr pl ca nl ar sv it id hi fi vi he uk el ms cs ro da hu ta no th ur hr bg lt la mi ml cy sk te \
    fa lv bn sr az sl kn et mk br eu is hy ne mn bs kk sq sw gl mr pa si km sn yo so af oc ka be tg sd gu am yi lo uz fo ht ps tk nn mt sa lb my bo tl mg \
    as tt haw ln ha ba jw su yue";

/// Symbols that transcripts suppress, such as music notes.
const NOT_SAID: &str = "\" # ( ) * + / : ; < = > @ [ \\ ] ^ _ ` { | } ~ 「 」 『 』 << >> <<< >>> -- --- -( -[ (' (\" (( )) ((( ))) [[ ]] {{ }} ♪♪ ♪♪♪";
/// Symbols that no token may start.
const MUSIC: &str = "♩ ♪ ♫ ♬ ♭ ♮ ♯";

/// Reads the vocabulary and the control token ids of a model with `size` tokens.
///
/// # Errors
/// The file violates its format, or no Whisper model has this many tokens.
pub(super) fn read(r: &mut GgmlReader<'_>, size: usize) -> Result<(GgufVocab, Tokens)> {
    let listed = r.size("tokens of text", size)?;
    let mut texts = Vec::new();
    for _ in 0..listed {
        let length = r.number()? as usize;
        texts.push(r.take(length)?.to_vec());
    }
    // The other tokens have no bytes, or their known names.
    texts.truncate(RANKS);
    let special = special(size).ok_or_else(|| r.error(format!("{size} tokens, which no Whisper has")))?;
    if texts.len() < RANKS {
        return Err(r.error(format!("{} tokens of text, expected {RANKS}", texts.len())));
    }
    let vocab = GgufVocab::from_ranks(&texts, &special).map_err(|error| r.error(error.to_string()))?;
    let tokens = tokens(&vocab, size).map_err(|error| r.error(error.to_string()))?;
    Ok((vocab, tokens))
}

/// Number of language tokens in a vocabulary of this size.
fn languages(size: usize) -> Option<usize> {
    let others = begin(size) + BEGIN.len() + TASKS.len() + TIMESTAMPS;
    size.checked_sub(others).filter(|&count| (1..=LANGUAGES.split_whitespace().count()).contains(&count))
}

/// The id of the first special token.
fn begin(size: usize) -> usize {
    RANKS + usize::from(size >= MULTILINGUAL)
}

/// Names of the tokens after the text tokens. Multilingual vocabularies have one unused token
/// between them.
fn special(size: usize) -> Option<Vec<String>> {
    let languages = LANGUAGES.split_whitespace().take(languages(size)?).map(|code| format!("<|{code}|>"));
    let times = (0..TIMESTAMPS).map(|step| format!("<|{}.{:02}|>", step / 50, step % 50 * 2));
    let own = |names: &'static [&str]| names.iter().map(|name| (*name).to_owned());
    let filler = (size >= MULTILINGUAL).then(|| "<|unused|>".to_owned());
    Some(filler.into_iter().chain(own(&BEGIN)).chain(languages).chain(own(&TASKS)).chain(times).collect())
}

fn tokens(vocab: &GgufVocab, size: usize) -> Result<Tokens, flambeau_text::Error> {
    let begin = begin(size);
    let languages = languages(size).unwrap_or_default();
    let [end, start] = [begin, begin + 1].map(|id| id as i64);
    let task = |place: usize| (begin + BEGIN.len() + languages + place) as i64;
    let is_multilingual = size >= MULTILINGUAL;
    let codes = LANGUAGES.split_whitespace().take(if is_multilingual { languages } else { 0 });
    let tokenizer = Tokenizer::from_gguf(vocab)?;
    let mut suppressed = not_said(&tokenizer)?;
    suppressed.extend([start, task(0), task(1), task(2), task(3), task(4)]);
    suppressed.sort_unstable();
    suppressed.dedup();
    let space = tokenizer.encode(" ", false)?.first().map(|&id| i64::from(id));
    Ok(Tokens {
        end,
        start,
        previous: task(3),
        no_speech: task(4),
        no_timestamps: task(5),
        translate: is_multilingual.then(|| task(0)),
        transcribe: is_multilingual.then(|| task(1)),
        languages: codes.zip(start + 1..).map(|(code, id)| (code.to_owned(), id)).collect(),
        suppressed,
        suppressed_at_begin: space.into_iter().chain([end]).collect(),
        last_initial_timestamp: LAST_INITIAL,
    })
}

/// Tokens of unspoken symbols, alone and after a space. Hyphens and quotes occur inside words, so
/// they are suppressed only after a space.
fn not_said(tokenizer: &Tokenizer) -> Result<Vec<i64>, flambeau_text::Error> {
    let mut out = Vec::new();
    let mut add = |text: &str, takes_beginning: bool| -> Result<(), flambeau_text::Error> {
        let ids = tokenizer.encode(text, false)?;
        out.extend(ids.first().filter(|_| takes_beginning || ids.len() == 1).map(|&id| i64::from(id)));
        Ok(())
    };
    add(" -", true)?;
    add(" '", true)?;
    for (symbols, takes_beginning) in [(NOT_SAID, false), (MUSIC, true)] {
        for symbol in symbols.split_whitespace() {
            add(symbol, takes_beginning)?;
            add(&format!(" {symbol}"), takes_beginning)?;
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn special_tokens_have_their_published_ids() {
        let id = |size: usize, name: &str| {
            let place = special(size).unwrap().iter().position(|other| other == name).unwrap();
            size - special(size).unwrap().len() + place
        };
        let names =
            ["<|endoftext|>", "<|startoftranscript|>", "<|en|>", "<|translate|>", "<|notimestamps|>", "<|0.00|>", "<|30.00|>"];
        assert_eq!(names.map(|name| id(51_864, name)), [50_256, 50_257, 50_258, 50_357, 50_362, 50_363, 51_863]);
        assert_eq!(names.map(|name| id(51_865, name)), [50_257, 50_258, 50_259, 50_358, 50_363, 50_364, 51_864]);
        assert_eq!(names.map(|name| id(51_866, name)), [50_257, 50_258, 50_259, 50_359, 50_364, 50_365, 51_865]);
        assert_eq!(id(51_866, "<|yue|>"), 50_358);
        assert!(special(51_867).is_none() && special(50_000).is_none());
    }

    #[test]
    fn multilingual_models_know_languages_and_tasks() {
        let pairs = (0..=u8::MAX).flat_map(|first| (0..=u8::MAX).map(move |second| vec![first, second]));
        let texts: Vec<Vec<u8>> = (0..=u8::MAX).map(|byte| vec![byte]).chain(pairs).take(RANKS).collect();
        let of = |size: usize| tokens(&GgufVocab::from_ranks(&texts, &special(size).unwrap()).unwrap(), size).unwrap();
        let (english, first, third) = (of(51_864), of(51_865), of(51_866));
        assert_eq!((english.translate, english.languages.len()), (None, 0));
        assert_eq!(
            (first.translate, first.transcribe, first.previous, first.no_speech),
            (Some(50_358), Some(50_359), 50_361, 50_362)
        );
        assert_eq!([&first, &third].map(|tokens| tokens.languages.len()), [99, 100]);
        assert_eq!([0, 99].map(|at| third.languages[at].clone()), [("en".into(), 50_259), ("yue".into(), 50_358)]);
        assert_eq!((third.no_timestamps, third.suppressed_at_begin), (50_364, vec![32, 50_257]));
    }
}
