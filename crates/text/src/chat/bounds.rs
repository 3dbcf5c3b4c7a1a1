//! Limits on the resources of a rendering. The engine counts instructions, but one instruction can
//! double a text or compare two lists of any size: a template of a few lines could fill the memory
//! or take hours.
//!
//! So work and results are counted where they arise: filters, tests, functions and methods count
//! their arguments and results (`python`); operators go through filters that `rewrite` inserts by
//! the template's syntax tree.
//!
//! Values cannot contain themselves: mutable ones (a namespace, a loop) cannot be stored in other
//! values ([`stored`]). So every value is a tree, possibly with shared parts; walks over it end at
//! a depth limit or when the work is spent.

use std::cell::{Cell, RefCell};
use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};
use std::time::{Duration, Instant};

use minijinja::{Error, ErrorKind, Value, value::ValueKind};

/// Limit on the bytes of all values that one rendering creates. Templates copy a message a few
/// times.
const MOST_BYTES: usize = 128 << 20;

/// Limit on the lists and mappings that one rendering creates. They can be nested this deeply, and
/// freeing them takes stack in proportion.
const MOST_CONTAINERS: usize = 1 << 18;

/// Limit on the bytes of values that one rendering reads: 32 passes over the longest prompt, about
/// a second.
const MOST_WORK: usize = 512 << 20;

/// Maximum depth of values that are compared, sorted or searched.
const MOST_DEPTH: usize = 500;

/// Time limit of a rendering. Other limits are reached first, except on very slow machines.
const MOST_TIME: Duration = Duration::from_secs(10);

/// Work between two checks of the deadline and the stop flag.
const CHECK_INTERVAL: usize = 1 << 20;

/// Maximum length of a prompt, and of a value's printed text, in bytes.
pub(super) const LONGEST_TEXT: usize = 16 << 20;

/// Message for a prompt or a value of more than [`LONGEST_TEXT`].
pub(super) const TOO_LONG: &str = "the text is longer than 16 MiB";

/// Maximum length of a template in bytes. The largest published ones have some 30 KB.
pub(super) const LONGEST_SOURCE: usize = 256 << 10;

/// Name of a model's template in its environment, shown in error messages.
pub(super) const NAME: &str = "chat_template";

/// Bytes charged for an element of a new list.
pub(super) const ELEMENT_BYTES: usize = size_of::<Value>();

/// Work charged for reading a value, in addition to its text.
pub(super) const VALUE_WORK: usize = 64;

thread_local! {
    /// Meter of this thread's rendering. Each rendering runs on its own thread.
    static METER: Meter = const { Meter::new() };
}

/// Resources spent by a rendering, with its deadline and stop flag.
struct Meter {
    bytes: Cell<usize>,
    containers: Cell<usize>,
    work: Cell<usize>,
    /// Work at which deadline and stop flag are checked next.
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

/// The rendering was stopped by its caller.
#[derive(Debug, thiserror::Error)]
#[error("stopped")]
pub(super) struct Stopped;

/// Starts a rendering on this thread: resets the meter and the deadline; `stop`, once set, ends it.
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

/// Charges work, in bytes read.
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

/// Work charged so far.
pub(super) fn worked() -> usize {
    METER.with(|meter| meter.work.get())
}

/// Charges bytes that a value takes, as memory and as work.
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

/// Charges the elements of a new list.
pub(super) fn charge_elements(count: usize) -> Result<(), Error> {
    charge(count.saturating_mul(ELEMENT_BYTES))
}

/// Charges a new value.
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

/// Rejects a depth beyond the limit.
pub(super) fn descend(depth: usize) -> Result<(), Error> {
    if depth > MOST_DEPTH {
        return Err(refused(format!("a value is nested more than {MOST_DEPTH} levels deep")));
    }
    Ok(())
}

/// Rejects storing a mutable value in another one: it could come to contain itself.
pub(super) fn stored(value: &Value) -> Result<(), Error> {
    let name = value.as_object().map_or("", |object| object.type_name());
    if name.ends_with("::Namespace") || name.ends_with("::Loop") || name.ends_with("::Module") {
        return Err(refused("a namespace cannot be put into another value".to_owned()));
    }
    Ok(())
}
