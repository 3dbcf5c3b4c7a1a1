//! Disks that are full or fail.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;

use super::{check, check_valid, entry, options, wait_until};
use crate::folder::{self, LogFile, OpenFile};
use crate::{Error, Options, Timestamp, WhenFull, Writer};

/// A disk with a number of free bytes.
#[derive(Default)]
struct Disk {
    free: AtomicU64,
    is_uncuttable: AtomicBool,
    is_unsyncable: AtomicBool,
}

struct OnDisk {
    disk: Arc<Disk>,
    file: File,
}

impl LogFile for OnDisk {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        let free = self.disk.free.load(Ordering::SeqCst);
        let n = bytes.len().min(free as usize);
        self.disk.free.fetch_sub(n as u64, Ordering::SeqCst);
        LogFile::append(&mut self.file, &bytes[..n])?;
        if n < bytes.len() { Err(ErrorKind::StorageFull.into()) } else { Ok(()) }
    }

    fn cut(&mut self, length: u64) -> io::Result<()> {
        if self.disk.is_uncuttable.load(Ordering::SeqCst) {
            return Err(io::Error::other("cannot be cut"));
        }
        LogFile::cut(&mut self.file, length)
    }

    fn sync(&mut self) -> io::Result<()> {
        if self.disk.is_unsyncable.load(Ordering::SeqCst) {
            return Err(io::Error::other("cannot be synced"));
        }
        LogFile::sync(&mut self.file)
    }
}

fn open(disk: &Arc<Disk>) -> OpenFile {
    let disk = Arc::clone(disk);
    Box::new(move |path: &Path| {
        folder::open_file(path)?;
        let file = File::options().append(true).open(path)?;
        Ok(Box::new(OnDisk { disk: Arc::clone(&disk), file }) as Box<dyn LogFile>)
    })
}

fn writer(folder: &Path, disk: &Arc<Disk>, options: Options) -> Writer {
    disk.free.store(1 << 20, Ordering::SeqCst);
    Writer::open_with(folder, options, open(disk), Box::new(Timestamp::now)).unwrap()
}

#[test]
fn a_full_disk_loses_nothing_and_leaves_no_half_lines() {
    for is_uncuttable in [false, true] {
        let (folder, disk) = (tempfile::tempdir().unwrap(), Arc::new(Disk::default()));
        let writer = writer(folder.path(), &disk, options());
        disk.is_uncuttable.store(is_uncuttable, Ordering::SeqCst);
        // Enough for a part of a line.
        disk.free.store(100, Ordering::SeqCst);
        (0..3).for_each(|n| writer.record(&entry(n)).unwrap());
        let error = writer.flush().unwrap_err();
        assert!(
            matches!(&error, Error::Unwritten { source, .. } if source.kind() == ErrorKind::StorageFull),
            "{error:?}"
        );
        let status = writer.status();
        assert!(status.write_errors > 0 && status.last_error.is_some() && status.written == 0, "{status:?}");
        if !is_uncuttable {
            let report = check(folder.path());
            assert_eq!((report.is_valid(), report.requests), (true, 0), "{report:?}");
        }
        disk.is_uncuttable.store(false, Ordering::SeqCst);
        disk.free.store(1 << 20, Ordering::SeqCst);
        wait_until(|| writer.flush().is_ok());
        let status = writer.status();
        assert_eq!((status.written, status.last_error), (3, None));
        writer.close().unwrap();
        assert_eq!(check_valid(folder.path()).requests, 3);
    }
}

#[test]
fn a_fault_is_told_once_and_its_end() {
    let (folder, disk) = (tempfile::tempdir().unwrap(), Arc::new(Disk::default()));
    let told: Arc<Mutex<Vec<Option<ErrorKind>>>> = Arc::default();
    let faults = Arc::clone(&told);
    let on_fault = move |error: Option<&io::Error>| faults.lock().push(error.map(io::Error::kind));
    let writer = writer(folder.path(), &disk, Options { on_fault: Some(Box::new(on_fault)), ..options() });
    for n in 0..2 {
        disk.free.store(10, Ordering::SeqCst);
        writer.record(&entry(n)).unwrap();
        // Several attempts.
        (0..3).for_each(|_| assert!(writer.flush().is_err()));
        disk.free.store(1 << 20, Ordering::SeqCst);
        wait_until(|| writer.flush().is_ok());
    }
    writer.close().unwrap();
    assert_eq!(*told.lock(), [Some(ErrorKind::StorageFull), None].repeat(2));
}

#[test]
fn a_disk_that_is_full_at_any_byte_loses_nothing() {
    for free in (0..6000).step_by(211) {
        let (folder, disk) = (tempfile::tempdir().unwrap(), Arc::new(Disk::default()));
        let writer = writer(folder.path(), &disk, options());
        disk.free.store(free, Ordering::SeqCst);
        for n in 0..12 {
            writer.record(&entry(n)).unwrap();
            if writer.flush().is_err() {
                disk.free.store(1 << 20, Ordering::SeqCst);
            }
        }
        disk.free.store(1 << 20, Ordering::SeqCst);
        wait_until(|| writer.flush().is_ok());
        writer.close().unwrap();
        assert_eq!(check_valid(folder.path()).requests, 12, "{free} bytes free");
    }
}

#[test]
fn a_batch_whose_sync_fails_is_written_again() {
    let (folder, disk) = (tempfile::tempdir().unwrap(), Arc::new(Disk::default()));
    let writer = writer(folder.path(), &disk, Options { sync: true, ..options() });
    disk.is_unsyncable.store(true, Ordering::SeqCst);
    writer.record(&entry(0)).unwrap();
    assert!(writer.flush().is_err());
    assert_eq!(check(folder.path()).requests, 0);
    disk.is_unsyncable.store(false, Ordering::SeqCst);
    wait_until(|| writer.flush().is_ok());
    writer.close().unwrap();
    assert_eq!(check_valid(folder.path()).requests, 1);
}

#[test]
fn closing_on_a_full_disk_says_what_is_lost() {
    let (folder, disk) = (tempfile::tempdir().unwrap(), Arc::new(Disk::default()));
    let writer = writer(folder.path(), &disk, options());
    disk.free.store(10, Ordering::SeqCst);
    (0..3).for_each(|n| writer.record(&entry(n)).unwrap());
    let error = writer.close().unwrap_err();
    assert!(matches!(error, Error::Unwritten { entries: 3, .. }), "{error:?}");
    let report = check(folder.path());
    assert_eq!((report.is_valid(), report.requests), (true, 0), "{report:?}");
}

#[test]
fn a_full_disk_lets_callers_go_on_if_they_may_drop() {
    let (folder, disk) = (tempfile::tempdir().unwrap(), Arc::new(Disk::default()));
    let settings = Options { when_full: WhenFull::Drop, queue_entries: 4, ..options() };
    let writer = writer(folder.path(), &disk, settings);
    disk.free.store(0, Ordering::SeqCst);
    // Ends although nothing can be written.
    let recorded = (0..50).filter(|&n| writer.record(&entry(n)).is_ok()).count() as u64;
    let dropped = writer.status().dropped;
    assert!(dropped > 0 && recorded + dropped == 50, "{recorded} recorded, {dropped} dropped");
    disk.free.store(1 << 20, Ordering::SeqCst);
    writer.close().unwrap();
    let report = check_valid(folder.path());
    assert_eq!((report.requests, report.dropped), (recorded, dropped));
}
