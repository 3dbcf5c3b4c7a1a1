//! State of a run in a file: safetensors with the factors, their moments, the best factors and the
//! losses of all steps; steps and checksums of the run in its metadata. The order of examples
//! follows from the seed and the step, so it needs no state of its own.

use std::collections::HashMap;
use std::fs;
use std::io::Write as _;
use std::path::Path;

use gguf_rs_lite::write_atomic;
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use sha2::{Digest as _, Sha256};

use super::{Best, Point, Trainer};
use crate::error::{Error, Result};

/// Version of the format.
const FORMAT: &str = "ruvllm-training 3";

/// Parts of a run that its state belongs to, by their keys in the metadata.
const PARTS: [(&str, &str); 3] = [("settings", "settings"), ("model", "model or modules"), ("data", "data")];

impl Trainer<'_, '_> {
    /// Writes the state: a temporary file is flushed and renamed, so a reader finds the old state
    /// or the new one.
    ///
    /// # Errors
    /// [`Error::File`] for errors of the file system.
    pub fn save(&self, path: &Path) -> Result<()> {
        let mut metadata = HashMap::from([
            ("format".to_owned(), FORMAT.to_owned()),
            ("steps".to_owned(), self.adam.steps.to_string()),
            ("since_best".to_owned(), self.since_best.to_string()),
        ]);
        for ((key, _), digest) in PARTS.iter().zip(self.digests()) {
            metadata.insert((*key).to_owned(), digest);
        }
        let mut arrays = vec![
            ("values", self.lora.values()),
            ("means", &self.adam.means[..]),
            ("squares", &self.adam.squares[..]),
        ];
        if let Some(best) = &self.best {
            // As bits: the continuation compares with exactly this loss.
            metadata.insert("best_loss".to_owned(), format!("{:016x}", best.loss.to_bits()));
            arrays.push(("best", &best.values));
        }
        let bytes: Vec<Vec<u8>> =
            arrays.iter().map(|(_, values)| values.iter().flat_map(|v| v.to_le_bytes()).collect()).collect();
        let invalid = |source: safetensors::SafeTensorError| self.fault(path, source.to_string());
        let views = arrays.iter().zip(&bytes).map(|((name, values), bytes)| {
            Ok((*name, TensorView::new(Dtype::F32, vec![values.len()], bytes).map_err(invalid)?))
        });
        let mut views: Vec<_> = views.collect::<Result<_>>()?;
        let history: Vec<u8> = self.history.iter().flat_map(|point| point.to_bytes()).collect();
        let shape = vec![self.history.len(), Point::VALUES];
        views.push(("history", TensorView::new(Dtype::F64, shape, &history).map_err(invalid)?));
        let file = safetensors::serialize(views, Some(metadata)).map_err(invalid)?;
        write_atomic(path, |mut out| match out.write_all(&file) {
            Ok(()) => Ok(out),
            Err(source) => Err(gguf_rs_lite::Error::File { action: "write", path: path.to_owned(), source }),
        })
        .map_err(Error::File)
    }

