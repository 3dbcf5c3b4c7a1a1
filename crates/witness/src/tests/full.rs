//! Queues that are full.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::{check_valid, entry, options};
use crate::folder::{self, LogFile, OpenFile};
use crate::{Event, Filter, LogReader, Options, Refusal, Timestamp, WhenFull, Writer};

/// A gate in front of the disk.
#[derive(Default)]
struct Gate {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    is_closed: bool,
    /// True if the thread that writes stands before the gate.
    is_reached: bool,
}

/// Keeps a gate closed. A test that fails opens it by unwinding: the writer waits for its thread.
struct Closed<'a>(&'a Gate);

impl Gate {
    fn close(&self) -> Closed<'_> {
        self.state.lock().is_closed = true;
        Closed(self)
    }

    fn pass(&self) {
        let mut state = self.state.lock();
        state.is_reached = state.is_closed;
        self.changed.notify_all();
        self.changed.wait_while(&mut state, |state| state.is_closed);
    }
}

impl Closed<'_> {
    fn wait_until_reached(&self) {
        let Gate { state, changed } = self.0;
        changed.wait_while(&mut state.lock(), |state| !state.is_reached);
    }
}

impl Drop for Closed<'_> {
    fn drop(&mut self) {
        *self.0.state.lock() = State::default();
        self.0.changed.notify_all();
    }
}

struct Behind(Arc<Gate>, File);

impl LogFile for Behind {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.pass();
        LogFile::append(&mut self.1, bytes)
    }

    fn cut(&mut self, length: u64) -> io::Result<()> {
        LogFile::cut(&mut self.1, length)
    }

    fn sync(&mut self) -> io::Result<()> {
        LogFile::sync(&mut self.1)
    }
}

fn writer(folder: &Path, gate: &Arc<Gate>, options: Options) -> Writer {
    let of_files = Arc::clone(gate);
    let open: OpenFile = Box::new(move |path| {
        folder::open_file(path)?;
        let file = File::options().append(true).open(path)?;
        Ok(Box::new(Behind(Arc::clone(&of_files), file)) as Box<dyn LogFile>)
    });
    Writer::open_with(folder, options, open, Box::new(Timestamp::now)).unwrap()
}

#[test]
fn full_queues_make_callers_wait_or_try_again() {
    let (folder, gate) = (tempfile::tempdir().unwrap(), Arc::new(Gate::default()));
    let (has_room, room) = mpsc::channel();
    let on_room: Box<dyn Fn() + Send> = Box::new(move || has_room.send(()).unwrap());
    let settings = Options {
        queue_entries: 3,
        batch_entries: 2,
        batch_time: Duration::from_secs(3600),
        on_room: Some(on_room),
        ..options()
    };
    let writer = Arc::new(writer(folder.path(), &gate, settings));
    let closed = gate.close();
    // A batch in the hands of the thread, then the queue.
    (0..2).for_each(|n| writer.try_record(&entry(n)).unwrap());
    closed.wait_until_reached();
    (2..5).for_each(|n| writer.try_record(&entry(n)).unwrap());
    assert_eq!(writer.try_record(&entry(5)), Err(Refusal::Full));
    assert!(!writer.has_room());
    let waiting: Vec<_> = (5..8)
        .map(|n| {
            let writer = Arc::clone(&writer);
            thread::spawn(move || writer.record(&entry(n)))
        })
        .collect();
    drop(closed);
    room.recv_timeout(Duration::from_secs(20)).unwrap();
    waiting.into_iter().for_each(|caller| caller.join().unwrap().unwrap());
    writer.close().unwrap();
    let report = check_valid(folder.path());
    assert_eq!((report.requests, report.dropped), (8, 0));
    assert_eq!(writer.record(&entry(0)), Err(Refusal::Closed));
    assert_eq!(writer.try_record(&entry(0)), Err(Refusal::Closed));
}

#[test]
fn closing_releases_callers_that_wait() {
    let (folder, gate) = (tempfile::tempdir().unwrap(), Arc::new(Gate::default()));
    let writer = Arc::new(writer(folder.path(), &gate, Options { queue_entries: 1, ..options() }));
    let closed = gate.close();
    let callers: Vec<_> = (0..4)
        .map(|n| {
            let writer = Arc::clone(&writer);
            thread::spawn(move || writer.record(&entry(n)))
        })
        .collect();
    let of_closer = Arc::clone(&writer);
    let closer = thread::spawn(move || of_closer.close());
    drop(closed);
    let results: Vec<_> = callers.into_iter().map(|caller| caller.join().unwrap()).collect();
    closer.join().unwrap().unwrap();
    let recorded = results.iter().filter(|result| result.is_ok()).count() as u64;
    assert!(results.iter().all(|result| matches!(result, Ok(()) | Err(Refusal::Closed))), "{results:?}");
    assert_eq!(check_valid(folder.path()).requests, recorded);
}

#[test]
fn dropped_entries_are_counted_in_their_place() {
    let (folder, gate) = (tempfile::tempdir().unwrap(), Arc::new(Gate::default()));
    let settings = Options { queue_entries: 3, when_full: WhenFull::Drop, ..options() };
    let writer = writer(folder.path(), &gate, settings);
    let closed = gate.close();
    let mut accepted = Vec::new();
    for n in 0..40 {
        match if n % 2 == 0 { writer.record(&entry(n)) } else { writer.try_record(&entry(n)) } {
            Ok(()) => accepted.push(format!("request-{n}")),
            refused => assert_eq!(refused, Err(Refusal::Dropped)),
        }
    }
    let dropped = writer.status().dropped;
    assert_eq!(accepted.len() as u64 + dropped, 40);
    drop(closed);
    writer.flush().unwrap();
    writer.record(&entry(40)).unwrap();
    writer.close().unwrap();
    assert_eq!(check_valid(folder.path()).dropped, dropped);
    let lines = LogReader::open(folder.path(), Filter::default()).unwrap();
    let mut before = Vec::new();
    let mut runs = 0;
    for line in lines {
        match line.unwrap().event {
            Event::Request(entry) => before.push(entry.request_id),
            Event::Dropped(run) => {
                runs += run.count;
                assert!(run.first <= run.last);
                assert!(!before.contains(&"request-40".to_owned()), "behind an entry that came later");
            }
            _ => {}
        }
    }
    accepted.push("request-40".to_owned());
    assert_eq!((runs, before), (dropped, accepted));
}
