//! Settings of a chat: defaults from the flags, changes by `/set`, saved form.

use std::collections::BTreeMap;

use ruvllm::{DryBreakers, SamplerOrder, SamplingParams, TokenId};
use serde::{Deserialize, Serialize};

use crate::args::{self, OutputLanguage};
use crate::error::{Error, Result};

/// Settings of the generation.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Settings {
    /// Without DRY's sequence breakers: those need a tokenizer.
    pub(super) sampling: SamplingParams,
    /// DRY's sequence breakers.
    pub(super) breakers: Vec<String>,
    /// Maximum number of tokens of an answer.
    pub(super) max_tokens: usize,
    /// Stop sequences.
    pub(super) stop: Vec<String>,
    /// Language of the answers, if they are to have one.
    pub(super) output: Option<OutputLanguage>,
}

impl Settings {
    /// Names of all settings.
    pub(super) const NAMES: [&str; 28] = [
        "temperature",
        "top_k",
        "top_p",
        "min_p",
        "typical_p",
        "repeat_penalty",
        "repeat_last_n",
        "presence_penalty",
        "frequency_penalty",
        "top_nsigma",
        "dry_multiplier",
        "dry_base",
        "dry_allowed_length",
        "dry_penalty_last_n",
        "dry_sequence_breaker",
        "xtc_probability",
        "xtc_threshold",
        "mirostat",
        "mirostat_lr",
        "mirostat_ent",
        "dynatemp_range",
        "dynatemp_exp",
        "samplers",
        "logit_bias",
        "seed",
        "max_tokens",
        "stop",
        "output",
    ];

    /// Names of settings that take `off`.
    pub(super) const WITH_OFF: [&str; 5] = ["dry_sequence_breaker", "logit_bias", "output", "seed", "stop"];

    /// Sets a value by name (`-` and `_` are the same); returns `name = value` as it now holds.
    ///
    /// # Errors
    /// [`Error::ChatCommand`] with the known names or the valid range.
    pub(super) fn set(&mut self, name: &str, value: &str) -> Result<String> {
        let name = name.replace('-', "_");
        self.try_set(&name, value).map_err(|reason| Error::ChatCommand { reason })?;
        Ok(format!("{name} = {}", self.shown(&name)))
    }

