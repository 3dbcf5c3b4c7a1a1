//! Speculative decoding: drafts of the next tokens, verified in the step that computes the next one
//! (ADR-0044).
//!
//! ```text
//! Ask per decoding request ─▶ Drafter::offer ─▶ Policy::choose ─▶ Drafter::draft ─▶ tokens
//!                              PromptLookup       Acceptance, Times, Rate, Account
//!                              PrefixContinuation
//!                              ModelDrafter, or
//!                              HeadDrafter ◀─ final hidden states of each step
//! ```
//! A `DraftEngine` computes for the `ModelDrafter`: `ModelEngine` on the CPU, `BackendDraft` over
//! the sequences of a backend (ADR-0156). A `HeadEngine` computes for the `HeadDrafter`:
//! `ModelHead` on the CPU, `BackendHeadDraft` over those of a backend's head (ADR-0160).
//!
//! The step loop appends a draft to the part of its request and takes a row of logits for each
//! token. The request samples row by row, with its own sampler, as long as the sampled token is the
//! drafted one: the output is the one without drafts, token for token.

mod backend_draft;
mod backend_head;
mod draft;
mod draft_engine;
mod draft_head;
mod draft_model;
mod drafter;
mod head_drafter;
mod head_engine;
mod lookup;
mod memory;
mod model_drafter;
mod policy;
mod proposal;
mod setting;
mod times;

use std::collections::HashMap;
use std::time::{Duration, Instant};

use ruvllm_text::TokenId;

pub(crate) use self::backend_draft::BackendDraft;
pub(crate) use self::backend_head::BackendHeadDraft;
pub(crate) use self::draft::Draft;
use self::draft_head::ModelHead;
use self::draft_model::ModelEngine;
#[cfg(feature = "gpu")]
pub(crate) use self::draft_model::check_vocabulary;
pub(crate) use self::drafter::{Ask, Lane};
use self::drafter::{Drafter, PrefixContinuation, PromptLookup};
use self::head_drafter::HeadDrafter;
pub(crate) use self::memory::CAPACITY;
use self::model_drafter::ModelDrafter;
pub(crate) use self::policy::MOST_DRAFT;
use self::policy::{Acceptance, Offer, Policy, Source, Wanted};
pub use self::setting::Speculation;
use crate::core::Core;

/// Largest number of drafted tokens in a step: bounds the rows of logits.
const STEP_TOKENS: usize = 64;

/// Kinds of drafters; the first ones go first where the policy has no say.
const DRAFTERS: usize = 3;

/// Drafters of a step loop, and the policy that chooses among them.
pub(crate) struct Speculator<'c> {
    setting: Speculation,
    /// Longest draft of requests with [`Speculation::Auto`].
    limit: usize,
    drafters: Vec<Box<dyn Drafter + 'c>>,
    policy: Policy,
    requests: HashMap<Lane, Requested>,
    /// Drafts to be made by each drafter, for each ask.
    wanted: [Vec<Wanted>; DRAFTERS],
    offers: Vec<Offer>,
    /// Time that the last drafts took.
    drafting: Duration,
}

/// A request as the policy sees it.
#[derive(Default)]
struct Requested {
    acceptance: Acceptance,
    /// Kinds of the drafts that could be made for the present step, by drafter.
    offered: [Option<Source>; DRAFTERS],
    /// Kind of its draft, also where that stayed empty.
    source: Option<Source>,
    /// True if the draft model caught up with the sequence for it.
    caught_up: bool,
    /// Accepted tokens, from the verification to the end of the step.
    accepted: Option<usize>,
    is_varied: bool,
    /// Steps without drafts that are due: memory was short for the last one.
    paused: usize,
}

impl<'c> Speculator<'c> {
    /// Steps without drafts after a draft found no memory.
    const PAUSE: usize = 8;

    /// The drafters of an engine.
    pub(crate) fn new(core: &'c Core) -> Self {
        let mut drafters: Vec<Box<dyn Drafter + 'c>> = vec![Box::new(PromptLookup::default())];
        if let Some(prefixes) = &core.prefixes {
            drafters
                .push(Box::new(PrefixContinuation::new(std::sync::Arc::clone(prefixes), core.kv.clone())));
        }
        match &core.draft {
            Some(Draft::Model(model)) => {
                drafters.push(Box::new(ModelDrafter::new(ModelEngine::new(model, &core.compute))));
            }
            Some(Draft::Head(head)) => {
                let head = ModelHead::new(head, &core.model, &core.compute);
                drafters.push(Box::new(HeadDrafter::new(head)));
            }
            None => {}
        }
        Self { setting: core.speculation, drafters, ..Self::off() }
    }

    /// The drafters of a backend: prompt look-up, and its draft model if it has one, or the head of
    /// its model.
    pub(crate) fn of_backend(
        setting: Speculation,
        draft: Option<BackendDraft<'c>>,
        head: Option<BackendHeadDraft<'c>>,
    ) -> Self {
        let mut drafters: Vec<Box<dyn Drafter + 'c>> = vec![Box::new(PromptLookup::default())];
        match (draft, head) {
            (Some(draft), _) => drafters.push(Box::new(ModelDrafter::new(draft))),
            (None, Some(head)) => drafters.push(Box::new(HeadDrafter::new(head))),
            (None, None) => {}
        }
        Self { setting, drafters, ..Self::off() }
    }

    /// No drafts.
    pub(crate) fn off() -> Self {
        Self {
            setting: Speculation::Off,
            limit: MOST_DRAFT,
            drafters: Vec::new(),
            policy: Policy::new(),
            requests: HashMap::new(),
            wanted: Default::default(),
            offers: Vec::new(),
            drafting: Duration::ZERO,
        }
    }

