//! The decision how many tokens to draft, from measured acceptance and measured durations.
//!
//! The whole is arithmetic over numbers that are passed in: no clock, no tokens. Durations are in
//! plain steps: those of a step without drafts.
//!
//! Of the drafts that could be made, and none at all, the one with the largest
//! `tokens - rate * duration` is made, where `rate` is the number of tokens that recent steps gave
//! per plain step: time is worth the tokens that it gives elsewhere. That is the choice of largest
//! reward per time in a renewal process; the largest ratio of a single step is not.
//!
//! A draft that is looked up is known before it is made, so it is compared with what was sampled
//! whether or not it was verified. A draft of a model is known once its time is spent; what such
//! drafts gave and took is measured as a whole, with all that ends them early.
//!
//! # Source
//! Leviathan et al., "Fast Inference from Transformers via Speculative Decoding", arXiv 2211.17192:
//! with acceptance `a` per token, a draft of `k` tokens gives `(1 - a^(k+1)) / (1 - a)` tokens per
//! pass.

use std::time::Duration;

use super::times::{OUTLIER, Times};

/// Longest draft in tokens.
pub(crate) const MOST_DRAFT: usize = 8;

/// Kinds of drafts, which differ in how often they are accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Source {
    /// Look-up in the request's own tokens by 2 or 3 tokens.
    ShortLookup,
    /// By 4 to 7 tokens.
    Lookup,
    /// By 8 tokens or more.
    LongLookup,
    /// Continuation of the same tokens in the prefix cache.
    Prefix,
    /// Draft model.
    Model,
}

impl Source {
    /// Number of kinds.
    const COUNT: usize = 5;
    #[cfg(test)]
    const ALL: [Self; Self::COUNT] =
        [Self::ShortLookup, Self::Lookup, Self::LongLookup, Self::Prefix, Self::Model];

    /// Acceptance that is assumed before anything was measured; text that is sampled at a
    /// temperature is harder to foresee.
    fn assumed(self, is_varied: bool) -> f64 {
        let greedy = match self {
            Self::ShortLookup => 0.35,
            Self::Lookup => 0.6,
            Self::LongLookup => 0.85,
            Self::Prefix => 0.8,
            Self::Model => 0.65,
        };
        if is_varied { greedy * 0.7 } else { greedy }
    }
}

/// Decayed counts of verified tokens.
#[derive(Debug, Clone, Copy, Default)]
struct Counts {
    accepted: f64,
    tried: f64,
}

impl Counts {
    /// Adds a draft of which the first `accepted` tokens were right. Tokens behind the first wrong
    /// one were not tried.
    fn add(&mut self, drafted: usize, accepted: usize, memory: f64) {
        let tried = drafted.min(accepted + 1);
        self.accepted = self.accepted * memory + accepted as f64;
        self.tried = self.tried * memory + tried as f64;
    }

    /// Share of accepted tokens, with an assumption that weighs as much as `weight` tokens.
    fn share(&self, assumed: f64, weight: f64) -> f64 {
        (self.accepted + weight * assumed) / (self.tried + weight)
    }
}

/// Decayed tokens and durations of steps with drafts of the draft model.
#[derive(Debug, Clone, Copy, Default)]
struct Gains {
    tokens: f64,
    plain_steps: f64,
    steps: f64,
}

impl Gains {
    /// Adds a step.
    fn add(&mut self, tokens: f64, plain_steps: f64, memory: f64) {
        self.tokens = self.tokens * memory + tokens;
        self.plain_steps = self.plain_steps * memory + plain_steps;
        self.steps = self.steps * memory + 1.0;
    }

    /// Tokens and duration of a step, with an assumption that weighs as much as `weight` steps.
    fn mean(&self, [tokens, plain_steps]: [f64; 2], weight: f64) -> [f64; 2] {
        let steps = self.steps + weight;
        [(self.tokens + weight * tokens) / steps, (self.plain_steps + weight * plain_steps) / steps]
    }
}

/// Measurements of one request.
#[derive(Debug, Clone, Default)]
pub(crate) struct Acceptance {
    counts: [Counts; Source::COUNT],
    model: Gains,
}