    fn try_set(&mut self, name: &str, value: &str) -> Result<(), String> {
        let sampling = &mut self.sampling;
        let range = |expected: String| format!("{name}: {expected}");
        match name {
            "temperature" => sampling.temperature = args::non_negative(value).map_err(range)?,
            "top_k" => sampling.top_k = args::count(value).map_err(range)?,
            "top_p" => sampling.top_p = args::fraction(value).map_err(range)?,
            "min_p" => sampling.min_p = args::fraction(value).map_err(range)?,
            "typical_p" => sampling.typical_p = args::fraction(value).map_err(range)?,
            "repeat_penalty" => sampling.repeat_penalty = args::above_zero(value).map_err(range)?,
            "repeat_last_n" => sampling.repeat_last_n = args::count(value).map_err(range)?,
            "presence_penalty" => sampling.presence_penalty = args::finite(value).map_err(range)?,
            "frequency_penalty" => sampling.frequency_penalty = args::finite(value).map_err(range)?,
            "top_nsigma" => sampling.top_n_sigma = args::sigmas(value).map_err(range)?,
            "dry_multiplier" => sampling.dry_multiplier = args::non_negative(value).map_err(range)?,
            "dry_base" => sampling.dry_base = args::at_least_one(value).map_err(range)?,
            "dry_allowed_length" => sampling.dry_allowed_length = args::positive(value).map_err(range)?,
            "dry_penalty_last_n" => {
                sampling.dry_penalty_last_n =
                    args::recent_or_all(value).map_err(range)?.0.unwrap_or(usize::MAX);
            }
            "dry_sequence_breaker" if value == "off" => self.breakers.clear(),
            "dry_sequence_breaker" => match args::breaker(value).map_err(range)? {
                Some(breaker) => self.breakers.push(breaker),
                None => self.breakers.clear(),
            },
            "xtc_probability" => sampling.xtc_probability = args::fraction(value).map_err(range)?,
            "xtc_threshold" => sampling.xtc_threshold = args::fraction(value).map_err(range)?,
            "mirostat" => sampling.mirostat = args::mirostat(value).map_err(range)? == 2,
            "mirostat_lr" => sampling.mirostat_eta = args::non_negative(value).map_err(range)?,
            "mirostat_ent" => sampling.mirostat_tau = args::above_zero(value).map_err(range)?,
            "dynatemp_range" => sampling.dynatemp_range = args::non_negative(value).map_err(range)?,
            "dynatemp_exp" => sampling.dynatemp_exponent = args::non_negative(value).map_err(range)?,
            "samplers" => sampling.samplers = args::samplers(value).map_err(range)?,
            "logit_bias" if value == "off" => sampling.logit_bias.clear(),
            "logit_bias" => {
                let (token, bias) = args::logit_bias(value).map_err(range)?;
                sampling.logit_bias.insert(token, bias);
            }
            "seed" if value == "off" => sampling.seed = None,
            "seed" => {
                let expected = |_| range("expected a whole number, or off".to_owned());
                sampling.seed = Some(value.parse().map_err(expected)?);
            }
            "max_tokens" => self.max_tokens = args::positive(value).map_err(range)?,
            "stop" if value == "off" => self.stop.clear(),
            "stop" => match serde_json::from_str::<Vec<String>>(value) {
                Ok(texts) if texts.iter().any(String::is_empty) => {
                    return Err(range("expected texts that are not empty".to_owned()));
                }
                Ok(texts) => self.stop = texts,
                Err(_) => self.stop.push(value.to_owned()),
            },
            "output" => self.output = OutputLanguage::of_setting(value).map_err(range)?,
            _ => return Err(unknown(name)),
        }
        Ok(())
    }

    /// Table of all settings, for the user.
    pub(super) fn table(&self) -> String {
        let row = |name: &&str| vec![(*name).to_owned(), self.shown(name)];
        crate::output::table(&Self::NAMES.iter().map(row).collect::<Vec<_>>(), &[])
    }

    /// Value of a setting as text; lists are separated by commas.
    fn shown(&self, name: &str) -> String {
        let sampling = &self.sampling;
        let listed = |texts: Vec<String>| if texts.is_empty() { "off".to_owned() } else { texts.join(", ") };
        let quoted = |texts: &[String]| listed(texts.iter().map(|text| format!("{text:?}")).collect());
        match name {
            "temperature" => sampling.temperature.to_string(),
            "top_k" => sampling.top_k.to_string(),
            "top_p" => sampling.top_p.to_string(),
            "min_p" => sampling.min_p.to_string(),
            "typical_p" => sampling.typical_p.to_string(),
            "repeat_penalty" => sampling.repeat_penalty.to_string(),
            "repeat_last_n" => sampling.repeat_last_n.to_string(),
            "presence_penalty" => sampling.presence_penalty.to_string(),
            "frequency_penalty" => sampling.frequency_penalty.to_string(),
            "top_nsigma" => sampling.top_n_sigma.to_string(),
            "dry_multiplier" => sampling.dry_multiplier.to_string(),
            "dry_base" => sampling.dry_base.to_string(),
            "dry_allowed_length" => sampling.dry_allowed_length.to_string(),
            "dry_penalty_last_n" => {
                limited(sampling.dry_penalty_last_n).map_or_else(|| "-1".to_owned(), |n| n.to_string())
            }
            "dry_sequence_breaker" => quoted(&self.breakers),
            "xtc_probability" => sampling.xtc_probability.to_string(),
            "xtc_threshold" => sampling.xtc_threshold.to_string(),
            "mirostat" => mirostat_version(sampling).to_string(),
            "mirostat_lr" => sampling.mirostat_eta.to_string(),
            "mirostat_ent" => sampling.mirostat_tau.to_string(),
            "dynatemp_range" => sampling.dynatemp_range.to_string(),
            "dynatemp_exp" => sampling.dynatemp_exponent.to_string(),
            "samplers" if sampling.samplers == SamplerOrder::default() => args::ALL_SAMPLERS.to_owned(),
            "samplers" => sampling.samplers.to_string(),
            "logit_bias" => {
                listed(sampling.logit_bias.iter().map(|(token, bias)| format!("{token}={bias}")).collect())
            }
            "seed" => sampling
                .seed
                .map_or_else(|| "off (another one each time)".to_owned(), |seed| seed.to_string()),
            "max_tokens" => self.max_tokens.to_string(),
            "output" => self.output.as_ref().map_or("off", |output| output.setting.as_str()).to_owned(),
            _ => quoted(&self.stop),
        }
    }
}

