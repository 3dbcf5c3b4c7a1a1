//! Checks of the values of a manifest.

use std::collections::{BTreeMap, BTreeSet};

use ruvllm_witness::{Digest, KeyId};
use semver::Version;

use super::{Dim, Kernel, Manifest, Platforms, Tensor};
use crate::error::{Error, Result, field, within};
use crate::limits::{
    MAX_BENCHMARKS, MAX_DIM, MAX_DIMS, MAX_EPOCH_TICKS, MAX_KERNEL_BYTES, MAX_KERNELS, MAX_MEMORY_PAGES,
    MAX_PACK_BYTES, MAX_PARAMETERS, MAX_TABLE_ELEMENTS, MAX_TENSORS, MAX_TEXT_BYTES,
};
use crate::name::{MANIFEST, SIGNATURE, check_path, name_fault};

impl Manifest {
    /// Checks all values but those that drafts may lack.
    pub(super) fn check(&self) -> Result<()> {
        check_name("name", &self.name)?;
        check_version("version", &self.version)?;
        if !self.version.build.is_empty() {
            return Err(field("version", "a version of a pack has no build metadata ('+' and what follows)"));
        }
        check_version("min_runtime_version", &self.min_runtime_version)?;
        if let Some(max) = &self.max_runtime_version {
            check_version("max_runtime_version", max)?;
            if max.cmp_precedence(&self.min_runtime_version).is_le() {
                return Err(field(
                    "max_runtime_version",
                    "it must be above min_runtime_version: it is exclusive",
                ));
            }
        }
        check_text("$schema", self.schema.as_deref().unwrap_or("-"))?;
        check_text("description", &self.description)?;
        check_text("author.name", &self.author.name)?;
        check_text("author.email", &self.author.email)?;
        if self.kernels.is_empty() {
            return Err(field("kernels", "a pack has at least one kernel"));
        }
        within("kernels", self.kernels.len() as u64, MAX_KERNELS as u64)?;
        let mut ids = BTreeSet::new();
        for (index, kernel) in self.kernels.iter().enumerate() {
            let place = format!("kernels[{index}]");
            kernel.check(&place)?;
            if !ids.insert(&kernel.id) {
                return Err(Error::Duplicate { place: format!("{place}.id"), id: kernel.id.clone() });
            }
        }
        self.check_paths()?;
        self.check_fallbacks()
    }

    /// Checks that kernels with one path agree about the file, and that no file is a folder of
    /// another.
    fn check_paths(&self) -> Result<()> {
        let mut files: BTreeMap<&str, &Kernel> = BTreeMap::new();
        let mut total = 0u64;
        for (index, kernel) in self.kernels.iter().enumerate() {
            match files.insert(&kernel.path, kernel) {
                Some(other) if (other.sha256, other.bytes) != (kernel.sha256, kernel.bytes) => {
                    let why = format!(
                        "sha256 and bytes differ from those of {}, which has the same path",
                        other.id
                    );
                    return Err(field(format!("kernels[{index}]"), why));
                }
                Some(_) => {}
                None => total = total.saturating_add(kernel.bytes),
            }
        }
        within("all kernel files (bytes)", total, MAX_PACK_BYTES)?;
        for path in files.keys() {
            let mut folders = path.match_indices('/').map(|(at, _)| &path[..at]);
            if let Some(folder) = folders.find(|folder| files.contains_key(folder) || is_reserved(folder)) {
                let why = "it is a file and a folder of another path";
                return Err(Error::Path { path: folder.to_owned(), why });
            }
        }
        Ok(())
    }

    /// Checks that the values are there that drafts may lack.
    pub(super) fn check_complete(&self) -> Result<()> {
        for (index, kernel) in self.kernels.iter().enumerate() {
            if kernel.bytes == 0 {
                return Err(field(
                    format!("kernels[{index}].bytes"),
                    "it is absent or 0; Contents::build adds it",
                ));
            }
            if kernel.sha256 == Digest::ZERO {
                return Err(field(
                    format!("kernels[{index}].sha256"),
                    "it is absent; Contents::build adds it",
                ));
            }
        }
        if self.author.signing_key == KeyId::default() {
            return Err(field("author.signing_key", "it is absent; Contents::build with a key adds it"));
        }
        Ok(())
    }
}

