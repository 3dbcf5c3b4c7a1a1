//! Matrices behind the pooling in the subfolders of a sentence-transformers folder.

use std::path::Path;

use gguf_rs_lite::{FileMemory, Metadata, TensorInfo};

use super::fields::{CONFIG_BYTES, Fields, read_object};
use super::origin::{Change, Origin, Tensor};
use super::shards::{SINGLE, Shards, Stored};
use super::sizes::MAX_WIDTH;
use crate::error::{Error, Result};

/// Names in GGUF, in the order of the modules.
const NAMES: [&str; MAX_DENSE] = ["dense_2", "dense_3"];

/// Most matrices behind the pooling.
pub(super) const MAX_DENSE: usize = 2;

/// Name of the matrix in its file.
const MATRIX: &str = "linear.weight";

/// One matrix.
pub(super) struct Dense {
    /// Name in GGUF, without the suffix.
    name: &'static str,
    inputs: usize,
    outputs: usize,
    stored: Stored,
}

/// Opens the modules in these subfolders, of which the first reads vectors of `width` values.
///
/// # Errors
/// [`Error::InvalidField`] and [`Error::MissingField`] for modules with a bias, an activation
/// function or another width than what comes before has; [`Error::TensorShape`],
/// [`Error::MissingTensor`] and [`Error::NotAModelFolder`] for other weights than they say.
pub(super) fn open(
    folder: &Path,
    subfolders: &[String],
    width: usize,
    (shards, memory): (&mut Shards, FileMemory),
) -> Result<Vec<Dense>> {
    let mut inputs = width;
    let open = |(subfolder, name): (&String, &'static str)| {
        let outputs = read_outputs(folder, &format!("{subfolder}/config.json"), inputs)?;
        let path = folder.join(subfolder);
        let file = path.join(SINGLE);
        if !file.exists() {
            return Err(Error::NotAModelFolder { path, reason: "it has no model.safetensors" });
        }
        let shown = format!("{subfolder}/{MATRIX}");
        let stored = shards.add(&file, memory)?.into_iter().find(|stored| stored.name == MATRIX);
        let stored = stored.ok_or_else(|| Error::MissingTensor { name: shown.clone() })?;
        let expected = vec![inputs as u64, outputs as u64];
        if stored.dims != expected {
            return Err(Error::TensorShape { name: shown, expected, found: stored.dims });
        }
        let dense = Dense { name, inputs, outputs, stored };
        inputs = outputs;
        Ok(dense)
    };
    subfolders.iter().zip(NAMES).map(open).collect()
}

/// The output width in a module's configuration.
fn read_outputs(folder: &Path, file: &str, inputs: usize) -> Result<usize> {
    const INPUTS: &str = "in_features";
    const BIAS: &str = "bias";
    const ACTIVATION: &str = "activation_function";
    let map = read_object(&folder.join(file), CONFIG_BYTES)?.unwrap_or_default();
    let fields = Fields::new(file, &map);
    if fields.require_count(INPUTS, 1..=MAX_WIDTH)? != inputs {
        return Err(fields.invalid(INPUTS, format!("{inputs}, the width of what comes before")));
    }
    // Both have other defaults than none.
    let no_bias = "false: matrices alone are supported";
    match fields.flag(BIAS)? {
        Some(false) => {}
        Some(true) => return Err(fields.invalid(BIAS, no_bias)),
        None => return Err(fields.missing(BIAS, no_bias)),
    }
    let no_activation = "`torch.nn.modules.linear.Identity`: matrices alone are supported";
    match fields.text(ACTIVATION)?.map(|name| name.rsplit('.').next()) {
        Some(Some("Identity")) => {}
        Some(_) => return Err(fields.invalid(ACTIVATION, no_activation)),
        None => return Err(fields.missing(ACTIVATION, no_activation)),
    }
    fields.require_count("out_features", 1..=MAX_WIDTH)
}

impl Dense {
    /// Adds the matrix and its widths to the model.
    pub(super) fn add(
        self,
        architecture: &str,
        metadata: &mut Metadata,
        tensors: &mut Vec<Tensor>,
    ) -> Result<()> {
        for (end, width) in [("in", self.inputs), ("out", self.outputs)] {
            metadata.insert(format!("{architecture}.{}_feat_{end}", self.name), width as u32);
        }
        let tensor_type = self.stored.supported_type()?;
        let info = TensorInfo::new(format!("{}.weight", self.name), self.stored.dims.clone(), tensor_type)?;
        tensors.push(Tensor { info, origin: Origin::Stored(self.stored, Change::None) });
        Ok(())
    }
}