/// A draft that could be made.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Offer {
    pub(crate) source: Source,
    /// Largest number of tokens.
    pub(crate) most: usize,
    /// Tokens that a draft model has to catch up with before it drafts.
    pub(crate) behind: usize,
}

impl Offer {
    /// True if the draft model lacks more than the tokens of a step.
    pub(super) fn catches_up(&self) -> bool {
        self.behind > MOST_DRAFT + 1
    }
}

/// A draft to be made.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Wanted {
    /// Largest number of tokens; 0 for none.
    pub(crate) tokens: usize,
    /// Probability that the whole draft is right below which another token of a draft model costs
    /// more than it gains, and below which verifying a token does.
    pub(crate) floors: [f64; 2],
}

/// Loss account, in durations of a plain step: speculation may lose what is on it.
///
/// It begins with [`START`](Self::START); plain steps pay in one percent of their time, drafts
/// what they have won or lost. A draft is made only if the account covers the loss of rejecting all
/// of it, and one that is not expected to pay only at [`TRIAL`](Self::TRIAL) or above. So
/// speculation loses at most the start and one percent of the time, with any draft.
#[derive(Debug)]
struct Account(f64);

impl Account {
    const START: f64 = 2.5;
    const TRIAL: f64 = 1.5;
    const MOST: f64 = 4.0;
    const PAID_IN: f64 = 0.01;

    fn add(&mut self, steps: f64) {
        self.0 = (self.0 + steps).min(Self::MOST);
    }
}

/// Tokens of recent steps per plain step; 1 at first, and never less.
#[derive(Debug)]
struct Rate {
    tokens: f64,
    plain_steps: f64,
}

impl Rate {
    const START: f64 = 4.0;
    const MEMORY: f64 = 0.95;

    fn add(&mut self, tokens: f64, plain_steps: f64) {
        self.tokens = self.tokens * Self::MEMORY + tokens;
        self.plain_steps = self.plain_steps * Self::MEMORY + plain_steps;
    }

    fn get(&self) -> f64 {
        (self.tokens / self.plain_steps).max(1.0)
    }
}

/// Expected tokens of a verified draft of `k` tokens with acceptance `a` per token.
fn expected_tokens(a: f64, k: usize) -> f64 {
    (0..=k).map(|i| a.powi(i as i32)).sum()
}

/// Measurements of all requests of an engine.
#[derive(Debug)]
pub(crate) struct Policy {
    /// Passes of the model by rows.
    steps: Times,
    /// Passes of the draft model by rows.
    drafts: Times,
    /// Acceptance of all requests: below temperature 0.5, and from there on.
    counts: [[Counts; Source::COUNT]; 2],
    model: [Gains; 2],
    account: Account,
    rate: Rate,
    /// Plain steps so far, and drafts since the last one.
    plain_steps: u64,
    since_plain: u64,
}

impl Policy {
    /// Expected tokens of advantage below which a draft is not worth its risk.
    const MARGIN: f64 = 0.03;
    /// Tokens that count as much as the estimate of all requests, for one request.
    const PRIOR: f64 = 6.0;
    /// As many for all requests, beside the assumption.
    const ASSUMED: f64 = 4.0;
    /// Steps with drafts of the model that count as much as the estimate of all requests, and as
    /// much as the assumption.
    const MODEL_PRIOR: [f64; 2] = [4.0, 3.0];
    /// Tokens of a draft of the model in the assumption.
    const MODEL_TOKENS: usize = 2;
    /// Duration of a pass of the draft model before one was measured, as a part of one of the
    /// model.
    const MODEL_PASS: f64 = 0.2;
    /// Drafts over which the tokens that a draft model catches up with are counted.
    const CATCH_UP: f64 = 32.0;
    /// Part that older measurements keep, of a request and of all.
    const MEMORY: [f64; 2] = [0.92, 0.98];
    /// Tokens of a trial.
    const TRIAL_TOKENS: usize = 2;
    /// Plain steps before the first draft, so that there is a duration to compare with.
    const FIRST_PLAIN: u64 = 2;
    /// Most drafts between two plain steps, which keep that duration true; fewer at first.
    const MOST_DRAFTS: u64 = 48;

