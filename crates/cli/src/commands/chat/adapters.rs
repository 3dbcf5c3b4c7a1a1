//! The adapters of a conversation: which there are, and which change the answers.

use std::sync::Arc;

use ruvllm::{Adapter, AdapterSource, Engine};

use crate::args::{NamedAdapter, named_adapter, scaled};
use crate::error::{Error, Result};
use crate::output;

/// Adapters by name.
pub(super) struct Adapters<'e> {
    /// `None`: another device, which has no adapters.
    engine: Option<&'e Engine>,
    known: Vec<NamedAdapter>,
    /// Adapters in use, with their present scales.
    used: Vec<NamedAdapter>,
    loaded: Option<Arc<Adapter>>,
}

impl<'e> Adapters<'e> {
    /// All of `known`, in use.
    ///
    /// # Errors
    /// An adapter that cannot be read or is for another model.
    pub(super) fn new(engine: Option<&'e Engine>, known: Vec<NamedAdapter>) -> Result<Self> {
        let mut adapters = Self { engine, known: known.clone(), used: Vec::new(), loaded: None };
        adapters.change(known)?;
        Ok(adapters)
    }

    /// Adapter for the next answer.
    pub(super) fn loaded(&self) -> Option<Arc<Adapter>> {
        self.loaded.clone()
    }

    /// Uses those that `text` names: names with or without a scale, one with its path, or `off`.
    ///
    /// # Errors
    /// A name that is not known; an adapter that cannot be used. Nothing has changed then.
    pub(super) fn choose(&mut self, text: &str) -> Result<()> {
        let refused = |reason| Error::ChatCommand { reason };
        if text == "off" {
            return self.change(Vec::new());
        }
        if text.contains('=') {
            let adapter = named_adapter(text).map_err(refused)?;
            self.change(vec![adapter.clone()])?;
            self.known.retain(|known| known.name != adapter.name);
            self.known.push(adapter);
            return Ok(());
        }
        let by_name = |word: &str| {
            let (name, scale) = scaled(word).map_err(refused)?;
            // Names have no @: what follows one is meant as a scale.
            if let Some((name, scale)) = name.split_once('@') {
                return Err(refused(format!("the scale {scale} of {name} is not a number")));
            }
            let known = self.known.iter().find(|known| known.name == name).ok_or_else(|| {
                refused(format!(
                    "there is no adapter {name}; /adapter NAME=PATH reads one, /adapter lists them"
                ))
            })?;
            let path = known.source.path.clone();
            Ok(NamedAdapter { name: known.name.clone(), source: AdapterSource { path, scale } })
        };
        let chosen = text.split_whitespace().map(by_name).collect::<Result<_>>()?;
        self.change(chosen)
    }

    fn change(&mut self, used: Vec<NamedAdapter>) -> Result<()> {
        let sources: Vec<_> = used.iter().map(|adapter| adapter.source.clone()).collect();
        self.loaded = match self.engine {
            _ if sources.is_empty() => None,
            Some(engine) => Some(engine.load_adapter(&sources)?),
            None => return Err(ruvllm::Error::AdapterBackend { backend: "gpu".to_owned() }.into()),
        };
        self.used = used;
        Ok(())
    }

    /// Names of all of them.
    pub(super) fn names(&self) -> Vec<String> {
        self.known.iter().map(|known| known.name.clone()).collect()
    }

    /// The ones in use, for a person.
    pub(super) fn used(&self) -> String {
        let shown: Vec<String> =
            self.used.iter().map(|used| format!("{} at scale {}", used.name, used.source.scale)).collect();
        if shown.is_empty() { "no adapter".to_owned() } else { format!("adapters: {}", shown.join(", ")) }
    }

    /// All of them, for a person.
    pub(super) fn table(&self) -> String {
        if self.known.is_empty() {
            return "[there are no adapters; /adapter NAME=PATH reads one]\n".to_owned();
        }
        let row = |known: &NamedAdapter| {
            let used = self.used.iter().find(|used| used.name == known.name);
            let state = used.map_or("off".to_owned(), |used| format!("scale {}", used.source.scale));
            vec![known.name.clone(), state, known.source.path.display().to_string()]
        };
        output::table(&self.known.iter().map(row).collect::<Vec<_>>(), &[])
    }
}