/// Message for a name that is no setting: the nearest one, and the command that lists them all.
fn unknown(name: &str) -> String {
    let distance = |known: &&str| strsim::damerau_levenshtein(name, known);
    let nearest = Settings::NAMES.into_iter().min_by_key(distance);
    let near = nearest.filter(|known| distance(known) <= known.len() / 3);
    let meant = near.map(|known| format!("did you mean {known}? ")).unwrap_or_default();
    format!("there is no setting {name}: {meant}/set lists them, temperature, top_k and others")
}

/// A window in tokens; `None` if it holds all.
fn limited(tokens: usize) -> Option<usize> {
    (tokens != usize::MAX).then_some(tokens)
}

/// Version of Mirostat; 0 if it is off.
fn mirostat_version(sampling: &SamplingParams) -> u8 {
    if sampling.mirostat { 2 } else { 0 }
}

/// Settings in a saved conversation; absent ones keep their value, except `seed`.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct SavedSettings {
    temperature: Option<f32>,
    top_k: Option<usize>,
    top_p: Option<f32>,
    min_p: Option<f32>,
    typical_p: Option<f32>,
    repeat_penalty: Option<f32>,
    repeat_last_n: Option<usize>,
    presence_penalty: Option<f32>,
    frequency_penalty: Option<f32>,
    top_nsigma: Option<f32>,
    dry_multiplier: Option<f32>,
    dry_base: Option<f32>,
    dry_allowed_length: Option<usize>,
    /// -1 is all tokens.
    dry_penalty_last_n: Option<i64>,
    dry_sequence_breaker: Option<Vec<String>>,
    xtc_probability: Option<f32>,
    xtc_threshold: Option<f32>,
    /// 2, or 0 for off.
    mirostat: Option<u8>,
    mirostat_lr: Option<f32>,
    mirostat_ent: Option<f32>,
    dynatemp_range: Option<f32>,
    dynatemp_exp: Option<f32>,
    /// Names separated by `;`.
    samplers: Option<String>,
    /// `null` is -inf, which forbids the token: JSON has no infinities.
    logit_bias: Option<BTreeMap<TokenId, Option<f32>>>,
    /// `null` or absent: another seed each time.
    seed: Option<u64>,
    max_tokens: Option<usize>,
    stop: Option<Vec<String>>,
    /// Null is none.
    output: Option<String>,
}

