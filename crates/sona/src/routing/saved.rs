//! State of a router in a store.

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::arm::Arm;
use super::linear::{LinearArm, SavedArm};
use super::router::{MAX_WARM_UP, Router, RouterSettings};
use crate::error::{Error, Result};
use crate::random::Random;

/// Version of [`SavedRouter`]; it changes with the meaning of the state.
pub const ROUTER_VERSION: u32 = 2;

/// State of a tenant's [`Router`], for any format of serde. Numbers are stored as their bits: a
/// loaded router decides bit for bit as the saved one would have.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SavedRouter {
    version: u32,
    tenant: String,
    /// SHA-256 of settings and arms, in hexadecimal.
    digest: String,
    observations: u64,
    credit_bits: u64,
    unrewarded: u32,
    random: Random,
    arms: Vec<SavedArm>,
}

impl SavedRouter {
    /// The tenant whose requests it has learned from.
    pub fn tenant(&self) -> &str {
        &self.tenant
    }
}

impl Router {
    /// State of this router as that of `tenant`.
    pub fn save(&self, tenant: &str) -> SavedRouter {
        SavedRouter {
            version: ROUTER_VERSION,
            tenant: tenant.to_owned(),
            digest: digest(&self.settings, &self.arms),
            observations: self.observations,
            credit_bits: self.credit.to_bits(),
            unrewarded: self.unrewarded,
            random: self.random.clone(),
            arms: self.models.iter().map(LinearArm::save).collect(),
        }
    }

    /// Restores the router of `tenant`.
    ///
    /// # Errors
    /// [`Error::Version`] for a state of another version, [`Error::Foreign`] for that of another
    /// tenant or of other settings or arms, [`Error::Damaged`] for one that no router has saved,
    /// and those of [`Router::new`].
    pub fn load(settings: RouterSettings, arms: Vec<Arm>, saved: SavedRouter, tenant: &str) -> Result<Self> {
        let mut router = Self::new(settings, arms)?;
        if saved.version != ROUTER_VERSION {
            return Err(Error::Version {
                what: "saved router",
                found: saved.version,
                supported: ROUTER_VERSION,
            });
        }
        if saved.tenant != tenant {
            return Err(Error::Foreign { what: "saved router", of: "tenant" });
        }
        if saved.digest != digest(&router.settings, &router.arms) {
            return Err(Error::Foreign { what: "saved router", of: "settings or arms" });
        }
        let credit = f64::from_bits(saved.credit_bits);
        if saved.arms.len() != router.arms.len() || !(0.0..=MAX_WARM_UP).contains(&credit) {
            return Err(Error::Damaged { what: "saved router" });
        }
        let (dim, now) = (router.dim(), saved.observations);
        let models = saved.arms.into_iter().map(|arm| LinearArm::load(arm, dim, now));
        router.models = models.collect::<Result<_>>()?;
        (router.observations, router.credit, router.random) = (now, credit, saved.random);
        router.unrewarded = saved.unrewarded;
        Ok(router)
    }
}

fn digest(settings: &RouterSettings, arms: &[Arm]) -> String {
    // `Debug` of a number is its shortest exact form, and no value here fails to be formatted.
    let hash = Sha256::digest(format!("{settings:?} {arms:?}"));
    hash.iter().map(|byte| format!("{byte:02x}")).collect()
}
