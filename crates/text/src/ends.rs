//! Well-known tokens that end a turn or an answer, in addition to a file's own.

/// Texts of tokens that end a turn: the text after one of them belongs to another turn.
const ENDS_OF_TURNS: [&str; 21] = [
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|eot|>",
    "<|eom|>",
    "<end_of_turn>",
    "<turn|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|end_of_turn|>",
    "<|endofturn|>",
    "[|endofturn|]",
    "<|end_of_text|>",
    "<|endoftext|>",
    "<\u{ff5c}end\u{2581}of\u{2581}sentence\u{ff5c}>",
    "<end_of_utterance>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "<|END_OF_TURN_TOKEN|>",
];

/// In models that have all of these, the first ends a part of an answer, and the others end the
/// answer.
const PART: (&str, [&str; 2]) = ("<|end|>", ["<|return|>", "<|call|>"]);

/// Whether a token with this text ends a turn in some model.
pub(crate) fn is_known(text: &str) -> bool {
    ENDS_OF_TURNS.contains(&text)
}

/// The ids of the tokens that end a turn in a vocabulary. `id` maps a token's text to its id.
pub(crate) fn of_turns(id: impl Fn(&str) -> Option<u32>) -> Vec<u32> {
    let parts = PART.1.iter().all(|text| id(text).is_some());
    ENDS_OF_TURNS.iter().filter(|text| !(parts && **text == PART.0)).filter_map(|text| id(text)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_in_parts_go_on_behind_a_part() {
        let of = |known: &[&str]| of_turns(|text| known.iter().position(|known| *known == text).map(|at| at as u32));
        assert_eq!(of(&["<|end|>", "x", "<|im_end|>"]), [2, 0]);
        assert_eq!(of(&["<|end|>", "<|return|>", "<|call|>"]), [1, 2]);
    }
}
