//! The kinds of pre-tokenizers that `tokenizer.ggml.pre` names, as llama.cpp has them.

/// Pre-tokenization of text before byte-level BPE.
pub(super) enum Cut<'a> {
    /// By GPT-2's own expression.
    Gpt2,
    /// Each digit alone, then by GPT-2's expression.
    DigitsGpt2,
    /// By this expression.
    Regex(&'a str),
    /// By each of these expressions, one after the other.
    Regexes(&'static [&'static str]),
}

/// The meaning of a name under `tokenizer.ggml.pre`.
pub(super) struct PreTokenizer {
    pub(super) names: &'static [&'static str],
    pub(super) cut: Cut<'static>,
    /// Whether a whole word in the vocabulary is taken unmerged.
    pub(super) whole_words: bool,
    /// Whether a sequence begins with the BOS where the file does not say.
    pub(super) begins: bool,
}

const fn plain(names: &'static [&'static str], cut: Cut<'static>) -> PreTokenizer {
    PreTokenizer { names, cut, whole_words: false, begins: false }
}

const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
/// Files without a name, among them the first ones of Llama 3, are cut so.
const DEFAULT: &[&str] = &[r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"];
const FALCON: &[&str] = &[r"[\p{P}\$\+<=>\^~\|`]+", GPT2, "[0-9][0-9][0-9]"];
const LLAMA3: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN35: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const DEEPSEEK3: &[&str] = &[
    r"\p{N}{1,3}",
    "[一-龥\u{3040}-ゟ゠-ヿ]+",
    r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##,
];
/// Letters of the alphabets with upper and lower case are words; so are characters of Chinese,
/// Japanese and Korean.
const DEEPSEEK_LLM: &[&str] = &[
    r"[\r\n]",
    "\\s?[A-Za-z\u{b5}\u{c0}-\u{d6}\u{d8}-\u{f6}\u{f8}-\u{1ba}\u{1bc}-\u{1bf}\u{1c4}-\u{293}\u{295}-\u{2af}\u{370}-\u{373}\u{376}\u{377}\u{37b}-\u{37d}\u{37f}\u{386}\u{388}-\u{38a}\u{38c}\u{38e}-\u{3a1}\u{3a3}-\u{3f5}\u{3f7}-\u{481}\u{48a}-\u{52f}\u{531}-\u{556}\u{10a0}-\u{10c5}\u{13a0}-\u{13f5}\u{13f8}-\u{13fd}\u{1c90}-\u{1cba}\u{1cbd}-\u{1cbf}\u{1d00}-\u{1d2b}\u{1d6b}-\u{1d77}\u{1d79}-\u{1d9a}\u{1e00}-\u{1f15}\u{1f18}-\u{1f1d}\u{1f20}-\u{1f45}\u{1f48}-\u{1f4d}\u{1f50}-\u{1f57}\u{1f59}\u{1f5b}\u{1f5d}\u{1f5f}-\u{1f7d}\u{1f80}-\u{1fb4}\u{1fb6}-\u{1fbc}\u{1fbe}\u{1fc2}-\u{1fc4}\u{1fc6}-\u{1fcc}\u{1fd0}-\u{1fd3}\u{1fd6}-\u{1fdb}\u{1fe0}-\u{1fec}\u{1ff2}-\u{1ff4}\u{1ff6}-\u{1ffc}\u{2102}\u{2107}\u{210a}-\u{2113}\u{2115}\u{2119}-\u{211d}\u{2124}\u{2126}\u{2128}\u{212a}-\u{212d}\u{212f}-\u{2134}\u{2139}\u{213c}-\u{213f}\u{2145}-\u{2149}\u{214e}\u{2183}\u{2184}\u{2c00}-\u{2c7b}\u{2c7e}-\u{2ce4}\u{2ceb}-\u{2cee}\u{2cf2}\u{2cf3}\u{a640}-\u{a66d}\u{a680}-\u{a69b}\u{a722}-\u{a76f}\u{a771}-\u{a787}\u{a78b}-\u{a78e}\u{ab70}-\u{abbf}\u{fb00}-\u{fb06}\u{fb13}-\u{fb17}\u{ff21}-\u{ff3a}\u{ff41}-\u{ff5a}\u{10400}-\u{1044f}\u{104b0}-\u{104d3}\u{104d8}-\u{104fb}\u{10c80}-\u{10cb2}\u{10cc0}-\u{10cf2}\u{118a0}-\u{118df}\u{1e900}-\u{1e943}]+",
    "\\s?[!-/:-~\u{ff01}-\u{ff0f}\u{ff1a}-\u{ff5e}\u{2018}-\u{201f}\u{3000}-\u{3002}]+",
    r"\s+$",
    "[\u{4e00}-\u{9fa5}\u{800}-\u{4e00}\u{ac00}-\u{d7ff}]+",
    r"\p{N}+",
];
const DEEPSEEK_CODER: &[&str] =
    &[r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[\u{4e00}-\u{9fa5}\u{800}-\u{4e00}\u{ac00}-\u{d7ff}]+", r"\p{N}"];
const O200K: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Like GPT-4o's, but each Chinese character is a separate word.
const KIMI: &str = r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const BAILING: &str = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+";
const SEED: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+";
const BLOOM: &str = " ?[^(\\s|.,!?\u{2026}\u{3002}\u{ff0c}\u{3001}\u{964}\u{6d4}\u{60c})]+";
const VIKING: &[&str] = &[BLOOM, r"\p{N}"];
const CHAMELEON: &[&str] = &["<sentinel:[0-9]+>", "IMGIMG[A-I]{1,4}Z", "[\\t\\n]|    |  ", r"\p{N}", r"[\p{P}!-/:-@\[-`{-~]", GPT2];
/// Digits in threes from the end.
const SUPER: &[&str] = &[r"\p{N}+", r"(?=(\d{3})+(?!\d))"];
const AFMOE: &[&str] = &[
    r"\d{1,3}(?=(?:\d{3})*(?!\d))",
    "[\u{4e00}-\u{9fff}\u{3400}-\u{4dbf}\u{f900}-\u{faff}\u{3040}-\u{309f}\u{30a0}-\u{30ff}\u{ff65}-\u{ff9f}\u{2f00}-\u{2fdf}\u{e40}-\u{e7f}\u{e80}-\u{eff}\u{1780}-\u{17ff}\u{1000}-\u{109f}\u{aa60}-\u{aa7f}\u{a9e0}-\u{a9ff}\u{ac00}-\u{d7af}\u{1100}-\u{11ff}]+",
    DEEPSEEK3[2],
];

/// Values of `tokenizer.ggml.pre` with their meanings.
pub(super) const PRE_TOKENIZERS: &[PreTokenizer] = &[
    plain(&["default"], Cut::Regexes(DEFAULT)),
    plain(
        &[
            "gpt-2",
            "phi-2",
            "mpt",
            "olmo",
            "jais",
            "roberta-bpe",
            "trillion",
            "granite-docling",
            "exaone4",
            "jina-es",
            "jina-de",
            "jina-v1-en",
            "jina-v2-es",
            "jina-v2-de",
            "jina-v2-code",
            "gigachat",
            "a.x-4.0",
            "mellum",
            "modern-bert",
        ],
        Cut::Gpt2,
    ),
    plain(&["smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"], Cut::DigitsGpt2),
    PreTokenizer {
        names: &["llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "jina-v5-nano"],
        cut: Cut::Regex(LLAMA3),
        whole_words: true,
        begins: true,
    },
    plain(&["smaug-bpe", "dbrx", "chatglm-bpe", "glm4"], Cut::Regex(LLAMA3)),
    plain(&["deepseek-llm"], Cut::Regexes(DEEPSEEK_LLM)),
    plain(&["deepseek-coder"], Cut::Regexes(DEEPSEEK_CODER)),
    plain(&["deepseek-v3", "hunyuan-dense", "joyai-llm"], Cut::Regexes(DEEPSEEK3)),
    plain(&["falcon"], Cut::Regexes(FALCON)),
    plain(&["qwen35"], Cut::Regex(QWEN35)),
    plain(
        &["qwen2", "deepseek-r1-qwen", "stablelm2", "megrez", "kormo", "hunyuan", "grok-2", "solar-open", "f2llmv2"],
        Cut::Regex(QWEN2),
    ),
    plain(&["gpt-4o", "o200k", "llama4", "minimax-m2", "kanana2", "talkie"], Cut::Regex(O200K)),
    plain(&["kimi-k2"], Cut::Regex(KIMI)),
    plain(&["bailingmoe", "bailingmoe2", "llada-moe"], Cut::Regex(BAILING)),
    plain(&["seed-coder"], Cut::Regex(SEED)),
    plain(&["bloom", "poro-chat", "gpt3-finnish"], Cut::Regex(BLOOM)),
    plain(&["viking"], Cut::Regexes(VIKING)),
    PreTokenizer { names: &["chameleon"], cut: Cut::Regexes(CHAMELEON), whole_words: false, begins: true },
    plain(&["superbpe"], Cut::Regexes(SUPER)),
    plain(&["afmoe"], Cut::Regexes(AFMOE)),
    PreTokenizer { names: &["tekken"], cut: Cut::Regex(TEKKEN), whole_words: true, begins: true },
];