impl Kernel {
    fn check(&self, place: &str) -> Result<()> {
        let at = |name: &str| format!("{place}.{name}");
        check_name(&at("id"), &self.id)?;
        if matches!(&*self.id, "native" | "none") {
            return Err(field(at("id"), "\"native\" and \"none\" are fallbacks, not ids"));
        }
        check_text(&at("name"), &self.name)?;
        check_path(&self.path)?;
        if is_reserved(&self.path) {
            let why = "it is the path of the manifest or its signature";
            return Err(Error::Path { path: self.path.clone(), why });
        }
        within(at("bytes"), self.bytes, MAX_KERNEL_BYTES)?;
        if !is_identifier(&self.entry_point, true) {
            return Err(field(
                at("entry_point"),
                "it must have letters, digits and '_', at most 64, no digit first",
            ));
        }
        within(at("inputs"), self.inputs.len() as u64, MAX_TENSORS as u64)?;
        within(at("outputs"), self.outputs.len() as u64, MAX_TENSORS as u64)?;
        if self.inputs.is_empty() || self.outputs.is_empty() {
            return Err(field(place, "a kernel has at least one input and one output"));
        }
        self.check_parameters(&at("parameters"))?;
        self.check_tensors(place)?;
        self.check_limits(&at("limits"))?;
        self.platforms.check(&at("platforms"))?;
        within(at("benchmarks"), self.benchmarks.len() as u64, MAX_BENCHMARKS as u64)?;
        for (index, benchmark) in self.benchmarks.iter().enumerate() {
            let place = at(&format!("benchmarks[{index}]"));
            check_text(&format!("{place}.name"), &benchmark.name)?;
            check_text(&format!("{place}.machine"), &benchmark.machine)?;
            if !(benchmark.median_us.is_finite() && benchmark.median_us > 0.0) {
                return Err(field(format!("{place}.median_us"), "it must be above 0"));
            }
        }
        Ok(())
    }

    fn check_parameters(&self, place: &str) -> Result<()> {
        within(place, self.parameters.len() as u64, MAX_PARAMETERS as u64)?;
        let mut names = BTreeSet::new();
        for (index, parameter) in self.parameters.iter().enumerate() {
            let place = format!("{place}[{index}]");
            check_symbol(&format!("{place}.name"), &parameter.name)?;
            if !names.insert(&parameter.name) {
                return Err(Error::Duplicate { place, id: parameter.name.clone() });
            }
            if let Some(value) = parameter.default.filter(|value| !parameter.kind.has(*value)) {
                let why = format!("{value} is no value of the type {}", parameter.kind.name());
                return Err(field(format!("{place}.default"), why));
            }
        }
        Ok(())
    }

    /// Checks inputs and outputs: their sizes follow from inputs and integer parameters.
    fn check_tensors(&self, place: &str) -> Result<()> {
        let sizes = self.parameters.iter().filter(|parameter| parameter.kind.is_integer());
        let mut known: BTreeSet<&str> = sizes.map(|parameter| parameter.name.as_str()).collect();
        let mut names = BTreeSet::new();
        for (list, tensors) in [("inputs", &self.inputs), ("outputs", &self.outputs)] {
            for (index, tensor) in tensors.iter().enumerate() {
                let place = format!("{place}.{list}[{index}]");
                tensor.check(&place)?;
                if !names.insert(&tensor.name) {
                    return Err(Error::Duplicate { place, id: tensor.name.clone() });
                }
                for dim in &tensor.shape {
                    let Dim::Symbol(symbol) = dim else { continue };
                    if list == "inputs" {
                        known.insert(symbol);
                    } else if !known.contains(symbol.as_str()) {
                        let why = format!("no input and no integer parameter says how large {symbol} is");
                        return Err(field(format!("{place}.shape"), why));
                    }
                }
            }
        }
        Ok(())
    }

