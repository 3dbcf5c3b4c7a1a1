//! Tests of the loop with real threads. None asserts a time, only ratios of CPU to elapsed time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use super::*;

/// Task from a function.
struct Of<F>(&'static str, F);

impl<F: FnMut(u64, &mut Pace<'_>) -> Result<Run, Box<dyn std::error::Error + Send + Sync>> + Send> Task
    for Of<F>
{
    fn name(&self) -> &str {
        self.0
    }

    fn run(
        &mut self,
        new_trajectories: u64,
        pace: &mut Pace<'_>,
    ) -> Result<Run, Box<dyn std::error::Error + Send + Sync>> {
        (self.1)(new_trajectories, pace)
    }
}

fn settings() -> BackgroundSettings {
    BackgroundSettings { interval: Duration::from_millis(1), cpu_share: 1.0, ..Default::default() }
}

/// An interval that no test outlasts.
fn never() -> BackgroundSettings {
    BackgroundSettings { interval: Duration::from_secs(3_600), trajectories: 3, cpu_share: 1.0 }
}

/// Work of about a millisecond that the compiler keeps.
fn work() {
    let mut x = 1_u64;
    for i in 0..200_000_u64 {
        x = std::hint::black_box(x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(i));
    }
}

#[test]
fn tasks_run_in_order_again_and_again() {
    let (sender, receiver) = mpsc::channel();
    let second = sender.clone();
    let tasks: Vec<Box<dyn Task>> = vec![
        Box::new(Of("first", move |_, _: &mut Pace<'_>| {
            sender.send(1)?;
            Ok(Run::Done("one".to_owned()))
        })),
        Box::new(Of("second", move |_, _: &mut Pace<'_>| {
            second.send(2)?;
            Ok(Run::Skipped("nothing new".to_owned()))
        })),
    ];
    let background = Background::start(tasks, settings()).expect("a thread");
    let seen: Vec<i32> = receiver.iter().take(6).collect();
    assert_eq!(seen, [1, 2, 1, 2, 1, 2]);
    let status = background.stop();
    assert!(status.stopped && status.wakes >= 3);
    let [first, second] = ["first", "second"].map(|name| &status.tasks[name]);
    assert!(first.runs == first.done && first.last.as_deref() == Some("one"), "{first:?}");
    assert!(second.done == 0 && second.last.as_deref() == Some("nothing new"), "{second:?}");
}

#[test]
fn enough_trajectories_wake_the_loop_before_its_interval() {
    let (sender, receiver) = mpsc::channel();
    let task = Of("count", move |new, _: &mut Pace<'_>| {
        sender.send(new)?;
        Ok(Run::Done(String::new()))
    });
    let background = Background::start(vec![Box::new(task)], never()).expect("a thread");
    background.notify(2);
    background.notify(2);
    assert_eq!(receiver.recv(), Ok(4));
    assert_eq!(background.status().new_trajectories, 0);
    background.notify(1);
    assert_eq!(background.stop().new_trajectories, 1, "too few to wake it");
    assert!(receiver.recv().is_err());
}

