//! Fields that chat completions and completions share: model, limits, sampling, adapters, session.

use std::collections::BTreeMap;
use std::time::Instant;

use ruvllm::{GenerateRequest, KvPolicy, Prompt, SamplingParams, TokenId};
use serde::Deserialize;
use serde_json::Value;
use utoipa::ToSchema;

use super::OneOrMany;
use crate::api_error::ApiError;
use crate::app::App;
use crate::auth::Caller;
use crate::models::{Chosen, LoadedModel};

/// Most choices of a prompt.
const MOST_CHOICES: usize = 128;

/// Most stop sequences; OpenAI takes 4.
const MOST_STOPS: usize = 32;

/// Adapter of a request.
#[derive(Debug, Clone, Deserialize, ToSchema)]
pub(crate) struct AdapterField {
    /// Name in the registry.
    pub(crate) name: String,
    /// Multiplier of its update.
    #[serde(default = "one")]
    pub(crate) scale: f32,
}

fn one() -> f32 {
    1.0
}

/// Place and owner of a request.
#[derive(Clone, Copy)]
pub(crate) struct Target<'t> {
    pub(crate) app: &'t App,
    model: &'t LoadedModel,
    pub(crate) caller: &'t Caller,
    /// Adapter that the model's name means.
    pub(crate) adapter: Option<&'t str>,
    /// KV-cache policy; `None`: the model's.
    pub(crate) kv: Option<KvPolicy>,
}

impl<'t> Target<'t> {
    /// Place and owner of a request of a caller to a model.
    ///
    /// # Errors
    /// 400 for an encoder.
    pub(crate) fn new(app: &'t App, chosen: &'t Chosen, caller: &'t Caller) -> Result<Self, ApiError> {
        let Chosen { model, adapter, kv } = chosen;
        model.backend()?;
        Ok(Self { app, model, caller, adapter: adapter.as_deref(), kv: *kv })
    }
}

/// Options of a stream.
#[derive(Debug, Clone, Copy, Default, Deserialize, ToSchema)]
pub(crate) struct StreamOptions {
    /// Adds a last chunk with the numbers of tokens.
    #[serde(default)]
    pub(crate) include_usage: Option<bool>,
}

/// The fields. `null` stands for an absent field.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
pub(crate) struct Common {
    pub(crate) model: Option<String>,
    pub(crate) stream: Option<bool>,
    pub(crate) stream_options: Option<StreamOptions>,
    /// Choices of each prompt.
    pub(crate) n: Option<usize>,
    pub(crate) max_tokens: Option<usize>,
    /// Newer name of `max_tokens`, which it goes before.
    pub(crate) max_completion_tokens: Option<usize>,
    #[schema(schema_with = crate::field_schema::stop)]
    pub(crate) stop: Option<OneOrMany<String>>,
    pub(crate) seed: Option<i64>,
    pub(crate) temperature: Option<f32>,
    pub(crate) top_p: Option<f32>,
    pub(crate) presence_penalty: Option<f32>,
    pub(crate) frequency_penalty: Option<f32>,
    /// Token ids, as text, with the numbers that are added to their logits; -100 forbids a token.
    pub(crate) logit_bias: Option<BTreeMap<String, f32>>,

    // Additions, with the names of llama.cpp's server.
    pub(crate) top_k: Option<usize>,
    pub(crate) min_p: Option<f32>,
    pub(crate) typical_p: Option<f32>,
    #[serde(alias = "repetition_penalty")]
    pub(crate) repeat_penalty: Option<f32>,
    pub(crate) repeat_last_n: Option<usize>,
    pub(crate) top_n_sigma: Option<f32>,
    pub(crate) dry_multiplier: Option<f32>,
    pub(crate) dry_base: Option<f32>,
    pub(crate) dry_allowed_length: Option<usize>,
    pub(crate) xtc_probability: Option<f32>,
    pub(crate) xtc_threshold: Option<f32>,
    pub(crate) ignore_eos: Option<bool>,
    /// Reads prefixes from the prefix cache and leaves them in it.
    pub(crate) cache_prompt: Option<bool>,
    /// GBNF grammar of the output.
    pub(crate) grammar: Option<String>,
    /// JSON schema of the output.
    pub(crate) json_schema: Option<Value>,

    // Additions of this server.
    pub(crate) adapters: Option<Vec<AdapterField>>,
    /// Session that the request goes on with.
    pub(crate) session: Option<String>,
    pub(crate) priority: Option<i32>,
}

impl Common {
    /// Number of choices of each prompt.
    ///
    /// # Errors
    /// 400 for 0 and for more than 128.
    pub(crate) fn choices(&self) -> Result<usize, ApiError> {
        match self.n.unwrap_or(1) {
            n @ 1..=MOST_CHOICES => Ok(n),
            n => Err(ApiError::invalid_param("n", format!("n is {n}, expected 1 to {MOST_CHOICES}"))),
        }
    }

    pub(crate) fn streams(&self) -> bool {
        self.stream.unwrap_or(false)
    }

    /// True if a stream ends with a chunk of the numbers of tokens.
    pub(crate) fn includes_usage(&self) -> bool {
        self.stream_options.and_then(|options| options.include_usage).unwrap_or(false)
    }

