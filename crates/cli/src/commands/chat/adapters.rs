//! Adapters of a conversation: those known by name, and those in use.

use std::sync::Arc;

use ruvllm::{Adapter, AdapterSource, Engine};

use crate::args::{NamedAdapter, named_adapter, scaled};
use crate::error::{Error, Result};
use crate::output;

/// Known adapters and the current selection.
pub(super) struct Adapters<'e> {
    /// `None` on a GPU, which runs no adapters.
    engine: Option<&'e Engine>,
    known: Vec<NamedAdapter>,
    /// Adapters in use, with their current scales.
    used: Vec<NamedAdapter>,
    loaded: Option<Arc<Adapter>>,
}

impl<'e> Adapters<'e> {
    /// Loads all of `known` and uses them.
    ///
    /// # Errors
    /// An adapter that cannot be read or is for another model.
    pub(super) fn new(engine: Option<&'e Engine>, known: Vec<NamedAdapter>) -> Result<Self> {
        let mut adapters = Self { engine, known: known.clone(), used: Vec::new(), loaded: None };
        adapters.change(known)?;
        Ok(adapters)
    }

    /// Combined adapter for the next answer.
    pub(super) fn loaded(&self) -> Option<Arc<Adapter>> {
        self.loaded.clone()
    }

    /// Selects adapters as `/adapter` does: `NAME[@SCALE]..`, `NAME=PATH[@SCALE]` or `off`. Names
    /// that the conversation does not know are those of the store.
    ///
    /// # Errors
    /// An unknown name, or an adapter that cannot be used; the selection stays as it was then.
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
            // Names contain no @: this is a malformed scale.
            if let Some((name, scale)) = name.split_once('@') {
                return Err(refused(format!("the scale {scale} of {name} is not a number")));
            }
            let Some(known) = self.known.iter().find(|known| known.name == name) else {
                return named_adapter(word).map_err(|_| {
                    refused(format!(
                        "there is no adapter {name}; /adapter NAME=PATH reads one, /adapter lists them"
                    ))
                });
            };
            let path = known.source.path.clone();
            Ok(NamedAdapter { name: known.name.clone(), source: AdapterSource { path, scale } })
        };
        let chosen: Vec<NamedAdapter> = text.split_whitespace().map(by_name).collect::<Result<_>>()?;
        self.change(chosen.clone())?;
        let is_new = |adapter: &NamedAdapter| self.known.iter().all(|known| known.name != adapter.name);
        let stored: Vec<_> = chosen.into_iter().filter(is_new).collect();
        self.known.extend(stored);
        Ok(())
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

    /// Names of all known adapters.
    pub(super) fn names(&self) -> Vec<String> {
        self.known.iter().map(|known| known.name.clone()).collect()
    }

    /// Adapters in use, as text for the user.
    pub(super) fn used(&self) -> String {
        let shown: Vec<String> =
            self.used.iter().map(|used| format!("{} at scale {}", used.name, used.source.scale)).collect();
        if shown.is_empty() { "no adapter".to_owned() } else { format!("adapters: {}", shown.join(", ")) }
    }

    /// Table of all known adapters, for the user.
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
