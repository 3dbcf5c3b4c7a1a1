//! Bounds on what a rendering may spend. The engine counts instructions, but one instruction can
//! double a text or compare two lists of any size, so a template of a few lines could fill the
//! memory or take hours.
//!
//! So work and results are counted where they arise: filters, tests, functions and methods count
//! what they are given and what they give (`python`); operators go through filters that the
//! template's syntax tree says where to put (`rewrite`).
//!
//! Values cannot hold themselves: what changes (a namespace, a loop) cannot be put into another
//! value ([`stored`]). So every value is a tree, though one that can share its parts; walks over it
//! end at a depth, or when what they may spend is spent.

use std::cell::{Cell, RefCell};
use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};
use std::time::{Duration, Instant};

use minijinja::{Error, ErrorKind, Value, value::ValueKind};

/// Bytes of values that one rendering may make, in all. Templates copy a message a few times.
const MOST_BYTES: usize = 128 << 20;

/// Lists and mappings that one rendering may make, in all. They can be nested as deeply, and
/// freeing them takes that much stack.
const MOST_CONTAINERS: usize = 1 << 18;

/// Bytes of values that one rendering may touch, in all: 32 passes over the longest prompt, about a
/// second.
const MOST_WORK: usize = 512 << 20;

/// Depth of a value that is compared, sorted or searched in.
const MOST_DEPTH: usize = 500;

/// Time limit of a rendering. Other bounds are met first, unless the machine is very slow.
const MOST_TIME: Duration = Duration::from_secs(10);

/// Work between two looks at the clock and at the request to stop.
const CHECK_INTERVAL: usize = 1 << 20;

/// Longest prompt, and longest text that a value is printed as, in bytes.
pub(super) const LONGEST_TEXT: usize = 16 << 20;

/// Message for a prompt or a value of more than [`LONGEST_TEXT`].
pub(super) const TOO_LONG: &str = "the text is longer than 16 MiB";

/// Longest template. The largest published ones have some 30 KB.
pub(super) const LONGEST_SOURCE: usize = 256 << 10;

/// Name of a model's template in its environment, shown in error messages.
pub(super) const NAME: &str = "chat_template";

/// Bytes charged for an element of a new list.
pub(super) const ELEMENT_BYTES: usize = size_of::<Value>();

/// Work charged for reading a value, beside its text.
pub(super) const VALUE_WORK: usize = 64;

thread_local! {
    /// Meter of this thread's rendering. Each rendering has a thread of its own.
    static METER: Meter = const { Meter::new() };
}

/// Resources spent by a rendering, with its deadline and stop flag.
struct Meter {
    bytes: Cell<usize>,
    containers: Cell<usize>,
    work: Cell<usize>,
    /// Work at which the clock is looked at next.
    next_check: Cell<usize>,
    deadline: Cell<Option<Instant>>,
    stop: RefCell<Option<Arc<AtomicBool>>>,
}

impl Meter {
    const fn new() -> Self {
        Self {
            bytes: Cell::new(0),
            containers: Cell::new(0),
            work: Cell::new(0),
            next_check: Cell::new(0),
            deadline: Cell::new(None),
            stop: RefCell::new(None),
        }
    }

    fn check(&self) -> Result<(), Error> {
        if self.stop.borrow().as_ref().is_some_and(|stop| stop.load(Ordering::Relaxed)) {
            return Err(Error::new(ErrorKind::InvalidOperation, "stopped").with_source(Stopped));
        }
        if self.deadline.get().is_some_and(|deadline| Instant::now() > deadline) {
            return Err(refused(format!("the template takes longer than {} s", MOST_TIME.as_secs())));
        }
        Ok(())
    }
}

/// The rendering was asked to stop.
#[derive(Debug, thiserror::Error)]
#[error("stopped")]
pub(super) struct Stopped;

/// Begins a rendering on this thread: the time counts from now, and `stop` ends it when it is set.
pub(super) fn begin(stop: Option<Arc<AtomicBool>>) {
    METER.with(|meter| {
        meter.bytes.set(0);
        meter.containers.set(0);
        meter.work.set(0);
        meter.next_check.set(0);
        meter.deadline.set(Some(Instant::now() + MOST_TIME));
        meter.stop.replace(stop);
    });
}

fn refused(message: String) -> Error {
    Error::new(ErrorKind::InvalidOperation, message)
}

/// Counts work: bytes that are about to be looked at, or were.
pub(super) fn work(bytes: usize) -> Result<(), Error> {
    METER.with(|meter| {
        let work = meter.work.get().saturating_add(bytes).saturating_add(VALUE_WORK);
        meter.work.set(work);
        if work > MOST_WORK {
            let most = MOST_WORK >> 20;
            return Err(refused(format!("the template works on more than {most} MiB of values in all")));
        }
        if work >= meter.next_check.get() {
            meter.next_check.set(work + CHECK_INTERVAL);
            meter.check()?;
        }
        Ok(())
    })
}

/// Work so far.
pub(super) fn worked() -> usize {
    METER.with(|meter| meter.work.get())
}

/// Counts bytes that are about to be made, or were made.
pub(super) fn charge(bytes: usize) -> Result<(), Error> {
    METER.with(|meter| {
        let made = meter.bytes.get().saturating_add(bytes);
        meter.bytes.set(made);
        if made > MOST_BYTES {
            let most = MOST_BYTES >> 20;
            return Err(refused(format!("the template makes values of more than {most} MiB in all")));
        }
        Ok(())
    })?;
    work(bytes)
}

/// Counts elements of lists that are about to be made.
pub(super) fn charge_elements(count: usize) -> Result<(), Error> {
    charge(count.saturating_mul(ELEMENT_BYTES))
}

/// Counts a value that was made.
pub(super) fn charge_value(value: &Value) -> Result<(), Error> {
    if let Some(text) = value.as_str() {
        return charge(text.len());
    }
    if matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable | ValueKind::Map) {
        METER.with(|meter| {
            let made = meter.containers.get() + 1;
            meter.containers.set(made);
            if made > MOST_CONTAINERS {
                return Err(refused(format!("the template makes more than {MOST_CONTAINERS} lists")));
            }
            Ok(())
        })?;
        charge_elements(value.len().unwrap_or(0))?;
    }
    Ok(())
}

/// Counts one step down a value, and refuses one that is too deep.
pub(super) fn descend(depth: usize) -> Result<(), Error> {
    if depth > MOST_DEPTH {
        return Err(refused(format!("a value is nested more than {MOST_DEPTH} levels deep")));
    }
    Ok(())
}

/// Refuses to put a value into another one if it can change: it could come to hold itself.
pub(super) fn stored(value: &Value) -> Result<(), Error> {
    let name = value.as_object().map_or("", |object| object.type_name());
    if name.ends_with("::Namespace") || name.ends_with("::Loop") || name.ends_with("::Module") {
        return Err(refused("a namespace cannot be put into another value".to_owned()));
    }
    Ok(())
}
