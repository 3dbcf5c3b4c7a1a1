//! Phases of a connection and the time that each may last.

use std::time::Instant;

use super::ConnectionLimits;
use super::head::Position;

/// Phase of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// No request since then.
    Idle(Instant),
    /// A head began then.
    Head(Instant),
    /// A request is read or answered.
    Busy,
}

impl Phase {
    /// After bytes were read.
    pub(super) fn read(self, position: Position, now: Instant) -> Self {
        match (self, position) {
            // Further bytes do not give a slow head more time.
            (Self::Head(since), Position::Head) => Self::Head(since),
            (Self::Idle(_), Position::Head) => Self::Head(now),
            // Behind a head without a body comes the next one.
            (Self::Head(_), Position::Request | Position::Between) | (Self::Idle(_), Position::Request) => {
                Self::Busy
            }
            (phase, _) => phase,
        }
    }

    /// After bytes were written: the end of a response may still be on its way.
    pub(super) fn written(self, now: Instant) -> Self {
        match self {
            Self::Idle(_) => Self::Idle(now),
            phase => phase,
        }
    }

    /// Time at which the connection is closed.
    pub(super) fn deadline(self, limits: &ConnectionLimits) -> Option<Instant> {
        match self {
            Self::Idle(since) => since.checked_add(limits.idle_timeout),
            Self::Head(since) => since.checked_add(limits.header_timeout),
            Self::Busy => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::config::Config;

    #[test]
    fn slow_heads_get_no_more_time_and_idle_connections_end() {
        let limits = ConnectionLimits::new(&Config::default().limits);
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        let idle = Phase::Idle(start);
        assert_eq!(idle.deadline(&limits), Some(after(75)));
        assert_eq!(idle.written(after(5)).deadline(&limits), Some(after(80)));
        let head = idle.read(Position::Head, after(70));
        assert_eq!(head.deadline(&limits), Some(after(80)));
        assert_eq!(head.read(Position::Head, after(79)).deadline(&limits), Some(after(80)));
        assert_eq!(head.written(after(79)), head);
        let busy = head.read(Position::Request, after(79));
        assert_eq!((busy, busy.deadline(&limits)), (Phase::Busy, None));
        assert_eq!(head.read(Position::Between, after(79)), Phase::Busy);
        assert_eq!(idle.read(Position::Between, after(1)), idle);
    }
}