#[test]
fn a_panic_ends_its_task_alone_and_is_reported() {
    let (sender, receiver) = mpsc::channel();
    let tasks: Vec<Box<dyn Task>> = vec![
        Box::new(Of("broken", |_, _: &mut Pace<'_>| panic!("index {} of 3", 7))),
        Box::new(Of("failing", |_, _: &mut Pace<'_>| Err("disk is full".into()))),
        Box::new(Of("sound", move |_, _: &mut Pace<'_>| {
            sender.send(())?;
            Ok(Run::Done(String::new()))
        })),
    ];
    let background = Background::start(tasks, settings()).expect("a thread");
    for _ in 0..3 {
        receiver.recv().expect("a run");
    }
    let status = background.stop();
    let (broken, failing) = (&status.tasks["broken"], &status.tasks["failing"]);
    assert_eq!((broken.panic.as_deref(), broken.runs), (Some("index 7 of 3"), 0));
    assert!(failing.failures >= 3 && failing.last_error.as_deref() == Some("disk is full"));
    assert!(status.tasks["sound"].runs >= 3 && status.tasks["sound"].panic.is_none());
}

#[test]
fn cpu_time_stays_within_its_share() {
    for share in [0.1, 0.3] {
        let (sender, receiver) = mpsc::channel();
        let task = Of("busy", move |_, pace: &mut Pace<'_>| {
            for _ in 0..20 {
                work();
                if !pace.rest() {
                    break;
                }
            }
            sender.send(())?;
            Ok(Run::Done(String::new()))
        });
        let settings = BackgroundSettings { cpu_share: share, ..settings() };
        let background = Background::start(vec![Box::new(task)], settings).expect("a thread");
        for _ in 0..3 {
            receiver.recv().expect("a run");
        }
        let status = background.stop();
        let found = status.cpu_time.as_secs_f64() / status.active_time.as_secs_f64();
        // A burst that idle time saved up, and the piece of work at the end.
        let slack = 0.1 * share + 0.010 / status.active_time.as_secs_f64();
        assert!(found <= share + slack, "{found} of {share}: {status:?}");
        assert!(status.tasks["busy"].cpu_time > Duration::ZERO);
    }
}

#[test]
fn a_pause_holds_a_task_at_its_next_rest() {
    let count = Arc::new(AtomicU64::new(0));
    let (in_task, seen) = (Arc::clone(&count), Arc::clone(&count));
    let task = Of("endless", move |_, pace: &mut Pace<'_>| {
        while pace.rest() {
            in_task.fetch_add(1, Ordering::SeqCst);
            std::thread::yield_now();
        }
        Ok(Run::Skipped("stopped".to_owned()))
    });
    let background = Background::start(vec![Box::new(task)], settings()).expect("a thread");
    let wait_for = |value| {
        while seen.load(Ordering::SeqCst) < value {
            std::thread::yield_now();
        }
    };
    wait_for(10);
    background.pause();
    // At most one piece that had begun.
    let paused_at = seen.load(Ordering::SeqCst);
    std::thread::sleep(Duration::from_millis(20));
    assert!(seen.load(Ordering::SeqCst) <= paused_at + 1);
    assert!(background.status().paused);
    background.resume();
    wait_for(paused_at + 10);
    background.pause();
    let status = background.stop();
    assert_eq!(status.tasks["endless"].last.as_deref(), Some("stopped"), "stops while paused");
}

#[test]
fn dropping_the_handle_drops_the_tasks() {
    struct Flag(Arc<AtomicBool>);
    impl Drop for Flag {
        fn drop(&mut self) {
            self.0.store(true, Ordering::SeqCst);
        }
    }
    let dropped = Arc::new(AtomicBool::new(false));
    let flag = Flag(Arc::clone(&dropped));
    let task = Of("holder", move |_, _: &mut Pace<'_>| {
        let _ = &flag;
        Ok(Run::Done(String::new()))
    });
    drop(Background::start(vec![Box::new(task)], never()).expect("a thread"));
    assert!(dropped.load(Ordering::SeqCst));
}

#[test]
fn bad_settings_and_equal_names_are_errors() {
    let start = |settings| Background::start(Vec::new(), settings).is_err();
    for cpu_share in [0.0, -0.1, 1.1, f64::NAN] {
        assert!(start(BackgroundSettings { cpu_share, ..Default::default() }));
    }
    assert!(start(BackgroundSettings { interval: Duration::ZERO, ..Default::default() }));
    assert!(start(BackgroundSettings { trajectories: 0, ..Default::default() }));
    let task = || Box::new(Of("same", |_, _: &mut Pace<'_>| Ok(Run::Done(String::new())))) as Box<dyn Task>;
    assert!(Background::start(vec![task(), task()], settings()).is_err());
}
