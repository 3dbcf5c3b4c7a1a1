//! Memory pressure: the ladder, its watermarks and the order of eviction.
//!
//! | file | holds |
//! |---|---|
//! | `policy.rs` | [`PressurePolicy`], [`Rung`]: the ladder and its watermarks, in one table |
//! | `order.rs` | the order of units within a rung |
//! | `owner.rs` | [`PressureOwner`]: caches that offer units |
//! | `round.rs` | one pass over the ladder: at a watermark, or for a [`Claim`] |
//!
//! A rung is served by two parties: the [`Claim`], which is the requesting sequence (its precision,
//! its pass, its oldest tokens), and the owners, whose units the pool selects: those of tenants
//! beyond their soft quota first, then by reload cost and last use, in O(log n) of n units.
//!
//! # Locks
//! The order of offers has its own lock, which is never held while an owner is called. Owners may
//! hold their lock while they offer units; the pool calls them without any lock.

mod order;
mod owner;
mod policy;
mod round;

pub use order::Use;
pub use owner::{Demand, Offer, OwnerId, PressureOwner, Release};
pub use policy::{PressurePolicy, Rung};
pub use round::Claim;

pub(crate) use order::{Clock, Offered, Order, UnitId};
pub(crate) use owner::Owners;
pub(crate) use policy::FROM;
pub(crate) use round::{make_room, relieve};
