//! Replacements of kernels whose call has failed.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::category::Category;

/// Replacement of a kernel. Text form: `native`, `none`, or the id of another kernel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum Fallback {
    /// The engine's own kernel for the category.
    Native,
    /// No replacement: the operation fails.
    None,
    /// Kernel of the same pack and category, by its id.
    Kernel(String),
}

impl From<String> for Fallback {
    fn from(text: String) -> Self {
        match &*text {
            "native" => Self::Native,
            "none" => Self::None,
            _ => Self::Kernel(text),
        }
    }
}

impl From<Fallback> for String {
    fn from(fallback: Fallback) -> Self {
        fallback.to_string()
    }
}

impl fmt::Display for Fallback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Native => "native",
            Self::None => "none",
            Self::Kernel(id) => id,
        })
    }
}

/// Fallback of the kernels of a category that name none.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct CategoryFallback {
    /// The category.
    pub category: Category,
    /// Its fallback.
    pub fallback: Fallback,
}
