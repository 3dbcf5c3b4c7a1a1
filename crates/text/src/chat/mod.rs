//! Chat templates: a model's own Jinja template renders messages to the prompt it was trained on.
//!
//! Templates are written for Python's Jinja2 as transformers runs it. Here `minijinja` runs them,
//! with the Python behaviour that it lacks (printing, JSON, methods) in `python`. Models without a
//! template get a built-in one ([`ChatStyle`]) if their vocabulary identifies it. Tool calls in the
//! answer are read by [`tool_call`](crate::tool_call).

mod answers;
mod bounds;
mod encode;
mod engine;
mod input;
mod message;
mod nesting;
mod origin;
mod python;
mod rewrite;
mod source;
mod style;
mod template;
mod time;

pub use self::{
    answers::AnsweredChat,
    input::ChatInput,
    message::Message,
    style::ChatStyle,
    template::{ChatTemplate, ChatTemplateSource},
};
