//! Number of connections, in total and by address.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use parking_lot::Mutex;

use super::ConnectionLimits;

/// Open connections.
#[derive(Debug, Default)]
pub(super) struct Connections(Mutex<Counts>);

#[derive(Debug, Default)]
struct Counts {
    total: usize,
    by_address: HashMap<IpAddr, usize>,
}

/// An open connection; dropping it frees its place.
#[derive(Debug)]
pub(super) struct Seat {
    connections: Arc<Connections>,
    address: Option<IpAddr>,
}

impl Connections {
    /// A place for a connection from an address; Unix sockets have none.
    ///
    /// # Errors
    /// The limit that is reached, for the log.
    pub(super) fn enter(
        self: &Arc<Self>,
        address: Option<IpAddr>,
        limits: &ConnectionLimits,
    ) -> Result<Seat, &'static str> {
        let address = address.map(counted);
        let counts = &mut *self.0.lock();
        if counts.total >= limits.connections {
            return Err("limits.connections");
        }
        if let Some(address) = address {
            let count = counts.by_address.entry(address).or_insert(0);
            if *count >= limits.connections_per_address {
                return Err("limits.connections_per_address");
            }
            *count += 1;
        }
        counts.total += 1;
        Ok(Seat { connections: Arc::clone(self), address })
    }

    /// Open connections.
    pub(super) fn total(&self) -> usize {
        self.0.lock().total
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let counts = &mut *self.connections.0.lock();
        counts.total -= 1;
        let Some(address) = self.address else { return };
        if let Some(count) = counts.by_address.get_mut(&address) {
            *count -= 1;
            if *count == 0 {
                counts.by_address.remove(&address);
            }
        }
    }
}

/// Address that counts: of IPv6 the /64 network, which one host has for itself.
fn counted(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let network = u128::from(address) >> 64 << 64;
            IpAddr::V6(Ipv6Addr::from(network))
        }
        address @ IpAddr::V4(_) => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    #[test]
    fn places_are_counted_by_address_and_freed() {
        let config = Config::from_toml("[limits]\nconnections = 3\nconnections_per_address = 2").unwrap();
        let limits = ConnectionLimits::new(&config.limits);
        let connections = Arc::new(Connections::default());
        let enter = |text: &str| connections.enter(Some(text.parse().unwrap()), &limits);
        let first = enter("10.0.0.1").unwrap();
        // The same address in IPv6.
        let _second = enter("::ffff:10.0.0.1").unwrap();
        assert_eq!(enter("10.0.0.1").unwrap_err(), "limits.connections_per_address");
        let third = enter("10.0.0.2").unwrap();
        assert_eq!(enter("10.0.0.3").unwrap_err(), "limits.connections");
        assert_eq!(connections.enter(None, &limits).unwrap_err(), "limits.connections");
        drop((first, third));
        let _fourth = enter("10.0.0.1").unwrap();
        assert_eq!((connections.total(), connections.0.lock().by_address.len()), (2, 1));
    }

    #[test]
    fn hosts_of_one_ipv6_network_are_one() {
        let limits = ConnectionLimits {
            connections_per_address: 1,
            ..ConnectionLimits::new(&Config::default().limits)
        };
        let connections = Arc::new(Connections::default());
        let enter = |text: &str| connections.enter(Some(text.parse().unwrap()), &limits);
        let _one = enter("2001:db8::1").unwrap();
        assert!(enter("2001:db8::2").is_err());
        assert!(enter("2001:db8:0:1::2").is_ok());
    }
}
