//! The clock of budgets: a thread that counts epochs.

use std::thread::{self, JoinHandle};
use std::time::Duration;
use std::{io, mem};

use wasmtime::Engine;

/// Length of an epoch: budgets of manifests count these.
pub(super) const TICK: Duration = Duration::from_millis(10);

/// Starts the thread of an engine. It ends when engine, modules and instances are dropped.
///
/// # Errors
/// The error of the system.
pub(super) fn start(engine: &Engine) -> io::Result<JoinHandle<()>> {
    let engine = engine.weak();
    thread::Builder::new().name("kernel-epochs".to_owned()).spawn(move || {
        loop {
            thread::sleep(TICK);
            match engine.upgrade() {
                Some(engine) => {
                    engine.increment_epoch();
                    mem::drop(engine);
                }
                None => break,
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_thread_ends_with_the_last_engine() {
        let engine = Engine::default();
        let thread = start(&engine).unwrap();
        let other = engine.clone();
        mem::drop(engine);
        thread::sleep(3 * TICK);
        assert!(!thread.is_finished(), "another handle is there");
        mem::drop(other);
        thread.join().unwrap();
    }
}
