//! Short names of well-known models.

/// Short names and their repositories. A name without a colon selects the first entry that starts
/// with it.
pub(crate) const KNOWN: [(&str, &str); 54] = [
    ("all-minilm:22m", "sentence-transformers/all-MiniLM-L6-v2"),
    ("all-minilm:33m", "sentence-transformers/all-MiniLM-L12-v2"),
    ("bge-m3", "BAAI/bge-m3"),
    ("bge-small", "BAAI/bge-small-en-v1.5"),
    ("deepseek-r1:1.5b", "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B"),
    ("deepseek-r1:7b", "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B"),
    ("deepseek-r1:8b", "deepseek-ai/DeepSeek-R1-0528-Qwen3-8B"),
    ("deepseek-r1:14b", "deepseek-ai/DeepSeek-R1-Distill-Qwen-14B"),
    ("deepseek-r1:32b", "deepseek-ai/DeepSeek-R1-Distill-Qwen-32B"),
    ("gemma2:2b", "google/gemma-2-2b-it"),
    ("gemma2:9b", "google/gemma-2-9b-it"),
    ("gemma3:1b", "google/gemma-3-1b-it"),
    ("gemma3:270m", "google/gemma-3-270m-it"),
    ("gemma3:4b", "google/gemma-3-4b-it"),
    ("gemma3:12b", "google/gemma-3-12b-it"),
    ("gemma3:27b", "google/gemma-3-27b-it"),
    ("gpt-oss:20b", "openai/gpt-oss-20b"),
    ("gpt-oss:120b", "openai/gpt-oss-120b"),
    ("llama3.1:8b", "meta-llama/Llama-3.1-8B-Instruct"),
    ("llama3.1:70b", "meta-llama/Llama-3.1-70B-Instruct"),
    ("llama3.2:3b", "meta-llama/Llama-3.2-3B-Instruct"),
    ("llama3.2:1b", "meta-llama/Llama-3.2-1B-Instruct"),
    ("llama3.3:70b", "meta-llama/Llama-3.3-70B-Instruct"),
    ("mistral:7b", "mistralai/Mistral-7B-Instruct-v0.3"),
    ("parakeet:0.6b", "nvidia/parakeet-tdt-0.6b-v3"),
    ("phi4:14b", "microsoft/phi-4"),
    ("phi4-mini:3.8b", "microsoft/Phi-4-mini-instruct"),
    ("qwen2.5:7b", "Qwen/Qwen2.5-7B-Instruct"),
    ("qwen2.5:0.5b", "Qwen/Qwen2.5-0.5B-Instruct"),
    ("qwen2.5:1.5b", "Qwen/Qwen2.5-1.5B-Instruct"),
    ("qwen2.5:3b", "Qwen/Qwen2.5-3B-Instruct"),
    ("qwen2.5:14b", "Qwen/Qwen2.5-14B-Instruct"),
    ("qwen2.5:32b", "Qwen/Qwen2.5-32B-Instruct"),
    ("qwen2.5-coder:7b", "Qwen/Qwen2.5-Coder-7B-Instruct"),
    ("qwen2.5-coder:1.5b", "Qwen/Qwen2.5-Coder-1.5B-Instruct"),
    ("qwen3:8b", "Qwen/Qwen3-8B"),
    ("qwen3:0.6b", "Qwen/Qwen3-0.6B"),
    ("qwen3:1.7b", "Qwen/Qwen3-1.7B"),
    ("qwen3:4b", "Qwen/Qwen3-4B"),
    ("qwen3:14b", "Qwen/Qwen3-14B"),
    ("qwen3:32b", "Qwen/Qwen3-32B"),
    ("qwen3:30b", "Qwen/Qwen3-30B-A3B-Instruct-2507"),
    ("qwen3-coder:30b", "Qwen/Qwen3-Coder-30B-A3B-Instruct"),
    ("smollm2:1.7b", "HuggingFaceTB/SmolLM2-1.7B-Instruct"),
    ("smollm2:135m", "HuggingFaceTB/SmolLM2-135M-Instruct"),
    ("smollm2:360m", "HuggingFaceTB/SmolLM2-360M-Instruct"),
    ("smollm3:3b", "HuggingFaceTB/SmolLM3-3B"),
    ("tinyllama:1.1b", "TinyLlama/TinyLlama-1.1B-Chat-v1.0"),
    ("whisper:large-v3-turbo", "openai/whisper-large-v3-turbo"),
    ("whisper:tiny", "openai/whisper-tiny"),
    ("whisper:base", "openai/whisper-base"),
    ("whisper:small", "openai/whisper-small"),
    ("whisper:medium", "openai/whisper-medium"),
    ("whisper:large-v3", "openai/whisper-large-v3"),
];

/// The repository of a short name, ignoring case.
pub(super) fn repository(name: &str) -> Option<&'static str> {
    let name = name.to_ascii_lowercase();
    let is_meant = |known: &str| known == name || known.split(':').next() == Some(&name);
    KNOWN.iter().find(|(known, _)| is_meant(known)).map(|(_, repository)| *repository)
}

#[cfg(test)]
mod tests {
    use super::{super::ModelName, *};

    #[test]
    fn short_names_stand_for_repositories() {
        assert_eq!(ModelName::parse("qwen3:0.6b").unwrap().to_string(), "Qwen/Qwen3-0.6B");
        assert_eq!(ModelName::parse("Qwen3").unwrap().to_string(), "Qwen/Qwen3-8B");
        assert!(ModelName::parse("qwen3:5b").is_err() && ModelName::parse("qwen").is_err());
    }

    #[test]
    fn the_table_names_each_model_once() {
        for (i, (name, repository)) in KNOWN.iter().enumerate() {
            assert!(!KNOWN[..i].iter().any(|(other, place)| other == name || place == repository), "{name}");
            assert_eq!(ModelName::parse(repository).unwrap().to_string(), *repository);
        }
    }
}