impl From<&Settings> for SavedSettings {
    fn from(settings: &Settings) -> Self {
        let Settings { sampling, breakers, max_tokens, stop, output } = settings;
        let window = |tokens| limited(tokens).map_or(-1, |n| i64::try_from(n).unwrap_or(i64::MAX));
        let bias = |(&token, &bias): (&TokenId, &f32)| (token, Some(bias).filter(|bias| bias.is_finite()));
        Self {
            temperature: Some(sampling.temperature),
            top_k: Some(sampling.top_k),
            top_p: Some(sampling.top_p),
            min_p: Some(sampling.min_p),
            typical_p: Some(sampling.typical_p),
            repeat_penalty: Some(sampling.repeat_penalty),
            repeat_last_n: Some(sampling.repeat_last_n),
            presence_penalty: Some(sampling.presence_penalty),
            frequency_penalty: Some(sampling.frequency_penalty),
            top_nsigma: Some(sampling.top_n_sigma),
            dry_multiplier: Some(sampling.dry_multiplier),
            dry_base: Some(sampling.dry_base),
            dry_allowed_length: Some(sampling.dry_allowed_length),
            dry_penalty_last_n: Some(window(sampling.dry_penalty_last_n)),
            dry_sequence_breaker: Some(breakers.clone()),
            xtc_probability: Some(sampling.xtc_probability),
            xtc_threshold: Some(sampling.xtc_threshold),
            mirostat: Some(mirostat_version(sampling)),
            mirostat_lr: Some(sampling.mirostat_eta),
            mirostat_ent: Some(sampling.mirostat_tau),
            dynatemp_range: Some(sampling.dynatemp_range),
            dynatemp_exp: Some(sampling.dynatemp_exponent),
            samplers: Some(sampling.samplers.to_string()),
            logit_bias: Some(sampling.logit_bias.iter().map(bias).collect()),
            seed: sampling.seed,
            max_tokens: Some(*max_tokens),
            stop: Some(stop.clone()),
            output: output.as_ref().map(|output| output.setting.clone()),
        }
    }
}

impl SavedSettings {
    /// Applies these to `settings`.
    ///
    /// # Errors
    /// A value that is out of its range.
    pub(super) fn apply(self, settings: &Settings) -> Result<Settings, String> {
        let Settings { sampling: old, breakers, max_tokens, stop, .. } = settings.clone();
        let sampling = self.sampling(old)?;
        sampling.validate().map_err(|error| error.to_string())?;
        let max_tokens = self.max_tokens.unwrap_or(max_tokens);
        let stop = self.stop.unwrap_or(stop);
        let breakers = self.dry_sequence_breaker.unwrap_or(breakers);
        if breakers.iter().any(|text| text.is_empty() || text.len() > DryBreakers::MAX_BYTES) {
            return Err(format!(
                "dry_sequence_breaker must have texts of 1 to {} bytes",
                DryBreakers::MAX_BYTES
            ));
        }
        if max_tokens == 0 || stop.iter().any(String::is_empty) {
            return Err("max_tokens must be at least 1 and no stop text empty".to_owned());
        }
        let output = OutputLanguage::of_setting(self.output.as_deref().unwrap_or("off"))
            .map_err(|reason| format!("output: {reason}"))?;
        Ok(Settings { sampling, breakers, max_tokens, stop, output })
    }