    /// The setting of requests that name none.
    pub(crate) fn setting(&self) -> Speculation {
        self.setting
    }

    /// Limits the drafts of requests with [`Speculation::Auto`].
    pub(crate) fn set_limit(&mut self, limit: usize) {
        self.limit = limit;
    }

    /// True if there are no drafts, whatever a request says.
    pub(crate) fn is_off(&self) -> bool {
        self.drafters.is_empty()
    }

    /// Fills `drafts` with one draft for each of `asks`, often empty, in a step in which `decoding`
    /// requests decode.
    pub(crate) fn draft(&mut self, asks: &[Ask<'_>], decoding: usize, drafts: &mut Vec<Vec<TokenId>>) {
        drafts.iter_mut().for_each(Vec::clear);
        drafts.resize_with(asks.len().max(drafts.len()), Vec::new);
        self.drafting = Duration::ZERO;
        self.wanted.iter_mut().for_each(|wanted| {
            wanted.clear();
            wanted.resize(asks.len(), Wanted::default());
        });
        let share = STEP_TOKENS / decoding.max(1);
        let mut chosen = [false; DRAFTERS];
        for (index, ask) in asks.iter().enumerate() {
            let limit = if ask.setting == Speculation::Auto { self.limit } else { share };
            let ask = Ask { most: ask.most.min(share).min(limit), ..*ask };
            if let Some((drafter, wanted)) = self.choose(&ask, decoding) {
                self.wanted[drafter][index] = wanted;
                chosen[drafter] = true;
            }
        }
        let Self { drafters, policy, wanted, .. } = self;
        let chosen = drafters.iter_mut().zip(wanted).zip(chosen).filter(|(_, chosen)| *chosen);
        for ((drafter, wanted), _) in chosen {
            let started = Instant::now();
            drafter.draft(asks, wanted, &mut drafts[..asks.len()], policy);
            self.drafting += started.elapsed();
        }
    }

    /// Drafter and draft of a request.
    fn choose(&mut self, ask: &Ask<'_>, decoding: usize) -> Option<(usize, Wanted)> {
        let request = self.requests.entry(ask.lane).or_default();
        (request.source, request.is_varied) = (None, ask.is_varied);
        request.offered = [None; DRAFTERS];
        if request.paused > 0 {
            request.paused -= 1;
            return None;
        }
        if ask.most == 0 || ask.setting == Speculation::Off {
            return None;
        }
        self.offers.clear();
        for (drafter, offered) in self.drafters.iter_mut().zip(&mut request.offered) {
            if let Some(offer) = drafter.offer(ask) {
                *offered = Some(offer.source);
                self.offers.push(offer);
            }
        }
        let (source, wanted) = match ask.setting {
            Speculation::Fixed(tokens) => {
                let wanted = |most: usize| Wanted { tokens: tokens.min(most), floors: [0.0; 2] };
                self.offers.first().map(|offer| (offer.source, wanted(offer.most)))?
            }
            _ => self.policy.choose(&self.offers, &request.acceptance, ask.is_varied, decoding)?,
        };
        request.source = Some(source);
        let of_source = |offer: &&Offer| offer.source == source;
        request.caught_up = self.offers.iter().find(of_source).is_some_and(Offer::catches_up);
        let drafter = request.offered.iter().position(|offered| *offered == Some(source))?;
        Some((drafter, wanted))
    }

    /// Records the tokens that a request has after a step, of which `before` were there before it,
    /// and the number of those that were drafted.
    pub(crate) fn verified(&mut self, lane: Lane, tokens: &[TokenId], before: usize, accepted: usize) {
        let Some(request) = self.requests.get_mut(&lane) else { return };
        request.accepted = Some(accepted);
        for (drafter, offered) in self.drafters.iter().zip(request.offered) {
            if let Some(source) = offered
                && let Some(counts) = drafter.compare(lane, tokens, before)
            {
                self.policy.observe_offer(&mut request.acceptance, source, request.is_varied, counts);
            }
        }
    }

    /// Records a step of decoding requests alone, which took `time` with its drafts; `rows` were
    /// computed without these.
    pub(crate) fn observe(&mut self, decoding: usize, rows: usize, counts: [usize; 2], time: Duration) {
        let plain_steps = self.policy.observe_step(decoding, rows, counts, time, self.drafting);
        for request in self.requests.values_mut() {
            if let (Some(accepted), Some(plain_steps)) = (request.accepted.take(), plain_steps)
                && request.source == Some(Source::Model)
                && !request.caught_up
            {
                let Requested { acceptance, is_varied, .. } = request;
                self.policy.observe_model(acceptance, *is_varied, accepted, plain_steps);
            }
        }
    }

    /// Pauses the drafts of a request: there was no memory for one.
    pub(crate) fn pause(&mut self, lane: Lane) {
        self.requests.entry(lane).or_default().paused = Self::PAUSE;
    }

    /// Number of a part's last tokens whose final hidden states the drafters read.
    pub(crate) fn states(&self) -> usize {
        self.drafters.iter().map(|drafter| drafter.states()).max().unwrap_or(0)
    }

    /// Gives the drafters final hidden states of a sequence, `[tokens, model_dim]`, from position
    /// `first` on.
    pub(crate) fn keep(&mut self, lane: Lane, first: usize, states: &[f32]) {
        self.drafters.iter_mut().for_each(|drafter| drafter.keep(lane, first, states));
    }

    /// Forgets a request.
    pub(crate) fn end(&mut self, lane: Lane) {
        self.requests.remove(&lane);
        self.drafters.iter_mut().for_each(|drafter| drafter.end(lane));
    }
}