    /// Replaces the state of this run by a saved one; the next steps have the same bits as if the
    /// run had never stopped.
    ///
    /// # Errors
    /// [`Error::OtherRun`] for a state of other settings, another model or other data;
    /// [`Error::State`] and [`Error::Read`] for files that hold none.
    pub fn resume(&mut self, path: &Path) -> Result<()> {
        let bytes = fs::read(path).map_err(|source| Error::Read { path: path.to_owned(), source })?;
        let invalid = |source: safetensors::SafeTensorError| self.fault(path, source.to_string());
        let (_, header) = SafeTensors::read_metadata(&bytes).map_err(invalid)?;
        let metadata = header.metadata().clone().unwrap_or_default();
        let text =
            |key: &str| metadata.get(key).ok_or_else(|| self.fault(path, format!("`{key}` is missing")));
        if text("format")? != FORMAT {
            return Err(self.fault(path, format!("its format is not `{FORMAT}`")));
        }
        for ((key, what), expected) in PARTS.iter().zip(self.digests()) {
            if *text(key)? != expected {
                return Err(Error::OtherRun { path: path.to_owned(), what });
            }
        }
        let number = |key: &str| -> Result<u64> {
            text(key)?.parse().map_err(|_| self.fault(path, format!("`{key}` is not a number")))
        };
        let (steps, since_best) = (number("steps")?, number("since_best")?);
        let tensors = SafeTensors::deserialize(&bytes).map_err(invalid)?;
        let array = |name: &str| -> Result<Vec<f32>> {
            let view = tensors.tensor(name).map_err(invalid)?;
            let values: Vec<f32> =
                view.data().as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
            let is_right = view.dtype() == Dtype::F32 && values.len() == self.lora.len();
            if is_right && values.iter().all(|value| value.is_finite()) {
                Ok(values)
            } else {
                Err(self.fault(path, format!("`{name}` is not one number per factor")))
            }
        };
        let (values, means, squares) = (array("values")?, array("means")?, array("squares")?);
        let history = tensors.tensor("history").map_err(invalid)?;
        let history: Vec<Point> = (1..)
            .zip(history.data().as_chunks::<{ 8 * Point::VALUES }>().0)
            .map(|(step, b)| Point::from_bytes(step, b))
            .collect();
        if history.len() as u64 != steps {
            let reason = format!("it has the losses of {} steps, not of {steps}", history.len());
            return Err(self.fault(path, reason));
        }
        let best = match metadata.get("best_loss") {
            None => None,
            Some(bits) => {
                let bits = u64::from_str_radix(bits, 16);
                let bits = bits.map_err(|_| self.fault(path, "`best_loss` is not a number".to_owned()))?;
                Some(Best { loss: f64::from_bits(bits), values: array("best")? })
            }
        };
        self.lora.values_mut().copy_from_slice(&values);
        (self.adam.means, self.adam.squares, self.adam.steps) = (means, squares, steps);
        self.history = history;
        (self.best, self.since_best) = (best, u32::try_from(since_best).unwrap_or(u32::MAX));
        Ok(())
    }

    fn fault(&self, path: &Path, reason: String) -> Error {
        Error::State { path: path.to_owned(), reason }
    }

    /// Checksums of settings, of model and modules, and of the data.
    fn digests(&self) -> [String; 3] {
        let mut settings = format!("{:?} {}", self.config, self.objective.settings());
        if let Some(curriculum) = &self.curriculum {
            settings += &format!(" curriculum {}", curriculum.digest());
        }
        let modules: Vec<_> = self.lora.modules().collect();
        let model = format!("{:?} {} {} {modules:?}", self.lora.base(), self.lora.rank(), self.lora.scale());
        let data = self.objective.data_digest();
        [hex(&Sha256::digest(settings)), hex(&Sha256::digest(model)), hex(&data)]
    }
}

impl Point {
    /// Numbers of a step in the file.
    const VALUES: usize = 3;

    /// Loss, validation loss and reward; NaN stands for one that was not measured.
    fn to_bytes(self) -> [u8; 8 * Self::VALUES] {
        let values = [Some(self.loss), self.validation, self.reward];
        let mut bytes = [0; 8 * Self::VALUES];
        for (bytes, value) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(values) {
            *bytes = value.unwrap_or(f64::NAN).to_le_bytes();
        }
        bytes
    }

    fn from_bytes(step: u64, bytes: &[u8; 8 * Self::VALUES]) -> Self {
        let [loss, validation, reward] =
            [0, 8, 16].map(|at| f64::from_le_bytes(std::array::from_fn(|byte| bytes[at + byte])));
        let measured = |value: f64| Some(value).filter(|value| !value.is_nan());
        Self { step, loss, validation: measured(validation), reward: measured(reward) }
    }
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
