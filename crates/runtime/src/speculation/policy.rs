//! The decision how many tokens to draft, from measured acceptance and measured durations.
//!
//! The whole is arithmetic over numbers that are passed in: no clock, no tokens.
//!
//! # Source
//! Leviathan et al., "Fast Inference from Transformers via Speculative Decoding", arXiv 2211.17192:
//! with acceptance `a` per token, a draft of `k` tokens gives `(1 - a^(k+1)) / (1 - a)` tokens per
//! pass.

use std::time::Duration;

use super::times::Times;

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
    pub(super) const ALL: [Self; Self::COUNT] =
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

/// Measured acceptance of one request.
#[derive(Debug, Clone, Default)]
pub(crate) struct Acceptance {
    counts: [Counts; Source::COUNT],
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
    account: Account,
    /// Plain steps so far, and drafts since the last one.
    plain_steps: u64,
    since_plain: u64,
    /// Number of drafts so far, and at the last trial of each kind.
    trials: [u64; Source::COUNT],
    trial: u64,
}

impl Policy {
    /// Advantage below which a draft is not worth its risk.
    const MARGIN: f64 = 1.03;
    /// Tokens that count as much as the estimate of all requests, for one request.
    const PRIOR: f64 = 6.0;
    /// As many for all requests, beside the assumption.
    const ASSUMED: f64 = 4.0;
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
            account: Account(Account::START),
            plain_steps: 0,
            since_plain: 0,
            trials: [0; Source::COUNT],
            trial: 0,
        }
    }

    /// Acceptance to expect of a request's next draft.
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
        let plain = self.steps.expected(decoding)?;
        let mut best = (Self::MARGIN, None);
        for offer in offers {
            let a = self.acceptance(of, offer.source, is_varied);
            for k in 1..=offer.most.min(MOST_DRAFT) {
                let advantage = expected_tokens(a, k) * plain / self.seconds(offer, k, decoding)?;
                if advantage > best.0 && self.largest_loss(offer, k, plain, decoding)? <= self.account.0 {
                    best = (advantage, Some((offer.source, k)));
                }
            }
        }
        let (source, tokens) = best.1.or_else(|| self.try_again(offers, plain, decoding))?;
        let row = (self.steps.expected(decoding * (1 + tokens))? - plain) / tokens as f64;
        let draft = self.drafts.expected(decoding).unwrap_or(0.0);
        // A token is worth the time in which the present speed gives as much.
        let floors = [draft + row, row].map(|seconds| (best.0 * seconds / plain).min(0.9));
        Some((source, Wanted { tokens, floors }))
    }

    /// Duration of a step in which all `decoding` requests have such a draft.
    fn seconds(&self, offer: &Offer, k: usize, decoding: usize) -> Option<f64> {
        let mut seconds = self.steps.expected(decoding * (1 + k))?;
        if offer.source == Source::Model {
            seconds += k as f64 * self.drafts.expected(decoding).unwrap_or(0.3 * seconds);
        }
        Some(seconds)
    }

    /// Loss if the whole draft is rejected, in plain steps, with the most that unmeasured passes
    /// can be expected to take.
    fn largest_loss(&self, offer: &Offer, k: usize, plain: f64, decoding: usize) -> Option<f64> {
        let mut seconds = self.steps.bound(decoding * (1 + k))? - plain;
        if offer.source == Source::Model {
            seconds += k as f64 * self.drafts.bound(decoding).unwrap_or(0.5 * plain);
            seconds += self.drafts.bound(offer.behind).unwrap_or(plain);
        }
        Some(seconds / plain)
    }

    /// A short draft of the kind that was not tried for the longest time, if the account allows.
    fn try_again(&mut self, offers: &[Offer], plain: f64, decoding: usize) -> Option<(Source, usize)> {
        if self.account.0 < Account::TRIAL {
            return None;
        }
        let offer = offers.iter().min_by_key(|offer| self.trials[offer.source as usize])?;
        let k = offer.most.min(Self::TRIAL_TOKENS);
        let loss = self.largest_loss(offer, k, plain, decoding)?;
        self.trial += 1;
        self.trials[offer.source as usize] = self.trial;
        (k > 0 && loss <= self.account.0).then_some((offer.source, k))
    }

    /// Records a pass of the draft model.
    pub(crate) fn observe_draft(&mut self, rows: usize, time: Duration) {
        self.drafts.observe(rows, time);
    }

    /// Records a draft of which the first `accepted` tokens were right.
    pub(crate) fn observe_acceptance(
        &mut self,
        of: &mut Acceptance,
        source: Source,
        is_varied: bool,
        [drafted, accepted]: [usize; 2],
    ) {
        of.counts[source as usize].add(drafted, accepted, 0.92);
        self.counts[usize::from(is_varied)][source as usize].add(drafted, accepted, 0.98);
    }

    /// Records a step of `decoding` requests without prompts: `drafted` tokens were verified, which
    /// took `time` in all, `drafting` of it for the draft model, and gave `accepted` tokens more
    /// than a plain step.
    pub(crate) fn observe_step(
        &mut self,
        decoding: usize,
        [drafted, accepted]: [usize; 2],
        time: Duration,
        drafting: Duration,
    ) {
        self.steps.observe(decoding + drafted, time.saturating_sub(drafting));
        if drafted == 0 {
            (self.plain_steps, self.since_plain) = (self.plain_steps + 1, 0);
        } else {
            self.since_plain += 1;
        }
        let Some(plain) = self.steps.expected(decoding).filter(|plain| *plain > 0.0) else { return };
        let gain = if drafted == 0 && drafting.is_zero() {
            Account::PAID_IN
        } else {
            1.0 + accepted as f64 / decoding.max(1) as f64 - time.as_secs_f64() / plain
        };
        self.account.add(gain);
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
            let accepted = std::iter::repeat_with(right).take(k).take_while(|right| *right).count();
            let drafting = k as f64 * machine.draft;
            let time = (machine.pass)(1 + k) + drafting;
            let duration = |ms: f64| Duration::from_secs_f64(ms / 1e3);
            for _ in 0..k.min(usize::from(machine.draft > 0.0) * k) {
                policy.observe_draft(1, duration(machine.draft));
            }
            if k > 0 {
                policy.observe_acceptance(of, machine.source, false, [k, accepted]);
            }
            policy.observe_step(1, [k, accepted], duration(time), duration(drafting));
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
