//! Adapters of a conversation: those known by name, and those in use.

use ruvllm::{AdapterSource, ScaledAdapter};

use crate::args::{AdapterArgs, NamedAdapter, named_adapter, scaled};
use crate::device::Loaded;
use crate::error::{Error, Result};
use crate::output;

/// Known adapters and the current selection.
pub(super) struct Adapters<'e> {
    model: &'e Loaded,
    known: Vec<NamedAdapter>,
    /// Adapters in use, with their current scales and gate.
    used: AdapterArgs,
    loaded: Vec<ScaledAdapter>,
}

impl<'e> Adapters<'e> {
    /// Loads the adapters of the command line and uses them, with their gate if there is one.
    ///
    /// # Errors
    /// As [`AdapterArgs::load`].
    pub(super) fn new(model: &'e Loaded, args: &AdapterArgs) -> Result<Self> {
        let (known, used) = (args.adapters.clone(), AdapterArgs::default());
        let mut adapters = Self { model, known, used, loaded: Vec::new() };
        adapters.change(args.clone())?;
        Ok(adapters)
    }

    /// Adapters for the next answer.
    pub(super) fn loaded(&self) -> &[ScaledAdapter] {
        &self.loaded
    }

    /// Selects adapters as `/adapter` does: `NAME[@SCALE]..`, `NAME=PATH[@SCALE]` or `off`. Names
    /// that the conversation does not know are those of the store. What is selected has no gate.
    ///
    /// # Errors
    /// An unknown name, or an adapter that cannot be used; the selection stays as it was then.
    pub(super) fn choose(&mut self, text: &str) -> Result<()> {
        let refused = |reason| Error::ChatCommand { reason };
        if text == "off" {
            return self.change(AdapterArgs::default());
        }
        if text.contains('=') {
            let adapter = named_adapter(text).map_err(refused)?;
            self.change(AdapterArgs { adapters: vec![adapter.clone()], gate: None })?;
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
        self.change(AdapterArgs { adapters: chosen.clone(), gate: None })?;
        let is_new = |adapter: &NamedAdapter| self.known.iter().all(|known| known.name != adapter.name);
        let stored: Vec<_> = chosen.into_iter().filter(is_new).collect();
        self.known.extend(stored);
        Ok(())
    }

    fn change(&mut self, used: AdapterArgs) -> Result<()> {
        self.loaded = self.model.load_adapters(&used)?;
        self.used = used;
        Ok(())
    }

    /// Names of all known adapters.
    pub(super) fn names(&self) -> Vec<String> {
        self.known.iter().map(|known| known.name.clone()).collect()
    }

    /// Adapters in use, as text for the user.
    pub(super) fn used(&self) -> String {
        let shown = self.used.adapters.iter();
        let shown: Vec<String> =
            shown.map(|used| format!("{} at scale {}", used.name, used.source.scale)).collect();
        if shown.is_empty() { "no adapter".to_owned() } else { format!("adapters: {}", shown.join(", ")) }
    }

    /// Table of all known adapters, for the user.
    pub(super) fn table(&self) -> String {
        if self.known.is_empty() {
            return "[there are no adapters; /adapter NAME=PATH reads one]\n".to_owned();
        }
        let row = |known: &NamedAdapter| {
            let used = self.used.adapters.iter().find(|used| used.name == known.name);
            let gated = if self.used.gate.is_some() { ", gated" } else { "" };
            let state = used.map_or("off".to_owned(), |used| format!("scale {}{gated}", used.source.scale));
            vec![known.name.clone(), state, known.source.path.display().to_string()]
        };
        output::table(&self.known.iter().map(row).collect::<Vec<_>>(), &[])
    }
}