    /// Sampling parameters: `old` with these.
    fn sampling(&self, old: SamplingParams) -> Result<SamplingParams, String> {
        let bias = |(&token, &bias): (&TokenId, &Option<f32>)| (token, bias.unwrap_or(f32::NEG_INFINITY));
        let window = |n: i64| match n {
            -1 => Ok(usize::MAX),
            n => usize::try_from(n).map_err(|_| "dry_penalty_last_n must be at least -1".to_owned()),
        };
        let mirostat = |version: u8| args::mirostat(&version.to_string()).map(|version| version == 2);
        Ok(SamplingParams::default()
            .with_temperature(self.temperature.unwrap_or(old.temperature))
            .with_top_k(self.top_k.unwrap_or(old.top_k))
            .with_top_p(self.top_p.unwrap_or(old.top_p))
            .with_min_p(self.min_p.unwrap_or(old.min_p))
            .with_typical_p(self.typical_p.unwrap_or(old.typical_p))
            .with_repeat_penalty(self.repeat_penalty.unwrap_or(old.repeat_penalty))
            .with_repeat_last_n(self.repeat_last_n.unwrap_or(old.repeat_last_n))
            .with_presence_penalty(self.presence_penalty.unwrap_or(old.presence_penalty))
            .with_frequency_penalty(self.frequency_penalty.unwrap_or(old.frequency_penalty))
            .with_top_n_sigma(self.top_nsigma.unwrap_or(old.top_n_sigma))
            .with_dry_multiplier(self.dry_multiplier.unwrap_or(old.dry_multiplier))
            .with_dry_base(self.dry_base.unwrap_or(old.dry_base))
            .with_dry_allowed_length(self.dry_allowed_length.unwrap_or(old.dry_allowed_length))
            .with_dry_penalty_last_n(
                self.dry_penalty_last_n.map(window).transpose()?.unwrap_or(old.dry_penalty_last_n),
            )
            .with_xtc_probability(self.xtc_probability.unwrap_or(old.xtc_probability))
            .with_xtc_threshold(self.xtc_threshold.unwrap_or(old.xtc_threshold))
            .with_mirostat(self.mirostat.map(mirostat).transpose()?.unwrap_or(old.mirostat))
            .with_mirostat_eta(self.mirostat_lr.unwrap_or(old.mirostat_eta))
            .with_mirostat_tau(self.mirostat_ent.unwrap_or(old.mirostat_tau))
            .with_dynatemp_range(self.dynatemp_range.unwrap_or(old.dynatemp_range))
            .with_dynatemp_exponent(self.dynatemp_exp.unwrap_or(old.dynatemp_exponent))
            .with_samplers(match &self.samplers {
                Some(names) => args::samplers(names)?,
                None => old.samplers,
            })
            .with_logit_bias(
                self.logit_bias.as_ref().map_or(old.logit_bias, |all| all.iter().map(bias).collect()),
            )
            .with_seed(self.seed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings() -> Settings {
        Settings {
            sampling: SamplingParams::default(),
            breakers: vec!["\n".to_owned()],
            max_tokens: 100,
            stop: Vec::new(),
            output: None,
        }
    }

    #[test]
    fn every_setting_can_be_set_and_survives_its_file() {
        let mut changed = settings();
        for (name, value) in [
            ("temperature", "0.5"),
            ("top-k", "7"),
            ("top_p", "0.9"),
            ("min_p", "0.1"),
            ("typical_p", "0.8"),
            ("repeat_penalty", "1.1"),
            ("repeat_last_n", "32"),
            ("presence_penalty", "-0.5"),
            ("frequency_penalty", "0.25"),
            ("top-nsigma", "1.5"),
            ("dry_multiplier", "0.8"),
            ("dry_base", "2"),
            ("dry_allowed_length", "3"),
            ("dry_penalty_last_n", "512"),
            ("dry_sequence_breaker", "END"),
            ("xtc_probability", "0.5"),
            ("xtc_threshold", "0.2"),
            ("mirostat", "2"),
            ("mirostat_lr", "0.2"),
            ("mirostat_ent", "4"),
            ("dynatemp_range", "0.25"),
            ("dynatemp_exp", "2"),
            ("samplers", "dry;temperature"),
            ("logit_bias", "42=-inf"),
            ("logit_bias", "7=1.5"),
            ("seed", "12"),
            ("max_tokens", "9"),
            ("stop", "END"),
            ("output", "choices red,dark green"),
        ] {
            let before = changed.clone();
            changed.set(name, value).unwrap();
            assert_ne!(changed, before, "{name}");
        }
        let json = serde_json::to_string(&SavedSettings::from(&changed)).unwrap();
        let saved: SavedSettings = serde_json::from_str(&json).unwrap();
        assert_eq!(saved.apply(&settings()).unwrap(), changed, "{json}");
        for name in Settings::WITH_OFF {
            changed.set(name, "off").unwrap();
        }
        assert!(changed.breakers.is_empty());
        assert!(changed.sampling.logit_bias.is_empty() && changed.stop.is_empty());
        assert_eq!(changed.sampling.seed, None);
    }

    #[test]
    fn values_out_of_range_and_unknown_names_are_refused() {
        for (name, value, piece) in [
            ("temperature", "-1", "temperature: expected"),
            ("top_p", "2", "from 0 to 1"),
            ("max_tokens", "0", "at least 1"),
            ("seed", "x", "or off"),
            ("logit_bias", "5", "ID=VALUE"),
            ("mirostat", "1", "mirostat: expected 2 or 0"),
            ("samplers", "top_k;best", "there is no sampler \"best\""),
            ("dry_allowed_length", "0", "at least 1"),
            ("temprature", "1", "did you mean temperature?"),
            ("heat", "1", "/set lists them"),
            ("output", "xml", "output: expected json-object"),
            ("output", "json-schema -", "name a file"),
            ("output", "grammar no-such-file", "no-such-file"),
            ("output", "choices a,,b", "choice 2 is empty"),
        ] {
            let mut unchanged = settings();
            let error = unchanged.set(name, value).unwrap_err().to_string();
            assert!(error.contains(piece), "{error}");
            assert_eq!(unchanged, settings());
        }
        for json in [
            r#"{"temperature":-1}"#,
            r#"{"max_tokens":0}"#,
            r#"{"stop":[""]}"#,
            r#"{"dry_sequence_breaker":[""]}"#,
            r#"{"dry_penalty_last_n":-2}"#,
            r#"{"mirostat":1}"#,
            r#"{"samplers":"best"}"#,
            r#"{"output":"x"}"#,
        ] {
            let saved: SavedSettings = serde_json::from_str(json).unwrap();
            assert!(saved.apply(&settings()).is_err(), "{json}");
        }
        assert!(serde_json::from_str::<SavedSettings>(r#"{"heat":1}"#).is_err());
    }

    #[test]
    fn the_table_shows_every_setting() {
        let table = settings().table();
        assert!(
            table.contains("temperature           0.8\n")
                && table.contains("seed                  off (another"),
            "{table}"
        );
        assert_eq!(table.lines().count(), Settings::NAMES.len());
        // `/set` and the saved form use the same names.
        let saved = serde_json::to_value(SavedSettings::from(&settings())).unwrap();
        assert_eq!(saved.as_object().unwrap().keys().collect::<Vec<_>>(), Settings::NAMES);
    }

    #[test]
    fn a_setting_is_confirmed_with_the_value_that_holds() {
        let mut settings = settings();
        for (name, value, said) in [
            ("temperature", "0.50", "temperature = 0.5"),
            ("logit-bias", "5=-inf", "logit_bias = 5=-inf"),
            ("logit_bias", "7=1.5", "logit_bias = 5=-inf, 7=1.5"),
            ("logit_bias", "off", "logit_bias = off"),
            ("stop", "END", "stop = \"END\""),
            ("stop", "[INST]", "stop = \"END\", \"[INST]\""),
            ("stop", "[\"a\\n\"]", "stop = \"a\\n\""),
            ("stop", "[]", "stop = off"),
            ("output", "regex [a-z]+ [0-9]", "output = regex [a-z]+ [0-9]"),
            ("output", "json-object", "output = json-object"),
            ("output", "off", "output = off"),
            ("dry_sequence_breaker", "\\t", "dry_sequence_breaker = \"\\n\", \"\\t\""),
            ("dry_sequence_breaker", "none", "dry_sequence_breaker = off"),
            ("dry_penalty_last_n", "-1", "dry_penalty_last_n = -1"),
            ("samplers", "temp;top-k", "samplers = temperature;top_k"),
            ("samplers", "all", "samplers = all"),
            ("seed", "7", "seed = 7"),
            ("seed", "off", "seed = off (another one each time)"),
        ] {
            assert_eq!(settings.set(name, value).unwrap(), said);
        }
        assert!(settings.set("stop", "[\"\"]").unwrap_err().to_string().contains("not empty"));
    }
}
