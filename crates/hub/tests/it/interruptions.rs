//! Interrupted pulls: they come to their end, or end with an error and can be continued.

use std::collections::VecDeque;
use std::fs;
use std::ops::{ControlFlow, Range};
use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use ruvllm_hub::{Error, Pulled, Result};

use crate::server::{Faults, noise};
use crate::{Place, contents};

const SOURCE: &str = "hf://org/repo";
const BYTES: usize = 800_000;

fn place() -> Place {
    Place::new(&[("m.gguf", noise(BYTES, 1))])
}

/// Stops a pull when half of the file is there.
fn stop_half_way(place: &Place) {
    // Slow enough that the report about half of the file does not come after the end of it.
    place.hub.set(Faults { trickle: Some((Duration::from_millis(50), 20_000)), ..Faults::default() });
    let half =
        |bytes| if bytes >= BYTES as u64 / 2 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) };
    let reference = SOURCE.parse().unwrap();
    let stopped = place.store.pull(&place.client(), &reference, None, &mut |step| half(step.bytes_done));
    assert!(matches!(stopped, Err(Error::Cancelled)), "{stopped:?}");
    place.hub.set(Faults::default());
    place.hub.take_requests();
}

/// The ranges that were asked of the storage.
fn ranges(place: &Place) -> Vec<Range<u64>> {
    let of_storage = place.hub.take_requests().into_iter().filter(|request| request.to_storage);
    of_storage.filter_map(|request| request.range()).collect()
}

#[track_caller]
fn arrived(pulled: Result<Pulled>, seed: u64) -> Pulled {
    let pulled = pulled.unwrap();
    assert!(contents(&pulled.model.path) == noise(BYTES, seed), "other bytes than the hub's");
    pulled
}

#[test]
fn a_dropped_connection_is_taken_up_where_it_broke() {
    let mut place = place();
    place.settings.connections = 1;
    place.settings.piece_bytes = BYTES as u64;
    place.hub.set(Faults { cuts: VecDeque::from([BYTES / 2, 0, 100_000]), ..Faults::default() });
    let pulled = arrived(place.pull(SOURCE), 1);
    assert_eq!(pulled.downloaded_bytes, BYTES as u64);
    assert_eq!(place.hub.take_sent(), BYTES as u64);
    assert_eq!(ranges(&place), [0..800_000, 400_000..800_000, 400_000..800_000, 500_000..800_000]);
}

#[test]
fn connections_that_always_drop_end_with_an_error_and_the_rest_comes_later() {
    let mut place = place();
    place.settings.connections = 1;
    place.hub.set(Faults { cut_always: Some(1000), ..Faults::default() });
    let error = place.pull(SOURCE).unwrap_err();
    let Error::GaveUp { attempts: 3, source } = &error else { panic!("{error}") };
    assert!(matches!(**source, Error::Interrupted { .. }), "{source}");

    let model = place.store.inspect("m").unwrap();
    assert!(!model.is_complete);
    assert_eq!(place.store.list().unwrap(), [model]);
    assert!(matches!(place.store.get("m"), Err(Error::Incomplete { .. })));

    let sent = place.hub.take_sent();
    place.hub.set(Faults::default());
    let pulled = arrived(place.pull(SOURCE), 1);
    assert!(sent > 0);
    assert_eq!((pulled.downloaded_bytes, place.hub.take_sent()), (BYTES as u64 - sent, BYTES as u64 - sent));
    assert!(place.store.get("m").unwrap().is_complete);
}

#[test]
fn a_stopped_pull_goes_on_later() {
    let place = place();
    stop_half_way(&place);
    assert_eq!(place.files().len(), 2, "a partial file and what is known of it");
    let pulled = arrived(place.pull(SOURCE), 1);
    assert!(pulled.downloaded_bytes <= BYTES as u64 / 2, "{}", pulled.downloaded_bytes);
    assert_eq!(
        ranges(&place).iter().map(|range| range.end - range.start).sum::<u64>(),
        pulled.downloaded_bytes
    );
    assert_eq!(place.files(), ["org--repo/c0ffee/m.gguf"]);
}

#[test]
fn an_unfinished_pull_can_be_removed() {
    let place = place();
    stop_half_way(&place);
    let freed = place.store.remove("m").unwrap();
    assert!((1..BYTES as u64 + 10_000).contains(&freed), "{freed}");
    assert!(place.files().is_empty() && place.store.list().unwrap().is_empty());
}