    fn check_limits(&self, place: &str) -> Result<()> {
        let limits = &self.limits;
        for (name, found, least, most) in [
            ("memory_pages", limits.memory_pages, 1, MAX_MEMORY_PAGES),
            ("epoch_ticks", limits.epoch_ticks, 1, MAX_EPOCH_TICKS),
            ("table_elements", limits.table_elements, 0, MAX_TABLE_ELEMENTS),
        ] {
            within(format!("{place}.{name}"), u64::from(found), u64::from(most))?;
            if found < least {
                return Err(field(format!("{place}.{name}"), format!("it must be at least {least}")));
            }
        }
        Ok(())
    }
}

impl Tensor {
    fn check(&self, place: &str) -> Result<()> {
        check_symbol(&format!("{place}.name"), &self.name)?;
        let place = format!("{place}.shape");
        within(&*place, self.shape.len() as u64, MAX_DIMS as u64)?;
        if self.shape.is_empty() {
            return Err(field(place, "it has at least one dimension"));
        }
        for dim in &self.shape {
            match dim {
                Dim::Size(0) => return Err(field(place, "sizes are at least 1")),
                Dim::Size(size) => within(&*place, *size, MAX_DIM)?,
                Dim::Symbol(symbol) => check_symbol(&place, symbol)?,
            }
        }
        Ok(())
    }
}

impl Platforms {
    fn check(&self, place: &str) -> Result<()> {
        if self.wasmtime.is_none() && self.wasmi.is_none() {
            return Err(field(place, "it names at least one of wasmtime and wasmi"));
        }
        if let Some(wasmtime) = &self.wasmtime {
            check_version(&format!("{place}.wasmtime.min_version"), &wasmtime.min_version)?;
            for (index, feature) in wasmtime.features.iter().enumerate() {
                if wasmtime.features[..index].contains(feature) {
                    let place = format!("{place}.wasmtime.features[{index}]");
                    return Err(Error::Duplicate { place, id: feature.to_string() });
                }
            }
        }
        self.wasmi
            .as_ref()
            .map_or(Ok(()), |wasmi| check_version(&format!("{place}.wasmi.min_version"), &wasmi.min_version))
    }
}

/// True for the paths of manifest and signature.
fn is_reserved(path: &str) -> bool {
    matches!(path, MANIFEST | SIGNATURE)
}

fn check_name(place: &str, name: &str) -> Result<()> {
    name_fault(name).map_or(Ok(()), |why| Err(field(place, why)))
}

/// Checks a version that is part of messages.
fn check_version(place: &str, version: &Version) -> Result<()> {
    if version.pre.len() + version.build.len() > 40 {
        return Err(field(place, "pre-release and build metadata have at most 40 bytes"));
    }
    Ok(())
}

/// Checks a text for people: one line, not empty.
pub(crate) fn check_text(place: &str, text: &str) -> Result<()> {
    within(format!("{place} (bytes)"), text.len() as u64, MAX_TEXT_BYTES as u64)?;
    if text.trim().is_empty() {
        return Err(field(place, "it is empty"));
    }
    // Also the characters that change the direction of text, so that it reads as it is.
    let is_hidden =
        |c: char| c.is_control() || matches!(c, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    if text.contains(is_hidden) {
        return Err(field(place, "it has control characters; it is one line of text"));
    }
    Ok(())
}

/// Checks a symbol of shapes, or a name of a tensor or parameter.
fn check_symbol(place: &str, symbol: &str) -> Result<()> {
    if is_identifier(symbol, false) {
        return Ok(());
    }
    Err(field(place, "names and symbols have lower-case letters, digits and '_', at most 64, a letter first"))
}

/// True for letters, digits and `_`, at most 64; upper case and `_` at the begin only if `export`.
fn is_identifier(text: &str, export: bool) -> bool {
    let is_letter =
        |byte: u8| byte.is_ascii_lowercase() || export && (byte.is_ascii_uppercase() || byte == b'_');
    let bytes = text.as_bytes();
    bytes.len() <= 64
        && bytes.first().is_some_and(|&first| is_letter(first))
        && bytes.iter().all(|&byte| is_letter(byte) || byte.is_ascii_digit() || byte == b'_')
}
