//! Hugging Face folders against the GGUF files that an independent converter made of them
//! (`tests/data/tiny`).

mod answers;
mod chat_template;
mod chunked;
mod convert;
mod encoders;
mod forms;
mod gemma3n;
mod gemma4;
mod goldens;
mod gpt_oss;
mod hostile;
mod hybrids;
mod latents;
mod mixtures;
mod prediction;
mod quantized;
mod quantized_experts;
mod refused;
mod rerankers;
mod rotary_encoders;
mod styles;
mod support;
