//! Decoders of tokenizers that work token by token.

use serde_json::Value;
use tokenizers::DecoderWrapper;

/// Incremental form of a tokenizer's decoder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum DecodePlan {
    /// Tokens are bytes written in the GPT-2 alphabet; the text is the lossy UTF-8 reading of all
    /// of them.
    ByteLevel,
    /// Each token is text, after replacements; tokens like `<0x0A>` may represent bytes.
    Pieces {
        /// Text to be replaced in each token, with its replacement.
        replace: Vec<(String, String)>,
        /// Whether `<0xHH>` is a byte.
        byte_tokens: bool,
        /// This character is dropped this many times at the beginning of the text.
        strip: Option<(char, usize)>,
    },
    /// Any other decoder: the last few tokens are decoded again with each new one.
    Window,
}

impl DecodePlan {
    pub(crate) fn of(decoder: Option<&DecoderWrapper>) -> Self {
        let Some(Ok(json)) = decoder.map(serde_json::to_value) else { return Self::Window };
        match kind(&json) {
            "ByteLevel" => Self::ByteLevel,
            "Sequence" => json["decoders"].as_array().and_then(|steps| Self::of_steps(steps)).unwrap_or(Self::Window),
            "ByteFallback" | "Fuse" | "Replace" => Self::of_steps(std::slice::from_ref(&json)).unwrap_or(Self::Window),
            _ => Self::Window,
        }
    }

    fn of_steps(steps: &[Value]) -> Option<Self> {
        if let [only] = steps
            && kind(only) == "ByteLevel"
        {
            return Some(Self::ByteLevel);
        }
        let (mut replace, mut byte_tokens, mut fused, mut strip) = (Vec::new(), false, false, None);
        for step in steps {
            match kind(step) {
                "Replace" if !fused && !byte_tokens => {
                    replace.push((step["pattern"]["String"].as_str()?.to_owned(), step["content"].as_str()?.to_owned()));
                }
                "ByteFallback" if !fused => byte_tokens = true,
                "Fuse" => fused = true,
                "Strip" if fused && strip.is_none() && step["stop"].as_u64()? == 0 => {
                    let start = usize::try_from(step["start"].as_u64()?).ok()?;
                    strip = Some((step["content"].as_str()?.chars().next()?, start));
                }
                _ => return None,
            }
        }
        Some(Self::Pieces { replace, byte_tokens, strip })
    }
}

fn kind(decoder: &Value) -> &str {
    decoder["type"].as_str().unwrap_or_default()
}
