//! Policies as text.

use std::fmt;
use std::str::FromStr;

use ruvllm_kernels::attention::KvFormat;

use super::{ColdTier, ErrorTarget, KvFormats, KvPolicy};
use crate::error::{Error, Result};

/// Options with the values that they take.
const OPTIONS: [(&str, &str); 10] = [
    ("hot", "TOKENS"),
    ("hot_format", "f16|bf16|f32"),
    ("sink", "TOKENS"),
    ("keep", "BLOCKS"),
    ("target", "ERROR"),
    ("warm", "FORMAT"),
    ("warm_tokens", "TOKENS"),
    ("cold", "FORMAT|off"),
    ("rotate", "on|off"),
    ("squat", "on|off"),
];

impl FromStr for KvPolicy {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let (name, options) = text.split_once(':').map_or((text, None), |(name, rest)| (name, Some(rest)));
        let mut policy = if name == "tiered" {
            Self::tiered()
        } else {
            Self::uniform(name.parse().map_err(|_| unknown(text))?)
        };
        for option in options.into_iter().flat_map(|options| options.split(',')) {
            policy.set(option).ok_or_else(|| not_understood(option))?;
        }
        policy.validate()?;
        Ok(policy)
    }
}

impl KvPolicy {
    /// Sets one `name=value`; `None` if it is not understood.
    fn set(&mut self, option: &str) -> Option<()> {
        let (name, value) = option.split_once('=')?;
        match (name, value) {
            ("hot", _) => self.hot_tokens = value.parse().ok()?,
            ("hot_format", "f16" | "bf16" | "f32") => self.hot = value.parse::<KvFormats>().ok()?,
            ("sink", _) => self.sink_tokens = value.parse().ok()?,
            ("keep", _) => self.kept_blocks = value.parse().ok()?,
            ("target", _) => self.target = Some(ErrorTarget::new(value.parse().ok()?)?),
            ("warm", _) => self.warm = Some(value.parse().ok()?),
            ("warm_tokens", _) => self.warm_tokens = value.parse().ok()?,
            ("cold", "off") => self.cold = ColdTier::Off,
            ("cold", _) => self.cold = ColdTier::At(value.parse().ok()?),
            ("rotate", "on") => self.rotated = true,
            ("rotate", "off") => self.rotated = false,
            ("squat", "on") => self.squat = true,
            ("squat", "off") => self.squat = false,
            _ => return None,
        }
        Some(())
    }

    /// The name before the colon, and the policy that it alone means.
    fn base(&self) -> (String, Self) {
        let formats = if self.cold == ColdTier::Off { self.warm.unwrap_or(self.hot) } else { self.hot };
        let uniform = Self::uniform(formats);
        let is_uniform = Self { rotated: false, squat: false, ..*self } == uniform;
        if is_uniform || self.warm.is_none() {
            (formats.to_string(), uniform)
        } else {
            ("tiered".to_owned(), Self::tiered())
        }
    }
}

impl fmt::Display for KvPolicy {
    /// The shortest text that means this policy.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, base) = self.base();
        f.write_str(&name)?;
        let mut separator = ':';
        let mut option = |differs: bool, name: &str, value: &dyn fmt::Display| {
            if differs {
                write!(f, "{separator}{name}={value}")?;
                separator = ',';
            }
            Ok(())
        };
        option(self.hot_tokens != base.hot_tokens, "hot", &self.hot_tokens)?;
        option(self.hot != base.hot, "hot_format", &self.hot)?;
        option(self.sink_tokens != base.sink_tokens, "sink", &self.sink_tokens)?;
        option(self.kept_blocks != base.kept_blocks, "keep", &self.kept_blocks)?;
        if let Some(target) = self.target {
            option(true, "target", &target)?;
        }
        if let Some(warm) = self.warm {
            option(self.warm != base.warm, "warm", &warm)?;
        }
        option(self.warm_tokens != base.warm_tokens, "warm_tokens", &self.warm_tokens)?;
        match self.cold {
            ColdTier::At(formats) => option(self.cold != base.cold, "cold", &formats)?,
            ColdTier::Off => option(self.cold != base.cold, "cold", &"off")?,
            ColdTier::ByModel => {}
        }
        option(self.rotated, "rotate", &"on")?;
        option(self.squat, "squat", &"on")
    }
}

/// The error for an option: its values if it exists, else the known options.
fn not_understood(option: &str) -> Error {
    let (name, _) = option.split_once('=').unwrap_or((option, ""));
    let option = option.to_owned();
    match OPTIONS.iter().find(|(known, _)| *known == name) {
        Some(&(name, value)) => {
            let meaning = match value {
                "TOKENS" | "BLOCKS" => ", a whole number",
                "ERROR" => ", the relative error of attention, above 0 and at most 1",
                "FORMAT" | "FORMAT|off" => ", a format such as q8, kivi4 or k4v2",
                _ => "",
            };
            Error::PolicyValue { option, expected: format!("{name}={value}{meaning}") }
        }
        None => {
            let known = OPTIONS.map(|(name, value)| format!("{name}={value}"));
            Error::PolicyOption { option, expected: known.join(", ") }
        }
    }
}

/// The error for a name that is no policy. Formats in larger groups are left to the documentation.
fn unknown(text: &str) -> Error {
    let names = KvFormat::ALL.map(KvFormat::name).into_iter().filter(|name| !name.contains('-'));
    Error::UnknownPolicy { text: text.to_owned(), formats: names.collect::<Vec<_>>().join(", ") }
}
