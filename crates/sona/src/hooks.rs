//! Hooks: callbacks before and after tasks and edits, and around sessions.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use crate::error::{Error, Result};

/// Event at which hooks run. Edits and tasks are announced before they happen, when hooks can veto
/// them, and reported afterwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event<'a> {
    /// A task is about to begin.
    PreTask {
        /// The task.
        task: &'a str,
    },
    /// A task has ended.
    PostTask {
        /// The task.
        task: &'a str,
        /// Its result; an error message if it failed.
        result: Result<&'a str, &'a str>,
    },
    /// A file is about to change.
    PreEdit {
        /// The file.
        path: &'a str,
        /// Its content before and after the edit.
        before: &'a str,
        /// Content after the edit.
        after: &'a str,
    },
    /// A file has changed.
    PostEdit {
        /// The file.
        path: &'a str,
        /// Content before the edit.
        before: &'a str,
        /// Content after the edit.
        after: &'a str,
    },
    /// A session begins.
    SessionStart,
    /// A session ends.
    SessionEnd,
    /// A stored session goes on.
    SessionRestore,
}

/// Kind of an [`Event`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Point {
    /// Before a task.
    PreTask,
    /// After a task.
    PostTask,
    /// Before an edit.
    PreEdit,
    /// After an edit.
    PostEdit,
    /// At the start of a session.
    SessionStart,
    /// At its end.
    SessionEnd,
    /// When a stored session goes on.
    SessionRestore,
}

impl Point {
    /// True before tasks and edits, where hooks can veto.
    pub fn can_veto(self) -> bool {
        matches!(self, Self::PreTask | Self::PreEdit)
    }
}

impl Event<'_> {
    /// Kind of the event.
    pub fn point(&self) -> Point {
        match self {
            Self::PreTask { .. } => Point::PreTask,
            Self::PostTask { .. } => Point::PostTask,
            Self::PreEdit { .. } => Point::PreEdit,
            Self::PostEdit { .. } => Point::PostEdit,
            Self::SessionStart => Point::SessionStart,
            Self::SessionEnd => Point::SessionEnd,
            Self::SessionRestore => Point::SessionRestore,
        }
    }
}

/// Session in which an event happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Context<'a> {
    /// Tenant of the session.
    pub tenant: &'a str,
    /// The session.
    pub session: &'a str,
}

/// Outcome of one hook.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// It returned.
    Done,
    /// It returned an error: a veto where that is possible, a failure elsewhere.
    Failed(String),
    /// It panicked, with this message.
    Panicked(String),
}

/// Run of one hook.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HookRun {
    /// Name of the hook.
    pub name: String,
    /// Its outcome.
    pub outcome: Outcome,
    /// Wall-clock time that it took.
    pub elapsed: Duration,
}

/// Result of the hooks of an event.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HookReport {
    /// Hooks that ran, in order.
    pub runs: Vec<HookRun>,
    /// Hook that vetoed, and its reason.
    pub veto: Option<(String, String)>,
}

type Callback = dyn Fn(&Context<'_>, &Event<'_>) -> Result<(), String> + Send + Sync;

/// Registry of hooks, which run on the caller's thread in the order in which they were added.
#[derive(Default)]
pub struct Hooks {
    hooks: Vec<(Point, String, Box<Callback>)>,
}

impl Hooks {
    /// Makes an empty registry.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a hook. Its error vetoes the task or edit before which it runs.
    ///
    /// # Errors
    /// [`Error::Setting`] for a name that is empty or taken at this point.
    pub fn add(
        &mut self,
        point: Point,
        name: &str,
        callback: impl Fn(&Context<'_>, &Event<'_>) -> Result<(), String> + Send + Sync + 'static,
    ) -> Result<()> {
        if name.is_empty() || self.hooks.iter().any(|(p, n, _)| *p == point && n == name) {
            let value = format!("{name:?}");
            return Err(Error::Setting { name: "hook", value, range: "a name that no other hook has here" });
        }
        self.hooks.push((point, name.to_owned(), Box::new(callback)));
        Ok(())
    }

    /// Removes a hook. False if there is none of this name.
    pub fn remove(&mut self, point: Point, name: &str) -> bool {
        let before = self.hooks.len();
        self.hooks.retain(|(p, n, _)| !(*p == point && n == name));
        self.hooks.len() < before
    }

