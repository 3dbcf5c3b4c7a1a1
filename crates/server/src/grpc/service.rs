//! The service `ruvllm.v1.Inference`.

use std::sync::Arc;
use std::time::Instant;

use tonic::{Request, Response, Status, async_trait};

use super::events::{EventStream, count};
use super::proto::inference_server;
use super::{deadline, proto, request, status};
use crate::api_error::ApiError;
use crate::app::App;
use crate::body::BodyLimits;
use crate::generation::{Endpoint, Generation, Ticket};
use crate::models::LoadedModel;
use crate::native::tokens;
use crate::openai::{Target, embeddings};

/// The service over the models of a server.
pub(super) struct Inference {
    app: Arc<App>,
}

impl Inference {
    pub(super) fn new(app: Arc<App>) -> Self {
        Self { app }
    }

    /// Starts a generation.
    async fn start(&self, call: Request<proto::GenerateRequest>) -> Result<EventStream, ApiError> {
        let (metadata, extensions, message) = call.into_parts();
        let mut ticket = Ticket::open(&extensions).await?;
        ticket.set_endpoint(Endpoint::GrpcGenerate);
        ticket.set_message(&message, &["prompt", "text", "chat", "tokens"]);
        let prepared = match deadline::of(&metadata) {
            Ok(deadline) => {
                let prepared = self.prepare(&mut ticket, &message, depth(&extensions), deadline);
                deadline::within(deadline, prepared).await
            }
            Err(error) => Err(error),
        };
        let renamed = |error| request::renamed(error, &message);
        let (mut ticket, Prepared { model, request, n }) = ticket.check(prepared.map_err(renamed))?;
        ticket.set_streamed();
        let name = Arc::clone(model.name());
        let generation = Generation::start(ticket, model, vec![request], n).await.map_err(renamed)?;
        Ok(EventStream::new(generation, name))
    }

    /// Checks a message.
    async fn prepare(
        &self,
        ticket: &mut Ticket,
        message: &proto::GenerateRequest,
        depth: usize,
        deadline: Option<Instant>,
    ) -> Result<Prepared, ApiError> {
        let common = request::common(message, depth)?;
        let n = common.choices()?;
        let most = self.app.limits().choices;
        if n > most {
            return Err(ApiError::invalid_param("n", format!("n is {n}, expected at most {most}")));
        }
        let build = |target: &Target<'_>| request::generate(target, message, &common, depth);
        let chosen = self.app.choose(ticket, common.model.as_deref(), build).await?;
        let mut request = build(&Target::new(&self.app, &chosen, &ticket.caller)?)?;
        request.deadline = request.deadline.into_iter().chain(deadline).min();
        Ok(Prepared { model: chosen.model, request, n })
    }

    /// Computes embeddings.
    async fn vectors(&self, call: Request<proto::EmbedRequest>) -> Result<embeddings::Embedded, ApiError> {
        let (metadata, extensions, message) = call.into_parts();
        let mut ticket = Ticket::open(&extensions).await?;
        ticket.set_endpoint(Endpoint::GrpcEmbed);
        ticket.set_message(&message, &["texts", "tokens"]);
        let embedded = match deadline::of(&metadata) {
            Ok(deadline) => {
                let request = request::embed(&message);
                deadline::within(deadline, embeddings::embed(&self.app, &mut ticket, &request)).await
            }
            Err(error) => Err(error),
        };
        let input = if message.tokens.is_empty() { "texts" } else { "tokens" };
        let (mut ticket, embedded) =
            ticket.check(embedded.map_err(|error| error.renamed(&[("input", input)])))?;
        ticket.set_prompt_tokens(embedded.tokens);
        ticket.set_complete();
        Ok(embedded)
    }
}

/// A call that is ready to be generated.
struct Prepared {
    model: Arc<LoadedModel>,
    request: ruvllm::GenerateRequest,
    n: usize,
}

/// Deepest nesting of JSON in a field.
fn depth(extensions: &axum::http::Extensions) -> usize {
    extensions.get::<BodyLimits>().unwrap_or(&BodyLimits::DEFAULT).depth
}

#[async_trait]
impl inference_server::Inference for Inference {
    type GenerateStream = EventStream;

    async fn generate(&self, call: Request<proto::GenerateRequest>) -> Result<Response<EventStream>, Status> {
        self.start(call).await.map(Response::new).map_err(|error| status::of(&error))
    }

    async fn embed(
        &self,
        call: Request<proto::EmbedRequest>,
    ) -> Result<Response<proto::EmbedResponse>, Status> {
        let embedded = self.vectors(call).await.map_err(|error| status::of(&error))?;
        let embeddings = embedded.vectors.into_iter().map(|values| proto::Embedding { values });
        Ok(Response::new(proto::EmbedResponse {
            embeddings: embeddings.collect(),
            model: embedded.model.to_string(),
            prompt_tokens: count(embedded.tokens),
        }))
    }

    async fn tokenize(
        &self,
        call: Request<proto::TokenizeRequest>,
    ) -> Result<Response<proto::TokenizeResponse>, Status> {
        let (metadata, extensions, message) = call.into_parts();
        let encoded = async {
            let request = request::tokenize(message, depth(&extensions))?;
            deadline::within(deadline::of(&metadata)?, tokens::encode(&self.app, request)).await
        };
        let names = [("content", "text"), ("messages", "chat.messages"), ("tools", "chat.tools")];
        let (_, tokens) = encoded.await.map_err(|error| status::of(&error.renamed(&names)))?;
        Ok(Response::new(proto::TokenizeResponse { tokens }))
    }

    async fn detokenize(
        &self,
        call: Request<proto::DetokenizeRequest>,
    ) -> Result<Response<proto::DetokenizeResponse>, Status> {
        let (metadata, _, message) = call.into_parts();
        let decoded = async {
            let decoded = tokens::decode(&self.app, message.model.as_deref(), &message.tokens);
            deadline::within(deadline::of(&metadata)?, decoded).await
        };
        let text = decoded.await.map_err(|error| status::of(&error))?;
        Ok(Response::new(proto::DetokenizeResponse { text }))
    }
}
