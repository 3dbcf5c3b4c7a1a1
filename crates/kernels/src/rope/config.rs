//! RoPE frequencies per pair of dimensions, and context-extension scalings.

use std::f64::consts::{PI, TAU};

use crate::{Error, Result};

/// RoPE parameters: base, rotary dimension, scaling.
#[derive(Debug, Clone, PartialEq)]
pub struct RopeConfig {
    /// Base of the geometric series of frequencies ("theta"), 10000 in the original.
    pub base: f64,
    /// Number of dimensions per head that RoPE rotates; even. The rest passes through.
    pub rotary_dim: usize,
    /// Frequency scaling for longer contexts.
    pub scaling: RopeScaling,
    /// Divisor of each pair's frequency, `[rotary_dim / 2]`: GGUF tensor `rope_freqs.weight`.
    /// Applied after `scaling` (files with this tensor use [`RopeScaling::None`]).
    pub frequency_divisors: Option<Vec<f32>>,
}

/// Scaling of the frequencies `f_i = base^(-2 i / d)` for contexts longer than trained.
///
/// `d` is the rotary dimension.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum RopeScaling {
    /// Frequencies as trained.
    None,
    /// Position interpolation: `f_i / factor`. Source: arXiv 2306.15595.
    Linear {
        /// Ratio of the extended to the original context.
        factor: f64,
    },
    /// NTK-aware: larger base `base * factor^(d / (d - 2))`, which keeps the highest frequency.
    Ntk {
        /// Ratio of the extended to the original context.
        factor: f64,
    },
    /// Dynamic NTK: base depends on the sequence length `n` beyond the original context.
    ///
    /// The base is `base * (factor n / original_context - (factor - 1))^(d / (d - 2))`. `n` is
    /// fixed when the table is built, because cached keys keep their angles.
    DynamicNtk {
        /// Growth of the base with the length.
        factor: f64,
        /// Context length in training.
        original_context: usize,
    },
    /// `YaRN`: low frequencies interpolated, high ones kept, a ramp in between.
    ///
    /// Cosines and sines are scaled by the attention factor. Source: arXiv 2309.00071.
    Yarn {
        /// Ratio of the extended to the original context.
        factor: f64,
        /// Context length in training.
        original_context: usize,
        /// Pairs with more full turns than this over the original context keep their frequency
        /// (usually 32).
        beta_fast: f64,
        /// Pairs with fewer full turns than this are fully interpolated (usually 1).
        beta_slow: f64,
        /// Scale of cosines and sines; `None` for `0.1 ln(factor) + 1`. See
        /// [`yarn_attention_factor`].
        attention_factor: Option<f64>,
        /// Rounds the ends of the ramp outwards to whole pairs (usually true).
        truncate: bool,
    },
    /// Llama 3.1: low frequencies interpolated, high ones kept, a blend in between.
    Llama3 {
        /// Divisor of the low frequencies.
        factor: f64,
        /// Wavelengths above `original_context / low_frequency_factor` are fully interpolated
        /// (usually 1).
        low_frequency_factor: f64,
        /// Wavelengths below `original_context / high_frequency_factor` are kept (usually 4).
        high_frequency_factor: f64,
        /// Context length in training.
        original_context: usize,
    },
    /// `LongRoPE`: a divisor per pair, one list within the original context and one beyond. Source:
    /// arXiv 2402.13753.
    LongRope {
        /// Divisors for sequences of up to `original_context` positions, `[rotary_dim / 2]`.
        short_factors: Vec<f64>,
        /// Divisors for longer sequences, `[rotary_dim / 2]`.
        long_factors: Vec<f64>,
        /// Context length in training.
        original_context: usize,
        /// Extended context length.
        ///
        /// Determines the scale of cosines and sines `sqrt(1 + ln(s) / ln(original_context))`, `s =
        /// max_context / original_context` (1 if `s <= 1`).
        max_context: usize,
        /// Scale of cosines and sines, if the model states it.
        attention_factor: Option<f64>,
    },
}

