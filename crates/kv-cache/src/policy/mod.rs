//! Policies: formats of tokens by their age.
//!
//! A policy has up to three tiers. New tokens are written *hot*, in a format that takes rows one by
//! one. Blocks that lie `hot_tokens` behind the end become *warm*, and after `warm_tokens` more
//! *cold*, if there are such tiers; the first `sink_tokens` never do, because attention returns to
//! them whatever the text says (arXiv 2309.17453).

mod formats;
mod target;
mod text;

#[cfg(test)]
mod tests;

use ruvllm_kernels::attention::KvFormat;

use crate::error::{Error, Result};

use formats::{KIVI2, KIVI4};

pub use formats::KvFormats;
pub use target::ErrorTarget;

/// Formats of the keys and values of a sequence, by age.
///
/// # Text
/// A format stores everything in that format: `f32`, `f16`, `bf16`, `q8`, `q4`, `kivi4`, `nuq3`,
/// `turbo3`, `kivi2`; `q8+q4` stores keys in one and values in another, and `k4v2` is short for
/// `kivi4+kivi2` (16 stands for `f16`, 8 for `q8`). A format that cannot take single tokens keeps
/// the last group of them in half precision. `nuq3` needs a calibration of the model; `turbo3`
/// rotates all tiers.
///
/// `tiered` lowers precision with age. Options follow a colon, separated by commas:
///
/// | option | means | default |
/// |---|---|---|
/// | `hot=N` | the last N tokens stay as they were written | 256 |
/// | `hot_format=F` | their format: `f16`, `bf16` or `f32` | `f16` |
/// | `sink=N` | so do the first N | 4 |
/// | `keep=N` | so do N blocks that attention returned to most | 0 |
/// | `target=E` | so do as many more as hold the relative error of attention at E: see [`Controller`](crate::Controller) | none |
/// | `warm=F` | what follows the hot ones | `kivi4` |
/// | `warm_tokens=N` | number of warm tokens, if there is a cold tier | 2048 |
/// | `cold=F`, `cold=off` | what follows the warm ones | by the model: see [`ColdTier::ByModel`] |
/// | `rotate=on` | queries, keys and values are rotated (Walsh-Hadamard) before they are stored | `off` |
/// | `squat=on` | keys in `kivi4` and `kivi2` are corrected for the queries of the sequence: [`KvPolicy::squat`] | `off` |
///
/// # Examples
/// ```
/// use ruvllm_kv_cache::KvPolicy;
///
/// let policy: KvPolicy = "tiered:hot=128,warm=q8".parse()?;
/// assert_eq!(policy.hot_tokens, 128);
/// assert_eq!(policy.to_string(), "tiered:hot=128,warm=q8");
/// # Ok::<(), ruvllm_kv_cache::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct KvPolicy {
    /// Format of new tokens.
    pub hot: KvFormats,
    /// Tokens at the end that stay hot.
    pub hot_tokens: usize,
    /// Tokens at the beginning that stay hot; the whole block that holds them does.
    pub sink_tokens: usize,
    /// Blocks that stay hot at any age, those that attention returned to most: see
    /// [`Sequence::add_mass`](crate::Sequence::add_mass).
    pub kept_blocks: usize,
    /// Relative error of attention that a [`Controller`](crate::Controller), run by the caller,
    /// holds with more hot tokens; `None` = always `hot_tokens`.
    pub target: Option<ErrorTarget>,
    /// Format of older tokens; `None` = there is one tier only.
    pub warm: Option<KvFormats>,
    /// Tokens that are warm before the cold tier begins.
    pub warm_tokens: usize,
    /// Format of the oldest tokens.
    pub cold: ColdTier,
    /// `true` to Hadamard-rotate queries, keys and values, and the output of attention: outliers
    /// spread over all channels, so that quantization per token loses less (`QuaRot`, arXiv
    /// 2404.00456). Formats that [need a rotation](KvFormat::needs_rotation) are rotated in any
    /// case. The caller rotates if [`KvStore::rotated`](crate::KvStore::rotated).
    pub rotated: bool,
    /// `true` to correct keys that share a scale per channel so that their errors affect the
    /// sequence's queries little (`SQuat`, arXiv 2503.24358): at the same size, for a few
    /// multiplications per value when a block migrates. The caller records queries
    /// ([`KvStep::observe_queries`](crate::KvStep::observe_queries)). A shared block has the
    /// corrections of the first sequence that migrates it.
    pub squat: bool,
}

/// Format of the tokens behind the warm ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ColdTier {
    /// 2 bits for models without grouped queries, none for the others: each key/value head of those
    /// serves several query heads, and 2 bits cost them up to 9 points of retrieval (KIVI, arXiv
    /// 2402.02750).
    ByModel,
    /// None: warm tokens stay warm.
    Off,
    /// This one.
    At(KvFormats),
}