    pub(crate) fn new() -> Self {
        Self {
            steps: Times::default(),
            drafts: Times::default(),
            counts: Default::default(),
            model: Default::default(),
            account: Account(Account::START),
            rate: Rate { tokens: Rate::START, plain_steps: Rate::START },
            plain_steps: 0,
            since_plain: 0,
        }
    }

    /// Acceptance to expect of a request's next draft that is looked up.
    pub(crate) fn acceptance(&self, of: &Acceptance, source: Source, is_varied: bool) -> f64 {
        let all = self.counts[usize::from(is_varied)][source as usize];
        let assumed = all.share(source.assumed(is_varied), Self::ASSUMED);
        of.counts[source as usize].share(assumed, Self::PRIOR)
    }

    /// Chooses one of the drafts that could be made for a request beside `decoding - 1` others, and
    /// its number of tokens; `None` if none pays.
    pub(crate) fn choose(
        &mut self,
        offers: &[Offer],
        of: &Acceptance,
        is_varied: bool,
        decoding: usize,
    ) -> Option<(Source, Wanted)> {
        let most_drafts = Self::MOST_DRAFTS.min(4 * self.plain_steps);
        if self.plain_steps < Self::FIRST_PLAIN || self.since_plain >= most_drafts {
            return None;
        }
        let plain = self.steps.expected(decoding).filter(|plain| *plain > 0.0)?;
        let rate = self.rate.get();
        let mut best = (1.0 - rate + Self::MARGIN, None);
        for offer in offers {
            let longest = offer.most.min(MOST_DRAFT);
            let affordable = |k: &usize| {
                self.largest_loss(offer, *k, plain, decoding).is_some_and(|loss| loss <= self.account.0)
            };
            let Some(longest) = (1..=longest).rev().find(affordable) else { continue };
            if offer.source == Source::Model {
                let [tokens, plain_steps] = self.model_step(offer, of, is_varied, plain, decoding)?;
                let score = tokens - rate * plain_steps;
                if score > best.0 {
                    best = (score, Some((offer.source, longest)));
                }
                continue;
            }
            let a = self.acceptance(of, offer.source, is_varied);
            for k in 1..=longest {
                let plain_steps = self.steps.expected(decoding * (1 + k))? / plain;
                let score = expected_tokens(a, k) - rate * plain_steps;
                if score > best.0 {
                    best = (score, Some((offer.source, k)));
                }
            }
        }
        let (source, tokens) = best.1.or_else(|| self.trial(offers, plain, decoding))?;
        let [draft, row] = self.token_costs(plain, decoding)?;
        // A token is worth the time in which recent steps gave as much.
        let floors = [(rate * (draft + row)).min(0.95), (rate * row).min(0.9)];
        Some((source, Wanted { tokens, floors }))
    }

    /// Durations of a pass of the draft model and of a further row of the model, where all
    /// `decoding` requests have drafts.
    fn token_costs(&self, plain: f64, decoding: usize) -> Option<[f64; 2]> {
        let rows = self.steps.expected(decoding * (1 + MOST_DRAFT))?;
        let draft = self.drafts.expected(decoding).map_or(Self::MODEL_PASS, |seconds| seconds / plain);
        Some([draft, (rows / plain - 1.0) / MOST_DRAFT as f64])
    }

    /// Tokens and duration to expect of a step with a draft of the draft model.
    fn model_step(
        &self,
        offer: &Offer,
        of: &Acceptance,
        is_varied: bool,
        plain: f64,
        decoding: usize,
    ) -> Option<[f64; 2]> {
        let costs: f64 = self.token_costs(plain, decoding)?.iter().sum();
        let tokens = expected_tokens(Source::Model.assumed(is_varied), Self::MODEL_TOKENS);
        let assumed = [tokens, 1.0 + Self::MODEL_TOKENS as f64 * costs];
        let [of_request, of_all] = Self::MODEL_PRIOR;
        let all = self.model[usize::from(is_varied)].mean(assumed, of_all);
        let [tokens, plain_steps] = of.model.mean(all, of_request);
        let catch_up = if offer.catches_up() { self.catch_up(offer.behind, plain)? } else { 0.0 };
        Some([tokens, plain_steps + catch_up / Self::CATCH_UP])
    }