#[test]
fn a_file_that_has_changed_since_is_fetched_anew() {
    let place = place();
    stop_half_way(&place);
    place.hub.replace(&[("m.gguf", noise(BYTES, 2))], None);
    assert_eq!(arrived(place.pull(SOURCE), 2).downloaded_bytes, BYTES as u64);
}

#[test]
fn another_revision_than_the_interrupted_one_leaves_nothing_behind() {
    let place = place();
    stop_half_way(&place);
    place.hub.replace(&[("m.gguf", noise(BYTES, 2))], Some("beef"));
    let pulled = arrived(place.pull(SOURCE), 2);
    assert!(pulled.freed_bytes > 0);
    assert_eq!(place.files(), ["org--repo/beef/m.gguf"]);
}

#[test]
fn a_file_that_changes_on_the_way_is_an_error() {
    let place = place();
    place.hub.set(Faults { replaced_after_head: true, ..Faults::default() });
    assert!(matches!(place.pull(SOURCE), Err(Error::Changed { .. })));
    assert!(place.files().is_empty());
}

#[test]
fn damaged_remains_are_noticed() {
    for damage in 0..3 {
        let place = place();
        stop_half_way(&place);
        let partial = place.partial();
        let state = partial.with_extension("part.json");
        match damage {
            0 => {
                let mut bytes = fs::read(&partial).unwrap();
                bytes[0] ^= 1;
                fs::write(&partial, bytes).unwrap();
            }
            1 => fs::write(&state, &fs::read(&state).unwrap()[..20]).unwrap(),
            _ => fs::write(&partial, b"short").unwrap(),
        }
        arrived(place.pull(SOURCE), 1);
    }
}

#[test]
fn a_wrong_checksum_is_an_error_and_leaves_nothing() {
    let place = place();
    place.hub.set(Faults { wrong_bytes: true, ..Faults::default() });
    let error = place.pull(SOURCE).unwrap_err();
    assert!(matches!(&error, Error::Checksum { expected, found, .. } if expected != found), "{error}");
    assert!(place.files().is_empty());
    assert!(matches!(place.store.get("m"), Err(Error::Incomplete { .. })));
    place.hub.set(Faults::default());
    arrived(place.pull(SOURCE), 1);
}

#[test]
fn a_failed_update_leaves_the_model_as_it_was() {
    let place = place();
    let model = arrived(place.pull(SOURCE), 1).model;
    place.hub.replace(&[("m.gguf", noise(BYTES, 2))], Some("beef"));
    place.hub.set(Faults { wrong_bytes: true, ..Faults::default() });
    assert!(place.pull(SOURCE).is_err());
    assert_eq!(place.store.get("m").unwrap(), model);
    assert_eq!(place.store.list().unwrap().len(), 1);
    assert!(contents(&model.path) == noise(BYTES, 1));
}

/// The version that the file is of, in whole.
#[track_caller]
fn version(bytes: &[u8]) -> u8 {
    let plain = noise(BYTES, 1);
    let version = bytes[0].wrapping_sub(plain[0]);
    let is_whole =
        bytes.len() == BYTES && plain.iter().zip(bytes).all(|(a, b)| a.wrapping_add(version) == *b);
    assert!(is_whole, "parts of several versions");
    version
}

#[test]
fn without_validators_a_file_is_of_one_answer() {
    for etag in [None, Some("W/\"weak\"")] {
        let place = place();
        let faults = Faults { has_no_validators: etag.is_none(), etag, versions: true, ..Faults::default() };
        place.hub.set(Faults { cuts: VecDeque::from([BYTES / 2, 5000]), ..faults.clone() });
        let pulled = place.pull(SOURCE).unwrap();
        assert_eq!(version(&contents(&pulled.model.path)), 3, "the first two answers were cut");
        assert!(place.hub.take_requests().iter().all(|request| request.range().is_none()));
        assert_eq!(pulled.model.unverified().count(), usize::from(etag.is_none()));
        assert_eq!(place.store.get("m").unwrap(), pulled.model);

        // An interrupted call leaves nothing that is continued.
        place.store.remove("m").unwrap();
        place.hub.set(Faults { cut_always: Some(BYTES / 2), ..faults.clone() });
        assert!(matches!(place.pull(SOURCE), Err(Error::GaveUp { .. })));
        place.hub.set(faults);
        let pulled = place.pull(SOURCE).unwrap();
        assert_eq!(pulled.downloaded_bytes, BYTES as u64);
        version(&contents(&pulled.model.path));
    }
}

