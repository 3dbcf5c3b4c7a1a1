//! Memory pressure: victims, their order, and the watermarks. All of it is decided here.
//!
//! | file | holds |
//! |---|---|
//! | `policy.rs` | [`PressurePolicy`], [`Rung`]: the ladder and its watermarks, in one table |
//! | `order.rs` | the order of units within a rung |
//! | `owner.rs` | [`PressureOwner`]: caches that offer units |
//! | `round.rs` | one round up the ladder: at a watermark, or for a [`Claim`] |
//!
//! A rung is yielded by two parties: the [`Claim`], which is the sequence that asks (its precision,
//! its pass, its oldest tokens), and the owners, whose units the pool chooses: those of tenants
//! beyond their soft quota first, then by reload cost and last use, in O(log n) of n units.
//!
//! # Locks
//! The order of offers has a lock of its own, which is held for no call of an owner. Owners may
//! hold their lock while they offer units; the pool calls them without any.

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
