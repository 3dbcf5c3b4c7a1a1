//! Parser of a request's output for callers that have its text alone.

use ruvllm_text::reasoning::AnswerParser;

use crate::answer::OutputParser;
use crate::cancel::CancelToken;
use crate::codec::TextCodec;
use crate::error::Result;
use crate::request::GenerateRequest;
use crate::thinking::{Thinking, variables_of};
use crate::tools::{RequestTools, Scope, prompt_of};

impl TextCodec {
    /// A parser that divides the output of a request, as pieces of text that
    /// [`generate_with`](crate::InferenceBackend::generate_with) gives, into thinking, content and
    /// tool calls; `None` if all of it is content. Identifiers of calls are those of the
    /// completion only with [`RequestHandle::answer_parser`](crate::RequestHandle::answer_parser).
    ///
    /// # Errors
    /// As [`encode_prompt_until`](Self::encode_prompt_until), and
    /// [`Error::Tools`](crate::Error::Tools).
    pub fn answer_parser(
        &self,
        request: &GenerateRequest,
        cancel: &CancelToken,
    ) -> Result<Option<AnswerParser>> {
        let tools = RequestTools::new(self, request)?;
        let thinking = match Thinking::format_of(self, request) {
            None => None,
            Some(_) => {
                let mut prompt = self.encode(&prompt_of(request), &variables_of(request), cancel)?;
                Thinking::new(self, request, &mut prompt, Scope::of(request, tools.as_ref()))?
            }
        };
        let calls = tools.map(|tools| tools.parser(&[]));
        let parser = OutputParser::of(thinking.as_ref().map(Thinking::start), calls);
        Ok(parser.as_ref().map(OutputParser::start))
    }
}
