//! Chat templates: a model's own Jinja template turns messages into the prompt it was trained on.
//!
//! Templates are written for Python's Jinja2 as the transformers library runs it; `minijinja` runs
//! them here, with the Python manners (printing, JSON, methods) that it lacks in `python`. Models
//! without a template get a built-in one ([`ChatStyle`]) if their vocabulary shows which. Not
//! here: reading the answer.

mod bounds;
mod encode;
mod engine;
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
    message::Message,
    style::ChatStyle,
    template::{ChatTemplate, ChatTemplateSource},
};