    /// Duration of the pass in which the draft model computes the tokens that it lacks.
    fn catch_up(&self, behind: usize, plain: f64) -> Option<f64> {
        let guess = || self.steps.expected(behind).map(|seconds| Self::MODEL_PASS * seconds);
        Some(self.drafts.expected(behind).or_else(guess)? / plain)
    }

    /// Loss if the whole draft is rejected, with the most that unmeasured passes can be expected to
    /// take.
    fn largest_loss(&self, offer: &Offer, k: usize, plain: f64, decoding: usize) -> Option<f64> {
        let mut loss = self.steps.bound(decoding * (1 + k))? / plain - 1.0;
        if offer.source == Source::Model {
            loss += k as f64 * self.drafts.bound(decoding).map_or(0.5, |seconds| seconds / plain);
            loss += if offer.catches_up() { self.catch_up(offer.behind, plain)? } else { 0.0 };
        }
        Some(loss)
    }

    /// A short draft of the draft model, if the account allows: what it gives is not known without
    /// one.
    fn trial(&self, offers: &[Offer], plain: f64, decoding: usize) -> Option<(Source, usize)> {
        if self.account.0 < Account::TRIAL {
            return None;
        }
        let offer = offers.iter().find(|offer| offer.source == Source::Model)?;
        let k = offer.most.min(Self::TRIAL_TOKENS);
        let loss = self.largest_loss(offer, k, plain, decoding)?;
        (k > 0 && loss <= self.account.0).then_some((offer.source, k))
    }

    /// Records a pass of the draft model.
    pub(crate) fn observe_draft(&mut self, rows: usize, time: Duration) {
        self.drafts.observe(rows, time);
    }

    /// Records that of `compared` tokens that a look-up offered the first `right` ones were
    /// sampled.
    pub(crate) fn observe_offer(
        &mut self,
        of: &mut Acceptance,
        source: Source,
        is_varied: bool,
        [compared, right]: [usize; 2],
    ) {
        of.counts[source as usize].add(compared, right, Self::MEMORY[0]);
        self.counts[usize::from(is_varied)][source as usize].add(compared, right, Self::MEMORY[1]);
    }

    /// Records a step of `plain_steps` in which a request had a draft of the draft model with
    /// `accepted` right tokens.
    pub(crate) fn observe_model(
        &mut self,
        of: &mut Acceptance,
        is_varied: bool,
        accepted: usize,
        plain_steps: f64,
    ) {
        let tokens = 1.0 + accepted as f64;
        of.model.add(tokens, plain_steps, Self::MEMORY[0]);
        self.model[usize::from(is_varied)].add(tokens, plain_steps, Self::MEMORY[1]);
    }

