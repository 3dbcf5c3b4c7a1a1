//! Ranking by a decoder: names of its head in files, and the prompt that asks about a query and a
//! document.

use gguf_rs_lite::Metadata;

use crate::error::Result;

/// Name of the tensor that scores: a row for each label, that of relevance first.
pub(crate) const SCORES: &str = "cls.output.weight";

/// Suffix of the key for the names of the labels.
pub(crate) const LABELS: &str = "classifier.output_labels";

/// Key of the prompt that asks about a query and a document.
pub(crate) const TEMPLATE_KEY: &str = "tokenizer.chat_template.rerank";

/// The prompt of Qwen3-Reranker, in llama.cpp's form: with placeholders, not a Jinja template.
///
/// Source: the model card; llama.cpp's `conversion/qwen.py`.
pub(crate) const RERANK_TEMPLATE: &str = "\
<|im_start|>system\n\
Judge whether the Document meets the requirements based on the Query and the Instruct provided. \
Note that the answer can only be \"yes\" or \"no\".<|im_end|>\n\
<|im_start|>user\n\
<Instruct>: Given a web search query, retrieve relevant passages that answer the query\n\
<Query>: {query}\n\
<Document>: {document}<|im_end|>\n\
<|im_start|>assistant\n\
<think>\n\n</think>\n\n";

/// True if a prompt has a place for a query and behind it one for a document, each once.
pub(crate) fn is_rerank_template(template: &str) -> bool {
    let places = |name: &str| template.match_indices(name).map(|(at, _)| at).collect::<Vec<_>>();
    matches!((&places("{query}")[..], &places("{document}")[..]), ([query], [document]) if query < document)
}

/// The prompt that asks a reranker about a pair of texts, with the placeholders `{query}` and
/// `{document}`; that of Qwen3-Reranker if the metadata of the checkpoint have none.
///
/// # Errors
/// [`Error::Gguf`](crate::Error::Gguf) for a value that is no text.
pub fn rerank_template(metadata: &Metadata) -> Result<&str> {
    Ok(metadata.get_str(TEMPLATE_KEY)?.unwrap_or(RERANK_TEMPLATE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prompt_has_a_query_before_a_document() {
        assert!(is_rerank_template(RERANK_TEMPLATE));
        for other in ["{document} {query}", "{query}", "{query} {query} {document}", ""] {
            assert!(!is_rerank_template(other), "{other:?}");
        }
    }
}
