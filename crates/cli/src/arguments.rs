//! Spellings of arguments that other programs taught their users.

use std::ffi::OsString;

/// Commands whose model is a positional argument, the first one.
const COMMANDS: [&str; 11] =
    ["chat", "generate", "serve", "bench", "eval", "embed", "rerank", "classify", "tokenize", "export", "show"];

/// Flags of llama.cpp and mlx-lm before a model.
const MODEL: [&str; 5] = ["-m", "--model", "-hf", "-hfr", "--hf-repo"];

/// Other flags of llama.cpp with one dash, and their names here.
const SHORT: [(&str, &str); 2] = [("-sys", "--system"), ("-md", "--draft")];

/// Replaces `_` by `-` in long flags, and puts a model after `-m`, `--model` or `-hf` into the
/// place of the positional one. Values after `=` and arguments after a lone `--` are unchanged.
pub(crate) fn normal(args: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    model_first(kebab(args))
}

fn kebab(args: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let mut plain = false;
    let fix = |arg: OsString| {
        plain |= arg == "--";
        match arg.to_str().filter(|text| !plain && text.starts_with("--") && !text.contains(char::is_whitespace)) {
            Some(text) => match text.split_once('=') {
                Some((flag, value)) => format!("{}={value}", flag.replace('_', "-")).into(),
                None => text.replace('_', "-").into(),
            },
            None => arg,
        }
    };
    args.into_iter().map(fix).collect()
}

fn model_first(args: Vec<OsString>) -> Vec<OsString> {
    if !args.get(1).is_some_and(|command| COMMANDS.iter().any(|known| command == known)) {
        return args;
    }
    let mut args = args.into_iter();
    let mut fixed: Vec<OsString> = args.by_ref().take(2).collect();
    let (mut models, mut others) = (Vec::new(), Vec::new());
    while let Some(arg) = args.next() {
        if arg == "--" {
            others.push(arg);
            break;
        }
        let joined = arg.to_str().and_then(|text| text.split_once('=')).filter(|(flag, _)| MODEL.contains(flag));
        if let Some((_, model)) = joined {
            models.push(model.into());
        } else if MODEL.iter().any(|flag| arg == *flag) {
            // A flag without a model is refused later.
            models.push(args.next().unwrap_or(arg));
        } else if let Some((_, own)) = SHORT.iter().find(|(flag, _)| arg == *flag) {
            others.push(own.into());
        } else {
            others.push(arg);
        }
    }
    fixed.extend(models.into_iter().chain(others).chain(args));
    fixed
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(args: &[&str], expected: &[&str]) {
        let own = |list: &[&str]| list.iter().map(OsString::from).collect::<Vec<_>>();
        assert_eq!(normal(own(args)), own(expected));
    }

    #[test]
    fn underscores_in_flags_are_dashes() {
        check(
            &["f", "--max_new_tokens", "3", "--a_b=c_d", "x_y", "--", "--k_l"],
            &["f", "--max-new-tokens", "3", "--a-b=c_d", "x_y", "--", "--k_l"],
        );
    }

    #[test]
    fn models_behind_a_flag_take_their_place() {
        check(&["f", "generate", "-p", "hi", "-m", "a.pte", "-n", "2"], &["f", "generate", "a.pte", "-p", "hi", "-n", "2"]);
        check(&["f", "generate", "hi", "--model=a.pte"], &["f", "generate", "a.pte", "hi"]);
        check(&["f", "serve", "--hf_repo", "o/m:Q8_0", "-m", "b"], &["f", "serve", "o/m:Q8_0", "b"]);
        check(&["f", "chat", "-hf", "o/m", "-sys", "Be brief."], &["f", "chat", "o/m", "--system", "Be brief."]);
        check(&["f", "chat", "a.pte", "--", "-m"], &["f", "chat", "a.pte", "--", "-m"]);
        check(&["f", "chat", "-m"], &["f", "chat", "-m"]);
        // This command has the flag itself.
        check(&["f", "transcribe", "a.wav", "-m", "w.pte"], &["f", "transcribe", "a.wav", "-m", "w.pte"]);
    }
}