#[test]
fn an_etag_alone_holds_pieces_together() {
    let place = place();
    place.hub.set(Faults { etag: Some("\"v1\""), ..Faults::default() });
    let pulled = arrived(place.pull(SOURCE), 1);
    assert_eq!((ranges(&place).len(), pulled.model.unverified().count()), (8, 0));
    // But only as long as every answer has it.
    let place = self::place();
    place.hub.set(Faults { etag: Some("\"v1\""), etag_is_lost: true, ..Faults::default() });
    let error = place.pull(SOURCE).unwrap_err();
    assert!(error.to_string().contains("no ETag"), "{error}");
}

#[test]
fn a_whole_file_of_another_length_is_an_error() {
    let place = place();
    let faults =
        Faults { has_no_validators: true, stated_bytes: Some(BYTES as u64 - 1), ..Faults::default() };
    place.hub.set(Faults {
        listing: Some(r#"{"sha": "c0ffee", "siblings": [{"rfilename": "m.gguf"}]}"#.to_owned()),
        ..faults
    });
    assert!(matches!(place.pull(SOURCE), Err(Error::Changed { .. })));
    assert!(place.files().is_empty());
}

#[test]
fn a_server_without_ranges_sends_whole_files() {
    let place = place();
    place.hub.set(Faults { ignores_ranges: true, cuts: VecDeque::from([5000, 5000]), ..Faults::default() });
    arrived(place.pull(SOURCE), 1);
    // One that drops every time is not asked for ever.
    let place = self::place();
    place.hub.set(Faults { ignores_ranges: true, cut_always: Some(BYTES / 2), ..Faults::default() });
    assert!(matches!(place.pull(SOURCE), Err(Error::GaveUp { .. })));
}

#[test]
fn a_busy_server_is_asked_again_when_it_says() {
    let mut place = place();
    // One connection may meet all of them.
    place.settings.attempts = 6;
    let statuses = VecDeque::from([(429, Some("1")), (503, None), (500, None), (429, Some("0"))]);
    place.hub.set(Faults { statuses, ..Faults::default() });
    arrived(place.pull(SOURCE), 1);
}

#[test]
fn a_server_that_stays_busy_is_an_error() {
    let place = place();
    place.hub.set(Faults { statuses: vec![(503, None); 100].into(), ..Faults::default() });
    let error = place.pull(SOURCE).unwrap_err();
    let Error::GaveUp { attempts: 3, source } = &error else { panic!("{error}") };
    assert!(matches!(**source, Error::Status { status: 503, .. }), "{source}");
    place.hub.set(Faults { statuses: vec![(429, Some("86400")); 100].into(), ..Faults::default() });
    assert!(matches!(place.pull(SOURCE), Err(Error::WaitTooLong { seconds: 86_400, .. })));
}

#[test]
fn trickling_and_silence_are_errors() {
    let mut place = place();
    place.settings.slow_after = Duration::from_millis(200);
    place.settings.slow_bytes = 10_000;
    place.hub.set(Faults { trickle: Some((Duration::from_millis(20), 1)), ..Faults::default() });
    let error = place.pull(SOURCE).unwrap_err();
    assert!(
        matches!(&error, Error::GaveUp { source, .. } if matches!(**source, Error::Slow { .. })),
        "{error}"
    );

    let mut place = self::place();
    place.settings.silence = Duration::from_millis(500);
    place.hub.set(Faults { trickle: Some((Duration::from_secs(5), 1)), ..Faults::default() });
    let error = place.pull(SOURCE).unwrap_err();
    assert!(
        matches!(&error, Error::GaveUp { source, .. } if matches!(**source, Error::Interrupted { .. })),
        "{error}"
    );
}

#[test]
fn two_pulls_of_one_repository_do_not_meet() {
    let place = place();
    let (client, reference) = (place.client(), SOURCE.parse().unwrap());
    place.hub.set(Faults { trickle: Some((Duration::from_millis(20), 20_000)), ..Faults::default() });
    let (begun, refused) = (Barrier::new(2), Barrier::new(2));
    thread::scope(|scope| {
        let first = scope.spawn(|| {
            let mut is_first = true;
            place.store.pull(&client, &reference, None, &mut |_| {
                if std::mem::take(&mut is_first) {
                    begun.wait();
                    refused.wait();
                }
                ControlFlow::Continue(())
            })
        });
        begun.wait();
        let second = place.pull(SOURCE);
        let removed = place.store.remove("m");
        refused.wait();
        assert!(matches!(second, Err(Error::Busy { .. })), "{second:?}");
        assert!(matches!(removed, Err(Error::Busy { .. })), "{removed:?}");
        arrived(first.join().unwrap(), 1);
    });
}
