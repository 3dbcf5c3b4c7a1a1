//! Operations of the interface.

use serde_json::Value;

use super::Document;
use super::schema::{ErrorReply, MessageError, MessageEvent, ResponseEvent};
use crate::anthropic::{Block, MessageReply, MessagesRequest, TokenCount};
use crate::native::Deleted;
use crate::native::adapters::{AdapterList, AdapterObject, LoadRequest};
use crate::native::bank::{
    AddRequest, AddedObject, BankList, ClearedObject, FoundList, OutcomeObject, OutcomeRequest, SearchRequest,
};
use crate::native::feedback::{FeedbackObject, FeedbackRequest};
use crate::native::rerank::{RerankBody, RerankReply};
use crate::native::routers::RouterList;
use crate::native::sessions::{ForkRequest, SessionList, SessionObject};
use crate::native::sona::{ForgetRequest, ForgottenObject, LearnedList, LearnedObject, ReplayObject};
use crate::native::state::{Health, Props};
use crate::native::tokens::{DetokenizeRequest, Text, TokenizeRequest, Tokens};
use crate::openai::chat::{ChatChunk, ChatCompletion, ChatRequest, Part};
use crate::openai::completions::{CompletionRequest, TextChunk, TextCompletion};
use crate::openai::embeddings::{EmbeddingList, EmbeddingsRequest};
use crate::openai::models::{ModelList, ModelObject};
use crate::openai::responses::{InputItem, ResponseObject, ResponsesRequest};
use crate::openai::{Common, MemoryField};

/// Adds all operations.
pub(super) fn operations(document: &mut Document) {
    // Named by fields whose schemas are written by hand.
    document.reference::<Part>();
    document.reference::<Block>();
    document.reference::<InputItem>();
    generation(document);
    own(document);
    learning(document);
    bank(document);
    state(document);
}

fn generation(document: &mut Document) {
    document
        .operation("post", "/v1/chat/completions", "OpenAI", "Answers a conversation")
        .request::<Common>()
        .request::<ChatRequest>()
        .request::<MemoryField>()
        .reply::<ChatCompletion>()
        .events::<ChatChunk>()
        .add::<ErrorReply>();
    document
        .operation("post", "/v1/completions", "OpenAI", "Continues prompts")
        .request::<Common>()
        .request::<CompletionRequest>()
        .request::<MemoryField>()
        .reply::<TextCompletion>()
        .events::<TextChunk>()
        .add::<ErrorReply>();
    document
        .operation("post", "/v1/responses", "OpenAI", "Answers a conversation of items")
        .request::<Common>()
        .request::<ResponsesRequest>()
        .reply::<ResponseObject>()
        .events::<ResponseEvent>()
        .add::<ErrorReply>();
    document
        .operation("post", "/v1/embeddings", "OpenAI", "Embeddings of texts")
        .request::<EmbeddingsRequest>()
        .reply::<EmbeddingList>()
        .add::<ErrorReply>();
    document
        .operation("get", "/v1/models", "OpenAI", "Models and their adapters")
        .reply::<ModelList>()
        .add::<ErrorReply>();
    document
        .operation("get", "/v1/models/{name}", "OpenAI", "A model or an adapter")
        .reply::<ModelObject>()
        .add::<ErrorReply>();
    document
        .operation("post", "/v1/messages", "Anthropic", "Answers a conversation")
        .request::<Common>()
        .request::<MessagesRequest>()
        .reply::<MessageReply>()
        .events::<MessageEvent>()
        .add::<MessageError>();
    document
        .operation("post", "/v1/messages/count_tokens", "Anthropic", "Tokens of a conversation")
        .request::<Common>()
        .request::<MessagesRequest>()
        .reply::<TokenCount>()
        .add::<MessageError>();
}

