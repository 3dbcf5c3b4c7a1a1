//! `--adapter`, `--adapter-gate`: the LoRA adapters of a command and their gate.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use clap::Args;
use ruvllm::{AdapterSource, BackendAdapters, Engine, ScaledAdapter};

use super::values::finite;
use crate::adapter_store::store;
use crate::device::DeviceError;
use crate::error::Result;

/// Options of LoRA adapters.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct AdapterArgs {
    /// LoRA adapter: a name of the store, a path or NAME=PATH, @SCALE; repeatable, updates add up
    #[arg(long = "adapter", value_name = "ADAPTER", value_parser = named_adapter)]
    pub(crate) adapters: Vec<NamedAdapter>,

    /// Gate that weights the adapters, in their order, for each token: a safetensors file
    #[arg(long = "adapter-gate", value_name = "FILE", requires = "adapters")]
    pub(crate) gate: Option<PathBuf>,
}

impl AdapterArgs {
    /// Loads the adapters and makes them the engine's default.
    ///
    /// # Errors
    /// An adapter that cannot be read or is for another model.
    pub(crate) fn apply(&self, engine: &mut Engine) -> Result<()> {
        let adapters = self.load(engine)?;
        engine.set_adapters(&adapters)?;
        Ok(())
    }

    /// Loads the adapters: as one, or with a gate one by one.
    ///
    /// # Errors
    /// An adapter or gate that cannot be read, is for another model or number of adapters.
    pub(crate) fn load(&self, engine: &Engine) -> Result<Vec<ScaledAdapter>> {
        let sources = self.sources();
        let Some(gate) = &self.gate else {
            let adapter = (!sources.is_empty()).then(|| engine.load_adapter(&sources)).transpose()?;
            return Ok(adapter.map(ScaledAdapter::from).into_iter().collect());
        };
        let gate = engine.load_adapter_gate(gate)?;
        let load = |source: &AdapterSource| engine.load_adapter(std::slice::from_ref(source));
        let adapters = sources.iter().map(load).map(|adapter| adapter.map(ScaledAdapter::from));
        Ok(gate.over(adapters.collect::<Result<_, _>>()?)?)
    }

    /// Loads the adapters as one, for a backend that is not the engine.
    ///
    /// # Errors
    /// As [`load`](Self::load); a gate.
    pub(crate) fn load_in(&self, backend: &BackendAdapters) -> Result<Vec<ScaledAdapter>> {
        if self.gate.is_some() {
            return Err(DeviceError::gate().into());
        }
        let sources = self.sources();
        let adapter = (!sources.is_empty()).then(|| backend.load(&sources)).transpose()?;
        Ok(adapter.map(ScaledAdapter::from).into_iter().collect())
    }

    fn sources(&self) -> Vec<AdapterSource> {
        self.adapters.iter().map(|adapter| adapter.source.clone()).collect()
    }
}

/// An adapter and the user's name for it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct NamedAdapter {
    pub(crate) name: String,
    pub(crate) source: AdapterSource,
}

/// Parses `NAME[@SCALE]`, `PATH[@SCALE]` or `NAME=PATH[@SCALE]`. A path wins over a name of the
/// store if it exists.
pub(crate) fn named_adapter(text: &str) -> Result<NamedAdapter, String> {
    let expected = || "expected NAME=PATH or NAME=PATH@SCALE, e.g. poet=poet-lora@0.8".to_owned();
    let (name, path) = match text.split_once('=') {
        Some((name, path)) if !Path::new(scaled(text)?.0).exists() => (name, path),
        _ => return unnamed_adapter(text),
    };
    let (path, scale) = scaled(path)?;
    if let Some((file, scale)) = path.rsplit_once('@')
        && !scale.contains(['/', '\\'])
        && !Path::new(path).exists()
        && Path::new(file).exists()
    {
        return Err(format!("the scale {scale} of {file} is not a number"));
    }
    if name.is_empty() || name.contains(|c: char| c.is_whitespace() || c == '@') || path.is_empty() {
        return Err(expected());
    }
    let path = stored(path).unwrap_or_else(|| PathBuf::from(path));
    Ok(NamedAdapter { name: name.to_owned(), source: AdapterSource { path, scale } })
}

/// Parses a path or a name of the store, with its scale. The adapter is called as the store calls
/// it, or as the last part of its path.
fn unnamed_adapter(text: &str) -> Result<NamedAdapter, String> {
    let (path, scale) = scaled(text)?;
    let absent = || {
        format!(
            "there is no file and no stored adapter {path:?}; expected NAME or PATH, @SCALE behind it; \
             `ruvllm adapter list` lists the names"
        )
    };
    if let Some(path) = stored(path) {
        return Ok(NamedAdapter { name: text_name(path.file_stem()), source: AdapterSource { path, scale } });
    }
    let path = Some(Path::new(path)).filter(|path| path.exists()).ok_or_else(absent)?.to_owned();
    Ok(NamedAdapter { name: text_name(path.file_name()), source: AdapterSource { path, scale } })
}

/// Part of a path as a name of an adapter, which holds neither spaces nor `@`.
fn text_name(part: Option<&OsStr>) -> String {
    let name = part.unwrap_or(OsStr::new("adapter")).to_string_lossy();
    name.replace(|c: char| c.is_whitespace() || matches!(c, '@' | '='), "-")
}

/// File of a stored adapter; `None` for an existing path and for names that are not in the store.
fn stored(name: &str) -> Option<PathBuf> {
    if Path::new(name).exists() {
        return None;
    }
    Some(store().ok()?.get(name).ok()?.file.path().to_owned())
}

/// Splits `TEXT@SCALE` into text and scale; the scale defaults to 1. An `@` that no number follows
/// is part of the text.
pub(crate) fn scaled(text: &str) -> Result<(&str, f32), String> {
    match text.rsplit_once('@').map(|(before, scale)| (before, scale.parse::<f32>().is_ok(), scale)) {
        Some((before, true, scale)) => {
            Ok((before, finite(scale).map_err(|why| format!("the scale {scale}: {why}"))?))
        }
        _ => Ok((text, 1.0)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adapters_have_names_paths_and_scales() {
        let read = |text: &str| {
            named_adapter(text).map(|NamedAdapter { name, source: AdapterSource { path, scale } }| {
                (name, path.to_string_lossy().into_owned(), scale)
            })
        };
        let adapter = |name: &str, path: &str, scale| Ok((name.to_owned(), path.to_owned(), scale));
        assert_eq!(read("poet=a/b"), adapter("poet", "a/b", 1.0));
        assert_eq!(read("poet=a/b@0.5"), adapter("poet", "a/b", 0.5));
        assert_eq!(read("poet=a=b@-2"), adapter("poet", "a=b", -2.0));
        assert_eq!(read("poet=me@home/b"), adapter("poet", "me@home/b", 1.0));
        assert!(read("no-adapter@0.5").unwrap_err().contains("no stored adapter \"no-adapter\""));
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
        assert_eq!(read(&format!("{file}@2")), adapter("Cargo.toml", file, 2.0));
        for text in ["poet", "poet=", "=a", "poet=@1", "a b=c", "a@1=c", "poet=a@inf", "poet=a@nan"] {
            assert!(named_adapter(text).is_err(), "{text:?}");
        }
        // The path without `@abc` exists, the one with it does not.
        let error = named_adapter(&format!("poet={file}@abc")).unwrap_err();
        assert_eq!(error, format!("the scale abc of {file} is not a number"));
    }
}
