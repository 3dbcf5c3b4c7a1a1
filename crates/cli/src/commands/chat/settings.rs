//! Settings of a chat: defaults from the flags, changes by `/set`, saved form.

use std::collections::BTreeMap;

use ruvllm::{SamplingParams, TokenId};
use serde::{Deserialize, Serialize};

use crate::args::{self, OutputLanguage};
use crate::error::{Error, Result};

/// Settings of the generation.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Settings {
    pub(super) sampling: SamplingParams,
    /// Maximum number of tokens of an answer.
    pub(super) max_tokens: usize,
    /// Stop sequences.
    pub(super) stop: Vec<String>,
    /// Language of the answers, if they are to have one.
    pub(super) output: Option<OutputLanguage>,
}

impl Settings {
    /// Names of all settings.
    pub(super) const NAMES: [&str; 14] = [
        "temperature",
        "top_k",
        "top_p",
        "min_p",
        "typical_p",
        "repeat_penalty",
        "repeat_last_n",
        "presence_penalty",
        "frequency_penalty",
        "logit_bias",
        "seed",
        "max_tokens",
        "stop",
        "output",
    ];

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
            _ => return Err(format!("there is no setting {name}: use {}", Self::NAMES.join(", "))),
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
            "logit_bias" => {
                listed(sampling.logit_bias.iter().map(|(token, bias)| format!("{token}={bias}")).collect())
            }
            "seed" => sampling
                .seed
                .map_or_else(|| "off (another one each time)".to_owned(), |seed| seed.to_string()),
            "max_tokens" => self.max_tokens.to_string(),
            "output" => self.output.as_ref().map_or("off", |output| output.setting.as_str()).to_owned(),
            _ => listed(self.stop.iter().map(|text| format!("{text:?}")).collect()),
        }
    }
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
        let Settings { sampling, max_tokens, stop, output } = settings;
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
        let Settings { sampling: old, max_tokens, stop, .. } = settings.clone();
        let bias = |(token, bias): (TokenId, Option<f32>)| (token, bias.unwrap_or(f32::NEG_INFINITY));
        let sampling = SamplingParams::default()
            .with_temperature(self.temperature.unwrap_or(old.temperature))
            .with_top_k(self.top_k.unwrap_or(old.top_k))
            .with_top_p(self.top_p.unwrap_or(old.top_p))
            .with_min_p(self.min_p.unwrap_or(old.min_p))
            .with_typical_p(self.typical_p.unwrap_or(old.typical_p))
            .with_repeat_penalty(self.repeat_penalty.unwrap_or(old.repeat_penalty))
            .with_repeat_last_n(self.repeat_last_n.unwrap_or(old.repeat_last_n))
            .with_presence_penalty(self.presence_penalty.unwrap_or(old.presence_penalty))
            .with_frequency_penalty(self.frequency_penalty.unwrap_or(old.frequency_penalty))
            .with_logit_bias(
                self.logit_bias.map_or(old.logit_bias, |all| all.into_iter().map(bias).collect()),
            )
            .with_seed(self.seed);
        sampling.validate().map_err(|error| error.to_string())?;
        let max_tokens = self.max_tokens.unwrap_or(max_tokens);
        let stop = self.stop.unwrap_or(stop);
        if max_tokens == 0 || stop.iter().any(String::is_empty) {
            return Err("max_tokens must be at least 1 and no stop text empty".to_owned());
        }
        let output = OutputLanguage::of_setting(self.output.as_deref().unwrap_or("off"))
            .map_err(|reason| format!("output: {reason}"))?;
        Ok(Settings { sampling, max_tokens, stop, output })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings() -> Settings {
        Settings { sampling: SamplingParams::default(), max_tokens: 100, stop: Vec::new(), output: None }
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
        for name in ["logit_bias", "seed", "stop", "output"] {
            changed.set(name, "off").unwrap();
        }
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
            ("temprature", "1", "temperature, top_k"),
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
        for json in [r#"{"temperature":-1}"#, r#"{"max_tokens":0}"#, r#"{"stop":[""]}"#, r#"{"output":"x"}"#]
        {
            let saved: SavedSettings = serde_json::from_str(json).unwrap();
            assert!(saved.apply(&settings()).is_err(), "{json}");
        }
        assert!(serde_json::from_str::<SavedSettings>(r#"{"heat":1}"#).is_err());
    }

    #[test]
    fn the_table_shows_every_setting() {
        let table = settings().table();
        assert!(
            table.contains("temperature        0.8\n") && table.contains("seed               off (another"),
            "{table}"
        );
        assert_eq!(table.lines().count(), 14);
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
            ("seed", "7", "seed = 7"),
            ("seed", "off", "seed = off (another one each time)"),
        ] {
            assert_eq!(settings.set(name, value).unwrap(), said);
        }
        assert!(settings.set("stop", "[\"\"]").unwrap_err().to_string().contains("not empty"));
    }
}