/// Frequencies and magnitude from which tables are computed.
#[derive(Debug, Clone, PartialEq)]
pub struct RopeFrequencies {
    /// Radians per position of each pair, `[rotary_dim / 2]`.
    pub inverse: Vec<f64>,
    /// Scale (attention factor) of all cosines and sines.
    pub magnitude: f64,
}

/// Attention factor of `YaRN` models with two scales (`DeepSeek`: `mscale`, `mscale_all_dim`).
///
/// It is `m(mscale) / m(mscale_all_dim)` with `m(s) = 0.1 s ln(factor) + 1` for a factor above 1,
/// else 1.
pub fn yarn_attention_factor(factor: f64, mscale: f64, mscale_all_dim: f64) -> f64 {
    magnitude_at(factor, mscale) / magnitude_at(factor, mscale_all_dim)
}

fn magnitude_at(factor: f64, scale: f64) -> f64 {
    if factor > 1.0 { 0.1 * scale * factor.ln() + 1.0 } else { 1.0 }
}

impl RopeConfig {
    /// Creates a configuration without scaling.
    pub fn new(base: f64, rotary_dim: usize) -> Self {
        Self { base, rotary_dim, scaling: RopeScaling::None, frequency_divisors: None }
    }

    /// Computes the frequencies for sequences of up to `sequence_length` positions.
    ///
    /// The length matters only to [`RopeScaling::DynamicNtk`] and [`RopeScaling::LongRope`].
    ///
    /// # Errors
    /// [`Error::RotaryDim`], [`Error::RopeFactors`] or [`Error::RopeParameter`] for an invalid
    /// configuration.
    pub fn frequencies(&self, sequence_length: usize) -> Result<RopeFrequencies> {
        if self.rotary_dim == 0 || !self.rotary_dim.is_multiple_of(2) {
            return Err(Error::RotaryDim { rotary_dim: self.rotary_dim });
        }
        if !(self.base.is_finite() && self.base > 1.0) {
            return Err(out_of_range("base", self.base, "finite and above 1"));
        }
        let (mut inverse, magnitude) = self.scaled(sequence_length)?;
        if let Some(divisors) = &self.frequency_divisors {
            divide(&mut inverse, divisors.iter().map(|&divisor| f64::from(divisor)), "frequency_divisors")?;
        }
        Ok(RopeFrequencies { inverse, magnitude })
    }

    /// Frequencies and magnitude before the divisors are applied.
    fn scaled(&self, sequence_length: usize) -> Result<(Vec<f64>, f64)> {
        Ok(match &self.scaling {
            RopeScaling::None => (self.series(self.base), 1.0),
            &RopeScaling::Linear { factor } => {
                positive("factor", factor)?;
                (self.series(self.base).into_iter().map(|f| f / factor).collect(), 1.0)
            }
            &RopeScaling::Ntk { factor } => {
                positive("factor", factor)?;
                (self.series(self.stretched_base(factor)?), 1.0)
            }
            &RopeScaling::DynamicNtk { factor, original_context } => {
                positive("factor", factor)?;
                let original = context("original_context", original_context)?;
                let length = (sequence_length as f64).max(original);
                let growth = factor * length / original - (factor - 1.0);
                (self.series(self.stretched_base(growth)?), 1.0)
            }
            RopeScaling::Yarn { .. } => self.yarn()?,
            RopeScaling::Llama3 { .. } => (self.llama3()?, 1.0),
            RopeScaling::LongRope { .. } => self.long_rope(sequence_length)?,
        })
    }

    /// Geometric series `base^(-2 i / d)`.
    fn series(&self, base: f64) -> Vec<f64> {
        let d = self.rotary_dim as f64;
        (0..self.rotary_dim / 2).map(|i| base.powf(-2.0 * i as f64 / d)).collect()
    }

    /// `base * growth^(d / (d - 2))`; `base` itself with a single pair, whose frequency is 1 for
    /// every base.
    fn stretched_base(&self, growth: f64) -> Result<f64> {
        positive("growth of the base", growth)?;
        if self.rotary_dim == 2 {
            return Ok(self.base);
        }
        let d = self.rotary_dim as f64;
        positive("stretched base", self.base * growth.powf(d / (d - 2.0)))
    }