impl KvPolicy {
    /// Everything in one format. One that does not take single tokens keeps as many as a group has
    /// in half precision.
    pub fn uniform(formats: KvFormats) -> Self {
        let mut policy = Self {
            hot: formats,
            hot_tokens: 0,
            sink_tokens: 0,
            kept_blocks: 0,
            target: None,
            warm: None,
            warm_tokens: 0,
            cold: ColdTier::Off,
            rotated: false,
            squat: false,
        };
        if !formats.is_appendable() {
            policy.hot = KvFormat::F16.into();
            policy.hot_tokens = formats.group();
            policy.warm = Some(formats);
        }
        policy
    }

    /// The defaults of `tiered`.
    pub fn tiered() -> Self {
        Self {
            hot: KvFormat::F16.into(),
            hot_tokens: 256,
            sink_tokens: 4,
            kept_blocks: 0,
            target: None,
            warm: Some(KIVI4.into()),
            warm_tokens: 2048,
            cold: ColdTier::ByModel,
            rotated: false,
            squat: false,
        }
    }

    /// The policy with a cold tier chosen for a model, if it leaves that open.
    #[must_use]
    pub fn for_model(mut self, grouped_queries: bool) -> Self {
        if self.cold == ColdTier::ByModel {
            self.cold = if grouped_queries { ColdTier::Off } else { ColdTier::At(KIVI2.into()) };
        }
        self
    }

    /// Formats of the tiers, from hot to cold. An open cold tier counts as none.
    pub fn tiers(&self) -> impl Iterator<Item = KvFormats> {
        let cold = match self.cold {
            ColdTier::At(formats) => Some(formats),
            ColdTier::ByModel | ColdTier::Off => None,
        };
        [Some(self.hot), self.warm, cold].into_iter().flatten()
    }

    /// `true` if a tier needs a [`KvCalibration`](crate::KvCalibration).
    pub fn needs_calibration(&self) -> bool {
        self.tiers().any(KvFormats::need_calibration)
    }

    /// `true` if queries, keys and values are rotated: on request, or because a tier needs it.
    pub fn rotates(&self) -> bool {
        self.rotated || self.tiers().any(KvFormats::need_rotation)
    }

    /// Tokens of the smallest block that holds every tier: a group of keys lies in one block.
    pub fn block_tokens(&self) -> usize {
        self.tiers().map(KvFormats::group).max().unwrap_or(MIN_BLOCK_TOKENS)
    }

    /// Checks that the parts fit together.
    ///
    /// # Errors
    /// [`Error::PolicyConflict`] if a tier is not smaller than the one before it, the hot one does
    /// not take single tokens, there is a cold tier or a target without a warm tier, what is
    /// grouped or learned by channel would be rotated, or there are no keys to correct.
    pub fn validate(&self) -> Result<()> {
        let conflict = |reason: String| Err(Error::PolicyConflict { policy: self.to_string(), reason });
        if !self.hot.is_appendable() {
            return conflict(format!("the hot tier cannot be {}; use f16, bf16 or f32", self.hot));
        }
        if self.warm.is_none() && matches!(self.cold, ColdTier::At(_)) {
            return conflict("a cold tier needs a warm one".to_owned());
        }
        if self.target.is_some() && self.warm.is_none() {
            return conflict(
                "there is no error to keep at a target where nothing is quantized; use tiered".to_owned(),
            );
        }
        let tiers: Vec<KvFormats> = self.tiers().collect();
        for pair in tiers.windows(2) {
            if pair[1].bits() >= pair[0].bits() {
                return conflict(format!(
                    "{} is not smaller than {}, which comes before it",
                    pair[1], pair[0]
                ));
            }
        }
        if self.rotates()
            && let Some(formats) = tiers.iter().find(|formats| !formats.take_rotation())
        {
            let reason = format!("rotation destroys the channels by which {formats} knows keys or values");
            return conflict(match tiers.iter().find(|formats| formats.need_rotation()) {
                Some(rotated) => {
                    format!("{reason}, and {rotated} rotates all tiers; use q8, q4 or floats beside it")
                }
                None => format!("{reason}; use rotate=off, q4 or turbo3"),
            });
        }
        let per_channel = |formats: &KvFormats| matches!(formats.keys, KvFormat::Kivi { .. });
        if self.squat && !tiers.iter().any(per_channel) {
            return conflict(
                "squat corrects keys in kivi4 or kivi2, and no tier has such; use squat=off".to_owned(),
            );
        }
        Ok(())
    }
}

/// Minimum tokens of a block: a tile of attention.
const MIN_BLOCK_TOKENS: usize = 32;

impl From<KvFormat> for KvPolicy {
    /// Everything in one format, as [`KvPolicy::uniform`].
    fn from(format: KvFormat) -> Self {
        Self::uniform(format.into())
    }
}
