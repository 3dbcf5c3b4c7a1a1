//! The constraint of one generation, if its request has one.

use std::time::Duration;
#[cfg(feature = "structured-output")]
use std::time::Instant;

use ruvllm_text::TokenId;

use crate::codec::TextCodec;
#[cfg(feature = "structured-output")]
use crate::constraint::ConstraintState;
#[cfg(feature = "structured-output")]
use crate::error::Error;
use crate::error::Result;
use crate::request::GenerateRequest;
use crate::tools::RequestTools;

/// Masks the logits of a generation; without a constraint they pass unchanged.
pub(crate) struct Guide {
    #[cfg(feature = "structured-output")]
    state: Option<ConstraintState>,
    /// Logits of the allowed ids, `-inf` elsewhere `[sampled_ids]`.
    #[cfg(feature = "structured-output")]
    masked: Vec<f32>,
    /// Number of masks and their time, until they are taken.
    #[cfg(feature = "structured-output")]
    masks: (u64, Duration),
}

#[cfg(feature = "structured-output")]
impl Guide {
    /// The guide of a request with these tools.
    ///
    /// # Errors
    /// [`Error::Constraint`] if the constraint does not compile.
    pub(crate) fn new(
        codec: &TextCodec,
        request: &GenerateRequest,
        tools: Option<&RequestTools>,
    ) -> Result<Self> {
        let start = |constraint| codec.constraints()?.start(constraint);
        let constraint = tools.and_then(|tools| tools.constraint.as_ref()).or(request.constraint.as_ref());
        let state = constraint.map(start).transpose().map_err(Error::Constraint)?;
        Ok(Self { state, masked: Vec::new(), masks: Default::default() })
    }

    /// The logits to sample from: those given, with `-inf` for ids that the constraint excludes.
    ///
    /// # Errors
    /// [`Error::Constraint`] if the step exceeds a limit.
    pub(crate) fn mask<'l>(&'l mut self, logits: &'l [f32]) -> Result<&'l [f32]> {
        let Some(state) = &mut self.state else { return Ok(logits) };
        let started = Instant::now();
        state.mask().map_err(Error::Constraint)?.apply(logits, &mut self.masked);
        self.masks = (self.masks.0 + 1, self.masks.1 + started.elapsed());
        Ok(&self.masked)
    }

    /// Number and time of the masks since the last call.
    pub(crate) fn take_mask_time(&mut self) -> (u64, Duration) {
        std::mem::take(&mut self.masks)
    }

    /// Moves past a token of the output.
    ///
    /// # Errors
    /// [`Error::Constraint`] if the step exceeds a limit.
    pub(crate) fn accept(&mut self, token: TokenId) -> Result<()> {
        let Some(state) = &mut self.state else { return Ok(()) };
        state.accept(token).map_err(Error::Constraint)
    }

    /// Tokens that must follow, whatever is sampled; often none.
    pub(crate) fn forced(&mut self) -> Vec<TokenId> {
        self.state.as_mut().map(ConstraintState::forced).unwrap_or_default()
    }

    /// Number of `tokens` from the first on that may come next, one after the other. The position
    /// stays.
    pub(crate) fn accepted_prefix(&mut self, tokens: &[TokenId]) -> usize {
        let Some(state) = &mut self.state else { return tokens.len() };
        // A step that fails here fails again when the mask is taken.
        state.accepted_prefix(tokens).unwrap_or(0)
    }

    /// True if the output is complete and nothing can follow.
    pub(crate) fn is_ended(&self) -> bool {
        self.state.as_ref().is_some_and(ConstraintState::is_ended)
    }
}

/// A build without constraints.
#[cfg(not(feature = "structured-output"))]
impl Guide {
    pub(crate) fn new(_: &TextCodec, _: &GenerateRequest, _: Option<&RequestTools>) -> Result<Self> {
        Ok(Self {})
    }

    pub(crate) fn mask<'l>(&mut self, logits: &'l [f32]) -> Result<&'l [f32]> {
        Ok(logits)
    }

    pub(crate) fn take_mask_time(&mut self) -> (u64, Duration) {
        (0, Duration::ZERO)
    }

    pub(crate) fn accept(&mut self, _: TokenId) -> Result<()> {
        Ok(())
    }

    pub(crate) fn forced(&mut self) -> Vec<TokenId> {
        Vec::new()
    }

    pub(crate) fn accepted_prefix(&mut self, tokens: &[TokenId]) -> usize {
        tokens.len()
    }

    pub(crate) fn is_ended(&self) -> bool {
        false
    }
}
