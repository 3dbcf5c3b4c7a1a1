//! Deficit round robin over tenants (Shreedhar and Varghese, SIGCOMM 1996), in tokens.
//!
//! The price of a request is known only after its last token, so a tenant is served while it has
//! credit and then owes (surplus round robin: Adiseshu, Parulkar and Varghese, SIGCOMM 1996). Each
//! round pays every tenant one quantum times its weight. Accounts store the round in which the debt
//! is paid instead of the debt: then a round costs nothing per tenant, and a tree can order them.

use crate::config::Config;

/// Service that a tenant has had.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Account {
    /// Round in which all service is paid; before the present round while there is credit.
    paid: f64,
}

impl Account {
    /// First whole round with credit.
    pub(crate) fn turn(self) -> i64 {
        self.paid.ceil() as i64
    }

    /// Order of service per weight: larger has had more.
    pub(crate) fn service(self) -> f64 {
        self.paid
    }
}

/// The present round, and the rules of payment.
#[derive(Debug, Clone)]
pub(crate) struct Rounds {
    round: f64,
    quantum: f64,
    /// Rounds of unused share that an account keeps.
    burst: f64,
    enabled: bool,
}

impl Rounds {
    pub(crate) fn new(config: &Config) -> Self {
        let quantum = config.quantum_tokens as f64;
        let burst = (config.burst_tokens as f64 / quantum).max(1.0);
        Self { round: 0.0, quantum, burst, enabled: config.fair_shares }
    }

    /// Account of a new tenant: the credit of one round.
    pub(crate) fn open(&self) -> Account {
        Account { paid: self.round - 1.0 }
    }

    /// True if the tenant may be served in the present round.
    pub(crate) fn has_credit(&self, account: Account) -> bool {
        !self.enabled || account.paid <= self.round
    }

    /// Tokens that a tenant is served before another one has its turn.
    pub(crate) fn turn_tokens(&self, weight: f64) -> usize {
        if self.enabled { ((self.quantum * weight) as usize).max(1) } else { usize::MAX }
    }

    /// Charges tokens to an account. Tokens that nobody else wants make no debt: the round ends.
    pub(crate) fn charge(&mut self, account: &mut Account, weight: f64, tokens: usize, contended: bool) {
        if self.enabled && tokens > 0 {
            let kept = account.paid.max(self.round - self.burst);
            account.paid = kept + tokens as f64 / (self.quantum * weight);
            if !contended {
                self.round = self.round.max(account.paid);
            }
        }
    }

    /// Returns tokens that were charged and not computed.
    pub(crate) fn refund(&self, account: &mut Account, weight: f64, tokens: usize) {
        if self.enabled {
            account.paid -= tokens as f64 / (self.quantum * weight);
        }
    }

    /// Begins the round in which this account has credit: nobody else wants the present one.
    pub(crate) fn advance_to(&mut self, turn: i64) {
        self.round = self.round.max(turn as f64);
    }

    /// The present round, rounded down.
    pub(crate) fn current(&self) -> i64 {
        self.round.floor() as i64
    }
}
