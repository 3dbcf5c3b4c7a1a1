//! Memory of error classes and of the strategies that resolved them.

use std::collections::HashMap;

use crate::error::{Error, Result};

/// Longest class key in characters.
const MAX_KEY: usize = 160;
/// Trials that the success of a strategy over all classes counts for in a class.
const PRIOR_TRIALS: f64 = 2.0;

/// Reaction to a failed answer, other than to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Strategy {
    /// Asks again with the answer and its error.
    RetryWithError,
    /// Asks for the simplest answer.
    Simplify,
    /// Asks again with the error as a constraint, without the answer.
    AddConstraint,
    /// Asks a stronger model.
    EscalateModel,
}

impl Strategy {
    /// All strategies, in the order in which equally good ones are chosen.
    pub const ALL: [Self; 4] =
        [Self::RetryWithError, Self::AddConstraint, Self::Simplify, Self::EscalateModel];

    /// Cost relative to a retry, as a stronger model is usually several times larger.
    fn cost(self) -> f64 {
        if self == Self::EscalateModel { 4.0 } else { 1.0 }
    }
}

/// Key of an error message's class: its first line (the last of a Python traceback) in lower case,
/// with quoted text, addresses, paths, identifiers and numbers replaced by `<text>`, `<url>`,
/// `<path>`, `<id>` and `<n>`.
pub fn class_key(message: &str) -> String {
    let mut lines = message.lines().map(str::trim).filter(|line| !line.is_empty());
    let line = if message.trim_start().starts_with("Traceback") { lines.next_back() } else { lines.next() };
    let mut key = String::new();
    for word in without_quotes(line.unwrap_or("")).split_whitespace() {
        if !key.is_empty() {
            key.push(' ');
        }
        push_word(word, &mut key);
        if key.chars().nth(MAX_KEY).is_some() {
            break;
        }
    }
    key.chars().take(MAX_KEY).collect()
}

/// Replaces quoted text. An apostrophe within a word is no quote, nor is one that never closes.
fn without_quotes(line: &str) -> String {
    let mut out = String::with_capacity(line.len());
    let mut rest = line;
    while let Some(c) = rest.chars().next() {
        let tail = &rest[c.len_utf8()..];
        let is_quote = matches!(c, '"' | '\'' | '`') && !out.ends_with(char::is_alphanumeric);
        match tail.find(c).filter(|_| is_quote) {
            Some(end) => {
                out.push_str("<text>");
                rest = &tail[end + 1..];
            }
            None => {
                out.push(c);
                rest = tail;
            }
        }
    }
    out
}

fn push_word(word: &str, key: &mut String) {
    let core =
        word.trim_matches(|c: char| !c.is_alphanumeric() && !matches!(c, '/' | '\\' | '<' | '>' | '~'));
    let (before, after) = word.split_once(core).filter(|_| !core.is_empty()).unwrap_or((word, ""));
    key.push_str(before);
    let is_hex = |text: &str| text.chars().all(|c| c.is_ascii_hexdigit() || c == '-');
    let has_digit = core.contains(|c: char| c.is_ascii_digit());
    let is_path = core.len() > 1 && core.contains(['/', '\\']) && !core.contains("</");
    if core.contains("://") {
        key.push_str("<url>");
    } else if is_path {
        key.push_str("<path>");
    } else if core.starts_with("0x") || (core.len() >= 8 && has_digit && is_hex(core) && !is_decimal(core)) {
        key.push_str("<id>");
    } else {
        push_without_numbers(core, key);
    }
    key.push_str(after);
}

fn is_decimal(text: &str) -> bool {
    text.chars().all(|c| c.is_ascii_digit())
}

/// Appends a word with each number, digits and points between them, replaced.
fn push_without_numbers(word: &str, key: &mut String) {
    let mut chars = word.chars().peekable();
    while let Some(c) = chars.next() {
        if !c.is_ascii_digit() {
            key.extend(c.to_lowercase());
            continue;
        }
        while chars.next_if(|&c| c.is_ascii_digit() || c == '.' || c == ',').is_some() {}
        key.push_str("<n>");
    }
}

/// Successes and failures of a strategy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Counts {
    successes: u32,
    failures: u32,
}

impl Counts {
    fn add(&mut self, is_success: bool) {
        let count = if is_success { &mut self.successes } else { &mut self.failures };
        *count = count.saturating_add(1);
    }

    /// Mean and standard deviation of the Beta posterior under a prior of `a` and `b`.
    fn posterior(self, a: f64, b: f64) -> (f64, f64) {
        let (a, b) = (a + f64::from(self.successes), b + f64::from(self.failures));
        let mean = a / (a + b);
        (mean, (mean * (1.0 - mean) / (a + b + 1.0)).sqrt())
    }
}