fn own(document: &mut Document) {
    document
        .operation("post", "/tokenize", "ruvllm", "Tokens of a text or a conversation")
        .request::<TokenizeRequest>()
        .reply::<Tokens>()
        .add::<ErrorReply>();
    document
        .operation("post", "/detokenize", "ruvllm", "Text of tokens")
        .request::<DetokenizeRequest>()
        .reply::<Text>()
        .add::<ErrorReply>();
    document
        .operation("post", "/v1/rerank", "ruvllm", "Ranks documents by their relevance to a query")
        .request::<RerankBody>()
        .reply::<RerankReply>()
        .add::<ErrorReply>();
    document
        .operation("get", "/v1/adapters", "ruvllm", "Adapters of models in memory")
        .model_query()
        .reply::<AdapterList>()
        .add::<ErrorReply>();
    document
        .operation("post", "/v1/adapters", "ruvllm", "Registers an adapter of the server's folder")
        .request::<LoadRequest>()
        .reply::<AdapterObject>()
        .add::<ErrorReply>();
    document
        .operation("delete", "/v1/adapters/{name}", "ruvllm", "Removes an adapter from its model")
        .model_query()
        .reply::<Deleted>()
        .add::<ErrorReply>();
    document
        .operation("get", "/v1/sessions", "ruvllm", "Sessions of the caller")
        .model_query()
        .reply::<SessionList>()
        .add::<ErrorReply>();
    document
        .operation("get", "/v1/sessions/{id}", "ruvllm", "A session")
        .model_query()
        .reply::<SessionObject>()
        .add::<ErrorReply>();
    document
        .operation("delete", "/v1/sessions/{id}", "ruvllm", "Removes a session")
        .model_query()
        .reply::<Deleted>()
        .add::<ErrorReply>();
    document
        .operation("post", "/v1/sessions/{id}/fork", "ruvllm", "Makes a session with the state of another")
        .model_query()
        .request::<ForkRequest>()
        .reply::<SessionObject>()
        .add::<ErrorReply>();
}

fn learning(document: &mut Document) {
    document
        .operation("post", "/v1/feedback", "ruvllm", "Teaches an adapter by a rating or a correction")
        .request::<FeedbackRequest>()
        .reply::<FeedbackObject>()
        .add::<ErrorReply>();
    document
        .operation("get", "/v1/sona/adapters", "ruvllm", "Adapters of the caller that learn")
        .model_query()
        .reply::<LearnedList>()
        .add::<ErrorReply>();
    document
        .operation("get", "/v1/sona/adapters/{name}", "ruvllm", "An adapter that learns")
        .model_query()
        .reply::<LearnedObject>()
        .add::<ErrorReply>();
    document
        .operation("post", "/v1/sona/adapters/{name}/release", "ruvllm", "Ends a quarantine")
        .model_query()
        .reply::<LearnedObject>()
        .add::<ErrorReply>();
    document
        .operation("post", "/v1/sona/adapters/{name}/replay", "ruvllm", "Learns the log again and compares")
        .model_query()
        .reply::<ReplayObject>()
        .add::<ErrorReply>();
    document
        .operation("get", "/v1/sona/routers", "ruvllm", "Routers, and what the caller has taught them")
        .reply::<RouterList>()
        .add::<ErrorReply>();
    document
        .operation("post", "/v1/sona/forget", "ruvllm", "Removes data and what was learned from it")
        .request::<ForgetRequest>()
        .reply::<ForgottenObject>()
        .add::<ErrorReply>();
}

fn bank(document: &mut Document) {
    document
        .operation(
            "get",
            "/v1/sona/bank",
            "ruvllm",
            "Lessons of the caller, and outcomes with and without them",
        )
        .model_query()
        .reply::<BankList>()
        .add::<ErrorReply>();
    document
        .operation("post", "/v1/sona/bank", "ruvllm", "Adds a lesson")
        .request::<AddRequest>()
        .reply::<AddedObject>()
        .add::<ErrorReply>();
    document
        .operation("delete", "/v1/sona/bank", "ruvllm", "Removes all lessons of the caller")
        .model_query()
        .reply::<ClearedObject>()
        .add::<ErrorReply>();
    document
        .operation("delete", "/v1/sona/bank/{id}", "ruvllm", "Removes a lesson")
        .model_query()
        .reply::<Deleted>()
        .add::<ErrorReply>();
    document
        .operation("post", "/v1/sona/bank/search", "ruvllm", "Lessons for a text")
        .request::<SearchRequest>()
        .reply::<FoundList>()
        .add::<ErrorReply>();
    document
        .operation("post", "/v1/sona/bank/outcome", "ruvllm", "Counts the outcome of a request with lessons")
        .request::<OutcomeRequest>()
        .reply::<OutcomeObject>()
        .add::<ErrorReply>();
}

fn state(document: &mut Document) {
    document
        .operation("get", "/props", "ruvllm", "Properties of a model in memory")
        .model_query()
        .reply::<Props>()
        .add::<ErrorReply>();
    document
        .operation("get", "/metrics", "ruvllm", "Metrics for Prometheus")
        .text("application/openmetrics-text")
        .add::<ErrorReply>();
    document
        .operation("get", "/v1/live", "ruvllm", "Figures of all models, once a second")
        .events::<Value>()
        .add::<ErrorReply>();
    document.operation("get", "/health", "ruvllm", "The process runs").reply::<Health>().add::<ErrorReply>();
    document
        .operation("get", "/ready", "ruvllm", "Requests can be sent")
        .reply::<Health>()
        .add::<ErrorReply>();
    document
        .operation("get", "/openapi.json", "ruvllm", "This document")
        .reply::<Value>()
        .add::<ErrorReply>();
}