    fn yarn(&self) -> Result<(Vec<f64>, f64)> {
        let RopeScaling::Yarn { factor, original_context, beta_fast, beta_slow, attention_factor, truncate } =
            self.scaling
        else {
            unreachable!("called for this variant only")
        };
        positive("factor", factor)?;
        positive("beta_fast", beta_fast)?;
        positive("beta_slow", beta_slow)?;
        let original = context("original_context", original_context)?;
        let d = self.rotary_dim as f64;
        // Index of the pair that makes `turns` full turns over the original context.
        let pair_of = |turns: f64| d * (original / (turns * TAU)).ln() / (2.0 * self.base.ln());
        let (mut low, mut high) = (pair_of(beta_fast), pair_of(beta_slow));
        if truncate {
            (low, high) = (low.floor(), high.ceil());
        }
        (low, high) = (low.max(0.0), high.min(d - 1.0));
        if low == high {
            high += 0.001;
        }
        let blend = |(i, f): (usize, f64)| {
            let ramp = ((i as f64 - low) / (high - low)).clamp(0.0, 1.0);
            f / factor * ramp + f * (1.0 - ramp)
        };
        let inverse = self.series(self.base).into_iter().enumerate().map(blend).collect();
        Ok((inverse, attention_factor.unwrap_or_else(|| magnitude_at(factor, 1.0))))
    }

    fn llama3(&self) -> Result<Vec<f64>> {
        let RopeScaling::Llama3 {
            factor,
            low_frequency_factor: low,
            high_frequency_factor: high,
            original_context,
        } = self.scaling
        else {
            unreachable!("called for this variant only")
        };
        positive("factor", factor)?;
        positive("low_frequency_factor", low)?;
        let original = context("original_context", original_context)?;
        if !(high.is_finite() && high > low) {
            return Err(out_of_range("high_frequency_factor", high, "finite and above low_frequency_factor"));
        }
        let scale = |f: f64| {
            let wavelength = 2.0 * PI / f;
            // 1 keeps the frequency, 0 divides it.
            let keep = ((original / wavelength - low) / (high - low)).clamp(0.0, 1.0);
            (1.0 - keep) * f / factor + keep * f
        };
        Ok(self.series(self.base).into_iter().map(scale).collect())
    }

    fn long_rope(&self, sequence_length: usize) -> Result<(Vec<f64>, f64)> {
        let RopeScaling::LongRope {
            short_factors,
            long_factors,
            original_context,
            max_context,
            attention_factor,
        } = &self.scaling
        else {
            unreachable!("called for this variant only")
        };
        let original = context("original_context", *original_context)?;
        let mut inverse = self.series(self.base);
        if sequence_length > *original_context {
            divide(&mut inverse, long_factors.iter().copied(), "long_factors")?;
        } else {
            divide(&mut inverse, short_factors.iter().copied(), "short_factors")?;
        }
        let stretch = *max_context as f64 / original;
        let magnitude = if stretch <= 1.0 || *original_context == 1 {
            1.0
        } else {
            (1.0 + stretch.ln() / original.ln()).sqrt()
        };
        Ok((inverse, attention_factor.unwrap_or(magnitude)))
    }
}

fn divide(
    inverse: &mut [f64],
    divisors: impl ExactSizeIterator<Item = f64>,
    what: &'static str,
) -> Result<()> {
    if divisors.len() != inverse.len() {
        return Err(Error::RopeFactors { what, found: divisors.len(), expected: inverse.len() });
    }
    for (f, divisor) in inverse.iter_mut().zip(divisors) {
        *f /= positive(what, divisor)?;
    }
    Ok(())
}

fn positive(name: &'static str, value: f64) -> Result<f64> {
    if value.is_finite() && value > 0.0 {
        Ok(value)
    } else {
        Err(out_of_range(name, value, "finite and above 0"))
    }
}

fn context(name: &'static str, positions: usize) -> Result<f64> {
    if positions == 0 { Err(out_of_range(name, 0.0, "at least 1")) } else { Ok(positions as f64) }
}

fn out_of_range(name: &'static str, value: f64, expected: &'static str) -> Error {
    Error::RopeParameter { name, value, expected }
}