/// Errors of one class.
#[derive(Debug, Clone, PartialEq)]
pub struct ErrorClass {
    /// Times that it was seen.
    pub count: u64,
    /// Its latest message.
    pub example: String,
    outcomes: [Counts; 4],
    /// Time of its last use, for eviction.
    used: u64,
}

impl ErrorClass {
    /// Successes and failures of a strategy on this class.
    pub fn outcomes(&self, strategy: Strategy) -> (u32, u32) {
        let counts = self.outcomes[strategy as usize];
        (counts.successes, counts.failures)
    }
}

/// Strategy that was chosen, with the estimate behind it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Choice {
    /// The strategy.
    pub strategy: Strategy,
    /// Posterior mean of its success on this class.
    pub mean: f64,
    /// Posterior standard deviation.
    pub deviation: f64,
}

/// Bounded memory of error classes; keep one per tenant.
#[derive(Debug, Clone)]
pub struct ErrorMemory {
    classes: HashMap<String, ErrorClass>,
    totals: [Counts; 4],
    capacity: usize,
    clock: u64,
    /// Cost of a retry in units of success probability.
    price: f64,
    /// Optimistic success probability below which it is better to stop.
    stop_below: f64,
}

impl ErrorMemory {
    /// Makes a memory of at most `capacity` classes. A strategy must raise the probability of
    /// success by `price` for each retry that it costs, and the best must reach `stop_below`
    /// (0.02 and 0.1 are moderate).
    ///
    /// # Errors
    /// [`Error::Setting`] for a capacity of 0, and for numbers outside 0 to 1.
    pub fn new(capacity: usize, price: f64, stop_below: f64) -> Result<Self> {
        if capacity == 0 {
            return Err(Error::Setting { name: "capacity", value: "0".into(), range: "at least 1" });
        }
        for (name, value) in [("price", price), ("stop_below", stop_below)] {
            if !(0.0..=1.0).contains(&value) {
                return Err(Error::Setting { name, value: value.to_string(), range: "from 0 to 1" });
            }
        }
        Ok(Self {
            classes: HashMap::new(),
            totals: [Counts::default(); 4],
            capacity,
            clock: 0,
            price,
            stop_below,
        })
    }

    /// Counts an error and returns the key of its class. In a full memory the class unused for the
    /// longest time is forgotten; its outcomes stay in the totals.
    pub fn observe(&mut self, message: &str) -> String {
        let key = class_key(message);
        self.clock += 1;
        if self.classes.len() == self.capacity && !self.classes.contains_key(&key) {
            let oldest = self.classes.iter().min_by_key(|(_, class)| class.used);
            if let Some(oldest) = oldest.map(|(key, _)| key.clone()) {
                self.classes.remove(&oldest);
            }
        }
        let class = self.classes.entry(key.clone()).or_insert_with(|| ErrorClass {
            count: 0,
            example: String::new(),
            outcomes: [Counts::default(); 4],
            used: 0,
        });
        class.count += 1;
        class.used = self.clock;
        class.example = message.chars().take(500).collect();
        key
    }

    /// Counts the outcome of a strategy on an error of a class.
    pub fn record(&mut self, key: &str, strategy: Strategy, is_success: bool) {
        self.totals[strategy as usize].add(is_success);
        if let Some(class) = self.classes.get_mut(key) {
            class.outcomes[strategy as usize].add(is_success);
        }
    }

    /// Chooses the strategy with the largest optimistic success (posterior mean plus one standard
    /// deviation) after its cost; `None` is to stop. The posterior of a class begins with the
    /// success of the strategy over all classes, as two trials.
    pub fn choose(&self, key: &str, available: &[Strategy]) -> Option<Choice> {
        let mut best: Option<(f64, Choice)> = None;
        for strategy in Strategy::ALL.into_iter().filter(|strategy| available.contains(strategy)) {
            let (prior, _) = self.totals[strategy as usize].posterior(1.0, 1.0);
            let counts = self.classes.get(key).map_or(Counts::default(), |c| c.outcomes[strategy as usize]);
            let (mean, deviation) = counts.posterior(prior * PRIOR_TRIALS, (1.0 - prior) * PRIOR_TRIALS);
            let optimistic = (mean + deviation).min(1.0);
            let value = optimistic - self.price * strategy.cost();
            let is_better = best.as_ref().is_none_or(|(most, _)| value > *most);
            if optimistic >= self.stop_below && value > 0.0 && is_better {
                best = Some((value, Choice { strategy, mean, deviation }));
            }
        }
        best.map(|(_, choice)| choice)
    }

    /// Class by its key.
    pub fn class(&self, key: &str) -> Option<&ErrorClass> {
        self.classes.get(key)
    }

    /// Number of classes.
    pub fn len(&self) -> usize {
        self.classes.len()
    }

    /// True without a class.
    pub fn is_empty(&self) -> bool {
        self.classes.is_empty()
    }
}