    /// Records a step of `decoding` requests without prompts, of `rows` tokens: `drafted` more were
    /// verified, which took `time` in all, `drafting` of it for the draft model, and gave
    /// `accepted` tokens more than a plain step. Returns the duration in plain steps, if that is
    /// known.
    pub(crate) fn observe_step(
        &mut self,
        decoding: usize,
        rows: usize,
        [drafted, accepted]: [usize; 2],
        time: Duration,
        drafting: Duration,
    ) -> Option<f64> {
        self.steps.observe(rows + drafted, time.saturating_sub(drafting));
        if drafted == 0 {
            (self.plain_steps, self.since_plain) = (self.plain_steps + 1, 0);
        } else {
            self.since_plain += 1;
        }
        let plain = self.steps.expected(rows).filter(|plain| *plain > 0.0)?;
        let tokens = 1.0 + accepted as f64 / decoding.max(1) as f64;
        // An interruption says nothing about the draft.
        let pass = time.saturating_sub(drafting).as_secs_f64();
        let pass = self.steps.bound(rows + drafted).map_or(pass, |bound| pass.min(OUTLIER * bound));
        let plain_steps = (pass + drafting.as_secs_f64()) / plain;
        self.rate.add(tokens, plain_steps);
        let is_plain = drafted == 0 && drafting.is_zero();
        self.account.add(if is_plain { Account::PAID_IN } else { tokens - plain_steps });
        Some(plain_steps)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine and a drafter: duration of a pass by rows, and of a token of the draft, in ms.
    struct Machine {
        pass: fn(usize) -> f64,
        draft: f64,
        source: Source,
    }

    /// Generates `tokens` tokens, of which a draft gets `acceptance` right; returns the speed
    /// against plain decoding, and the drafted tokens.
    fn run(
        policy: &mut Policy,
        of: &mut Acceptance,
        machine: &Machine,
        acceptance: f64,
        tokens: usize,
    ) -> (f64, usize) {
        let mut random = ruvllm_testkit::Random::new(tokens as u64);
        let (mut done, mut ms, mut drafts) = (0, 0.0, 0);
        while done < tokens {
            let offer = Offer { source: machine.source, most: MOST_DRAFT, behind: 4 };
            let choice = policy.choose(&[offer], of, false, 1);
            let k = choice.map_or(0, |(_, wanted)| wanted.tokens);
            let right = || random.below(1000) < (acceptance * 1000.0) as usize;
            let right = std::iter::repeat_with(right).take(k + 1).take_while(|right| *right).count();
            let accepted = right.min(k);
            let drafting = k as f64 * machine.draft;
            let time = (machine.pass)(1 + k) + drafting;
            let duration = |ms: f64| Duration::from_secs_f64(ms / 1e3);
            for _ in 0..k.min(usize::from(machine.draft > 0.0) * k) {
                policy.observe_draft(1, duration(machine.draft));
            }
            let steps = policy.observe_step(1, 1, [k, accepted], duration(time), duration(drafting));
            if machine.source != Source::Model {
                policy.observe_offer(of, machine.source, false, [1 + accepted, right]);
            } else if k > 0 {
                policy.observe_model(of, false, accepted, steps.expect("a duration"));
            }
            (done, ms, drafts) = (done + 1 + accepted, ms + time, drafts + k);
        }
        (done as f64 * (machine.pass)(1) / ms, drafts)
    }

    /// Reads weights: rows cost little.
    fn bound_by_memory(rows: usize) -> f64 {
        10.0 + 0.8 * (rows - 1) as f64
    }

    /// Computes: each row costs as much.
    fn bound_by_compute(rows: usize) -> f64 {
        10.0 * rows as f64
    }

    #[test]
    fn no_draft_loses_more_than_three_percent() {
        for pass in [bound_by_memory as fn(usize) -> f64, bound_by_compute] {
            for source in Source::ALL {
                let draft = if source == Source::Model { 4.0 } else { 0.0 };
                for acceptance in [0.0, 0.1, 0.2, 0.3, 0.5] {
                    for tokens in [128, 1000, 10_000] {
                        let machine = Machine { pass, draft, source };
                        let (mut policy, mut of) = (Policy::new(), Acceptance::default());
                        let (speed, drafts) = run(&mut policy, &mut of, &machine, acceptance, tokens);
                        assert!(speed > 0.97, "{source:?} {acceptance} {tokens}: {speed}, {drafts} drafted");
                    }
                }
            }
        }
    }

    #[test]
    fn good_drafts_are_long_and_gain_what_they_can() {
        let machine = Machine { pass: bound_by_memory, draft: 0.0, source: Source::LongLookup };
        let (mut policy, mut of) = (Policy::new(), Acceptance::default());
        let (speed, _) = run(&mut policy, &mut of, &machine, 0.95, 1000);
        assert!(speed > 3.5, "{speed}");
        let machine = Machine { pass: bound_by_memory, draft: 1.0, source: Source::Model };
        let (mut policy, mut of) = (Policy::new(), Acceptance::default());
        let (speed, _) = run(&mut policy, &mut of, &machine, 0.8, 1000);
        assert!(speed > 1.7, "{speed}");
    }

    #[test]
    fn drafts_end_where_they_stop_paying_and_begin_again() {
        let machine = Machine { pass: bound_by_memory, draft: 0.0, source: Source::Lookup };
        let (mut policy, mut of) = (Policy::new(), Acceptance::default());
        run(&mut policy, &mut of, &machine, 0.9, 300);
        let (_, drafts) = run(&mut policy, &mut of, &machine, 0.0, 400);
        assert!(drafts < 120, "{drafts} tokens drafted in vain");
        run(&mut policy, &mut of, &machine, 0.0, 1000);
        let (speed, drafts) = run(&mut policy, &mut of, &machine, 0.9, 2000);
        assert!(speed > 1.5, "{speed}, {drafts} drafted");
    }

    #[test]
    fn offers_that_were_right_are_drafted_later() {
        let mut policy = Policy::new();
        let mut of = Acceptance::default();
        let step = |policy: &mut Policy, rows: usize| {
            let time = Duration::from_secs_f64(bound_by_memory(rows) / 1e3);
            policy.observe_step(1, 1, [rows - 1, 0], time, Duration::ZERO);
        };
        (1..=9).chain([1; 8]).for_each(|rows| step(&mut policy, rows));
        policy.account = Account(Account::MOST);
        let offer = Offer { source: Source::ShortLookup, most: MOST_DRAFT, behind: 0 };
        (0..9).for_each(|_| policy.observe_offer(&mut of, offer.source, false, [1, 0]));
        assert_eq!(policy.choose(&[offer], &of, false, 1), None, "wrong so far");
        (0..20).for_each(|_| policy.observe_offer(&mut of, offer.source, false, [1, 1]));
        assert!(policy.choose(&[offer], &of, false, 1).is_some(), "right without ever being drafted");
    }

    #[test]
    fn a_draft_model_is_judged_by_what_its_steps_give_and_take() {
        let mut policy = Policy::new();
        let mut of = Acceptance::default();
        for rows in (1..=9).chain([1; 8]) {
            let time = Duration::from_secs_f64(bound_by_memory(rows) / 1e3);
            policy.observe_step(1, 1, [0, 0], time, Duration::ZERO);
            policy.steps.observe(rows, time);
        }
        policy.account = Account(1.4);
        policy.observe_draft(1, Duration::from_millis(2));
        let offer = Offer { source: Source::Model, most: MOST_DRAFT, behind: 2 };
        assert!(policy.choose(&[offer], &of, false, 1).is_some());
        // Each token was right, but few were certain enough to be verified.
        (0..20).for_each(|_| policy.observe_model(&mut of, false, 0, 1.3));
        assert_eq!(policy.choose(&[offer], &of, false, 1), None);
    }

    #[test]
    fn an_interruption_costs_no_more_than_the_longest_pass() {
        let mut policy = Policy::new();
        let step = |policy: &mut Policy, rows: usize, ms: f64| {
            policy.observe_step(1, 1, [rows - 1, 0], Duration::from_secs_f64(ms / 1e3), Duration::ZERO)
        };
        (1..=9).for_each(|rows| _ = step(&mut policy, rows, bound_by_memory(rows)));
        policy.account = Account(Account::MOST);
        let steps = step(&mut policy, 2, 1000.0).expect("a duration");
        assert!(steps < 2.0 && policy.account.0 > 2.5, "{steps} steps, {:?}", policy.account);
    }

    #[test]
    fn low_temperatures_begin_with_longer_drafts() {
        let first = |is_varied: bool| {
            let mut policy = Policy::new();
            for rows in 1..=9 {
                policy.steps.observe(rows, Duration::from_secs_f64(bound_by_memory(rows) / 1e3));
            }
            policy.plain_steps = Policy::FIRST_PLAIN;
            let offer = Offer { source: Source::LongLookup, most: MOST_DRAFT, behind: 0 };
            policy
                .choose(&[offer], &Acceptance::default(), is_varied, 1)
                .map_or(0, |(_, wanted)| wanted.tokens)
        };
        assert!(first(false) > first(true) && first(true) > 0, "{} {}", first(false), first(true));
    }

    #[test]
    fn nothing_is_drafted_before_a_plain_step_was_measured() {
        let offer = Offer { source: Source::LongLookup, most: MOST_DRAFT, behind: 0 };
        assert_eq!(Policy::new().choose(&[offer], &Acceptance::default(), false, 1), None);
    }
}
