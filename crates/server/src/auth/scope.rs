//! Scopes: groups of endpoints that a key may call.

use std::fmt;
use std::str::FromStr;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A group of endpoints.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// Generation, embeddings, tokens, lists of models.
    Inference,
    /// Loading and unloading of adapters.
    Adapters,
    /// Sessions of the caller's tenant.
    Sessions,
    /// Feedback, and what adapters have learned from it.
    Learning,
    /// Metrics.
    Metrics,
    /// Exchange of the caller's prefixes with other servers.
    Prefixes,
    /// Everything, and the views of the whole server.
    Admin,
}

impl Scope {
    /// Every scope.
    pub const ALL: [Self; 7] = [
        Self::Inference,
        Self::Adapters,
        Self::Sessions,
        Self::Learning,
        Self::Metrics,
        Self::Prefixes,
        Self::Admin,
    ];

    /// Name in keys files and messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Inference => "inference",
            Self::Adapters => "adapters",
            Self::Sessions => "sessions",
            Self::Learning => "learning",
            Self::Metrics => "metrics",
            Self::Prefixes => "prefixes",
            Self::Admin => "admin",
        }
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Scope {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let names = || Self::ALL.map(Self::name).join(", ");
        Self::ALL
            .into_iter()
            .find(|scope| scope.name() == text)
            .ok_or_else(|| format!("{text:?} is no scope; there are {}", names()))
    }
}

/// Set of scopes.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Scopes(u8);

impl Scopes {
    /// Every scope.
    pub fn all() -> Self {
        Scope::ALL.into_iter().collect()
    }

    /// True if the scope is in the set, or [`Scope::Admin`] is.
    pub fn allow(self, scope: Scope) -> bool {
        self.0 & (1 << scope as u8 | 1 << Scope::Admin as u8) != 0
    }

    /// The scopes of the set, in the order of [`Scope::ALL`].
    pub fn iter(self) -> impl Iterator<Item = Scope> {
        Scope::ALL.into_iter().filter(move |scope| self.0 & (1 << *scope as u8) != 0)
    }

    /// True if nothing is allowed.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }
}

impl FromIterator<Scope> for Scopes {
    fn from_iter<I: IntoIterator<Item = Scope>>(scopes: I) -> Self {
        Self(scopes.into_iter().fold(0, |set, scope| set | 1 << scope as u8))
    }
}

impl fmt::Debug for Scopes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

impl Serialize for Scopes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.iter().map(Scope::name))
    }
}

impl<'de> Deserialize<'de> for Scopes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let names = Vec::<String>::deserialize(deserializer)?;
        names.iter().map(|name| name.parse::<Scope>()).collect::<Result<_, _>>().map_err(D::Error::custom)
    }
}
