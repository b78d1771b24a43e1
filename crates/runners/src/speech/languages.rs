//! Languages by code or English name.

/// Language codes with their English names, from Whisper.
#[rustfmt::skip]
const NAMES: [(&str, &str); 111] = [
    ("en", "english"), ("zh", "chinese"), ("de", "german"), ("es", "spanish"), ("ru", "russian"), ("ko", "korean"), ("fr", "french"),
    ("ja", "japanese"), ("pt", "portuguese"), ("tr", "turkish"), ("pl", "polish"), ("ca", "catalan"), ("nl", "dutch"), ("ar", "arabic"),
    ("sv", "swedish"), ("it", "italian"), ("id", "indonesian"), ("hi", "hindi"), ("fi", "finnish"), ("vi", "vietnamese"),
    ("he", "hebrew"), ("uk", "ukrainian"), ("el", "greek"), ("ms", "malay"), ("cs", "czech"), ("ro", "romanian"), ("da", "danish"),
    ("hu", "hungarian"), ("ta", "tamil"), ("no", "norwegian"), ("th", "thai"), ("ur", "urdu"), ("hr", "croatian"), ("bg", "bulgarian"),
    ("lt", "lithuanian"), ("la", "latin"), ("mi", "maori"), ("ml", "malayalam"), ("cy", "welsh"), ("sk", "slovak"), ("te", "telugu"),
    ("fa", "persian"), ("lv", "latvian"), ("bn", "bengali"), ("sr", "serbian"), ("az", "azerbaijani"), ("sl", "slovenian"),
    ("kn", "kannada"), ("et", "estonian"), ("mk", "macedonian"), ("br", "breton"), ("eu", "basque"), ("is", "icelandic"),
    ("hy", "armenian"), ("ne", "nepali"), ("mn", "mongolian"), ("bs", "bosnian"), ("kk", "kazakh"), ("sq", "albanian"),
    ("sw", "swahili"), ("gl", "galician"), ("mr", "marathi"), ("pa", "punjabi"), ("si", "sinhala"), ("km", "khmer"), ("sn", "shona"),
    ("yo", "yoruba"), ("so", "somali"), ("af", "afrikaans"), ("oc", "occitan"), ("ka", "georgian"), ("be", "belarusian"),
    ("tg", "tajik"), ("sd", "sindhi"), ("gu", "gujarati"), ("am", "amharic"), ("yi", "yiddish"), ("lo", "lao"), ("uz", "uzbek"),
    ("fo", "faroese"), ("ht", "haitian creole"), ("ps", "pashto"), ("tk", "turkmen"), ("nn", "nynorsk"), ("mt", "maltese"),
    ("sa", "sanskrit"), ("lb", "luxembourgish"), ("my", "myanmar"), ("bo", "tibetan"), ("tl", "tagalog"), ("mg", "malagasy"),
    ("as", "assamese"), ("tt", "tatar"), ("haw", "hawaiian"), ("ln", "lingala"), ("ha", "hausa"), ("ba", "bashkir"),
    ("jw", "javanese"), ("su", "sundanese"), ("yue", "cantonese"), ("my", "burmese"), ("ca", "valencian"), ("nl", "flemish"),
    ("ht", "haitian"), ("lb", "letzeburgesch"), ("ps", "pushto"), ("pa", "panjabi"), ("ro", "moldavian"), ("si", "sinhalese"),
    ("es", "castilian"), ("zh", "mandarin"),
];

/// The code of a language, from a code such as `EN` or `en-US` or from an English name. Unknown
/// input is returned in lower case.
pub(crate) fn code(called: &str) -> String {
    let lower = called.trim().to_lowercase();
    if let Some((code, _)) = NAMES.iter().find(|(_, name)| *name == lower) {
        return (*code).to_owned();
    }
    let plain = lower.split(['-', '_']).next().unwrap_or_default();
    match NAMES.iter().find(|(code, _)| *code == plain) {
        Some((code, _)) => (*code).to_owned(),
        None => lower,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn languages_are_known_by_code_region_and_name() {
        for called in ["en", "EN", "English", "english ", "en-US", "en_gb"] {
            assert_eq!(code(called), "en", "{called}");
        }
        assert_eq!([code("Castilian"), code("Haitian Creole"), code("yue"), code("XX")], ["es", "ht", "yue", "xx"]);
    }
}