    /// Runs the hooks of an event. A veto ends the run, and a hook that panics before a task or
    /// edit vetoes it: what it was to check is unchecked. Elsewhere failures and panics are
    /// reported and the next hook runs. (With `panic = "abort"` a panic ends the process.)
    pub fn run(&self, context: &Context<'_>, event: &Event<'_>) -> HookReport {
        let point = event.point();
        let mut report = HookReport::default();
        for (_, name, callback) in self.hooks.iter().filter(|(p, ..)| *p == point) {
            let start = Instant::now();
            // The callback is behind a shared reference; one that panics while it changes state of
            // its own has locks, which are poisoned, or cells.
            let result = catch_unwind(AssertUnwindSafe(|| callback(context, event)));
            let outcome = match result {
                Ok(Ok(())) => Outcome::Done,
                Ok(Err(reason)) => Outcome::Failed(reason),
                Err(panic) => Outcome::Panicked(panic_message(panic.as_ref())),
            };
            let reason = match &outcome {
                Outcome::Done => None,
                Outcome::Failed(reason) => Some(reason.clone()),
                Outcome::Panicked(message) => Some(format!("the hook panicked: {message}")),
            };
            report.runs.push(HookRun { name: name.clone(), outcome, elapsed: start.elapsed() });
            if let Some(reason) = reason.filter(|_| point.can_veto()) {
                report.veto = Some((name.clone(), reason));
                break;
            }
        }
        report
    }
}

fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("no message").to_owned()
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    const CONTEXT: Context<'_> = Context { tenant: "t", session: "s" };

    #[test]
    fn hooks_run_in_order_at_their_point() {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let mut hooks = Hooks::new();
        for (point, name) in
            [(Point::PreTask, "b"), (Point::PreTask, "a"), (Point::PostTask, "a"), (Point::SessionEnd, "a")]
        {
            let seen = Arc::clone(&seen);
            let note = move |context: &Context<'_>, event: &Event<'_>| {
                assert_eq!((context.session, event.point()), ("s", point));
                seen.lock().unwrap().push((point, name));
                Ok(())
            };
            hooks.add(point, name, note).unwrap();
        }
        assert!(hooks.add(Point::PreTask, "a", |_, _| Ok(())).is_err());
        assert!(hooks.add(Point::PreTask, "", |_, _| Ok(())).is_err());
        let report = hooks.run(&CONTEXT, &Event::PreTask { task: "x" });
        assert_eq!(report.veto, None);
        assert_eq!(report.runs.iter().map(|run| run.name.as_str()).collect::<Vec<_>>(), ["b", "a"]);
        hooks.run(&CONTEXT, &Event::SessionEnd);
        assert!(hooks.run(&CONTEXT, &Event::SessionStart).runs.is_empty());
        assert_eq!(
            *seen.lock().unwrap(),
            [(Point::PreTask, "b"), (Point::PreTask, "a"), (Point::SessionEnd, "a")]
        );
        assert!(hooks.remove(Point::PreTask, "b") && !hooks.remove(Point::PreTask, "b"));
        assert_eq!(hooks.run(&CONTEXT, &Event::PreTask { task: "x" }).runs.len(), 1);
    }

    #[test]
    fn pre_hooks_veto_by_error_and_by_panic() {
        let edit = |path| Event::PreEdit { path, before: "", after: "x" };
        let mut hooks = Hooks::new();
        let guard = |_: &Context<'_>, event: &Event<'_>| match event {
            Event::PreEdit { path, .. } if path.ends_with(".lock") => Err("locked".to_owned()),
            Event::PreEdit { path: "odd", .. } => panic!("odd {}", 1),
            _ => Ok(()),
        };
        hooks.add(Point::PreEdit, "guard", guard).unwrap();
        hooks.add(Point::PreEdit, "next", |_, _| Ok(())).unwrap();
        assert_eq!(hooks.run(&CONTEXT, &edit("a.rs")).runs.len(), 2);
        let report = hooks.run(&CONTEXT, &edit("Cargo.lock"));
        assert_eq!((report.veto, report.runs.len()), (Some(("guard".into(), "locked".into())), 1));
        let report = hooks.run(&CONTEXT, &edit("odd"));
        assert_eq!(report.veto, Some(("guard".into(), "the hook panicked: odd 1".into())));
        assert_eq!(report.runs[0].outcome, Outcome::Panicked("odd 1".into()));
    }

    #[test]
    fn post_hooks_cannot_veto_and_do_not_stop_each_other() {
        let mut hooks = Hooks::new();
        hooks.add(Point::PostEdit, "panics", |_, _| std::panic::panic_any(7)).unwrap();
        hooks.add(Point::PostEdit, "fails", |_, _| Err("no".into())).unwrap();
        let sleep = |_: &Context<'_>, _: &Event<'_>| {
            std::thread::sleep(Duration::from_millis(2));
            Ok(())
        };
        hooks.add(Point::PostEdit, "sleeps", sleep).unwrap();
        let report = hooks.run(&CONTEXT, &Event::PostEdit { path: "a", before: "", after: "" });
        let outcomes: Vec<_> = report.runs.iter().map(|run| run.outcome.clone()).collect();
        assert_eq!(
            outcomes,
            [Outcome::Panicked("no message".into()), Outcome::Failed("no".into()), Outcome::Done]
        );
        assert_eq!(report.veto, None);
        assert!(report.runs[2].elapsed >= Duration::from_millis(2));
    }
}