    /// The request for a prompt.
    ///
    /// # Errors
    /// 400 for values out of range.
    pub(crate) fn request(&self, target: &Target<'_>, prompt: Prompt) -> Result<GenerateRequest, ApiError> {
        let &Target { app, model, caller, adapter, kv } = target;
        let mut request = GenerateRequest::new(prompt)
            .with_sampling(self.sampling()?)
            .with_tenant(model.tenant_of(caller)?)
            .with_stop(self.stops()?.iter().cloned())
            .with_ignore_eos(self.ignore_eos.unwrap_or(false))
            .with_cache_prefix(self.cache_prompt.unwrap_or(true))
            .with_priority(self.priority.unwrap_or(0))
            .with_max_tokens(self.max_tokens(app));
        if let Some(time) = app.limits().time {
            request = request.with_deadline(Instant::now() + time);
        }
        if let Some(session) = &self.session {
            request = request.with_session(session);
        }
        request.kv = kv;
        if let Some(name) = adapter {
            request = request.with_named_adapter(name, 1.0);
        }
        for AdapterField { name, scale } in self.adapters.iter().flatten() {
            request = request.with_named_adapter(name, *scale);
        }
        if let Some(grammar) = &self.grammar {
            let constraint = ruvllm::Constraint::gbnf(grammar);
            let constraint =
                constraint.map_err(|error| ApiError::invalid_param("grammar", error.to_string()))?;
            request = request.with_constraint(constraint);
        }
        if let Some(schema) = &self.json_schema {
            let constraint = ruvllm::Constraint::json_schema(schema);
            let constraint =
                constraint.map_err(|error| ApiError::invalid_param("json_schema", error.to_string()))?;
            request = request.with_constraint(constraint);
        }
        Ok(request)
    }

    /// Limit of output tokens: the request's within that of the server.
    fn max_tokens(&self, app: &App) -> Option<usize> {
        let wanted = self.max_completion_tokens.or(self.max_tokens);
        match (wanted, app.limits().output_tokens) {
            (Some(wanted), Some(most)) => Some(wanted.min(most)),
            (wanted, most) => wanted.or(most),
        }
    }

    fn stops(&self) -> Result<&[String], ApiError> {
        let stops = self.stop.as_ref().map_or(&[][..], |stop| &stop.0);
        if stops.len() > MOST_STOPS {
            let message = format!("stop has {} sequences, expected at most {MOST_STOPS}", stops.len());
            return Err(ApiError::invalid_param("stop", message));
        }
        Ok(stops)
    }

    /// Sampling parameters: the engine's defaults where a field is absent.
    fn sampling(&self) -> Result<SamplingParams, ApiError> {
        let mut params = SamplingParams::default();
        let numbers = [
            (&mut params.temperature, self.temperature),
            (&mut params.top_p, self.top_p),
            (&mut params.presence_penalty, self.presence_penalty),
            (&mut params.frequency_penalty, self.frequency_penalty),
            (&mut params.min_p, self.min_p),
            (&mut params.typical_p, self.typical_p),
            (&mut params.repeat_penalty, self.repeat_penalty),
            (&mut params.top_n_sigma, self.top_n_sigma),
            (&mut params.dry_multiplier, self.dry_multiplier),
            (&mut params.dry_base, self.dry_base),
            (&mut params.xtc_probability, self.xtc_probability),
            (&mut params.xtc_threshold, self.xtc_threshold),
        ];
        for (param, value) in numbers {
            *param = value.unwrap_or(*param);
        }
        let counts = [
            (&mut params.top_k, self.top_k),
            (&mut params.repeat_last_n, self.repeat_last_n),
            (&mut params.dry_allowed_length, self.dry_allowed_length),
        ];
        for (param, value) in counts {
            *param = value.unwrap_or(*param);
        }
        // Bits of the number: negative seeds are seeds too.
        params.seed = self.seed.map(|seed| seed as u64);
        params.logit_bias = self.logit_bias()?;
        params.validate()?;
        Ok(params)
    }

    fn logit_bias(&self) -> Result<BTreeMap<TokenId, f32>, ApiError> {
        let entry = |(token, &bias): (&String, &f32)| match token.parse::<TokenId>() {
            Ok(id) => Ok((id, if bias <= -100.0 { f32::NEG_INFINITY } else { bias })),
            Err(_) => {
                let message = format!("logit_bias has the key {token:?}, expected a token id");
                Err(ApiError::invalid_param("logit_bias", message))
            }
        };
        self.logit_bias.iter().flatten().map(entry).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::body::parse;

    fn common(json: &str) -> Common {
        parse(json.as_bytes()).unwrap()
    }

    #[test]
    fn absent_and_null_fields_take_the_defaults() {
        for json in
            ["{}", r#"{"temperature": null, "n": null, "stop": null, "seed": null, "unknown": {"x": 1}}"#]
        {
            let common = common(json);
            assert_eq!(common.sampling().unwrap(), SamplingParams::default());
            assert_eq!((common.choices().unwrap(), common.stops().unwrap().len()), (1, 0));
        }
    }

    #[test]
    fn fields_out_of_range_are_named() {
        let param = |error: ApiError| error.param.unwrap_or_default();
        assert_eq!(param(common(r#"{"temperature": -1}"#).sampling().unwrap_err()), "temperature");
        assert_eq!(param(common(r#"{"n": 0}"#).choices().unwrap_err()), "n");
        assert_eq!(param(common(r#"{"logit_bias": {"x": 1}}"#).sampling().unwrap_err()), "logit_bias");
        assert_eq!(param(parse::<Common>(br#"{"stop": ["a", 3]}"#).unwrap_err()), "stop[1]");
        assert_eq!(param(parse::<Common>(br#"{"seed": "x"}"#).unwrap_err()), "seed");
    }

    #[test]
    fn a_bias_of_minus_100_forbids_the_token() {
        let params = common(r#"{"logit_bias": {"5": -100, "6": 2.5}, "seed": -1}"#).sampling().unwrap();
        assert_eq!(params.logit_bias[&5], f32::NEG_INFINITY);
        assert_eq!((params.logit_bias[&6], params.seed), (2.5, Some(u64::MAX)));
    }
}
