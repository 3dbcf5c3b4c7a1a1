//! A model of the command line as the learning crate sees it: embeddings and answers.

use ruvllm::crates::sona::model::{Embed, Generate, GenerateText};
use ruvllm::crates::sona::{Error as SonaError, Result as SonaResult};
use ruvllm::{
    Constraint, Embedder, EmbeddingRequest, Engine, GenerateRequest, Message, Prompt, SamplingParams,
};

use super::load;
use crate::args::CpuArgs;
use crate::error::{Error, Result};

/// Embedding model of texts: an encoder, or a decoder whose hidden states are pooled.
pub(crate) struct TextEmbedder(Embedder);

impl TextEmbedder {
    /// Loads the model of the flags.
    ///
    /// # Errors
    /// As [`load::embedder`].
    pub(crate) fn load(cpu: &CpuArgs) -> Result<Self> {
        Ok(Self(load::embedder(&cpu.model, cpu.options())?))
    }

    /// The engine, if the model can generate too.
    pub(crate) fn engine(&self) -> Option<&Engine> {
        self.0.engine()
    }
}

impl Embed for TextEmbedder {
    fn embed(&self, text: &str) -> SonaResult<Vec<f32>> {
        let computed = self.0.embed(&EmbeddingRequest::new([text])).map_err(failed)?;
        let embedding = computed.embeddings.into_iter().next();
        Ok(embedding.map(|embedding| embedding.vector).unwrap_or_default())
    }
}

impl Embed for &TextEmbedder {
    fn embed(&self, text: &str) -> SonaResult<Vec<f32>> {
        (**self).embed(text)
    }
}

/// A model that writes lessons, constrained to the schema of the request.
pub(crate) struct Writer<'e>(pub(crate) &'e Engine);

impl Generate for Writer<'_> {
    fn generate(&self, request: &GenerateText) -> SonaResult<String> {
        let system = request.system.iter().map(|text| Message::new("system", text.as_str()));
        let messages = system.chain([Message::new("user", request.prompt.as_str())]).collect::<Vec<_>>();
        let mut generate = GenerateRequest::new(Prompt::Chat { messages, tools: None })
            .with_max_tokens(request.max_tokens)
            .with_sampling(SamplingParams::default().with_temperature(request.temperature))
            .with_seed(request.seed);
        if let Some(schema) = &request.schema {
            let schema = serde_json::from_str(schema).map_err(failed)?;
            generate = generate.with_constraint(Constraint::json_schema(&schema).map_err(failed)?);
        }
        let completion = self.0.generate(generate).map_err(failed)?;
        Ok(completion.content().to_owned())
    }
}

fn failed(error: impl std::error::Error + Send + Sync + 'static) -> SonaError {
    SonaError::Model { source: Box::new(error) }
}

/// The error of the learning crate as one of the program.
pub(crate) fn learning(source: SonaError) -> Error {
    ruvllm::Error::Learning { source }.into()
}
