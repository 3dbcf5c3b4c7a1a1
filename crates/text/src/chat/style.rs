//! Built-in templates for models without one: the published styles, and their detection.

use std::{fmt, str::FromStr};

use crate::error::{Error, Result};
use crate::tokenizer::Tokenizer;

/// A published prompt format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ChatStyle {
    /// `<|im_start|>role ... <|im_end|>`: Qwen and many others.
    ChatMl,
    /// `<start_of_turn>user ... <end_of_turn>`.
    Gemma,
    /// `[INST] <<SYS>> ... [/INST]`.
    Llama2,
    /// `<|start_header_id|>role<|end_header_id|> ... <|eot_id|>`.
    Llama3,
    /// `[INST] ... [/INST]` with `[AVAILABLE_TOOLS]`.
    Mistral,
    /// `<|user|> ... <|end|>`.
    Phi3,
}

impl ChatStyle {
    /// All styles.
    pub const ALL: [Self; 6] =
        [Self::ChatMl, Self::Gemma, Self::Llama2, Self::Llama3, Self::Mistral, Self::Phi3];

    /// Detects the style that a model without a template was probably trained with. The special
    /// tokens of its vocabulary decide, then its architecture (`general.architecture`, or
    /// `model_type`) and name. `None` if nothing identifies a style.
    #[must_use]
    pub fn detect(tokenizer: &Tokenizer, architecture: &str, name: &str) -> Option<Self> {
        let has = |markers: &[&str]| markers.iter().all(|marker| tokenizer.token_to_id(marker).is_some());
        let by_markers = [
            (Self::Llama3, &["<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"][..]),
            (Self::ChatMl, &["<|im_start|>", "<|im_end|>"]),
            (Self::Gemma, &["<start_of_turn>", "<end_of_turn>"]),
            (Self::Phi3, &["<|user|>", "<|assistant|>", "<|end|>"]),
            (Self::Mistral, &["[INST]", "[/INST]"]),
        ];
        if let Some((style, _)) = by_markers.into_iter().find(|(_, markers)| has(markers)) {
            return Some(style);
        }
        // Llama 2 and the first Mistral write [INST] as plain text, without a special token.
        let name = name.to_lowercase();
        match architecture {
            _ if !has(&["<s>", "</s>"]) => None,
            "mistral" | "mistral3" | "mixtral" => Some(Self::Mistral),
            "llama" if name.contains("mistral") || name.contains("mixtral") => Some(Self::Mistral),
            "llama" if ["llama-2", "llama 2", "llama2", "llama_2"].iter().any(|part| name.contains(part)) => {
                Some(Self::Llama2)
            }
            _ => None,
        }
    }

    /// Jinja source of the template.
    #[must_use]
    pub fn source(self) -> &'static str {
        match self {
            Self::ChatMl => include_str!("styles/chatml.jinja"),
            Self::Gemma => include_str!("styles/gemma.jinja"),
            Self::Llama2 => include_str!("styles/llama2.jinja"),
            Self::Llama3 => include_str!("styles/llama3.jinja"),
            Self::Mistral => include_str!("styles/mistral.jinja"),
            Self::Phi3 => include_str!("styles/phi3.jinja"),
        }
    }

    /// Name of the style: `chatml`, `gemma`, `llama2`, `llama3`, `mistral`, `phi3`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::ChatMl => "chatml",
            Self::Gemma => "gemma",
            Self::Llama2 => "llama2",
            Self::Llama3 => "llama3",
            Self::Mistral => "mistral",
            Self::Phi3 => "phi3",
        }
    }
}

impl fmt::Display for ChatStyle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for ChatStyle {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|style| style.name() == name).ok_or_else(|| Error::UnknownChatStyle {
            found: name.to_owned(),
            known: Self::ALL.map(Self::name).join(", "),
        })
    }
}
