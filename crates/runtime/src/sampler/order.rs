//! Order of the sampling steps.

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, Result};

/// A step of the sampler that can be placed in a [`SamplerOrder`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SamplerStep {
    /// Repetition, presence and frequency penalties.
    Penalties,
    /// DRY: penalty on tokens that would extend a repetition.
    Dry,
    /// Top-nσ filter.
    TopNSigma,
    /// Top-k filter.
    TopK,
    /// Locally typical filter.
    TypicalP,
    /// Top-p (nucleus) filter.
    TopP,
    /// Min-p filter.
    MinP,
    /// XTC: exclusion of the most likely tokens.
    Xtc,
    /// Temperature, fixed or dynamic.
    Temperature,
}

impl SamplerStep {
    /// Every step, in the default order.
    pub const ALL: [Self; 9] = [
        Self::Penalties,
        Self::Dry,
        Self::TopNSigma,
        Self::TopK,
        Self::TypicalP,
        Self::TopP,
        Self::MinP,
        Self::Xtc,
        Self::Temperature,
    ];

    /// Name, as in llama.cpp.
    pub fn name(self) -> &'static str {
        match self {
            Self::Penalties => "penalties",
            Self::Dry => "dry",
            Self::TopNSigma => "top_n_sigma",
            Self::TopK => "top_k",
            Self::TypicalP => "typ_p",
            Self::TopP => "top_p",
            Self::MinP => "min_p",
            Self::Xtc => "xtc",
            Self::Temperature => "temperature",
        }
    }

    /// The step of a name; `-` and `_` are equal. Takes `typical_p` and `temp` too, other names of
    /// the same parameters.
    fn from_name(name: &str) -> Option<Self> {
        match name.replace('-', "_").as_str() {
            "typical_p" => Some(Self::TypicalP),
            "temp" => Some(Self::Temperature),
            name => Self::ALL.into_iter().find(|step| step.name() == name),
        }
    }
}

/// Prints the [name](SamplerStep::name).
impl fmt::Display for SamplerStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Sampling steps in the order in which they run, each at most once; absent steps do not run.
///
/// The text form is that of llama.cpp's `--samplers`: names separated by `;`. The default is
/// `penalties;dry;top_n_sigma;top_k;typ_p;top_p;min_p;xtc;temperature`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SamplerOrder(Vec<SamplerStep>);

impl SamplerOrder {
    /// An order of these steps; none = draws from the distribution of the logits.
    ///
    /// # Errors
    /// [`Error::RepeatedSampler`] if a step occurs twice.
    pub fn new(steps: impl IntoIterator<Item = SamplerStep>) -> Result<Self> {
        let mut order = Vec::with_capacity(SamplerStep::ALL.len());
        for step in steps {
            if order.contains(&step) {
                return Err(Error::RepeatedSampler { name: step.name() });
            }
            order.push(step);
        }
        Ok(Self(order))
    }

    /// The steps, first to last.
    pub fn steps(&self) -> &[SamplerStep] {
        &self.0
    }
}

impl Default for SamplerOrder {
    fn default() -> Self {
        Self(SamplerStep::ALL.to_vec())
    }
}

/// Prints the names separated by `;`.
impl fmt::Display for SamplerOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, step) in self.0.iter().enumerate() {
            write!(f, "{}{step}", if i == 0 { "" } else { ";" })?;
        }
        Ok(())
    }
}

/// Parses names separated by `;`; an empty text is an order without steps.
///
/// # Errors
/// [`Error::UnknownSampler`], [`Error::RepeatedSampler`].
impl FromStr for SamplerOrder {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        if text.trim().is_empty() {
            return Ok(Self(Vec::new()));
        }
        let step = |name: &str| {
            let name = name.trim();
            SamplerStep::from_name(name).ok_or_else(|| Error::UnknownSampler { name: name.to_owned() })
        };
        Self::new(text.split(';').map(step).collect::<Result<Vec<_>>>()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_order_is_that_of_llama_cpp() {
        let names = "penalties;dry;top_n_sigma;top_k;typ_p;top_p;min_p;xtc;temperature";
        assert_eq!(SamplerOrder::default().to_string(), names);
        assert_eq!(names.parse::<SamplerOrder>().ok(), Some(SamplerOrder::default()));
    }

    #[test]
    fn names_are_read_in_order() {
        let order: SamplerOrder = "temp; top-k ;typical_p".parse().expect("known names");
        assert_eq!(order.steps(), [SamplerStep::Temperature, SamplerStep::TopK, SamplerStep::TypicalP]);
        assert_eq!(order.to_string(), "temperature;top_k;typ_p");
        assert_eq!("".parse::<SamplerOrder>().map(|order| order.to_string()).ok().as_deref(), Some(""));
    }

    #[test]
    fn unknown_and_repeated_names_are_refused() {
        let refused = |text: &str| text.parse::<SamplerOrder>().err().map(|error| error.to_string());
        assert_eq!(
            refused("top_k;best").as_deref(),
            Some(
                "there is no sampler \"best\": use penalties, dry, top_n_sigma, top_k, typ_p, top_p, min_p, xtc, \
                 temperature, separated by ;"
            )
        );
        assert_eq!(refused("top_k;top-k").as_deref(), Some("sampler top_k occurs twice in the order"));
        assert!(refused("top_k;;top_p").is_some_and(|text| text.contains("no sampler \"\"")));
    }
}
