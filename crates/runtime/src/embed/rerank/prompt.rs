//! Prompt that asks a decoder about a query and a document.

use std::ops::Range;

use ruvllm_text::tokenizer::{PairEncoder, PromptPart, Tokenizer};

use super::{RerankError, RerankRequest};

/// Beginning of the line of a prompt that says what makes a document relevant.
const INSTRUCTION: &str = "<Instruct>: ";

/// A prompt, divided where texts are put in.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Prompt<'a> {
    before_query: &'a str,
    /// The instruction within `before_query`.
    instruction: Option<Range<usize>>,
    between: &'a str,
    after_document: &'a str,
}

impl<'a> Prompt<'a> {
    /// Divides a prompt with the placeholders `{query}` and `{document}`.
    ///
    /// # Errors
    /// [`RerankError::Prompt`] if one is missing, there twice, or they are in another order.
    pub(super) fn new(template: &'a str) -> Result<Self, RerankError> {
        let parts = template.split_once("{query}").and_then(|(before, rest)| {
            let (between, after) = rest.split_once("{document}")?;
            let is_whole = [before, between, after]
                .iter()
                .all(|part| !part.contains("{query}") && !part.contains("{document}"));
            is_whole.then_some((before, between, after))
        });
        let (before_query, between, after_document) = parts.ok_or(RerankError::Prompt)?;
        let instruction = before_query.find(INSTRUCTION).map(|at| {
            let start = at + INSTRUCTION.len();
            start..before_query[start..].find('\n').map_or(before_query.len(), |len| start + len)
        });
        Ok(Self { before_query, instruction, between, after_document })
    }

    /// Encoder of the documents of a request.
    ///
    /// # Errors
    /// [`RerankError::NoInstruction`] if the request has an instruction and the prompt none;
    /// [`RerankError::EncodeQuery`].
    pub(super) fn encoder<'t>(
        &self,
        tokenizer: &'t Tokenizer,
        request: &RerankRequest,
    ) -> Result<PairEncoder<'t>, RerankError> {
        use PromptPart::{Template, Text};
        let mut parts = Vec::with_capacity(5);
        match (&request.instruction, &self.instruction) {
            (None, _) => parts.push(Template(self.before_query)),
            (Some(_), None) => {
                let reason = "its prompt has no line `<Instruct>: `";
                return Err(RerankError::NoInstruction { reason });
            }
            (Some(instruction), Some(place)) => parts.extend([
                Template(&self.before_query[..place.start]),
                Text(instruction),
                Template(&self.before_query[place.end..]),
            ]),
        }
        parts.extend([Text(&request.query), Template(self.between)]);
        let encoder = tokenizer.prompt_encoder(&parts, self.after_document);
        encoder.map_err(|source| RerankError::EncodeQuery { source })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_are_divided_at_their_places() {
        let prompt = Prompt::new("a <Instruct>: find it\nq: {query} d: {document} end").unwrap();
        assert_eq!(&prompt.before_query[prompt.instruction.clone().unwrap()], "find it");
        assert_eq!((prompt.before_query.len(), prompt.between, prompt.after_document), (25, " d: ", " end"));
        let prompt = Prompt::new("<Instruct>: {query}{document}").unwrap();
        assert_eq!(prompt.instruction, Some(12..12));
        assert_eq!(Prompt::new("{query}{document}").unwrap().instruction, None);
    }

    #[test]
    fn prompts_without_a_place_are_refused() {
        for template in
            ["", "{query}", "{document}{query}", "{query}{document}{query}", "{query}{query}{document}"]
        {
            assert!(matches!(Prompt::new(template), Err(RerankError::Prompt)), "{template}");
        }
    }
}
